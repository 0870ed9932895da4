"""What a lesson shows: text with computed numbers, tables, pictures, the library's own lines.

Each piece has a form for every place where a lesson is read: `present()` in a terminal or a window,
`html(page)` on a page, `_repr_markdown_` or `_repr_png_` in a notebook.
"""

import ast
import inspect
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

PICTURES = Path("runs/lessons")  # where pictures go when there is no window
# Colours for light and dark pages, as in page/style.css: first those of what has no meaning of its
# own, then those that have one.
BLUE, ORANGE, GREEN, GREY = "#3b82c4", "#d9772b", "#3f9d6b", "#8a8f98"
OCHRE, BROWN = "#b09a1e", "#8b5e3c"
QUERY, KEY, VALUE = "#c2408a", "#17948c", "#8163d6"
FORWARD, BACKWARD, WRONG, WAITING = "#3a78c2", "#b07a10", "#d04a3f", "#7c848f"
ROLES = {"q": "query", "k": "key", "v": "value"}  # by the letter of a symbol
INK = "#0a0b0c"  # text and axes; on a page it becomes the colour of the text around the picture
STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.prop_cycle": matplotlib.cycler(color=[BLUE, ORANGE, GREEN, GREY]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "path",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

# How a terminal, which has no formulas, shows the most common LaTeX and Markdown.
PLAIN = [
    (r"(?:\\[,;! ]|\\q?quad(?![a-z]))+", " "),
    (r"\\(?:text|mathrm|operatorname|mathbf)\{([^{}]*)\}", r"\1"),
    (r"\\(tanh|exp|log|ln|max|min|sin|cos)(?![a-z])", r"\1"),
    (r"\\hat ?\{?(\w)\}?", "\\1\u0302"),
    (r"\\sqrt(?:\{([^{}]*)\}| ?(\w))", r"√\1\2"),
    (r"\^\\top|\^\{\\top\}", "ᵀ"),
    (r"\^\{(\w)\\top\}", r"^\1ᵀ"),
    (r"\\[Bb]ig[lr]|\\left|\\right", ""),
    (r"_\{([^{}]*=[^{}]*)\}\^\{?(\w*)\}?", r"(\1..\2) "),
    (r"([_^])\{(\w+[-+][\w,]+)\}", r"\1(\2)"),
    (r"([_^])\{([\w.,−∞-]*)\}", r"\1\2"),
    (r"([_^])\{([^{}\\]*[^{}\\\w.,−∞-][^{}\\]*)\}", r"\1(\2)"),
    (r"\\t?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1) / (\2)"),
    (r"\*\*|[$`]", ""),
    (r"^> ", ""),
    (r"\n> ", "\n"),
    (r"\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"</?(?:details|summary)>", ""),  # what a page folds
]
SIGNS = (
    "cdot · times × partial ∂ sum Σ infty ∞ approx ≈ ne ≠ ldots … cdots … odot ⊙ le ≤ ge ≥ to → "
    "leftarrow ← alpha α tau τ eta η mu μ sigma σ gamma γ beta β delta δ varepsilon ε phi φ "
    "ell ℓ rho ρ"
)
SIGNS = dict(zip(SIGNS.split()[::2], SIGNS.split()[1::2], strict=True))
NUMBERS = re.compile(r"[\d\s.,+−%-]*|\$[\d.]+ \\cdot 10\^\{-?\d+\}\$")  # the latter: scientific()
UNDERLINES = {1: "=", 2: "-"}  # by the level of a heading


def plain(markdown: str) -> str:
    """Markdown as a terminal shows it: formulas in letters, paragraphs wrapped, the rest as is."""

    def block(text: str) -> str:
        if text.startswith(("    ", "```")):
            return text
        is_formula = text.startswith("$$")
        text = re.sub(r"\\([a-z]+)", lambda match: SIGNS.get(match[1], match[0]), text)
        for pattern, replacement in 2 * PLAIN:  # twice, because one brace may hold another
            text = re.sub(pattern, replacement, text)
        if is_formula:
            return "    " + " ".join(text.split())
        if match := re.match(r"(#+) (.*)", text):
            return f"{match[2]}\n{UNDERLINES.get(len(match[1]), '') * len(match[2])}".rstrip()
        if text.startswith("|"):
            return aligned(text)
        items = re.split(r"\n(?=- |\d+\. )", text)
        indents = ["  " * bool(re.match(r"- |\d+\. ", item)) for item in items]
        return "\n".join(
            textwrap.fill(" ".join(item.split()), 88, subsequent_indent=indent)
            for item, indent in zip(items, indents, strict=True)
        )

    # A block of code may hold blank lines; every other block ends at one.
    blocks = re.findall(r"^```[\s\S]*?^```$|(?:^.+$\n?)+", markdown, re.MULTILINE)
    return "\n\n".join(filter(None, (block(text.strip("\n")) for text in blocks)))


def aligned(text: str) -> str:
    """A table in Markdown with every column as wide as its widest cell."""
    rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in text.splitlines()]
    to_the_right = [mark.endswith(":") for mark in rows.pop(1)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    lines = [
        " | ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_the_right, strict=True)
        )
        for row in rows
    ]
    return "\n".join(f"| {line} |" for line in lines)


