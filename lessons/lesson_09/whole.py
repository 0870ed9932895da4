"""The figure of lesson 9: one training step of a whole Transformer, on a map of its blocks."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lessons import COURSE
from lessons.kit import recorded
from lessons.kit.lesson import BACKWARD, FORWARD, GREY, KEY, QUERY, VALUE, statements
from lessons.kit.recording import Recording
from lessons.kit.simulation import Ids, Option, Simulation, Slider
from lessons.kit.views import Of, View, figure, payload, tenth
from lessons.lesson_09 import model
from lessons.lesson_09.model import CROSS, EDGES, GATES, MASKS, NAMES, PAIRS, Edge
from numformer.formulas import (
    adam,
    cross_entropy,
    cross_entropy_backward,
    embed,
    embed_backward,
    layer_norm,
    layer_norm_backward,
    linear_backward,
    output_projection,
    output_projection_backward,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.paper.attention import MultiHeadAttention, SelfAttention
from numformer.paper.feed_forward import FeedForward
from numformer.paper.residual import Residual

PARAMETERS = model.parameters()
ATTENTIONS = model.ENCODER_ATTENTION, model.DECODER_ATTENTION, CROSS
EMBEDDING = "source.embedding.weight"  # which the target and the output share
POSITIONS, FEATURES = tuple("123"), tuple("12345678")
WIDE, HIGH, ACROSS, UP, LEFT, TOP = 148, 28, 204, 40, 98, 18  # of the map, in SVG's units
AXES = {3: POSITIONS, 7: NAMES, 8: FEATURES, 1: ("",)}


@dataclass(frozen=True)
class Table:
    """A matrix and its gradient, by the names of their arrays or by the name of a parameter."""

    symbol: str
    value: str
    gradient: str = ""
    head: int | None = None
    columns: Sequence[str] = FEATURES

    def of(self) -> list[Of]:
        """An Of for the value and, if there is one, an Of for the gradient."""
        name = self.value if self.head is None else f"{self.value} {self.head}"
        rows, columns = POSITIONS, self.columns
        if self.value in PARAMETERS:
            *first, last = PARAMETERS[self.value][1]
            rows, columns = AXES[[*first, 1][0]], AXES[last]
        made = [Of(name, self.symbol, rows, columns, 2.0)]
        if self.gradient or self.value in PARAMETERS:
            made.append(Of(f"d {name}", rf"\mathrm{{d}}{self.symbol}", rows, columns, 5.0))
        return made

    def matrices(self, arrays) -> list[np.ndarray]:
        if self.value in PARAMETERS:
            begin, shape = PARAMETERS[self.value]
            part = slice(begin, begin + int(np.prod(shape)))
            found = [arrays[name][part].reshape(shape) for name in ("weights", "gradients")]
        else:
            found = [arrays[name] for name in (self.value, self.gradient) if name]
        if self.head is not None:
            found = [array[0, self.head] for array in found]
        return [np.atleast_2d(array) for array in found]


@dataclass(frozen=True)
class Part:
    """A block of the map: where it stands, and what it says and shows when it is opened."""

    name: str
    label: str
    column: int
    row: float
    say: str
    lesson: int
    equation: str
    functions: Sequence
    tables: Sequence[Table]

    def more(self, page) -> dict:
        """`own` are the tables as the page needs them, `code` the library's lines."""
        code = [page.code(source(function)) for function in self.functions]
        own = [
            {"of": [payload(of, page) for of in table.of()], "head": table.head}
            | {"names": [table.value, table.gradient]}
            for table in self.tables
        ]
        entry = COURSE[self.lesson - 1]
        return {
            "equation": page.math(self.equation, display=True),
            "code": "".join(code),
            **dict(zip("xy", self.place, strict=True)),
            "functions": None,
            "tables": own,
            "lesson": {"number": entry.number, "title": entry.title, "page": entry.page},
        }

    @property
    def place(self) -> tuple[int, float]:
        """Its middle on the page's map, in SVG's units."""
        return LEFT + self.column * ACROSS, TOP + (7 - self.row) * UP

    def texts(self, arrays) -> dict[str, list]:
        """What the cells of its tables show; gradients are multiplied by a power of ten."""
        pairs = [(table.of(), table.matrices(arrays)) for table in self.tables]
        power = zoom([matrices[1] for _, matrices in pairs if len(matrices) > 1])
        shown: dict = {}
        for of, matrices in pairs:
            for one, matrix, by in zip(of, matrices, (0, power), strict=False):
                shown[one.name] = one.texts({one.name: matrix * 10**by})
        return shown


