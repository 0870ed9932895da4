"""What depth does to data and gradients, with the norm after, before or nowhere, and to learning.

Encoders of numformer, as they begin: random weights, random data, a random gradient from above.
"""

from functools import cache

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.simulation import Choice, Option, Simulation, Slider
from lessons.views import Axis, Chart, Drawn
from numformer import Adam, CrossEntropy, MaskedLanguageModel, pack
from numformer.layer import Layer
from numformer.layers import Residual
from numformer.models.block import Tower, TowerConfig

LAYERS, SEEDS = 12, 3
BATCH, LENGTH, WIDTH = 2, 16, 64


class NoNorm(Layer):
    """x -> x: what stands where a norm is left out."""

    def forward(self, x):
        return x

    def backward(self, dy):
        return dy.copy()  # its receiver may overwrite it


class NoSkip(Residual):
    """A Residual without the path around its sublayer."""

    def __init__(self, residual: Residual):
        self.sublayer, self.norm = residual.sublayer, residual.norm
        self.norm_first = residual.norm_first

    def forward(self, x, *others):
        if self.norm_first:
            return self.sublayer.forward(self.norm.forward(x), *others)
        return self.norm.forward(self.sublayer.forward(x, *others))

    def backward(self, dy):
        if self.norm_first:
            return self.norm.backward(self.sublayer.backward(dy))
        return self.sublayer.backward(self.norm.backward(dy))


def alter(tower: Tower, norm: str, residual: bool) -> Tower:
    """Take the norms out where `norm` is "none", and the ways around where there are to be none."""
    for block in tower.layers:
        for name in ("self_attention", "feed_forward"):
            one = getattr(block, name)
            if norm == "none":
                one.norm = NoNorm()
            if not residual:
                setattr(block, name, NoSkip(one))
    return tower


@cache
def measure(norm: str, residual: bool, layers: int = LAYERS) -> dict[str, np.ndarray]:
    """Of each layer of an encoder (L,), the medians of three seeds.

    "size" is the root mean square of its input, "alike" how alike this input is at all positions:
    the share of its square that their mean has. Then come the norms of gradients, where the one
    from above has norm 1: "input" of its input, "value" of W_2, "query" of W_Q.
    """
    found = [_measure(norm, residual, layers, seed) for seed in range(SEEDS)]
    return {name: np.median([each[name] for each in found], axis=0) for name in found[0]}


def _measure(norm, residual, layers, seed):
    rng = np.random.default_rng(seed)
    place = "post" if norm == "none" else norm
    config = TowerConfig(
        d_model=WIDTH, d_ff=4 * WIDTH, heads=4, layers=layers, norm=place, p_drop=0
    )
    tower = alter(Tower(config, rng), norm, residual)
    pack(tower, np.float64)
    x = rng.standard_normal((BATCH, LENGTH, WIDTH))
    dy = rng.standard_normal(x.shape)
    size, alike, into = [], [], []
    with threadpool_limits(1, "blas"):
        for block in tower.layers:
            size.append(np.sqrt((x**2).mean()))
            alike.append((x.mean(axis=1) ** 2).mean() / (x**2).mean())
            x = block.forward(x)
        dx = dy / np.linalg.norm(dy)
        if tower.norm:
            tower.norm.forward(x)
            dx = tower.norm.backward(dx)
        for block in reversed(tower.layers):
            dx = block.backward(dx)
            into.append(np.linalg.norm(dx))
    weights = [(block.feed_forward.sublayer.outer, block.self_attention.sublayer.query)
               for block in tower.layers]  # fmt: skip
    value, query = np.array([[np.linalg.norm(one.weight.grad) for one in pair]
                             for pair in weights]).T  # fmt: skip
    made = {"size": size, "alike": alike, "input": into[::-1], "value": value, "query": query}
    return {name: np.array(each) for name, each in made.items()}


# Learning: to write a short sequence backwards, by an encoder alone.
SYMBOLS, SPECIALS, STEPS = 10, 4, 120


@cache
def learn(norm: str, residual: bool, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Train an encoder of 12 layers with a constant learning rate -> its losses (STEPS,), first.

    `first` (L,) are the norms of the gradients of W_2 in the first step.
    """
    vocabulary = SYMBOLS + SPECIALS
    config = MaskedLanguageModel.Config(
        vocabulary=vocabulary, d_model=32, d_ff=64, heads=2, layers=LAYERS, norm=norm, p_drop=0
    )
    model, loss, rng = MaskedLanguageModel(config), CrossEntropy(), np.random.default_rng(1)
    alter(model.tower, norm, residual)
    adam, losses = Adam(pack(model)), []
    with threadpool_limits(1, "blas"):
        for _ in range(STEPS):
            ids = rng.integers(SPECIALS, vocabulary, (32, 5))
            model.zero_grad()
            logits = model.forward(ids)
            losses.append(float(loss.forward(logits, ids[:, ::-1])))
            model.backward(loss.backward())
            if len(losses) == 1:
                first = [np.linalg.norm(block.feed_forward.sublayer.outer.weight.grad)
                         for block in model.tower.layers]  # fmt: skip
            adam.step(rate)
    return np.array(losses), np.array(first)


NORMS = {"post": "norm after the sum", "pre": "norm before the sublayer", "none": "no norm"}
WHAT = [
    Option("input", "the layer's input", "What flows back through the layers."),
    Option("value", "W₂ of the feed-forward network", "What the values of the memory learn from."),
    Option("query", "W_Q of attention", "What attention learns from. What is below the chart "
           "stands at its lower edge."),
]  # fmt: skip
RESIDUAL = [Option(True, "with"), Option(False, "without", "Each sublayer replaces its input.")]


def compute(residual: bool, what: str) -> dict[str, np.ndarray]:
    return {norm: measure(norm, residual)[what] for norm in NORMS}


AT = range(1, LAYERS + 1)
depth = Simulation(
    name="depth",
    title="Gradient against depth",
    say=f"An encoder of {LAYERS} layers as it begins. A gradient of length 1 comes in behind the "
    "last layer; see what of it arrives where. First guess: which of the three lines will leave "
    "the chart, and at which end, when you take the residual connections away?",
    caption="The length of the gradient of each layer's input, with residual connections.",
    alt="Three lines against the layer from 1 to 12. Without a norm the gradient grows from the "
    "last layer to the first by more than four powers of ten; with a norm after or before it stays "
    "near 1.",
    controls=[
        Choice("residual", "Residual connections", RESIDUAL),
        Choice("what", "Gradient of", WHAT),
        Slider("layer", "Layer", list(AT), start=LAYERS - 1, shows_only=True, plays=True),
    ],
    compute=compute,
    views=[
        Chart(
            [Drawn(name, words, at=AT) for name, words in NORMS.items()],
            Axis("layer", 1, LAYERS), Axis("length of the gradient", 1e-6, 1e7, log=True),
            marker="layer", at=AT,
        )
    ],
    code="""\
from lessons.lesson_06.depth import measure

residual = 0
what = 0
post = measure("post", residual)[what]
pre = measure("pre", residual)[what]
none = measure("none", residual)[what]
print(post.round(3), pre.round(3), none.round(3), sep="\\n\\n")""",
)  # fmt: skip
