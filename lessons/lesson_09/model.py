"""A Transformer small enough to show, and one training step of it with every number in between.

It learns to reverse three symbols. `step` is the library's own step, and gives a name to all that
goes into and comes out of every layer, forward and backward. A reader can also set what the library
has no setting for: other masks, and gates that close a road of the gradient.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import numpy as np

from lessons.kit import recorded
from numformer.arithmetic import matmul
from numformer.backend import array_module
from numformer.data.vocabulary import START
from numformer.interception import intercept
from numformer.layer import FlatParameters, Layer, pack
from numformer.models import Transformer
from numformer.models.model import Objective
from numformer.optimization.optimizers import Adam
from numformer.paper import Dropout, Heads, Reach
from numformer.paper.attention import merge_heads

SYMBOLS = "abc"
NAMES = ["⟨pad⟩", "⟨s⟩", "⟨end⟩", "⟨unk⟩", *SYMBOLS]  # of all ids
LENGTH, RATE = 3, 0.01
WORDS = ["".join(word) for word in itertools.product(SYMBOLS, repeat=LENGTH)]
PAIRS = np.array([[START, *map(NAMES.index, word)] for word in WORDS])
CONFIG = Transformer.Config.base(len(NAMES), d_model=8, d_ff=8, heads=2, layers=1, p_drop=0.0)

ENCODER, DECODER = "encoder.layers.0", "decoder.layers.0"
ENCODER_ATTENTION, ENCODER_NETWORK = f"{ENCODER}.self_attention", f"{ENCODER}.feed_forward"
DECODER_ATTENTION, DECODER_NETWORK = f"{DECODER}.self_attention", f"{DECODER}.feed_forward"
CROSS = f"{DECODER}.cross_attention"
MASKS = "encoder", "decoder", "cross"


def objective() -> Objective:
    return Transformer(CONFIG, seed=1).objective()


def fresh() -> np.ndarray:
    """The state at first: weights to two decimals, Adam's two vectors, the steps taken."""
    weights = pack(objective(), np.float64).data.round(2)
    return np.concatenate([weights, np.zeros(2 * len(weights) + 1)])


def parameters() -> dict[str, tuple[int, tuple[int, ...]]]:
    """For every parameter, where it begins in the vector of all weights, and its shape."""
    named = objective().model.named_parameters()
    ends = itertools.accumulate(parameter.size for parameter in named.values())
    return {
        name: (end - parameter.size, parameter.shape)
        for (name, parameter), end in zip(named.items(), ends, strict=True)
    }


def open_masks() -> np.ndarray:
    """Who may see whom, (3, T, S): all see all, but in the decoder none sees a later one."""
    masks = np.ones((len(MASKS), LENGTH, LENGTH))
    masks[1] = np.tril(masks[1])
    return masks


@dataclass(frozen=True)
class Edge:
    """A line from one block to another, with the names of the arrays that flow up and down it.

    An edge with a `layer` has a gate, which can stop its gradient: what the backward of `layer`
    returns or, on the `road` "around", what is added to that.
    """

    start: str
    end: str
    road: str
    value: str
    gradient: str
    layer: str = ""


def residual(start: str, sublayer: str, end: str, name: str, roads=()) -> list[Edge]:
    """The edges around and through a sublayer; `roads` are those that lead into attention."""
    dsum = f"backward:{name}.norm:dx"
    made = [Edge(start, end, "around", f"forward:{name}:x", dsum, f"{name}.sublayer")]
    made.append(Edge(sublayer, end, "", f"forward:{name}.sublayer:y", dsum))
    for road in roads:
        made.append(into(start, sublayer, road, f"{name}.sublayer.{road}"))
    if not roads:
        value, gradient = f"forward:{name}.sublayer:x", f"backward:{name}.sublayer:dx"
        made.append(Edge(start, sublayer, "through", value, gradient, f"{name}.sublayer"))
    return made


def into(start: str, end: str, road: str, layer: str) -> Edge:
    return Edge(start, end, road, f"forward:{layer}:y", f"backward:{layer}:dx", layer)


ROADS = "query", "key", "value"
EDGES = [
    *residual("source", "encoder_attention", "encoder_sum", ENCODER_ATTENTION, ROADS),
    *residual("encoder_sum", "encoder_network", "memory", ENCODER_NETWORK),
    *residual("target", "decoder_attention", "decoder_sum", DECODER_ATTENTION, ROADS),
    *residual("decoder_sum", "cross", "cross_sum", CROSS, ["query"]),
    *(into("memory", "cross", road, f"{CROSS}.sublayer.{road}") for road in ROADS[1:]),
    *residual("cross_sum", "decoder_network", "decoder_out", DECODER_NETWORK),
    Edge("decoder_out", "output", "through", "forward:output:x", "backward:output:dx", "output"),
    Edge("output", "loss", "", "forward:output:y", "backward:loss:dx"),
]
GATES = [edge for edge in EDGES if edge.layer]