def zoom(gradients: Sequence[np.ndarray]) -> int:
    """The power of ten that makes the largest of these numbers 1 or more, at most 4."""
    largest = max((abs(array).max() for array in gradients), default=0)
    return next((power for power in range(4) if largest * 10**power >= 1), 4)


def source(function) -> str:
    """A function of the library without its docstring."""
    lines = inspect.getsource(function).strip().splitlines()
    head = next(line for line in lines if line.strip().startswith("def ")).strip()
    body = "\n".join(statements(function)).splitlines()
    return "\n".join([head, *(f"    {line}" for line in body)])


def attention(name: str, also=()) -> tuple[Table, ...]:
    """The tables of multi-head attention; `also` are those of what it reads besides X."""
    own = f"{name}.sublayer"
    tables = [Table("X", f"forward:{own}:x", f"backward:{own}:dx"), *also]
    for letter, road in zip("QKV", model.ROADS, strict=True):
        layer = f"{own}.{road}"
        tables.append(Table(f"W^{letter}", f"{layer}.weight"))
        tables.append(Table(letter, f"forward:{layer}:y", f"backward:{layer}:dy"))
    names = f"saved:{own}.attention:weights", f"backward:{own}.attention:dweights"
    return (
        *tables,
        *(Table(f"A_{head + 1}", *names, head, POSITIONS) for head in range(2)),
        Table("O", f"forward:{own}.output:x", f"backward:{own}.output:dx"),
        Table("W^O", f"{own}.output.weight"),
        Table("Y", f"forward:{own}:y", f"backward:{own}:dy"),
    )


def network(name: str) -> tuple[Table, ...]:
    own = f"{name}.sublayer"
    return (
        Table("X", f"forward:{own}:x", f"backward:{own}:dx"),
        Table("W_1", f"{own}.inner.weight"),
        Table("b_1", f"{own}.inner.bias"),
        Table("G", f"forward:{own}.inner:y", f"backward:{own}.inner:dy"),
        Table("R", f"forward:{own}.outer:x", f"backward:{own}.outer:dx"),
        Table("W_2", f"{own}.outer.weight"),
        Table("b_2", f"{own}.outer.bias"),
        Table("Y", f"forward:{own}:y", f"backward:{own}:dy"),
    )


def norm(name: str) -> tuple[Table, ...]:
    own = f"{name}.norm"
    return (
        Table("U", f"forward:{own}:x", f"backward:{own}:dx"),
        Table(r"\hat U", f"saved:{own}:x_hat"),
        Table(r"\gamma", f"{own}.gamma"),
        Table(r"\beta", f"{own}.beta"),
        Table("Y", f"forward:{own}:y", f"backward:{own}:dy"),
    )


def embedded(side: str) -> tuple[Table, ...]:
    return (Table("W^E", EMBEDDING), Table("X", f"forward:{side}:y", f"backward:{side}:dy"))


