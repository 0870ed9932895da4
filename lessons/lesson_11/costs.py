"""What attention, the feed-forward network and recurrence cost, against the length."""

import time

import numpy as np

from numformer import Layer, pack
from numformer.paper.attention import SelfAttention
from numformer.paper.feed_forward import FeedForward
from numformer.recurrence import LSTMCell, Recurrent

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
WIDTH, HEADS, TIMES = 128, 4, 7


def layers() -> dict[str, Layer]:
    rng = np.random.default_rng(11)
    return {
        "attention": SelfAttention(WIDTH, HEADS, rng),
        "feed-forward": FeedForward(WIDTH, 4 * WIDTH, rng),
        "recurrence (LSTM)": Recurrent(LSTMCell(WIDTH, rng), WIDTH, rng),
    }


def products(length: int) -> dict[str, int]:
    """Multiplications of matrix products in forward; backward has twice as many."""
    return {
        "attention": 4 * length * WIDTH**2 + 2 * length**2 * WIDTH,
        "feed-forward": 8 * length * WIDTH**2,
        "recurrence (LSTM)": 8 * length * WIDTH**2,
    }


def measured() -> dict[str, list[float]]:
    """The median processor time of forward and backward at each length, in milliseconds."""
    made, rng = layers(), np.random.default_rng(11)
    milliseconds: dict[str, list[float]] = {name: [] for name in made}
    for layer in made.values():
        pack(layer)
    for length in LENGTHS:
        x, dy = rng.standard_normal((2, 1, length, WIDTH), dtype=np.float32)
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(2 + TIMES):
            for name, layer in made.items():
                again = max(1, 256 // length)
                begun = time.process_time()
                for _ in range(again):
                    layer.zero_grad()
                    layer.forward(x)
                    layer.backward(dy.copy())
                times[name].append((time.process_time() - begun) / again)
        for name, of_layer in times.items():
            milliseconds[name].append(1000 * float(np.median(of_layer[2:])))
    return milliseconds


def exponent(lengths, costs) -> float:
    """The power of the length with which costs grow: the slope of log cost over log length."""
    return float(np.polyfit(np.log(lengths), np.log(costs), 1)[0])