@contextlib.contextmanager
def observed(layers: dict[str, Layer], gates, arrays: dict) -> Iterator[None]:
    """Within the block, record what layers do, and multiply the gradients by their gates.

    What goes into and comes out of each layer, and what it saves, is put into `arrays` by name.
    """

    def side_by_side(name):
        return _merged if isinstance(layers[name], Heads) else _copy

    def forward(name, call, *inputs):
        y = call(*inputs)
        arrays[f"forward:{name}:y"] = side_by_side(name)(y)
        if not isinstance(inputs[0], recorded.Given) and inputs[0].dtype != int:
            arrays[f"forward:{name}:x"] = _copy(inputs[0])
        saved = layers[name].saved
        for key, value in saved[-1].items() if saved else ():
            if key != "x" and hasattr(value, "dtype"):
                arrays[f"saved:{name}:{key}"] = _copy(value)
        return y

    def backward(name, call, *dy):
        if dy:
            arrays[f"backward:{name}:dy"] = side_by_side(name)(dy[0])
        result = call(*dy)
        gradients = result if isinstance(result, tuple) else (result,)
        keys = ("dquery", "dkey", "dvalue") if len(gradients) == 3 else ("dx", "dmemory")
        for key, gradient in zip(keys, gradients, strict=False):
            if gradient is not None:
                arrays[f"backward:{name}:{key}"] = _copy(gradient)
        if len(gradients) == 3:
            values = arrays[f"saved:{name}:value"]
            arrays[f"backward:{name}:dweights"] = matmul(dy[0], values.swapaxes(-1, -2))
        dx, *others = gradients
        for number, edge in enumerate(GATES):
            if edge.layer == name and edge.road == "around":
                # A Residual adds dy to dx afterwards.
                dx = dx + (gates[number] - 1) * arrays[f"backward:{name}:dy"]
            elif edge.layer == name:
                dx = dx * gates[number]
        return (dx, *others) if others else dx

    with intercept(layers, "forward", forward), intercept(layers, "backward", backward):
        yield


def _copy(x):
    return x.copy() if hasattr(x, "copy") else np.array(x)


def _merged(heads):
    """(1, H, T, K) -> (T, H K)."""
    return merge_heads(heads)[0]


def given(name: str, values: np.ndarray):
    """Values that a view lets a reader change, besides the controls."""
    return recorded.current.given(f"given {name}", values) if recorded.current else values


def take(pairs, state, masks, gates, seen: dict | None = None) -> tuple:
    """One training step for pairs (B, 1 + T) of ids -> loss, weights before it, gradients, state.

    The state is that after the step, as a list. Every layer's arrays are put into `seen`.
    """
    made = objective()
    weights = state[: (len(state) - 1) // 3]
    size, xp = len(weights), array_module(state)
    named = [*made.model.named_parameters().values()]
    flat = FlatParameters(weights.copy(), xp.zeros_like(weights), named)
    optimizer = Adam(flat)
    for n, vector in enumerate(optimizer.state.values(), 1):
        vector[...] = state[n * size : (n + 1) * size]
    layers = {
        name.removeprefix("model."): layer
        for name, layer in made.named_layers().items()
        if name not in ("", "model") and not isinstance(layer, Dropout)
    }
    observation = observed(layers, gates, seen) if seen is not None else contextlib.nullcontext()
    rows, places = np.arange(len(pairs)), np.arange(LENGTH)
    first = pairs.shape[1] * rows[:, None]

    def mask(reach, xp=np):
        own = "encoder" if reach.keys is reach.queries else "cross"
        return masks[MASKS.index("decoder" if reach.causal else own)][None, None] > 0

    ids = pairs.ravel()
    source, begun, wanted = places + 1, np.append(0, places[:0:-1] + 1), places[::-1] + 1
    with mock.patch.object(Reach, "mask", mask), observation:
        loss = made.forward(*(ids[first + at] for at in (source, begun, wanted)))
        made.backward()
    after = [data.copy() for data in (flat.data, flat.grad)]
    optimizer.update(flat.grad, state[-1] + 1, RATE)
    return loss, after[0], after[1], [flat.data, *optimizer.state.values(), state[-1:] + 1]


def step(pair, state=None, masks=None, gates=None) -> dict:
    """Every array of one training step, by name."""
    state = given("state", fresh()) if state is None else state
    masks = given("masks", open_masks()) if masks is None else masks
    gates = given("gates", np.ones(len(GATES))) if gates is None else gates
    seen: dict = {}
    loss, weights, gradients, after = take(pair[None], state, masks, gates, seen)
    norm: Callable = lambda x: (x * x).sum() ** 0.5  # noqa: E731
    return seen | {
        "loss": loss,
        "probabilities": seen["saved:loss:exponentials"] / seen["saved:loss:total"],
        "flow": np.stack([norm(seen[edge.value]) for edge in EDGES]),
        "dflow": np.stack([norm(seen[edge.gradient]) for edge in EDGES]),
        "weights": weights,
        "gradients": gradients,
        "masks": masks + 0,
        "after": np.concatenate(after),
    }