OF_HEAD = scaled_dot_product_attention, scaled_dot_product_attention_backward
HEADS = r"Y = \mathrm{Concat}(A_1 V_1, A_2 V_2)\, W^O, \quad "
HEADS += r"A_i = \mathrm{softmax}\!\left(\frac{Q_i K_i^\top}{\sqrt{d_k}}\right)"
LOSS = r"\mathrm{loss} = -\frac{1}{3}\sum_t \log P_{t, y_t}, \quad P = \mathrm{softmax}(Z)"
KINDS = {  # of blocks: the lesson, the equation, the library's lines
    "embed": (5, r"X = \sqrt{D}\, W^E[\mathrm{ids}] + \mathrm{PE}", (embed, embed_backward)),
    "attention": (4, HEADS, (*OF_HEAD, SelfAttention.backward, MultiHeadAttention.backward)),
    "sum": (
        6,
        r"Y = \gamma \odot \hat U + \beta, \quad U = X + \mathrm{Sublayer}(X)",
        (Residual.backward, layer_norm, layer_norm_backward),
    ),
    "network": (
        6,
        r"Y = R W_2 + b_2, \quad R = \max(0, G), \quad G = X W_1 + b_1",
        (FeedForward.forward, FeedForward.backward, linear_backward),
    ),
    "cross": (7, HEADS, (*OF_HEAD, MultiHeadAttention.backward)),
    "output": (7, r"Z = X\, W^{E\top}", (output_projection, output_projection_backward)),
    "loss": (8, LOSS, (cross_entropy, cross_entropy_backward)),
    "update": (8, r"w \leftarrow w - \eta\, \hat m / (\sqrt{\hat n} + \varepsilon)", (adam,)),
}
TIED = "The same $W^E$ serves source, target and output, so its gradient is the sum of three."
COPIED = "Backward copies the gradient of the sum $U$ onto both roads that lead into it."
GATED = "Each position goes through by itself. No gradient passes where $G$ is negative."
SAY = {
    "source": f"Each symbol takes its row of $W^E$, and its position is added. {TIED}",
    "encoder_attention": "$X$ is read three times, for queries, keys and values, so its gradient "
    "is the sum of three.",
    "encoder_sum": f"What attention found is added to what it read. {COPIED}",
    "encoder_network": GATED,
    "memory": "What leaves the encoder is the memory $H$. The decoder reads it twice, for keys and "
    f"for values, so two gradients come back and are added. {COPIED}",
    "target": f"What has been written so far: the start and all symbols but the last. {TIED}",
    "decoder_attention": "No position sees a later one: the weight of a later one is 0, and no "
    "gradient passes.",
    "decoder_sum": f"What attention found is added to what it read. {COPIED}",
    "cross": "Queries come from the decoder, keys and values from the memory $H$. All that the "
    "encoder learns about the loss comes with the gradient of $H$.",
    "cross_sum": f"What was looked up in the source is added to what was there. {COPIED}",
    "decoder_network": GATED,
    "decoder_out": f"What leaves the decoder. {COPIED}",
    "output": f"Each position is compared with the row of every symbol in $W^E$. {TIED}",
    "loss": "The loss says how little probability the right symbols got. Here the way back begins: "
    "the gradient of the logits $Z$ is the prediction minus the right answer, over the number of "
    "positions.",
    "update": "Every weight takes a step against its gradient. The first step is as long as the "
    "rate, 0.01, whatever the gradient's size. Press **One step on this pair**: then all numbers "
    "are those after the step.",
}
MEMORY = Table("H", "forward:encoder:y", f"backward:{CROSS}.sublayer:dmemory")
LOGITS = Table("Z", "forward:output:y", "backward:loss:dx", columns=NAMES)
PARTS = [
    Part(name, label, column, row, SAY[name], *KINDS[kind], tables)
    for name, label, column, row, kind, tables in (
        ("source", "source: embed", 0, 0, "embed", embedded("source")),
        ("encoder_attention", "self-attention", 0, 1, "attention", attention(ATTENTIONS[0])),
        ("encoder_sum", "add & norm", 0, 2, "sum", norm(ATTENTIONS[0])),
        ("encoder_network", "feed-forward", 0, 3, "network", network(model.ENCODER_NETWORK)),
        ("memory", "add & norm: H", 0, 4, "sum", norm(model.ENCODER_NETWORK)),
        ("target", "target: embed", 1, 0, "embed", embedded("target")),
        ("decoder_attention", "masked attention", 1, 1, "attention", attention(ATTENTIONS[1])),
        ("decoder_sum", "add & norm", 1, 2, "sum", norm(ATTENTIONS[1])),
        ("cross", "cross-attention", 1, 3, "cross", attention(CROSS, [MEMORY])),
        ("cross_sum", "add & norm", 1, 4, "sum", norm(CROSS)),
        ("decoder_network", "feed-forward", 1, 5, "network", network(model.DECODER_NETWORK)),
        ("decoder_out", "add & norm", 1, 6, "sum", norm(model.DECODER_NETWORK)),
        (
            "output",
            "output: logits",
            *(1, 7, "output"),
            (
                Table("X", "forward:output:x", "backward:output:dx"),
                Table("W^E", EMBEDDING),
                LOGITS,
            ),
        ),
        (
            "loss",
            "softmax & loss",
            *(0, 7, "loss"),
            (LOGITS, Table("P", "probabilities", columns=NAMES)),
        ),
        ("update", "update: Adam", 0, 5.5, "update", ()),
    )
]
BY_NAME = {part.name: part for part in PARTS}
UPWARDS = [part.name for part in PARTS[:-1]]
STAGES = [
    *(("forward", name) for name in UPWARDS),
    *(("backward", name) for name in UPWARDS[::-1]),
    ("update", "update"),
]


