"""The trained model of lesson 4: it writes words backwards, with four heads in each attention.

Its words are 3 to 8 random letters. A hash of a word decides whether training may see it.
"""

import contextlib
import functools
import string
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from numformer import Adam, Config, Layer, PairBatch, Transformer, inference, pack
from numformer.backend import matmul
from numformer.layers.attention import MultiHeadAttention, scaled_dot_product_attention
from numformer.plots import attention_weights
from numformer.training.optimizers import clip_global_norm
from numformer.training.parts import Parts
from numformer.training.recipe import linear_rate
from toy_tasks.sequences import Rule, SequenceTask

HEADS, STEPS, TESTED = 4, 500, 300

ATTENTIONS = {
    "encoder, layer 1": "encoder.layers.0.self_attention.sublayer",
    "encoder, layer 2": "encoder.layers.1.self_attention.sublayer",
    "decoder, layer 1": "decoder.layers.0.self_attention.sublayer",
    "decoder, layer 2": "decoder.layers.1.self_attention.sublayer",
    "decoder to word, layer 1": "decoder.layers.0.cross_attention.sublayer",
    "decoder to word, layer 2": "decoder.layers.1.cross_attention.sublayer",
}
"""The names of the model's attentions by those that a reader sees."""

Place = Callable[[np.ndarray, np.ndarray], np.ndarray]
PLACES: dict[str, dict[str, Place]] = {
    "encoder": {
        "the letter itself": lambda t, length: t,
        "the letter before": lambda t, length: t - 1,
        "the letter after": lambda t, length: t + 1,
        "the end mark": lambda t, length: length,
    },
    "decoder": {
        "what was written last": lambda t, length: t,
        "what was written before that": lambda t, length: t - 1,
        "the start mark": lambda t, length: 0 * t,
    },
    "decoder to word": {
        "the letter to write": lambda t, length: length - 1 - t,
        "the letter written last": lambda t, length: length - t,
        "the letter to write next": lambda t, length: length - 2 - t,
        "the end mark": lambda t, length: length,
    },
}
"""For each kind of attention, where a query may look: the key, from its place t in a word."""


def random_word(rng: np.random.Generator) -> str:
    letters = rng.integers(26, size=rng.integers(3, 9))
    return "".join(string.ascii_lowercase[letter] for letter in letters)


RULE = Rule(
    name="backwards", description="Write a word backwards.", symbols=string.ascii_lowercase,
    source=random_word, target=lambda word: word[::-1], reached=0.9, defaults={},
)  # fmt: skip


@functools.cache
def trained(heads: int = HEADS, p_drop: float = 0.1, seed: int = 1):
    """-> the trained Transformer and its SequenceTask. The same each time, in one thread."""
    task = SequenceTask(RULE, 64, seed)
    size = len(task.text.source)
    config = Config.base(size, d_model=32, d_ff=64, heads=heads, layers=2, p_drop=p_drop)
    model = Transformer(config, seed)
    parts = Parts(model.objective(), Adam(pack(model)), seed, 1)
    with threadpool_limits(1, "blas"):
        for step in tqdm(range(1, STEPS + 1), "training", leave=False, disable=None):
            parts.gradient(step, task.batch(step))
            clip_global_norm(parts.optimizer.parameters.grad, 1.0)
            parts.update(linear_rate(step, STEPS, config.d_model, warmup=50, factor=0.4))
    return model, task


def batch_of(task: SequenceTask, words: Iterable[str]) -> PairBatch:
    """Words and what is to be written for them."""
    return PairBatch.of(task.encode((word, word[::-1]) for word in words))


@functools.cache
def tested() -> PairBatch:
    """Words that training never saw."""
    task = trained()[1]
    return batch_of(task, [word for word, _ in task.test[:TESTED]])


def attentions(model: Transformer) -> dict[str, MultiHeadAttention]:
    """The attentions by the names that a reader sees."""
    layers = model.named_layers()
    return {shown: layers[name] for shown, name in ATTENTIONS.items()}


