"""The trained model of lesson 4, which writes words backwards, and measurements on it."""

import contextlib
import functools
import string
from collections.abc import Iterable, Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from numformer import Adam, Config, Layer, PairBatch, Transformer, inference, pack
from numformer.arithmetic import matmul
from numformer.execution.in_turn import InTurn
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.recipe import linear_rate
from numformer.paper.attention import MultiHeadAttention, scaled_dot_product_attention
from numformer.paper.masks import as_mask
from numformer.plots import attention_weights
from toy_tasks.reverse import RULE as DIGITS
from toy_tasks.text_to_text.sequences import SequenceTask

HEADS, STEPS, TESTED, SEED = 4, 350, 200, 1

PLACES = {
    "reading": {
        "the letter itself": (1, 0, 0),
        "the letter before": (1, 0, -1),
        "the letter after": (1, 0, 1),
        "the end mark": (0, 1, 0),
    },
    "writing": {
        "the symbol written last": (1, 0, 0),
        "the symbol written before that": (1, 0, -1),
        "the start mark": (0, 0, 0),
    },
    "cross-attention": {
        "the letter to write": (-1, 1, -1),
        "the letter written last": (-1, 1, 0),
        "the letter to write next": (-1, 1, -2),
        "the end mark": (0, 1, 0),
    },
}
"""For each kind of attention, where place t of n letters may look: (a, b, c) is a t + b n + c."""
PARTS = (
    ("encoder", "self_attention"),
    ("decoder", "self_attention"),
    ("decoder", "cross_attention"),
)
ATTENTIONS = {
    f"{kind}, layer {n + 1}": f"{tower}.layers.{n}.{part}.sublayer"
    for kind, (tower, part) in zip(PLACES, PARTS, strict=True)
    for n in (0, 1)
}
"""The names that a reader sees, each with the model's own name of that attention."""


def random_word(rng: np.random.Generator) -> str:
    letters = rng.integers(26, size=rng.integers(3, 9)).tolist()
    return "".join(map(string.ascii_lowercase.__getitem__, letters))


def backwards(word: str) -> str:
    return word[::-1]


RULE = replace(
    DIGITS, symbols=string.ascii_lowercase, draw_source=random_word, make_target=backwards
)


@functools.cache
def trained() -> tuple[Transformer, SequenceTask]:
    """The trained model and its task; one thread, so that the model is the same each time."""
    task = SequenceTask(RULE, 96, SEED)
    config = Config.base(len(task.text.source), d_model=32, d_ff=64, heads=HEADS, layers=2)
    model = Transformer(config, SEED)
    executor = InTurn(model.objective(), Adam(pack(model)), SEED, 1)
    with threadpool_limits(1, "blas"):
        for step in tqdm(range(1, STEPS + 1), "training", leave=False, disable=None):
            executor.gradient(step, task.batch(step))
            clip_global_norm(executor.optimizer.parameters.grad, 1.0)
            executor.update(linear_rate(step, STEPS, config.d_model, warmup=50, factor=0.5))
    return model, task


def batch_of(words: Iterable[str]) -> PairBatch:
    """Words and what is to be written for them."""
    return PairBatch.of(trained()[1].encode((word, RULE.make_target(word)) for word in words))


@functools.cache
def tested() -> PairBatch:
    """Words that training never saw."""
    return batch_of(word for word, _ in trained()[1].test[:TESTED])


def weights_of(attention: str, batch: PairBatch) -> np.ndarray:
    """The weights (B, H, T, S) of one attention as the model reads and writes these words."""
    of_all = attention_weights(trained()[0], batch.source, batch.target_in)
    return of_all[ATTENTIONS[attention]]


@functools.cache
def shares(attention: str) -> dict[str, np.ndarray]:
    """For each place the mean weight (H,) that the heads give it, over the tested words.

    In writing, positions count from the third on, so that no two places are the same.
    """
    kind, batch = attention.split(",")[0], tested()
    lengths = (batch.source != 0).sum(axis=1) - 1
    word, t = np.nonzero(np.arange(lengths.max()) < lengths[:, None])
    word, t = (rows[t >= 2 * (kind == "writing")] for rows in (word, t))
    weights, found = weights_of(attention, batch), {}
    for place, (a, b, c) in PLACES[kind].items():
        s = a * t + b * lengths[word] + c
        there = (s >= 0) & (s <= lengths[word])
        found[place] = weights[word[there], :, t[there], s[there]].mean(axis=0)
    return found


def exact_match() -> float:
    """The share of tested words that are written without a mistake.

    In such a word each letter is the most probable one after the right letters before it.
    """
    model, batch = trained()[0], tested()
    with inference():
        logits = model.forward(batch.source, batch.target_in)
    right = (logits.argmax(axis=-1) == batch.target_out) | (batch.target_in == 0)
    return float(right.all(axis=1).mean())


def layer(attention: str) -> MultiHeadAttention:
    return trained()[0].named_layers()[ATTENTIONS[attention]]


@contextlib.contextmanager
def without(attention: str, heads: Iterable[int]) -> Iterator[None]:
    """Within the block nothing reads these heads: their rows of W^O are 0."""
    weight = layer(attention).output.weight.data
    before = weight.copy()
    weight.reshape(HEADS, -1, weight.shape[-1])[[*heads]] = 0
    try:
        yield
    finally:
        weight[...] = before


@functools.cache
def left_without(attention: str, heads: tuple[int, ...]) -> float:
    """Exact match without these heads."""
    with without(attention, heads):
        return exact_match()


class OneLook(Layer):
    """query, key, value (B, H, S, K), reach -> (B, H, T, K): all heads use their mean weights."""

    def forward(self, query, key, value, reach):
        _, weights = scaled_dot_product_attention(query, key, value, as_mask(reach))
        return matmul(np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape), value)


@functools.cache
def left_with_one_look(attention: str) -> float:
    """Exact match where all heads of an attention have the same weights, but their own values."""
    with patch.object(layer(attention), "attention", OneLook()):
        return exact_match()