def line(edge: Edge) -> str:
    """The line of an edge: up, beside other roads; around, on the outer side; or across."""
    (x, y), (to_x, to_y) = BY_NAME[edge.start].place, BY_NAME[edge.end].place
    if x != to_x:
        out = WIDE / 2 if x < to_x else -WIDE / 2
        side = {"key": -6, "value": 6}.get(edge.road, 0)
        y, to_y = y + side, to_y + side
        return f"M{x + out},{y} C{x + 1.8 * out},{y} {to_x - 1.8 * out},{to_y} {to_x - out},{to_y}"
    if edge.road == "around":
        sign = 1 if BY_NAME[edge.start].column else -1
        out, far = sign * WIDE / 2, sign * (WIDE / 2 + 28)
        return f"M{x + out},{y} C{x + far},{y} {x + far},{to_y} {x + out},{to_y}"
    side = {"query": -40, "value": 40}.get(edge.road, 0) * (edge.end != "cross")
    return f"M{x + side},{y - HIGH / 2} L{x + side},{to_y + HIGH / 2}"


def words(edge: Edge) -> str:
    """The words for this edge in the list of paths; none for an edge that all paths take."""
    over = {other.end: other.start for other in EDGES if not other.road}
    inside = BY_NAME[over[edge.end] if edge.road == "around" else edge.end]
    if edge.end in ("output", "loss") or not edge.road:
        return ""
    side = "" if inside.name == "cross" else ("encoder’s ", "decoder’s ")[inside.column]
    way = edge.road if edge.road in ("around", "through") else f"as a {edge.road} of"
    return f"{way} the {side}{inside.label.removeprefix('masked ')}"


@dataclass(frozen=True)
class Whole(View):
    """The model as a map of its blocks; the index of the control `stage` says which is open."""

    parts: Sequence[Part]
    stage: str
    kind: ClassVar = "whole"
    height: float = 5.0

    def more(self, page) -> dict:
        page.script("whole")
        with Recording() as recording:
            pairs = recording.given_ids("given pairs", PAIRS)
            state = model.given("state", model.fresh())
            masks = model.given("masks", model.open_masks())
            loss, *_, after = model.take(pairs, state, masks, None)
            recording.name("loss", recorded.asarray(loss))
            recording.name("after", np.concatenate(after))
        uses = {name: [] for name in PARAMETERS}
        for part in self.parts:
            for table in part.tables:
                if table.value in uses:
                    uses[table.value].append(part.name)
        return {
            "training": recording.data(),
            "state": model.fresh().tolist(),
            "masks": model.open_masks().tolist(),
            "stages": STAGES,
            "size": {
                "wide": WIDE,
                "high": HIGH,
                "box": f"0 0 {2 * LEFT + ACROSS} {2 * TOP + 7 * UP}",
            },
            "names": NAMES,
            "edges": [
                {
                    "from": edge.start,
                    "to": edge.end,
                    "road": edge.road,
                    "line": line(edge),
                    "gate": GATES.index(edge) if edge in GATES else None,
                    "words": words(edge),
                }
                for edge in EDGES
            ],
            "parameters": [
                {"name": name, "begin": begin, "shape": shape, "uses": uses[name]}
                for name, (begin, shape) in PARAMETERS.items()
            ],
            "attentions": [
                {"name": name, "weights": f"saved:{layer}.sublayer.attention:weights"}
                for name, layer in zip(MASKS, ATTENTIONS, strict=True)
            ],
        }

    def widths(self, arrays, way: str) -> list[float]:
        """How thick each edge is: it grows with the norm of what flows, and the thickest is 8."""
        flow = arrays["flow" if way == "forward" else "dflow"]
        return tenth(1 + 7 * flow / max(flow.max(), 1e-6)).tolist()

    def draw(self, figure, arrays, chosen):
        axes, (way, name) = figure.subplots(), STAGES[chosen[self.stage]]
        where = {part.name: (part.column, part.row) for part in self.parts}
        for edge, width in zip(EDGES, self.widths(arrays, way), strict=True):
            (x, y), (to_x, to_y) = where[edge.start], where[edge.end]
            aside = {"around": 0.6 * (x - 0.5), "query": -0.1, "value": 0.1}.get(edge.road, 0)
            if x != to_x:
                x, to_x, y, to_y = x, to_x, y - aside, to_y - aside
                aside = 0
            axes.plot(
                [x, x + aside, to_x + aside, to_x],
                [y, y + 0.2, to_y - 0.2, to_y] if aside else [y, y, to_y, to_y],
                color={"query": QUERY, "key": KEY, "value": VALUE}.get(edge.road, GREY),
                linewidth=width / 1.5,
                zorder=0,
            )
        for part in self.parts:
            colour = (BACKWARD if way == "backward" else FORWARD) if part.name == name else GREY
            box = dict(boxstyle="round", facecolor="white", edgecolor=colour)
            place = where[part.name]
            axes.text(*place, part.label, ha="center", va="center", fontsize=8, bbox=box)
        axes.set(xlim=(-0.6, 1.6), ylim=(-0.5, 7.5))
        axes.axis("off")

    def shown(self, arrays, chosen):
        way, name = STAGES[chosen[self.stage]]
        looks = [
            np.floor(100 * arrays[f"saved:{layer}.sublayer.attention:weights"][0] + 0.5)
            for layer in ATTENTIONS
        ]
        return {
            "block": name,
            "way": way,
            "widths": self.widths(arrays, way),
            "lit": [n for n, edge in enumerate(EDGES) if edge.end == name],
            "tables": BY_NAME[name].texts(arrays),
            "loss": figure(float(arrays["loss"])),
            "predicted": [NAMES[n] for n in arrays["probabilities"].argmax(axis=1)],
            "attention": [look.astype(int).tolist() for look in looks],
        }


