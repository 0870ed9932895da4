"""A stepper through scaled dot-product attention, forward and backward (lesson 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.widgets import RadioButtons, Slider

from lessons.lesson import BLUE, Matrix, plain
from lessons.lesson_03.attention_steps import FORWARD, MATRICES, SOFTMAX, STEPS, Step
from lessons.simulation import Simulation, equation, numbers, tagged
from lessons.trace import Line, find, trace
from numformer.backend import dot_last
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.softmax import softmax, softmax_backward

SYMBOLS = {name: matrix.latex for name, matrix in MATRICES.items()}
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4)
MIRRORED = (
    ("query", "key", "value"),
    ("scores", "masked", "weights", "output"),
    ("dscores", "dscaled", "dweights", "doutput"),
    ("dquery", "dkey", "dvalue"),
)
FORWARD_WORDS = r"""forward ↓
$S = QK^\top$
$Z = S\,/\,\sqrt{d_k}$
$A = \mathrm{softmax}(Z)$
$O = AV$"""
BACKWARD_WORDS = r"""backward ↑
from $\mathrm{d}O$ to
$\mathrm{d}V, \mathrm{d}A, \mathrm{d}Z, \mathrm{d}S$,
$\mathrm{d}Q, \mathrm{d}K$"""


def attention_stepper(
    tokens: Sequence[str],
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    doutput: np.ndarray,
    features: Sequence[str],
    entries: Sequence[str],
) -> Simulation:
    """Step through Attention(Q, K, V) and its backward on an example.

    tokens T, query and key (T, K), value and the upstream gradient doutput (T, K_v), of integers
    that a reader can follow; `features` names the K entries of queries and keys, `entries` the K_v
    of values.
    """
    example = Example(tokens, query, key, value, doutput, features, entries)
    return Simulation(
        name="attention_stepper",
        title="Attention, step by step, there and back",
        caption="Read it row by row: forward in the first two rows, then backward, from the "
        "third row to the fourth. Each gradient stands below the matrix that it belongs to.",
        alt="Every matrix of the example with its numbers. First row: Q, K and V. Second row: S, "
        "Z, the weights A and the output O. Below them, each under the matrix that it belongs to: "
        "the gradients dS, dZ, dA and dO, then dQ, dK and dV.",
        size=(7.6, 6.4),
        code=example.python(),
        data=example.data,
        draw=example.draw,
        window=example.window,
    )


@dataclass
class Example:
    """The matrices that a stepper walks through, for each choice of its reader."""

    tokens: Sequence[str]
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    doutput: np.ndarray
    features: Sequence[str]
    entries: Sequence[str]

    @property
    def picked(self) -> int:
        """The token that is picked at first, which a choice of mask makes blind."""
        return len(self.tokens) // 2

    @cached_property
    def masks(self) -> list[dict]:
        """Who may attend to whom: id, name, note, the array, and Python that gives it."""
        n, last, blind = len(self.tokens), self.tokens[-1], self.picked
        seen = np.arange(n) < n - 1
        awake = (np.arange(n) != blind)[:, None]
        choices = (
            (
                "none",
                "none",
                "Everyone sees everyone.",
                np.ones((n, n), bool),
                f"np.ones(({n}, {n}), bool)",
            ),
            (
                "causal",
                "causal",
                "A token sees itself and those before it.",
                np.tri(n, dtype=bool),
                f"np.tri({n}, dtype=bool)",
            ),
            (
                "padding",
                f"“{last}” hidden",
                f"As if “{last}” were padding: nobody sees it. It still looks at others, but in "
                "training nothing would read its output.",
                seen,
                f"np.array({seen.tolist()})",
            ),
            (
                "nothing",
                f"“{self.tokens[blind]}” sees nothing",
                "A row with everything hidden. Its weights and its output are 0, and so is the "
                "gradient of its query: no NaN anywhere.",
                awake,
                f"np.array({awake.tolist()})",
            ),
        )
        return [
            {
                "id": id,
                "name": name,
                "note": note,
                "mask": np.broadcast_to(mask, (n, n)),
                "code": code,
            }
            for id, name, note, mask, code in choices
        ]

    def lines(self, mask: np.ndarray, temperature: float, doutput: np.ndarray) -> list[Line]:
        """What the library's lines do, forward and backward."""
        query = self.query / temperature
        forward = trace(
            scaled_dot_product_attention, query, self.key, self.value, mask, into=[softmax]
        )
        _, weights, dropped = forward[-1].value
        return forward + trace(
            scaled_dot_product_attention_backward,
            *(doutput, query, self.key, self.value, weights, dropped, None),
            into=[softmax_backward],
        )

    def values(self, mask: np.ndarray, temperature: float, doutput: np.ndarray) -> dict:
        """Each matrix by its name, as the library computed it."""
        lines = self.lines(mask, temperature, doutput)
        values = {}
        for name, matrix in MATRICES.items():
            line = find(lines, matrix.function, matrix.begins)
            if name == "output":
                values[name] = line.value[0]
            elif name == "average":  # the line has no name for it
                values[name] = dot_last(line.after["dweights"], line.after["weights"])
            else:
                values[name] = line.after[matrix.variable]
        return values

    def units(self) -> list[np.ndarray]:
        """The upstream gradients with a 1 in one entry: all others are sums of these."""
        size = self.doutput.size
        return list(np.eye(size).reshape(size, *self.doutput.shape))

    def data(self, page) -> dict:
        grid = {
            mask["id"]: [
                [self.values(mask["mask"], temperature, unit) for unit in self.units()]
                for temperature in TEMPERATURES
            ]
            for mask in self.masks
        }
        forward = [name for name, made in MATRICES.items() if made.function in (FORWARD, SOFTMAX)]
        backward = [name for name in MATRICES if name not in (*forward, "doutput")]
        return {
            "tokens": self.tokens,
            "features": self.features,
            "entries": self.entries,
            "picked": self.picked,
            "scale": numbers(np.sqrt(self.query.shape[1])),
            "temperatures": [{"value": t, "note": self.note(t)} for t in TEMPERATURES],
            "masks": [{k: v for k, v in mask.items() if k != "mask"} for mask in self.masks],
            "presets": self.presets(page),
            "doutput": numbers(self.doutput),
            "matrices": {
                name: {
                    "symbol": page.math(matrix.latex),
                    "plain": plain(matrix.latex),
                    "rows": matrix.rows,
                    "columns": matrix.columns,
                }
                for name, matrix in MATRICES.items()
            },
            "steps": [self.step(step, page) for step in STEPS],
            "forward": {
                mask: [{name: numbers(units[0][name]) for name in forward} for units in column]
                for mask, column in grid.items()
            },
            "backward": {
                mask: [
                    {name: [numbers(unit[name]) for unit in units] for name in backward}
                    for units in column
                ]
                for mask, column in grid.items()
            },
        }

    def note(self, temperature: float) -> str:
        scale = float(np.sqrt(self.query.shape[1]))
        if temperature == 1:
            return (
                "As in the paper. Any other temperature divides the query: that gives the same as "
                "dividing the scores, and the library's own lines stay as they are."
            )
        given = f"The library gets query / {temperature:g}. "
        if temperature == 1 / scale:
            return given + f"This undoes the division by √d_k = {scale:g}: attention unscaled."
        if temperature == scale:
            return given + f"The division by √d_k = {scale:g} is the same thing: now it acts twice."
        if temperature < 1:
            return given + "Scores grow: watch the largest weight of each row in A."
        return given + "Scores shrink: watch the weights of a row in A become alike."

    def presets(self, page) -> list[dict]:
        choices = (
            ("given", "as given", "A gradient without pattern, the best test of a backward pass."),
            (
                "picked",
                "only the picked token",
                "Only the output of the picked token matters to the loss. See which rows of the "
                "gradients answer, and which do not.",
            ),
            (
                "ones",
                "all ones",
                r"The loss is the sum of all outputs. Then all rows of $\mathrm{d}A$ are the same "
                r"(the row sums of $V$), and so are the columns of $\mathrm{d}V$. Mistakes that "
                "mix them up stay unseen: a poor test of a backward pass.",
            ),
        )
        return [{"id": id, "name": name, "note": page.markdown(note)} for id, name, note in choices]

    def step(self, step: Step, page) -> dict:
        """What a step shows, its words as HTML."""
        lines = self.lines(self.masks[0]["mask"], 1, self.doutput)
        shown = [find(lines, code.function, code.begins) for code in step.code]
        text = "\n".join(
            f"{line.text}  # {line.comment}" if line.comment else line.text for line in shown
        )
        coded = page.code(text).split("\n")
        for row, code in enumerate(step.code):
            coded[row] = tagged(coded[row], code.names)
        return {
            "id": step.id,
            "name": step.name,
            "part": "backward" if step.inverts else "forward",
            "title": step.title,
            "say": page.markdown(step.say),
            "ask": page.markdown(step.ask),
            "answer": page.markdown(step.answer),
            "equation": equation(step.equation, SYMBOLS, page),
            "code": "\n".join(coded),
            "note": page.markdown(step.note),
            "of": shown[0].function,
            "inputs": step.inputs,
            "results": step.results,
            "worked": step.worked,
            "inverts": step.inverts,
        }

    def python(self) -> str:
        def array(x):
            return f"np.array({numbers(x)}, float)"

        return f"""\
import numpy as np
from numformer.layers.attention import scaled_dot_product_attention
from numformer.layers.attention import scaled_dot_product_attention_backward

query = {array(self.query)}
key = {array(self.key)}
value = {array(self.value)}
temperature = 1
mask = {self.masks[0]["code"]}
doutput = {array(self.doutput)}

query /= temperature
output, weights, dropped = scaled_dot_product_attention(query, key, value, mask)
dquery, dkey, dvalue = scaled_dot_product_attention_backward(
    doutput, query, key, value, weights, dropped, None
)
print(weights.round(2), dquery.round(2), dkey.round(2), dvalue.round(2), sep="\\n\\n")"""

    def draw(self, figure) -> None:
        """Every matrix, each gradient in the mirror of what it belongs to."""
        values = self.values(self.masks[0]["mask"], 1, self.doutput)
        grid = figure.add_gridspec(4, 4)
        for row, names in enumerate(MIRRORED):
            for column, name in enumerate(names):
                self.draw_matrix(figure.add_subplot(grid[row, column]), name, values[name])
        for row, words in ((0, FORWARD_WORDS), (3, BACKWARD_WORDS)):
            axes = figure.add_subplot(grid[row, 3])
            axes.axis("off")
            axes.text(0.1, 0.5, words, va="center", fontsize=8.5, linespacing=1.5)

    def draw_step(self, figure, step: Step, values: dict, picked: int) -> None:
        """The matrices of one step, the results last."""
        names = step.inputs + step.results
        rows = 1 if len(names) < 4 else 2
        columns = -(-len(names) // rows)
        grid = figure.add_gridspec(
            rows, columns, left=0.08, right=0.97, top=0.8, bottom=0.03, wspace=0.3, hspace=0.6
        )
        for place, name in zip(grid, names, strict=False):
            self.draw_matrix(figure.add_subplot(place), name, values[name], picked)
        figure.suptitle(f"{STEPS.index(step) + 1}. {step.title}", fontsize=12)

    def draw_matrix(self, axes, name: str, array: np.ndarray, picked: int = -1) -> None:
        """The picked token stands out where rows are queries."""
        made = MATRICES[name]
        columns = {"features": self.features, "keys": self.tokens, "entries": self.entries}
        columns = columns.get(made.columns, [made.columns])
        Matrix(made.latex, np.asarray(array, float), self.tokens, columns).draw(axes)
        if picked >= 0 and made.rows == "queries":
            axes.axhspan(picked - 0.5, picked + 0.5, fill=False, color=BLUE, linewidth=1.5)

    def window(self, figure) -> list:
        """Sliders for step and temperature, buttons for mask and query."""
        figure.set_layout_engine("none")  # widgets stand where they are put
        stage, controls = figure.subfigures(2, 1, height_ratios=(2.4, 1))
        place = controls.add_axes((0.17, 0.6, 0.3, 0.15))
        step = Slider(place, "step", 1, len(STEPS), valinit=1, valstep=1)
        place = controls.add_axes((0.17, 0.3, 0.3, 0.15))
        low, *_, high = TEMPERATURES
        temperature = Slider(place, "temperature", low, high, valinit=1, valstep=TEMPERATURES)
        names = [mask["name"] for mask in self.masks]
        mask = RadioButtons(controls.add_axes((0.56, 0.08, 0.25, 0.75)), names)
        place = controls.add_axes((0.83, 0.08, 0.15, 0.75))
        query = RadioButtons(place, self.tokens, active=self.picked)
        for buttons, title in ((mask, "mask"), (query, "picked token")):
            buttons.ax.set_title(title, fontsize=9)
            buttons.ax.spines[:].set_visible(False)

        def redraw(_=None):
            chosen = self.masks[names.index(mask.value_selected)]["mask"]
            values = self.values(chosen, temperature.val, self.doutput)
            stage.clear()
            self.draw_step(
                stage, STEPS[int(step.val) - 1], values, self.tokens.index(query.value_selected)
            )
            figure.canvas.draw_idle()

        step.on_changed(redraw)
        temperature.on_changed(redraw)
        mask.on_clicked(redraw)
        query.on_clicked(redraw)
        redraw()
        return [step, temperature, mask, query]
