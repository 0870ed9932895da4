"""The example of lesson 6, an encoder block with chosen weights, and two simulations of it."""

import contextlib
import functools
from collections.abc import Iterator

import numpy as np

from lessons.kit.simulation import Choice, Entries, Option, Simulation, Slider
from lessons.kit.views import Block as Box
from lessons.kit.views import Diagram, Figures, Matrices, Of, numbers
from numformer.backend import array_module
from numformer.interception import intercept
from numformer.layer import Layer, pack
from numformer.paper import EncoderLayer
from numformer.paper.config import LayerConfig
from numformer.paper.layer_norm import layer_norm, layer_norm_backward

tokens = ["the", "cat", "purrs"]
features = ["noun", "verb", "animal", "sound", "definite"]
memories = ["noun + sound", "verb + sound", "definite", "noun − verb", "animal", "neither"]
x = np.array([[-1, -1, 0, 0, 3], [4, -2, 0, 0, 0], [-2, 3, 0, 3, 0]], dtype=float)
# W_1: a column is a key, what a hidden value looks for. W_2: a row is a value, what it writes.
inner = np.array(
    [
        [1, 0, 0, 1, 0, -1],
        [0, 1, 0, -1, 0, -1],
        [0, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
    ],
    dtype=float,
)
inner_bias = np.array([-1, -1, -1, -1, 0, -1], dtype=float)
outer = np.array(
    [
        [0, 0, 2, -1, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [-0.5, 0, 0, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, -1, 0, 1],
    ],
    dtype=float,
)
WEIGHTS = {
    "self_attention.sublayer.query.weight": np.array([[1, 2, 0, 0, 2]]).T / 4,
    "self_attention.sublayer.key.weight": np.array([[1, 0, 0, 0, 0]]).T / 2,
    "self_attention.sublayer.value.weight": np.eye(5)[:, 3:],
    "self_attention.sublayer.output.weight": np.diag([2.0, 1.0]) @ np.eye(5)[3:],
    "feed_forward.sublayer.inner.weight": inner,
    "feed_forward.sublayer.inner.bias": inner_bias,
    "feed_forward.sublayer.outer.weight": outer,
}
doutput = np.array([[0, 1, -1, 0, 2], [2, -1, 0, 3, 1], [1, 0, -2, 1, 0]], dtype=float)


def example(xp=np) -> EncoderLayer:
    """A block with these weights in float64, its norms without epsilon."""
    config = LayerConfig(d_model=5, d_ff=6, heads=1, d_k=1, d_v=2, p_drop=0)
    block = config.encoder_layer(np.random.default_rng(0))
    pack(block, np.float64)
    for name, values in WEIGHTS.items():
        block.named_parameters()[name].data[...] = values
    pack(block, np.float64, xp)
    block.self_attention.norm.epsilon = block.feed_forward.norm.epsilon = 0.0  # for round numbers
    return block


@contextlib.contextmanager
def recorded_calls(layer: Layer) -> Iterator[dict]:
    """Inside `with`, record the input and the result of each layer within, by name and method."""
    calls: dict[tuple[str, str], tuple] = {}

    def record(method, name, call, *inputs):
        before = inputs[0].copy()  # a layer that receives a gradient may overwrite it
        result = call(*inputs)
        calls[name, method] = before, (result[0] if isinstance(result, tuple) else result).copy()
        return result

    with contextlib.ExitStack() as stack:
        for method in ("forward", "backward"):
            around = functools.partial(record, method)
            stack.enter_context(intercept(layer.named_layers(), method, around))
        yield calls


# Of each matrix: its symbol, its columns, the layer and method that it belongs to, and whether it
# goes into this method (0) or comes out of it (1).
ATTENTION, FFN = "self_attention.sublayer", "feed_forward.sublayer"
NORM_1, NORM_2, HIDDEN = "self_attention.norm", "feed_forward.norm", f"{FFN}.activation"
KEYS = [*"123456"]
MATRICES = {
    "x": ("X", features, ATTENTION, "forward", 0),
    "attended": ("O", features, ATTENTION, "forward", 1),
    "sum_1": ("U", features, NORM_1, "forward", 0),
    "normed": ("N", features, NORM_1, "forward", 1),
    "hidden": ("R", KEYS, HIDDEN, "forward", 1),
    "written": ("F", features, FFN, "forward", 1),
    "sum_2": (r"U'", features, NORM_2, "forward", 0),
    "y": ("Y", features, NORM_2, "forward", 1),
    "dy": (r"\mathrm{d}Y", features, NORM_2, "backward", 0),
    "dsum_2": (r"\mathrm{d}U'", features, NORM_2, "backward", 1),
    "dwritten": (r"\mathrm{d}F", features, FFN, "backward", 0),
    "dhidden": (r"\mathrm{d}G", KEYS, HIDDEN, "backward", 1),
    "dnormed_2": (r"\mathrm{d}N_{\mathrm{ffn}}", features, FFN, "backward", 1),
    "dnormed": (r"\mathrm{d}N", features, NORM_1, "backward", 0),
    "dsum_1": (r"\mathrm{d}U", features, NORM_1, "backward", 1),
    "dattended": (r"\mathrm{d}O", features, ATTENTION, "backward", 0),
    "dx_1": (r"\mathrm{d}X_{\mathrm{att}}", features, ATTENTION, "backward", 1),
    "dx": (r"\mathrm{d}X", features, "self_attention", "backward", 1),
}
OPERANDS = {  # what else a part computes with: its numbers, its symbol, its rows and columns
    "w_v": (WEIGHTS[f"{ATTENTION}.value.weight"], "W^V", features, ["1", "2"]),
    "w_o": (WEIGHTS[f"{ATTENTION}.output.weight"], "W^O", ["1", "2"], features),
    "w_1": (np.vstack([inner, inner_bias]), "W_1", [*features, "+ b₁"], KEYS),
    "w_2": (outer, "W_2", KEYS, features),
}
GROUPS = [
    group.split()
    for group in (  # what is shown of each part, forward and then backward
        "x",
        "x w_v w_o weights → attended",
        "x attended → sum_1",
        "sum_1 → normed",
        "normed w_1 → hidden w_2 → written",
        "normed written → sum_2",
        "sum_2 → y",
        "dsum_1 dx_1 → dx",
        "dattended w_v w_o weights → dx_1",
        "dsum_1 → dattended",
        "dsum_2 dnormed_2 → dnormed normed → dsum_1",
        "dwritten w_2 hidden → dhidden w_1 → dnormed_2",
        "dsum_2 → dwritten",
        "dy y → dsum_2",
    )
]


def compute(part=0, way=1, dy=doutput, x=x) -> dict[str, np.ndarray]:
    """Every matrix of the block, and the part and direction that a reader looks at."""
    block = example(array_module(x))
    with recorded_calls(block) as calls:
        block.forward(x[None])
        arrays = {"weights": block.self_attention.sublayer.attention.saved[-1]["weights"][0, 0]}
        block.backward(dy[None])
    for name, (*_, layer, direction, place) in MATRICES.items():
        arrays[name] = calls[layer, direction][place][0]
    sizes = np.stack([np.sqrt((arrays[group[-1]] ** 2).mean()) for group in GROUPS])
    arrays |= {name: numbers for name, (numbers, *_) in OPERANDS.items()}
    arrays |= {"part": part, "way": way, "group": np.where(way > 0, part, 7 + part)}
    return arrays | {"sizes": np.where(way > 0, sizes[:7], sizes[7:])}


WAYS = [
    Option(1, "data, forward", "Below each name: the typical size of what the part hands on."),
    Option(-1, "gradient, backward", "Below each name: the typical size of what it hands back."),
]
PARTS = [
    Option(
        0,
        "x",
        "The input, and on the way back its gradient. $X$ was used twice, by attention "
        "and by the sum: its two gradients add up.",
    ),
    Option(
        1,
        "attention",
        "The only part in which words see each other: $O = A\\,X W^V W^O$. On the way back a word "
        "may get a gradient from another's result.",
    ),
    Option(
        2,
        "add 1",
        "$U = X + O$. On the way back a sum changes nothing: $\\mathrm{d}U$ goes to "
        "$O$ as it is, and to $X$ as it is.",
    ),
    Option(
        3,
        "norm 1",
        "Each row minus its mean, divided by its standard deviation. $N$ is used twice, so on the "
        "way back two gradients add up to $\\mathrm{d}N$; then the norm takes two parts away.",
    ),
    Option(
        4,
        "feed-forward",
        "Each row by itself is compared with six keys. Keys that fit ($R$) write their values "
        "($F$). Nothing passes back where $R$ is 0.",
    ),
    Option(5, "add 2", "$U' = N + F$: what the feed-forward network writes is added."),
    Option(
        6,
        "norm 2",
        "The row of *cat* has mean 0 and standard deviation 1 already, so nothing "
        "changes there. Let all entries of $\\mathrm{d}Y$ be 1: what comes out, and why?",
    ),
]


def array(matrix: np.ndarray) -> str:
    return f"np.array({numbers(matrix)}, float)"


UPSTREAM = [
    Option(matrix, label, note, array(matrix))
    for matrix, label, note in (
        (doutput, "as given", ""),
        (
            doutput * np.eye(3)[:, 1:2],
            "only cat",
            "The loss depends on the result of *cat* alone. Which parts send a gradient to the "
            "other words?",
        ),
        (np.ones((3, 5)), "all ones", "The loss is the sum of all of $Y$. Look at the last norm."),
    )
]


def shown_as(name: str) -> Of:
    if name in OPERANDS:
        _, symbol, rows, columns = OPERANDS[name]
        return Of(name, symbol, rows, columns, 4)
    if name == "weights":
        return Of(name, "A", tokens, tokens, 1, "who looks at whom")
    symbol, columns, *_ = MATRICES[name]
    below = {"hidden": "how keys fit, after the ReLU", "dhidden": "before the ReLU"}.get(name, "")
    return Of(name, symbol, tokens, columns, 4, below)


PLACES = [(0, 0), (1, 0.5), (0, 1), (0, 2), (1, 2.5), (0, 3), (0, 4)]
NAMES = ["x", "att", "add1", "norm1", "ffn", "add2", "norm2"]
EDGES = "x-att x-add1 att-add1 add1-norm1 norm1-ffn norm1-add2 ffn-add2 add2-norm2"
BOXES = [(name, part.label, place) for name, part, place in zip(NAMES, PARTS, PLACES, strict=True)]

flows = Simulation(
    name="block",
    title="Data and gradient through the block",
    say="Click a part of the block to see what goes in and what comes out. Go from $x$ to the last "
    "norm, then let the gradient flow and go back. **Which part hands something from one word "
    "to another?** Type other numbers and see.",
    caption="The block: from $x$ down to the result. Each number is the typical size of what its "
    "part hands on. Below: what goes into the first norm, and what comes out.",
    alt="Seven boxes: x, attention, add, norm, feed-forward, add, norm. x leads to attention and "
    "around it to add, the first norm to feed-forward and around it to add.",
    size=(7.6, 7),
    controls=[
        Choice("way", "What flows", WAYS, live=True),
        Choice("dy", "Gradient from above", UPSTREAM, live=True),
        Choice("part", "Part of the block", PARTS, start=3, live=True),
        Entries(
            "x", "Input", [Option(x, "the cat purrs")], symbol="X", rows=tokens, columns=features
        ),
    ],
    compute=compute,
    views=[
        Diagram(
            [Box(name, label, *place) for name, label, place in BOXES],
            [edge.split("-") for edge in EDGES.split()],
            "part",
            "way",
            "sizes",
            "part",
            turns=True,
        ),
        Matrices(
            [shown_as(name) for name in ("weights", *MATRICES, *OPERANDS)],
            groups=GROUPS,
            group="group",
        ),
    ],
    code="""\
import numpy as np
from lessons.lesson_06.block import example

x = 0
dy = 0
block = example()
y = block.forward(x[None])[0]
dx = block.backward(dy[None])[0]
print(y.round(2), dx.round(2), sep="\\n\\n")""",
)

# LayerNorm of one row: that of *cat*, as it comes into the first norm.
cat = np.array([4.0, -2, 0, 2, 1])
OF_ROW = [
    Option(np.array([[-4.25, -1.25, -1.3, -2.6, 0]]), "from the block"),
    Option(
        np.array([[1.0, 1, 1, 1, 1]]),
        "all the same",
        "The loss is the sum of the result, which is always 0. All of the gradient is along 1, so "
        "nothing is left.",
    ),
    Option(
        np.array([[3.0, -3, -1, 1, 0]]),
        "like x̂",
        "With *sound* at 2 this is $2\\hat x$, and nothing is left. Then move *sound*.",
    ),
    Option(
        np.array([[0.0, 0, 0, 1, 0]]),
        "only sound",
        "One entry of the result counts. Which entries of $x$ get a gradient?",
    ),
]


def normalise(sound: float, scale: float, shift: float, dy: np.ndarray) -> dict[str, np.ndarray]:
    """The library's forward and backward with gamma 1, beta 0 and no epsilon, and their parts."""
    row = np.where(np.array(features) == "sound", sound, cat)
    x = scale * row[None] + shift
    gamma = np.ones(5)
    _, hat, rstd = layer_norm(x, gamma, np.zeros(5), 0.0)
    dx, _, _ = layer_norm_backward(dy, hat, rstd, gamma)
    along_1 = np.ones((1, 5)) * dy.mean()
    along_hat = hat * (dy * hat).mean()
    return {
        "forward": np.concatenate([x, x - x.mean(), hat]),
        "backward": np.concatenate([dy, along_1, along_hat, dy - along_1 - along_hat, dx]),
        "hat": hat[0],
        "dx": dx[0],
        "mean": x.mean(),
        "deviation": 1 / rstd[0, 0],
        "total": dx.sum(),
        "product": (dx * hat).sum(),
    }


row = Simulation(
    name="row",
    title="One row through LayerNorm",
    say="Scale the row and shift it: which numbers move, and which do not? Then the way back: "
    r"which upstream gradient makes $\mathrm{d}x$ exactly 0? There are two kinds.",
    caption="The row of *cat*, and its gradient with the two parts that backward takes away.",
    alt="Two small matrices of five columns. The first has the row, the row minus its mean and the "
    "row normalised; the second has the gradient and the two parts that are taken from it.",
    size=(7.6, 3.0),
    controls=[
        Slider("sound", "Entry sound", np.arange(-3.0, 6).tolist(), start=5, live=True),
        Slider("scale", "Times", [0.5, 1.0, 2.0], start=1, live=True),
        Slider("shift", "Plus", [-2.0, -1.0, 0.0, 1.0, 2.0], start=2, live=True),
        Entries(
            "dy",
            "Upstream gradient",
            OF_ROW,
            symbol=r"\mathrm{d}\hat x",
            rows=["cat"],
            columns=features,
        ),
    ],
    compute=normalise,
    views=[
        Matrices(
            [
                Of("forward", "x", ["x", "x − mean", "x̂"], features, 4.0, "forward"),
                Of(
                    "backward",
                    r"\mathrm{d}x",
                    ["dx̂", "along 1", "along x̂", "left", "dx"],
                    features,
                    4.0,
                    "backward: two parts are taken away",
                ),
            ]
        ),
        Figures(
            {
                "mean": "mean of x",
                "deviation": "standard deviation of x",
                "total": "sum of dx",
                "product": "dx · x̂",
            }
        ),
    ],
    code="""\
import numpy as np
from numformer.paper.layer_norm import layer_norm, layer_norm_backward

sound = 2.0
scale = 1.0
shift = 0.0
dy = 0
x = scale * np.array([[4, -2, 0, sound, 1]]) + shift
gamma, beta = np.ones(5), np.zeros(5)
y, x_hat, rstd = layer_norm(x, gamma, beta, 0.0)
dx = layer_norm_backward(dy, x_hat, rstd, gamma)[0][0]
hat = x_hat[0]
print(hat.round(3), dx.round(3))""",
)