def exact_match(model: Transformer, batch: PairBatch) -> float:
    """The share of words that are written without a mistake.

    A word is, greedily, if and only if each of its letters is the most probable one after the right
    letters before it. So one forward over all positions tells.
    """
    with inference():
        logits = model.forward(batch.source, batch.target_in)
    right = (logits.argmax(axis=-1) == batch.target_out) | (batch.target_in == 0)
    return float(right.all(axis=1).mean())


@contextlib.contextmanager
def without(attention: MultiHeadAttention, heads: Iterable[int]) -> Iterator[None]:
    """Within the block nobody reads these heads: their rows of W^O are 0."""
    weight = attention.output.weight.data
    before = weight.copy()
    weight.reshape(attention.heads, attention.d_v, -1)[[*heads]] = 0
    try:
        yield
    finally:
        weight[...] = before


@functools.cache
def shares() -> dict[str, dict[str, np.ndarray]]:
    """For each attention and place the share of weight there (H,), over the tested words.

    "even" is what equal weights would give to one key. Of the decoder's attention to itself only
    positions from the third on count, so that no place is another.
    """
    batch = tested()
    of_all = attention_weights(trained()[0], batch.source, batch.target_in)
    lengths = (batch.source != 0).sum(axis=1) - 1
    word, t = np.nonzero(np.arange(lengths.max()) < lengths[:, None])
    found = {}
    for shown, name in ATTENTIONS.items():
        kind = shown.split(",")[0]
        kept = (t >= 2) if kind == "decoder" else t >= 0
        rows = word[kept], t[kept], lengths[word[kept]]
        weights = of_all[f"{name}.attention"]
        keys = rows[1] + 1 if kind == "decoder" else rows[2] + 1
        found[shown] = {"even": np.full(HEADS, (1 / keys).mean())}
        for place, where in PLACES[kind].items():
            s = where(*rows[1:])
            there = (s >= 0) & (s <= rows[2])
            found[shown][place] = weights[rows[0][there], :, rows[1][there], s[there]].mean(axis=0)
    return found


@functools.cache
def pruned() -> dict[str, dict[tuple[int, ...], float]]:
    """For each attention, and each choice of its heads to remove, the exact match that is left."""
    model, found = trained()[0], {}
    choices = [tuple(h for h in range(HEADS) if n >> h & 1) for n in range(2**HEADS)]
    for shown, attention in attentions(model).items():
        found[shown] = {}
        for heads in choices:
            with without(attention, heads):
                found[shown][heads] = exact_match(model, tested())
    return found


class OneLook(Layer):
    """query, key, value (B, H, S, K), mask -> (B, H, T, K_v): all heads blend by the mean weights.

    It has no backward.
    """

    def forward(self, query, key, value, mask=None):
        _, weights, _ = scaled_dot_product_attention(query, key, value, mask)
        return matmul(np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape), value)


@functools.cache
def with_one_look(shown: str) -> float:
    """Exact match where all heads of one attention look at the same, but hand over their own."""
    model = trained()[0]
    attention = attentions(model)[shown]
    before, attention.attention = attention.attention, OneLook()
    try:
        return exact_match(model, tested())
    finally:
        attention.attention = before


def removed_in_turn(worst_first: bool = False) -> list[float]:
    """Exact match as all heads of the model are removed, the least harmful by itself first."""
    model, harm = trained()[0], pruned()
    order = sorted(((shown, head) for shown in ATTENTIONS for head in range(HEADS)),
                   key=lambda each: harm[each[0]][(each[1],)], reverse=not worst_first)  # fmt: skip
    left = [exact_match(model, tested())]
    with contextlib.ExitStack() as removed:
        for shown, head in order:
            removed.enter_context(without(attentions(model)[shown], [head]))
            left.append(exact_match(model, tested()))
    return left
