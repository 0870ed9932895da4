"""Measures the time and the memory of a layer's forward and backward at several lengths."""

import functools
import time
import tracemalloc

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from numformer import Layer, pack
from numformer.later.attention.patterns import FullPattern, Window
from numformer.later.attention.tiles import TiledAttention
from numformer.later.mixers.linear_attention import LinearAttention
from numformer.later.mixers.state_space import StateSpace
from numformer.paper.attention import SelfAttention
from numformer.paper.masks import Places, Reach

LENGTHS = np.array([512, 768, 1024, 1536, 2048])
WIDTH, HEADS, WINDOW, TIMES = 64, 2, 64, 5


def tiled(pattern: FullPattern, *sizes) -> Layer:
    """Self-attention with a pattern; long sequences are computed in blocks."""
    return SelfAttention(*sizes, attention=TiledAttention(pattern))


# For each layer: how it is made, and the exponents of T in theory, for its time and its memory.
KINDS = {
    "plain": (SelfAttention, 2, 2),
    "blocks": (functools.partial(tiled, FullPattern()), 2, 1),
    "window": (functools.partial(tiled, Window(window=WINDOW)), 1, 1),
    "linear": (LinearAttention, 1, 1),
    "state space": (StateSpace, 1, 1),
}


def step(layer: Layer, x: np.ndarray, dy: np.ndarray) -> None:
    """Forward and backward of one causal sequence."""
    layer.zero_grad()
    layer.forward(x, Reach(Places.without_padding(1, x.shape[1]), causal=True))
    layer.backward(dy)


def cost(kind: str, length: int) -> tuple[float, float]:
    """-> the processor's seconds for a step, the least of several, and the most bytes in use."""
    rng = np.random.default_rng(13)
    layer = KINDS[kind][0](WIDTH, HEADS, rng)
    pack(layer)
    x, dy = rng.standard_normal((2, 1, length, WIDTH), dtype=np.float32)
    marks = []
    for _ in range(2 + TIMES):
        marks.append(time.process_time())
        step(layer, x, dy.copy())
    tracemalloc.start()
    step(layer, x, dy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(np.diff(marks)[1:]), peak


@functools.cache
def measured() -> dict[str, np.ndarray]:
    """For each kind an array (2, lengths): seconds and bytes."""
    # One thread, because what more threads gain differs from length to length.
    with threadpool_limits(1, "blas"):
        kinds = tqdm(KINDS, "measuring", leave=False, disable=None)
        return {kind: np.array([cost(kind, length) for length in LENGTHS]).T for kind in kinds}


def exponent(costs) -> float:
    """The power of T with which costs grow: the slope of the line through their logarithms."""
    return float(np.polyfit(np.log(LENGTHS), np.log(costs), 1)[0])
