"""The symbols of the course: what each stands for, and its places in formulas."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple
from xml.etree import ElementTree

from lessons import COURSE, FOLDER

MARK = "data-symbol"
COLOURS = {  # their names in page/style.css
    "forward": "The way from the input to the loss, and what a model predicts.",
    "backward": "The way of the gradient, from the loss to the weights.",
    "query": "Queries, and what comes of them: the position that looks.",
    "key": "Keys, and what comes of them: the positions that are looked at.",
    "value": "Values, and what comes of them: what is handed over.",
    "wrong": "What a model or an answer got wrong.",
    "right": "A right answer.",
    "waiting": "Time in which a machine waits.",
}
SCRIPTS = {"msub": [("msub", 1)], "msup": [("msup", 1)], "msubsup": [("msup", 2), ("msub", 1)]}
LINE = re.compile(r"\$(.+?)\$ \((\d+)\) (?:\[([\d, ]+)\] )?(.+?)(?: Code: (.+))?")


class Symbol(NamedTuple):
    """A line of symbols.txt: a symbol in LaTeX, the lesson that explains it, and its meaning.

    It has this meaning in the lessons `only`; if there are none, in all lessons for which the
    symbol has no other line. `code` has its names in the code.
    """

    latex: str
    lesson: int
    only: tuple[int, ...]
    says: str
    code: tuple[str, ...]


@functools.cache
def symbols() -> tuple[Symbol, ...]:
    """All symbols, in the order of the file."""
    lines = (FOLDER / "symbols.txt").read_text(encoding="utf-8").splitlines()
    found = []
    for line in filter(None, lines):
        latex, lesson, only, says, code = LINE.fullmatch(line).groups(default="")
        numbers = tuple(int(number) for number in only.split(", ") if number)
        found.append(Symbol(latex, int(lesson), numbers, says, tuple(code.split())))
    return tuple(found)


def in_lesson(number: int) -> dict[str, Symbol]:
    """The symbols that a lesson may use, by their LaTeX."""
    general = {each.latex: each for each in symbols() if not each.only}
    return general | {each.latex: each for each in symbols() if number in each.only}


class Marker:
    """Marks the symbols in the formulas of a lesson, and their names in its inline code.

    `math` turns LaTeX into MathML. `used` is the LaTeX of the symbols that were marked.
    """

    def __init__(self, number: int, math: Callable[[str], str]):
        self.used: set[str] = set()
        self._number, known = number, in_lesson(number)
        self._shapes = {shape(parsed(math(latex))): latex for latex in known}
        self._names = {name: each.latex for each in known.values() for name in each.code}

    def formula(self, mathml: str) -> str:
        """MathML in which each symbol is marked. Raises ValueError for an unknown letter."""
        root = parsed(mathml)
        self._walk(root)
        return ElementTree.tostring(root, encoding="unicode")

    def code(self, html: str) -> str:
        """HTML in which a name of a symbol is marked where it is all of an element <code>."""

        def mark(match):
            latex = self._names.get(match[1])
            if latex is None:
                return match[0]
            self.used.add(latex)
            return f'<code {MARK}="{escape(latex)}">{match[1]}</code>'

        return re.sub(r"<code>(\w+)</code>", mark, html)

    def _walk(self, part: ElementTree.Element) -> None:
        if part.get(MARK) or self._mark(shape(part), part):
            return
        for tag, index in SCRIPTS.get(part.tag, ()):
            # Of a script such as Q⊤ or K(n), the first letter belongs to the symbol.
            for script in part[index], *part[index][:1]:
                if not part[0].get(MARK):
                    self._mark((tag, None, "", shape(part[0]), shape(script)), part[0], script)
        for child in part:
            self._walk(child)
        if part.tag == "mi" and len(part.text or "") == 1 and part.text.isalpha():
            raise ValueError(
                f"lesson {self._number} has a formula with {part.text}, and lessons/symbols.txt "
                "does not explain it: add a line."
            )

    def _mark(self, whole: tuple | None, *parts: ElementTree.Element) -> bool:
        """Mark the parts of a symbol of this shape -> whether there is one."""
        latex = self._shapes.get(whole)
        if latex is None:
            return False
        self.used.add(latex)
        for part in parts:
            part.set(MARK, latex)
        return True


def parsed(mathml: str) -> ElementTree.Element:
    """MathML as a tree; of named entities, a tree knows only those of XML."""
    return ElementTree.fromstring(mathml.replace("&ApplyFunction;", "\u2061"))


def shape(part: ElementTree.Element) -> tuple | None:
    """What an element of MathML shows, without spaces and without frames around one element."""
    inner = tuple(filter(None, map(shape, part)))
    if part.tag in ("math", "mrow") and len(inner) == 1:
        return inner[0]
    if part.tag == "mspace":
        return None
    return (part.tag, part.get("mathvariant"), (part.text or "").strip(), *inner)


def notes(used: Iterable[str], number: int, math: Callable[[str], str]) -> str:
    """What symbols mean, as an element for page/symbols.js."""
    known = in_lesson(number)
    entries = {latex: known[latex] for latex in sorted(used)}
    meanings = {latex: [math(latex), e.says, e.lesson] for latex, e in entries.items()}
    text = json.dumps(meanings, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="symbols">{text}</script>\n'


def symbols_page(math: Callable[[str], str]) -> str:
    """The table of all symbols, in the order of the file, and the colours that have a meaning."""
    rows = ""
    for each in symbols():
        entry = COURSE[each.lesson - 1]
        only = f"<br><small>in {_lessons(each.only)}</small>" if each.only else ""
        code = "".join(f" <code>{name}</code>" for name in each.code)
        rows += (
            f"<tr><td>{math(each.latex)}{only}</td><td>{escape(each.says)}{code}</td>"
            f'<td><a href="{entry.page}">{each.lesson}</a></td></tr>'
        )
    head = '<th scope="col">Symbol</th><th scope="col">Meaning</th><th scope="col">Lesson</th>'
    colours = "".join(
        f'<dt><span style="color: var(--{name})">■ {name}</span></dt><dd>{says}</dd>'
        for name, says in COLOURS.items()
    )
    above, below = (
        f'<span style="background: rgb(var(--{sign}) / 0.5)">{colour}</span>'
        for sign, colour in (("positive", "blue"), ("negative", "orange"))
    )
    return f"""<p>Point at a symbol in a lesson, or tap it, and its meaning appears. With the
keyboard, move to a formula and press the arrow keys. <a href="#colours">Colours</a> have meanings,
too.</p>
<div class="scroll" tabindex="0"><table class="symbols"><thead><tr>{head}</tr></thead>
<tbody>{rows}</tbody></table></div>
<h2 id="colours">Colours</h2><dl class="glossary">{colours}</dl>
<p>The cells of matrices and heatmaps are {above} for numbers above 0 and {below} for numbers
below 0: the stronger the colour, the larger the number. Other colours only tell the lines of a
picture apart.</p>"""


def _lessons(numbers: Sequence[int]) -> str:
    """lesson 3, lessons 8 and 9"""
    *first, last = map(str, numbers)
    return f"lessons {', '.join(first)} and {last}" if first else f"lesson {last}"
