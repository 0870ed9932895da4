"""What depth does to data, gradients and learning, with norms after, before or nowhere."""

from functools import cache

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn
from numformer import Adam, CrossEntropy, MaskedLanguageModel, pack
from numformer.layer import Layer
from numformer.models.config import TowerConfig
from numformer.paper import Encoder

LAYERS, STEPS, EVERY, SYMBOLS, SPECIALS = 12, 120, 20, 10, 4


class Chain(Layer):
    """x -> x after all parts in turn, with no way around them; without parts, x -> x."""

    def __init__(self, *parts: Layer):
        self.parts = parts

    def forward(self, x, *others):
        for part in self.parts:
            x = part.forward(x)
        return x

    def backward(self, dy):
        for part in reversed(self.parts):
            dy = part.backward(dy)
        return dy


def alter(encoder: Encoder, norm: str, residual: bool) -> None:
    """Take out the norms if `norm` is "none", and the residual connections unless `residual`."""
    for block in encoder.layers:
        for name in ("self_attention", "feed_forward"):
            one = getattr(block, name)
            if norm == "none":
                one.norm = Chain()
            if not residual:
                parts = (one.sublayer, one.norm)[:: -1 if norm == "pre" else 1]
                setattr(block, name, Chain(*parts))


@cache
def measure(norm: str, residual: bool, layers: int = LAYERS) -> dict[str, np.ndarray]:
    """Five numbers for each layer of an untrained encoder with random data: medians of three seeds.

    "size" (L,) is the root mean square of the layer's input. "alike" (L,) says how alike the rows
    of this input are: the mean square of their mean, divided by their mean square. "input",
    "value" and "query" (L,) are the norms of the gradients of the input, W_2 and W_Q, where the
    gradient from above has norm 1.
    """
    with threadpool_limits(1, "blas"):
        found = [measure_once(norm, residual, layers, seed) for seed in range(3)]
    return dict(zip(("size", "alike", "input", "value", "query"), np.median(found, 0), strict=True))


def measure_once(norm: str, residual: bool, layers: int, seed: int) -> np.ndarray:
    """(5, L): what `measure` gives, for one seed."""
    rng, place = np.random.default_rng(seed), "post" if norm == "none" else norm
    config = TowerConfig(d_model=64, d_ff=256, heads=4, layers=layers, norm=place, p_drop=0)
    encoder, found = config.encoder(rng), np.zeros((5, layers))
    pack(encoder, np.float64)
    subs = [(one.feed_forward.sublayer, one.self_attention.sublayer) for one in encoder.layers]
    weights = [(network.outer.weight, attention.query.weight) for network, attention in subs]
    alter(encoder, norm, residual)
    x, dx = rng.standard_normal((2, 2, 16, 64))
    for layer, block in enumerate(encoder.layers):
        found[0, layer] = np.sqrt((x**2).mean())
        found[1, layer] = (x.mean(axis=1) ** 2).mean() / (x**2).mean()
        x = block.forward(x)
    dx /= np.linalg.norm(dx)
    if norm == "pre":
        encoder.norm.forward(x)
        dx = encoder.norm.backward(dx)
    for layer in reversed(range(layers)):
        dx = encoder.layers[layer].backward(dx)
        arrays = dx, *(weight.grad for weight in weights[layer])
        found[2:, layer] = [np.linalg.norm(array) for array in arrays]
    return found


def learn(norm: str, residual: bool, rate: float, rise: int, stop: int = STEPS) -> list[float]:
    """Train an encoder of 12 layers for `stop` steps to write five symbols backwards.

    Returns its losses (stop / EVERY,), means over EVERY steps.

    The learning rate rises from 0 for `rise` steps; then it is constant.
    """
    config = MaskedLanguageModel.Config(
        vocabulary=SYMBOLS + SPECIALS,
        d_model=32,
        d_ff=64,
        heads=2,
        layers=LAYERS,
        norm=norm,
        p_drop=0,
    )
    model, loss, rng = MaskedLanguageModel(config), CrossEntropy(0.1), np.random.default_rng(1)
    alter(model.tower, norm, residual)
    adam, losses = Adam(pack(model)), []
    with threadpool_limits(1, "blas"):
        for step in range(stop):
            ids = rng.integers(SPECIALS, SPECIALS + SYMBOLS, (32, 5))
            model.zero_grad()
            losses.append(float(loss.forward(model.forward(ids), ids[:, ::-1])))
            model.backward(loss.backward())
            adam.step(rate * min(1, (step + 1) / rise))
    return np.reshape(losses, (-1, EVERY)).mean(axis=1).round(4).tolist()


RUNS = {
    "post-norm": ("post", True, 0.0005, 1),
    "post-norm, fast": ("post", True, 0.003, 1),
    "post-norm, fast after 60 steps": ("post", True, 0.003, 60),
    "pre-norm": ("pre", True, 0.0005, 1),
    "pre-norm, fast": ("pre", True, 0.003, 1),
    "post-norm, no way around": ("post", False, 0.0005, 1),
}
NORMS = {"post": "norm after the sum", "pre": "norm before the sublayer", "none": "no norm"}
WHAT = [
    Option("input", "the layer's input", "What flows back through the layers."),
    Option("value", "W₂ of the feed-forward network", "What the feed-forward network learns from."),
    Option(
        "query",
        "W of the queries",
        "What attention learns from. Values below the chart are drawn at its lower edge.",
    ),
]
AT = range(1, LAYERS + 1)
depth = Simulation(
    name="depth",
    title="Gradient against depth",
    say=f"An encoder of {LAYERS} untrained layers. A gradient of length 1 enters behind the last "
    "layer; how much of it reaches each layer? First guess: what will the three lines do when you "
    "take the residual connections away? Then choose weights: which lines are flat, which fall?",
    caption="The length of the gradient of each layer's input, with residual connections.",
    alt="Three lines against the layer from 1 to 12. Without a norm the gradient grows from the "
    "last layer to the first by more than four powers of ten; with a norm it stays near 1.",
    controls=[
        Choice(
            "residual", "Residual connections", [Option(True, "with"), Option(False, "without")]
        ),
        Choice("what", "Gradient of", WHAT),
        Slider("layer", "Layer", list(AT), start=LAYERS - 1, shows_only=True, plays=True),
    ],
    compute=lambda residual, what: {norm: measure(norm, residual)[what] for norm in NORMS},
    views=[
        Chart(
            [Drawn(name, words, at=AT) for name, words in NORMS.items()],
            Axis("layer", 1, LAYERS),
            Axis("length of the gradient, from 1 at the end", 1e-6, 1e7, log=True),
            marker="layer",
            at=AT,
        ),
    ],
    code="""\
from lessons.lesson_06.depth import measure

residual = 0
what = 0
post = measure("post", residual)[what]
pre = measure("pre", residual)[what]
none = measure("none", residual)[what]
print(post.round(3), pre.round(3), none.round(3), sep="\\n\\n")""",
)