def role(symbol: str) -> str:
    """What a symbol in LaTeX, such as dW^Q or K_h, belongs to: "query", "key", "value" or ""."""
    letters = re.match(r"(?:\\mathrm\{d\}|\\?partial|d|\\hat|\\tilde|[ {])*([A-Zabkqv])", symbol)
    letter = letters[1] if letters else ""
    if letter in ("W", "b"):  # weights belong to what they make
        vector = re.search(r"[\^_]\{?([QKVqkv])", symbol)
        letter = vector[1] if vector else ""
    return ROLES.get(letter.lower(), "")


def scientific(number: float) -> str:
    """4e-12 as a formula in Markdown."""
    digits, power = f"{number:.0e}".split("e")
    return rf"${digits} \cdot 10^{{{int(power)}}}$"


def dot_by_hand(left, right, digits: int = 2, places: int = 3) -> str:
    """The arithmetic of a dot product, written out; left factors have `places` decimals."""

    def factor(number, places):
        return f"({number:.{places}f})" if number < 0 else f"{number:.{places}f}"

    terms = [f"{factor(a, places)} · {factor(b, 0)}" for a, b in zip(left, right, strict=True)]
    exact = np.round(left, places) @ np.asarray(right) == np.round(left @ right, digits)
    text = f"{' + '.join(terms)} {'=' if exact else '≈'} {left @ right + 0.0:.{digits}f}"
    return text.replace("-", "−")


class Piece:
    """Something that a lesson shows; it has at least a form in Markdown."""

    def markdown(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} has no markdown")

    def html(self, page) -> str:
        return page.markdown(self.markdown())

    def present(self) -> None:
        """Show it in the terminal, pictures in a window where there is one."""
        print(plain(self.markdown()), end="\n\n")

    def _repr_markdown_(self) -> str:
        return self.markdown()


@dataclass(frozen=True)
class Words(Piece):
    """Markdown with numbers that were computed."""

    text: str

    def markdown(self) -> str:
        return inspect.cleandoc(self.text)


def table(columns: Sequence[str], rows: Iterable[Sequence], caption: str = "") -> Words:
    """A table of words and numbers; the caller formats the numbers.

    A column that holds only numbers is aligned right, unless it is the first.
    """
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    of_numbers = [all(map(NUMBERS.fullmatch, column[1:])) for column in zip(*cells, strict=True)]
    cells.insert(1, ["---", *("---:" if is_right else "---" for is_right in of_numbers[1:])])
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return Words("\n".join(lines) + (f"\n\n*{caption}*" if caption else ""))


