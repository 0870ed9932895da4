"""Measurements on the small translator: what its heads look at, and which of them it needs."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lessons.lesson_11 import forming, small
from numformer import PairBatch, Trained, inference
from numformer.interception import intercept
from numformer.models import Transformer
from numformer.paper.attention import MultiHeadAttention
from toy_tasks.data.datasets import multi30k
from toy_tasks.data.parallel_corpus import read_corpus
from toy_tasks.data.text_files import Pair
from toy_tasks.measures.bleu import import_sacrebleu
from toy_tasks.text_to_text.translation import translate

SURE = 0.3  # the least Dice coefficient of two pieces that go together
OF_ROLES, OF_GRADIENTS, OF_BLEU, BATCH = 400, 200, 200, 50  # sentences
RANDOM, EVERY = 3, 4  # random orders, and how many heads are taken out between two BLEU scores


def corpus(folder: Path) -> dict[str, list[Pair]]:
    """The data that a run was trained on."""
    options = json.loads((folder / "config.json").read_text(encoding="utf-8"))["options"]
    return read_corpus(Path(options["data"] or multi30k()), tuple(options["languages"]))


def together(pairs: Sequence[tuple[list[int], list[int]]], vocabulary: int) -> np.ndarray:
    """How often pieces occur in a pair together: (V, V), source by target, Dice's coefficient.

    2 n(s, t) / (n(s) + n(t)), where n counts pairs of sentences (Dice 1945).
    """
    both = np.zeros((vocabulary, vocabulary), np.float32)
    alone = np.zeros((2, vocabulary), np.float32)
    for begin in range(0, len(pairs), 2000):
        there = np.zeros((2, len(pairs[begin : begin + 2000]), vocabulary), np.float32)
        for row, sides in enumerate(pairs[begin : begin + 2000]):
            for side, ids in enumerate(sides):
                there[side, row, ids] = 1
        both += there[0].T @ there[1]
        alone += there.sum(axis=1)
    return 2 * both / np.maximum(alone[0][:, None] + alone[1], 1)


def goes_with(batch: PairBatch, dice: np.ndarray, target: np.ndarray) -> np.ndarray:
    """For every position of a target (B, T) the one source place that its piece goes with, or -1.

    The place has a larger Dice coefficient than all others of its sentence, and at least SURE.
    """
    of_pairs = dice[batch.source[:, None], target[..., None]]  # (B, T, S)
    of_pairs[np.broadcast_to((batch.source < 4)[:, None], of_pairs.shape)] = 0
    ordered = np.sort(of_pairs, axis=-1)
    sure = (ordered[..., -1] >= SURE) & (ordered[..., -2] < ordered[..., -1]) & (target >= 4)
    return np.where(sure, of_pairs.argmax(axis=-1), -1)


def cross_places(batch: PairBatch, dice: np.ndarray) -> dict[str, np.ndarray]:
    """Named places in the source, given by what the decoder writes and has written."""
    same = batch.source[:, None] == batch.target_out[..., None]  # (B, T, S)
    once = (same.sum(axis=-1) == 1) & (batch.target_out >= 4)
    ends = (batch.source != 0).sum(axis=1)[:, None] - 1
    real = (batch.target_in != 0) & (batch.target_out != 2)
    return {
        "what is to be written, translated": goes_with(batch, dice, batch.target_out),
        "what was written last, translated": goes_with(batch, dice, batch.target_in),
        "the same piece as is to be written": np.where(once, same.argmax(axis=-1), -1),
        "the end mark": np.where(real, ends, -1),
    }


def roles(model: Transformer, pairs: Sequence, dice: np.ndarray) -> list[dict]:
    """The roles of every head, the mean over batches of sentences of the test set."""
    batches = [PairBatch.of(pairs[n : n + BATCH]) for n in range(0, len(pairs), BATCH)]
    found = [forming.all_roles(model, batch, cross_places(batch, dice)) for batch in batches]
    return [
        {name: np.mean([one[name] for one in of_head], axis=0).tolist() for name in of_head[0]}
        for of_head in zip(*found, strict=True)
    ]


def attentions(model: Transformer) -> list[MultiHeadAttention]:
    """Every attention in the explorer's order: encoder, decoder, cross-attention."""
    stacks = [(model.encoder, "self_attention"), (model.decoder, "self_attention")]
    stacks.append((model.decoder, "cross_attention"))
    return [getattr(layer, part).sublayer for stack, part in stacks for layer in stack.layers]


