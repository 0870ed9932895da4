"""How much of a gradient reaches words further and further back, and the simulation of it."""

import functools

import numpy as np

from lessons.kit.simulation import Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn
from numformer.layer import pack
from numformer.paper import MultiHeadAttention
from numformer.recurrence import LSTMCell, Recurrent, RNNCell

WIDTH, WORDS, BATCH, SEEDS = 32, 61, 8, 5
SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)
BIASES = (-2, -1, 0, 1, 2, 3, 4)  # of the forget gate


def lengths(layer, seed: int) -> np.ndarray:
    """The length of the gradient that each word gets, (WORDS,), the last word first.

    The words are random. Only the last result gets a gradient from above, a random one.
    """
    rng = np.random.default_rng([seed, 1])
    pack(layer, np.float64)
    x = rng.standard_normal((BATCH, WORDS, WIDTH))
    recurrent = isinstance(layer, Recurrent)
    dresult = np.zeros_like(layer.forward(x) if recurrent else layer.forward(x, x))
    upstream = rng.standard_normal((BATCH, WIDTH))
    dresult[:, -1] = upstream / np.linalg.norm(upstream, axis=-1, keepdims=True)
    dx = layer.backward(dresult)  # attention gives two: of queries, and of keys and values
    return np.linalg.norm(dx if recurrent else sum(dx), axis=-1).mean(axis=0)[::-1]


@functools.cache
def measured(kind: str, setting: float = 1) -> np.ndarray:
    """(SEEDS, WORDS): `lengths` in percent of what the last word itself gets, for each seed.

    The setting is the factor of the RNN's recurrent weights, or the bias of the LSTM's forget gate.
    """
    found = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        if kind == "attention":
            layer = MultiHeadAttention(WIDTH, 4, rng)
        elif kind == "RNN":
            layer = Recurrent(RNNCell(WIDTH, rng), WIDTH, rng)
            layer.cell.weight.data[...] *= setting
        else:
            layer = Recurrent(LSTMCell(WIDTH, rng), WIDTH, rng)
            layer.input.bias.data[WIDTH : 2 * WIDTH] = setting
        found.append(lengths(layer, seed))
    return 100 * np.array(found) / np.array(found)[:, :1]


def typical(kind: str, setting: float = 1) -> np.ndarray:
    """(WORDS,): the geometric mean over the seeds."""
    return np.exp(np.log(measured(kind, setting)).mean(axis=0))


def compute(scale, bias) -> dict[str, np.ndarray]:
    curves = {"rnn": typical("RNN", scale), "lstm": typical("LSTM", bias)}
    return curves | {"attention": typical("attention")}


gradient_by_distance = Simulation(
    name="distance",
    title="How far back does a gradient reach?",
    say="Move the two sliders, then the marker. Find a scale at which the RNN keeps its gradient, "
    "and a bias at which the LSTM does. Then move each slider one notch further. (Values beyond "
    "the chart are drawn at its edge.)",
    caption="Three untrained layers: the gradient of each word, in percent of the last word's.",
    alt="Three curves on a logarithmic axis against the distance from the last word. The RNN's "
    "falls fastest, the LSTM's more slowly. Attention's falls once and then stays flat.",
    controls=[
        Slider("scale", "RNN: recurrent weights times", SCALES, SCALES.index(1)),
        Slider("bias", "LSTM: bias of the forget gate", BIASES, BIASES.index(1)),
        Slider("distance", "Distance, words back", range(WORDS), 20, shows_only=True, plays=True),
    ],
    compute=compute,
    views=[
        Chart(
            [
                Drawn("rnn", "RNN", at=range(WORDS)),
                Drawn("lstm", "LSTM", at=range(WORDS)),
                Drawn("attention", "attention", at=range(WORDS)),
            ],
            Axis("words back", 0, WORDS - 1),
            Axis("percent", 1e-4, 3e5, log=True),
            marker="distance",
            at=range(WORDS),
        ),
    ],
    code="""\
from lessons.lesson_01.distance import typical

scale = 1
bias = 1
rnn = typical("RNN", scale)  # percent, 0 to 60 words back, on numformer's Recurrent
lstm = typical("LSTM", bias)
attention = typical("attention")
print(rnn[20], lstm[20], attention[20])""",
)