@dataclass(frozen=True)
class Matrix(Piece):
    """A small matrix with its symbol, its shape and the names of its rows and columns.

    An entry whose absolute value is `largest`, by default that of the largest entry, has the
    darkest colour. A cell with NaN is left empty.
    """

    symbol: str
    numbers: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    largest: float | None = None

    def cells(self) -> list[list[str]]:
        """The numbers as text: two decimals, none for 0 or if all are integers; a true minus."""
        there = self.numbers[~np.isnan(self.numbers)]
        whole = bool((there == np.round(there)).all())
        return [[written(number, whole) for number in row] for row in self.numbers]

    def strengths(self) -> np.ndarray:
        """How strongly each entry is coloured, by its size; as in page/views.js."""
        sizes = np.abs(np.where(np.isfinite(self.numbers), self.numbers, 0))
        shares = np.minimum(1, sizes / (self.largest or sizes.max() or 1))
        return np.where(sizes, 0.06 + 0.42 * shares, 0)

    def markdown(self) -> str:
        name = f"{self.symbol} {self.numbers.shape}"
        rows = [(row, *cells) for row, cells in zip(self.rows, self.cells(), strict=True)]
        return table([name, *self.columns], rows).markdown()

    def html(self, page) -> str:
        head = "".join(f'<th scope="col">{name}</th>' for name in self.columns)
        body = ""
        rows = zip(self.rows, self.cells(), self.numbers, self.strengths(), strict=True)
        for name, *row in rows:
            body += f'<tr><th scope="row">{name}</th>'
            for cell, number, strength in zip(*row, strict=True):
                side = "positive" if number > 0 else "negative"
                body += f'<td style="background: rgb(var(--{side}) / {strength:.2f})">{cell}</td>'
            body += "</tr>"
        shape = " × ".join(map(str, self.numbers.shape))
        symbol = f'<span data-role="{role(self.symbol)}">{page.math(self.symbol)}</span>'
        caption = f"{symbol} <small>({shape})</small>"
        return (
            f'<div class="scroll" tabindex="0"><table class="matrix"><caption>{caption}</caption>'
            f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def draw(self, axes) -> None:
        """The same with matplotlib."""
        colours = np.empty((*self.numbers.shape, 4))
        colours[..., :3] = np.where(self.numbers[..., None] < 0, to_rgb(ORANGE), to_rgb(BLUE))
        colours[..., 3] = self.strengths()
        axes.imshow(colours, aspect="auto")
        for (row, column), text in np.ndenumerate(self.cells()):
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5)
        rows, columns = self.numbers.shape
        axes.set_xticks(range(columns), self.columns, fontsize=6.5)
        axes.set_yticks(range(rows), self.rows, fontsize=6.5)
        axes.tick_params(length=0, pad=1, top=False, labeltop=True, labelbottom=False)
        colour = {"query": QUERY, "key": KEY, "value": VALUE}.get(role(self.symbol), INK)
        title = f"${self.symbol}$  ({rows} × {columns})"
        axes.set_title(title, fontsize=9, loc="left", color=colour)
        for side in axes.spines.values():
            side.set_color((0.5, 0.5, 0.5, 0.6))


def written(number: float, whole: bool) -> str:
    """A number of a matrix as text; `whole` if all its numbers are integers; "" for NaN."""
    if number == -np.inf or np.isnan(number):
        return "−∞" if number == -np.inf else ""
    # A number halfway between two decimals is rounded away from 0, as in page/dom.js.
    text = (
        f"{number:.0f}" if whole or number == 0 else f"{number + math.copysign(1e-9, number):.2f}"
    )
    return text.replace("-", "−") if float(text) else text.lstrip("-")


@dataclass(frozen=True)
class Picture(Piece):
    """What `draw(figure)` draws. `alt` says in words what a reader would see in it."""

    name: str
    draw: Callable[[Figure], None]
    alt: str
    caption: str
    size: tuple[float, float] = (4.2, 3.3)  # inches; a wider picture is small on a phone

    def figure(self) -> Figure:
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=self.size)
            FigureCanvasAgg(figure)
            self.draw(figure)
        return figure

    def svg(self) -> str:
        """The picture with text as curves, in the colour of the page's text; no background."""
        file = io.StringIO()
        with matplotlib.rc_context(STYLE | {"svg.hashsalt": self.name}):
            figure = self.figure()
            figure.patch.set_alpha(0)
            for axes in figure.axes:
                axes.patch.set_alpha(0)
            # No date: the same numbers give the same file.
            figure.savefig(file, format="svg", metadata={"Date": None})
        drawing = file.getvalue()
        drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor")
        # An identifier has to be unique on the page, and is needed only where it is referred to.
        needed = set(re.findall(r'(?:url\(|href=")#([\w-]+)', drawing))
        drawing = re.sub(r' id="([\w-]+)"', lambda m: m[0] if m[1] in needed else "", drawing)
        drawing = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{self.name}-", drawing)
        drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
        return drawing.replace("<svg", f'<svg role="img" aria-label="{escape(self.alt)}"', 1)

    def html(self, page) -> str:
        caption = page.markdown(self.caption)
        return f'<figure class="picture">{self.svg()}<figcaption>{caption}</figcaption></figure>'

    def in_window(self, figure: Figure) -> None:
        """Draw into the figure of a window."""
        self.draw(figure)

    def present(self) -> None:
        print(f"{self._open() or self._save()}: {plain(self.caption)}", end="\n\n")

    def _open(self) -> str:
        """Open a window, which stays until the lesson ends; "" where there is none to open."""
        from matplotlib import pyplot

        try:
            with matplotlib.rc_context(STYLE):
                figure = pyplot.figure(self.name, figsize=self.size)
                # Agg and its like draw into memory only.
                if figure.canvas.required_interactive_framework is None:
                    pyplot.close(figure)
                    return ""
                self.in_window(figure)
        except (ImportError, RuntimeError):  # a toolkit that is not there or has no display
            return ""
        return f"window {self.name}"

    def _save(self) -> Path | str:
        path = PICTURES / f"{self.name}.png"
        try:
            PICTURES.mkdir(parents=True, exist_ok=True)
            self.figure().savefig(path, dpi=130)
        except OSError as problem:
            return f"{path} (not saved: {problem.strerror})"
        return path

    def _repr_markdown_(self):
        return None

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure().savefig(file, dpi=110)
        return file.getvalue()