def gates_backward(heads: np.ndarray, dheads: np.ndarray, count: int) -> np.ndarray:
    """heads, dheads (..., H K), the input of W^O and its gradient -> dgates (H,).

    The gate of a head is a factor of 1 that multiplies every number of its output.
    """
    return (heads * dheads).reshape(-1, count, heads.shape[-1] // count).sum(axis=(0, 2))


@contextlib.contextmanager
def gate_gradients(model: Transformer) -> Iterator[list[np.ndarray]]:
    """Within the block each backward stores the gradients of the gates (H,) of every attention."""
    layers = attentions(model)
    gradients = [np.zeros(layer.heads) for layer in layers]

    def around(place, backward, dy):
        heads = layers[place].output.saved[-1]["x"]
        dheads = backward(dy)
        gradients[place] = gates_backward(heads, dheads, layers[place].heads)
        return dheads

    outputs = {place: layer.output for place, layer in enumerate(layers)}
    with intercept(outputs, "backward", around):
        yield gradients


def importance(model: Transformer, pairs: Sequence) -> np.ndarray:
    """(attentions, H): the size of the gradient of each gate, the mean over sentences."""
    objective, total = model.objective(), 0
    with gate_gradients(model) as gradients:
        for pair in pairs:
            objective.zero_grad()
            objective.forward(*PairBatch.of([pair]).inputs)
            objective.backward()
            total = total + abs(np.array(gradients))
    return total / len(pairs)


def prune(model: Transformer, heads: Sequence[tuple[int, int]]) -> None:
    """Take heads out: their rows of W^O become 0."""
    layers = attentions(model)
    for place, head in heads:
        layer = layers[place]
        weight = layer.output.weight.data
        weight.reshape(layer.heads, -1, weight.shape[-1])[head] = 0


def loss(model: Transformer, pairs: Sequence) -> float:
    """The mean loss of sentences, each in a batch of its own."""
    objective = model.objective()
    with inference():
        losses = [objective.forward(*PairBatch.of([pair]).inputs) for pair in pairs]
    return float(np.mean(losses))


def bleu(trained: Trained, pairs: Sequence[Pair]) -> float:
    """The BLEU score of greedy translations."""
    sources, references = zip(*pairs, strict=True)
    written = translate(trained.text, trained.model, sources, beam=1)
    score = import_sacrebleu().BLEU(tokenize="none", force=True).corpus_score(written, [references])
    return round(score.score, 2)


def curve(trained: Trained, pairs: Sequence[Pair], order: Sequence, every: int = 1) -> list:
    """BLEU as heads are taken out in an order: [how many, BLEU] after each `every` heads."""
    before, scores = trained.model.state_dict(), []
    for count in range(0, len(order) + 1, every):
        prune(trained.model, order[:count])
        scores.append([count, bleu(trained, pairs)])
    trained.model.load_state_dict(before)
    return scores


def pruned(trained: Trained, data: dict[str, list[Pair]], encoded: dict) -> dict:
    """The importance of all heads, and what happens when they are taken out.

    BLEU by importance, at random and in the encoder alone; the added loss of each head alone.
    """
    found = importance(trained.model, encoded["val"][:OF_GRADIENTS])
    places = [*itertools.product(range(len(found)), range(small.HEADS))]
    by_importance = sorted(places, key=lambda place: found[place])
    rng, pairs = np.random.default_rng(1), data["test"][:OF_BLEU]
    drawn = [[places[n] for n in rng.permutation(len(places))] for _ in range(RANDOM)]
    alone, whole = [], loss(trained.model, encoded["val"][:OF_GRADIENTS])
    before = trained.model.state_dict()
    for place in places:
        prune(trained.model, [place])
        alone.append(loss(trained.model, encoded["val"][:OF_GRADIENTS]) - whole)
        trained.model.load_state_dict(before)
    of_encoder = [place for place in by_importance if place[0] < small.LAYERS]
    return {
        "importance": found.round(5).tolist(),
        "order": by_importance,
        "by importance": curve(trained, pairs, by_importance),
        "at random": [curve(trained, pairs, order, EVERY) for order in drawn],
        "encoder": curve(trained, pairs, of_encoder),
        "alone": alone,
    }