def compute(pair) -> dict:
    """Every array of the step but the state after it, which is recorded as given to the next step.

    That state is kept apart because Adam's first step divides a gradient by its own size: where the
    gradient should be 0, the step is rounding error.
    """
    arrays = model.step(pair)
    after = arrays.pop("after")
    if recorded.current:
        recorded.current.name("given after", after)
    return arrays


def simulation() -> Simulation:
    pairs = [
        Option(ids, f"{word} → {word[::-1]}", code=f"np.array({ids.tolist()})")
        for word, ids in zip(model.WORDS, PAIRS, strict=True)
    ]
    stages = [
        Option(name, f"{n}. {way}: {BY_NAME[name].label}" if way != name else f"{n}. update")
        for n, (way, name) in enumerate(STAGES, 1)
    ]
    return Simulation(
        "whole",
        alt="A map of a Transformer with one layer on each side: embeddings at the bottom, blocks "
        "of attention, sums and feed-forward networks above them, output and loss at the top; "
        "lines between the blocks are as thick as the norm of what flows along them.",
        caption="One training step of the whole model. The thicker a line, the more flows there.",
        title="The whole model, there and back",
        say="A Transformer with 1,192 weights learns to reverse three symbols. Play one training "
        "step: the numbers flow up to the loss, the gradient flows back on every road, Adam moves "
        "the weights. **The thicker a line, the more flows along it.** Before you play, guess: "
        "does more gradient reach the encoder through the keys or through the values? Open any "
        "block; pick any weight in it to see on which paths the loss reaches it; change a symbol, "
        "a weight or a mask, and everything responds.",
        controls=[
            Ids("pair", "The pair: a word and its reverse", pairs, WORD, live=True),
            Slider("stage", "One training step", stages, shows_only=True, plays=True),
        ],
        compute=compute,
        views=[Whole(PARTS, "stage")],
        code=CODE,
        size=(6.4, 5.6),
    )


WORD = model.WORDS.index("abc")
CODE = """\
import numpy as np
from numformer.layer import pack
from numformer.models import Transformer
from numformer.optimization.optimizers import Adam

config = Transformer.Config.base(7, d_model=8, d_ff=8, heads=2, layers=1, p_drop=0.0)
objective = Transformer(config, seed=1).objective()
flat = pack(objective.model, np.float64)
flat.data[...] = weights = flat.data.round(2)
pair = ...
start, *word = pair
source, begun, wanted = np.array([word]), np.array([[start, *word[:0:-1]]]), np.array([word[::-1]])
loss = objective.forward(source, begun, wanted)
objective.backward()
gradients = flat.grad.copy()
Adam(flat).step(rate=0.01)
print(loss, abs(gradients).max())"""
whole = simulation()