@dataclass(frozen=True)
class Beside(Piece):
    """The body of a function of the library, each statement beside a note on it.

    `notes` maps the beginning of each statement, in order, to its note in Markdown. Without
    `whole`, only the statements that have a note are shown. With `loops`, the statements in a loop
    have notes of their own. Raises ValueError if statements and notes do not match, so that
    the two cannot drift apart.
    """

    function: Callable
    notes: Mapping[str, str]
    whole: bool = True
    loops: bool = False

    @property
    def place(self) -> str:
        module = self.function.__module__.replace(".", "/")
        return f"`{self.function.__qualname__}` in `{module}.py`"

    def rows(self) -> list[tuple[str, str]]:
        """(note, statement) for each statement of the body."""
        lines = statements(self.function, self.loops)
        if not self.whole:
            lines = [line for line in lines if line.lstrip().startswith(tuple(self.notes))]
        for statement, beginning in zip(lines, self.notes, strict=False):
            if not statement.lstrip().startswith(beginning):
                raise ValueError(
                    f"{self.function.__name__} has the line {statement!r} where the lesson "
                    f"explains {beginning!r}: mend the lesson."
                )
        if len(lines) != len(self.notes):
            raise ValueError(
                f"{self.function.__name__} has {len(lines)} statements and the lesson "
                f"{len(self.notes)} notes: mend the lesson."
            )
        return list(zip(map(inspect.cleandoc, self.notes.values()), lines, strict=True))

    def markdown(self) -> str:
        rows = "\n\n".join(
            f"{note}\n\n{textwrap.indent(line, '    ')}" for note, line in self.rows()
        )
        return f"{self.place}\n\n{rows}"

    def html(self, page) -> str:
        rows = "".join(
            f"<li><div>{page.markdown(note)}</div>{page.code(line)}</li>"
            for note, line in self.rows()
        )
        return (
            f'<div class="source">{page.markdown(self.place)}</div><ol class="beside">{rows}</ol>'
        )


def statements(function: Callable, loops: bool = False) -> list[str]:
    """The source of each statement of a function's body, comments at its end included.

    With `loops` a loop gives its first line, then the statements in it, indented.
    """
    source = textwrap.dedent(inspect.getsource(function))
    lines = source.splitlines()
    body = ast.parse(source).body[0].body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    indent = body[0].col_offset

    def texts(nodes) -> Iterable[str]:
        for node in nodes:
            opened = loops and isinstance(node, ast.For)
            end = node.body[0].lineno - 1 if opened else node.end_lineno
            yield "\n".join(line[indent:] for line in lines[node.lineno - 1 : end])
            yield from texts(node.body) if opened else ()

    return [*texts(body)]


def show(function: Callable[[], Piece | Iterable[Piece]]) -> Callable:
    """Mark a function of a lesson: what it returns is shown at the place where it is defined.

    Importing the lesson only defines the function. In a script or a notebook, where the lesson is
    `__main__`, the result is shown at once.
    """
    function.shown = True
    if function.__module__ == "__main__":
        in_notebook = function.__globals__.get("get_ipython")
        for piece in pieces(function):
            if in_notebook:
                from IPython.display import display

                display(piece)
            else:
                piece.present()
    return function


def pieces(function: Callable) -> list[Piece]:
    """The pieces that a function marked with `show` returns."""
    result = function()
    return [result] if isinstance(result, Piece) else list(result)
