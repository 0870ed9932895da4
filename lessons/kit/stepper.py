"""The stepper: a view that goes through what lines of the library computed, both ways."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from lessons.kit.simulation import Control
from lessons.kit.trace import Line, find
from lessons.kit.views import Of, View, draw_in_a_row, payload


@dataclass(frozen=True)
class Code:
    """A line of the library that a step shows; `names` are the arrays that its names stand for.

    A name that stands for several arrays in turn has a tuple of them.
    """

    function: str
    begins: str
    names: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step from the arrays `inputs` to `results`. In `equation` @name is an array's symbol.

    `worked` says how an entry of the last result is computed: (left, axis, right, axis) for a
    product, where an axis is "row" or "column"; ("/", a, b), ("-", a, b) or ("*", a, b) from two
    entries, where b may be a number or have one column; ("sum", a) for the sum of a row. `inverts`
    is the forward step that a backward step goes back through, `note` is about the code, and `see`
    is the heading of the page under which the step is derived.
    """

    id: str
    name: str
    title: str
    say: str
    ask: str = ""
    answer: str = ""
    equation: str = ""
    code: Sequence[Code] = ()
    inputs: Sequence[str] = ()
    results: Sequence[str] = ()
    worked: tuple = ()
    inverts: str = ""
    note: str = ""
    see: str = ""


class Steps(Control):
    """The control of a stepper: its options are the names of the steps."""

    kind: ClassVar = "steps"


@dataclass(frozen=True)
class Stepper(View):
    """Steps through arrays; `control` chooses the step, `picked` the row that is spelled out.

    `of` shows the arrays as matrices. `lines` returns what `trace` wrote down; the lines of code
    are looked up there. `picked` is an index of rows in the matrices named in `marked`.
    """

    steps: Sequence[Step]
    of: Sequence[Of]
    lines: Callable[[], list[Line]]
    control: str
    picked: str
    marked: Sequence[str]
    height: float = 2.0
    kind: ClassVar = "stepper"

    @property
    def places(self) -> list[str]:
        return [f"step-{step.id}" for step in self.steps]

    def more(self, page) -> dict:
        lines, symbols = self.lines(), {of.name: of.symbol for of in self.of}
        steps = [
            payload(step, page) | self._code(step, lines, symbols, page) for step in self.steps
        ]
        return {"of": {of.name: payload(of, page) for of in self.of}, "steps": steps, "lines": None}

    def _code(self, step: Step, lines: list[Line], symbols: Mapping[str, str], page) -> dict:
        """The equation and the lines of the library; names of matrices are marked in them."""
        shown = [find(lines, code.function, code.begins) for code in step.code]
        text = "\n".join(
            f"{line.text}  # {line.comment}" if line.comment else line.text for line in shown
        )
        coded = page.code(text).split("\n") if shown else []
        for row, code in enumerate(step.code):
            coded[row] = tagged(coded[row], code.names)
        heading = re.sub(r"[^\w]+", "-", step.see.lower()).strip("-")
        return {
            "equation": equation(step.equation, symbols, page),
            "code": "\n".join(coded),
            "of": shown[0].function if shown else "",
            "see": heading,
        }

    def _now(self, chosen) -> tuple[Step, list[Of]]:
        step = self.steps[chosen[self.control]]
        by_name = {of.name: of for of in self.of}
        return step, [by_name[name] for name in (*step.inputs, *step.results)]

    def draw(self, figure, arrays, chosen):
        step, of = self._now(chosen)
        draw_in_a_row(figure, of, arrays, self.marked, chosen[self.picked])
        figure.suptitle(f"{chosen[self.control] + 1}. {step.title}", fontsize=11)

    def shown(self, arrays, chosen):
        step, of = self._now(chosen)
        return {"step": step.id, "matrices": {array.name: array.texts(arrays) for array in of}}


def equation(text: str, symbols: Mapping[str, str], page) -> str:
    """MathML in which each @name is its symbol, marked with the name; blank lines part equations.

    `symbols` has the LaTeX of each name. LaTeX has no attributes, so a character of the private use
    area stands for each symbol while the equation is translated.
    """
    if not text:
        return ""
    names = list(symbols)
    standing_in = re.sub("@([a-z]+)", lambda name: chr(0xE000 + names.index(name[1])), text)
    mathml = "".join(page.math(line, display=True) for line in standing_in.split("\n\n"))
    for number, (name, latex) in enumerate(symbols.items()):
        symbol = re.sub("</?math[^>]*>", "", page.math(latex))
        mathml = mathml.replace(
            f"<mi>{chr(0xE000 + number)}</mi>", f'<mrow data-matrix="{name}">{symbol}</mrow>'
        )
    return mathml


def tagged(html: str, names: Mapping[str, str | tuple[str, ...]]) -> str:
    """Highlighted Python in which each name is marked with the matrix that it stands for there."""
    turns = {name: 0 for name in names}

    def tag(span):
        name = span[2]
        if name not in names:
            return span[0]
        meant = names[name]
        if not isinstance(meant, str):
            meant = meant[turns[name]]
        turns[name] += 1
        return f'<span class="{span[1]}" data-matrix="{meant}">{name}</span>'

    return re.sub(r'<span class="(n\w*)">(\w+)</span>', tag, html)
