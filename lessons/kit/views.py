"""How simulations show arrays: as matrices, heatmaps, charts, diagrams, clocks, figures.

A view has two halves. This half tells the page what it needs, draws the picture for pages without
scripts and for windows (`draw`), and knows what a page has to show for given arrays (`shown`);
tests compare this with what the page does show. The other half is page/views.js.
"""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import ClassVar

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from lessons.kit.lesson import (
    BACKWARD,
    BLUE,
    FORWARD,
    GREEN,
    GREY,
    KEY,
    ORANGE,
    QUERY,
    VALUE,
    WAITING,
    WRONG,
    Matrix,
    plain,
    role,
)

SERIES = BLUE, ORANGE, GREEN, GREY
MEANINGS = {"query": QUERY, "key": KEY, "value": VALUE, "forward": FORWARD, "backward": BACKWARD}
MEANINGS |= {"wrong": WRONG, "waiting": WAITING}  # the last word of an array's name -> its colour
COLOURS, STROKES = (*SERIES, *MEANINGS.values()), ("-", "--", ":", "-.", *len(MEANINGS) * "-")
SIGNED = LinearSegmentedColormap.from_list("signed", [ORANGE, "white", BLUE])
LEFT, BOTTOM = 52, 40  # the room of a chart's axes, in SVG's units
MARKDOWN = {"note", "say", "ask", "answer"}  # names of fields
Arrays = Mapping[str, np.ndarray]
Chosen = Mapping[str, int]


def payload(part, page, name: str = ""):
    """A part of a simulation for the page: its fields by name, Markdown as HTML."""
    if name in MARKDOWN:
        return part and page.markdown(part)
    if name == "symbol":
        return {"math": page.math(part), "plain": plain(part)}
    if is_dataclass(part):
        names = [each.name for each in fields(part)]
        values = {each: payload(getattr(part, each), page, each) for each in names}
        more = part.more(page) if hasattr(part, "more") else {}
        return {"kind": getattr(part, "kind", "")} | values | more
    if isinstance(part, Mapping):
        return {key: payload(value, page) for key, value in part.items()}
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [payload(item, page) for item in part]
    return part


def numbers(array: np.ndarray, decimals: int = 6) -> list:
    """An array for JSON, rounded to `decimals`; minus infinity becomes null."""
    if array.ndim:
        return [numbers(row, decimals) for row in array]
    if array == -np.inf:
        return None
    value = round(float(array), decimals)
    return int(value) if value == int(value) else value


def figure(value: float) -> str:
    """A number as it is read out: up to three significant digits."""
    return np.format_float_positional(float(f"{value + 0:.3g}"), trim="-").replace("-", "−")


UNITS = (18, "quintillion"), (15, "quadrillion"), (12, "trillion"), (9, "billion"), (6, "million")


def amount(value: float) -> str:
    """A large number in words: 37.9 million."""
    for exponent, word in UNITS:
        if value >= 10**exponent:
            return f"{figure(value / 10**exponent)} {word}"
    return f"{value:,.0f}" if value >= 1000 else figure(value)


def power(value: float) -> str:
    """A number on a logarithmic axis; a power of ten far from 1 is shown by its exponent."""
    exponent = np.log10(value)
    if abs(exponent) < 2.5:
        return figure(value)
    return "10" + f"{exponent:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def tenth(x: np.ndarray) -> np.ndarray:
    """Round to one decimal; a number halfway between goes up, as in JavaScript."""
    return np.floor(10 * x + 1e-7 + 0.5) / 10


class View(ABC):
    """One way to show arrays; `height` is its share of the picture's height."""

    kind: ClassVar[str]
    height: float = 1.0
    places: ClassVar[Sequence[str]] = ()  # anchors that links can lead to

    @abstractmethod
    def draw(self, figure, arrays: Arrays, chosen: Chosen) -> None:
        """Draw it with matplotlib."""

    @abstractmethod
    def shown(self, arrays: Arrays, chosen: Chosen):
        """What `shown()` of the page's half has to return, in JSON's types."""


@dataclass(frozen=True)
class Of:
    """An array shown as a matrix: its name, its symbol, the names of its rows and columns.

    `largest` is the absolute value with the darkest colour; matrices that a reader compares have
    the same. `words` are shown for 0 and 1, and `below` below the symbol. `lit` names an array of
    the same shape, or of one column: a cell is outlined where it is 1, and empty where it is -1.
    """

    name: str
    symbol: str
    rows: Sequence[str]
    columns: Sequence[str]
    largest: float
    below: str = ""
    words: Sequence[str] = ()
    lit: str = ""

    def more(self, page) -> dict:
        return {"role": role(self.symbol)}

    def lights(self, arrays: Arrays) -> np.ndarray:
        """What `lit` says of each cell."""
        shape = len(self.rows), len(self.columns)
        return np.broadcast_to(arrays[self.lit] if self.lit else 0, shape)

    def matrix(self, arrays: Arrays) -> Matrix:
        array = np.where(self.lights(arrays) < 0, np.nan, np.atleast_2d(arrays[self.name]))
        return Matrix(self.symbol, array, self.rows, self.columns, self.largest)

    def draw(self, axes, arrays: Arrays) -> None:
        """Draw it with matplotlib."""
        self.matrix(arrays).draw(axes)
        for row, column in np.argwhere(self.lights(arrays) > 0):
            corner = column - 0.5, row - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=BLUE))

    def texts(self, arrays: Arrays) -> list[list[str]]:
        """What stands in the cells."""
        matrix = self.matrix(arrays)
        if self.words:
            return [[self.words[int(x)] for x in row] for row in matrix.numbers]
        return matrix.cells()


def draw_in_a_row(figure, of: Sequence[Of], arrays: Arrays, marked: Sequence[str], row: int):
    """Draw matrices beside each other; outline a row of those that are marked."""
    widths = [len(shown.columns) + 1 for shown in of]
    places = figure.subplots(1, len(of), squeeze=False, width_ratios=widths)[0]
    for axes, shown in zip(places, of, strict=True):
        shown.draw(axes, arrays)
        if shown.name in marked:
            axes.axhspan(row - 0.5, row + 0.5, fill=False, color=BLUE, linewidth=1.5)


@dataclass(frozen=True)
class Matrices(View):
    """Matrices side by side, with an arrow before each that is named in `after`.

    The control `picked` chooses the row that is outlined in the matrices named in `marked`. Each of
    the `groups` has names of matrices, and "→" for an arrow; only one group is shown, the one whose
    index is in the array () named `group`.
    """

    of: Sequence[Of]
    after: Sequence[str] = ()
    picked: str = ""
    marked: Sequence[str] = ()
    groups: Sequence[Sequence[str]] = ()
    group: str = ""
    height: float = 1.0
    kind: ClassVar = "matrices"

    def there(self, arrays: Arrays) -> list[Of]:
        """The matrices that are shown, in order."""
        if not self.groups:
            return list(self.of)
        by_name = {of.name: of for of in self.of}
        return [by_name[name] for name in self.groups[int(arrays[self.group])] if name != "→"]

    def draw(self, figure, arrays, chosen):
        row = chosen.get(self.picked, 0)
        draw_in_a_row(figure, self.there(arrays), arrays, self.marked, row)

    def shown(self, arrays, chosen):
        row = {of.name: chosen[self.picked] for of in self.of if of.name in self.marked}
        return {
            of.name: {"cells": of.texts(arrays), "picked": row.get(of.name)}
            | ({"lit": np.argwhere(of.lights(arrays) > 0).tolist()} if of.lit else {})
            for of in self.there(arrays)
        }


@dataclass(frozen=True)
class Heatmap(View):
    """The array `name` as colours, from `low` to `high`; a pointer or the keys read its cells.

    `rows` and `columns` say what its axes count. `row_names` and `column_names` are words, or the
    name of an array of ids, the places of words in `vocabulary`. The control `row` chooses the row
    that is marked.
    """

    name: str
    rows: str
    columns: str
    low: float = 0.0
    high: float = 1.0
    row: str = ""
    row_names: Sequence[str] | str = ()
    column_names: Sequence[str] | str = ()
    vocabulary: Sequence[str] = ()
    height: float = 2.0
    kind: ClassVar = "heatmap"

    def levels(self, array: np.ndarray) -> list[list[int]]:
        """How strong each cell's colour is, 0 to 255; with a minus where the number is negative."""
        if self.low < 0:
            share, sign = np.abs(array) / max(-self.low, self.high), np.where(array < 0, -1, 1)
        else:
            share, sign = (array - self.low) / (self.high - self.low), 1
        return (sign * np.floor(255 * np.clip(share, 0, 1) + 0.5)).astype(int).tolist()

    def names(self, arrays: Arrays) -> list[list[str]]:
        """What stands beside the rows and above the columns."""
        given = self.row_names, self.column_names
        numbered = [arrays[words] if isinstance(words, str) and words else () for words in given]
        symbols = [[self.vocabulary[int(n)] for n in ids] for ids in numbered]
        return [spelled or list(words) for spelled, words in zip(symbols, given, strict=True)]

    def draw(self, figure, arrays, chosen):
        axes = figure.subplots()
        options = dict(cmap=SIGNED if self.low < 0 else "Blues", aspect="auto")
        low = -max(-self.low, self.high) if self.low < 0 else self.low
        axes.imshow(arrays[self.name], vmin=low, vmax=max(-low, self.high), **options)
        axes.set(xlabel=self.columns, ylabel=self.rows)
        for names, axis in zip(self.names(arrays), (axes.yaxis, axes.xaxis), strict=True):
            if names:
                axis.set_ticks(range(len(names)), names, fontsize=8)
        if self.row:
            axes.axhline(chosen[self.row], color=ORANGE)

    def shown(self, arrays, chosen):
        return {
            "levels": self.levels(arrays[self.name]),
            "names": self.names(arrays),
            "row": chosen[self.row] if self.row else None,
        }


@dataclass(frozen=True)
class Axis:
    """A chart's axis: what it counts, from `low` to `high`; with `log` in powers of ten.

    With `names` it has a row of height 1 for each name, from 0 on.
    """

    label: str
    low: float
    high: float
    log: bool = False
    names: Sequence[str] = ()

    def share(self, values):
        """Where values are: 0 is the beginning and 1 the end; values outside go to the ends."""
        low, high = (np.log10(end) if self.log else end for end in (self.low, self.high))
        with np.errstate(divide="ignore"):
            values = np.log10(values) if self.log else np.asarray(values, float)
        return np.clip((values - low) / (high - low), 0, 1)

    def ticks(self) -> list[float]:
        """The numbers that stand beside it."""
        locator = LogLocator(numticks=6) if self.log else MaxNLocator(5, steps=[1, 2, 5, 10])
        ticks = locator.tick_values(self.low, self.high)
        return [float(at) for at in ticks if self.low <= at * (1 + 1e-9) and at <= self.high]

    def more(self, page) -> dict:
        ticks = [(tick, power(tick) if self.log else figure(tick)) for tick in self.ticks()]
        if self.names:
            ticks = [(row + 0.5, name) for row, name in enumerate(self.names)]
        return {"ticks": [{"at": float(self.share(at)), "label": label} for at, label in ticks]}


@dataclass(frozen=True)
class Drawn:
    """An array in a chart: (N,) a line over `at`; (N, 2) dots, arrows from 0 or an area.

    Or (N, 3) "work": the row, begin and end of each piece; a piece is filled once the marker has
    passed it.

    `label` says what it is, and `names` stand beside its points. `sizes` names an array (N,) that
    has the sizes of its dots, from 0 to 1. Its colour is the next one, or the one with the
    number `colour`; arrays whose last word is in MEANINGS have their own.
    """

    name: str
    label: str = ""
    form: str = "line"
    at: Sequence[float] = ()
    names: Sequence[str] = ()
    sizes: str = ""
    colour: int | None = None

    def coloured(self, number: int) -> int:
        """The number of its colour, if its own place in the chart is `number`."""
        meaning = self.name.split("_")[-1]
        if meaning in MEANINGS:
            return len(SERIES) + [*MEANINGS].index(meaning)
        return number if self.colour is None else self.colour

    def points(self, arrays: Arrays) -> np.ndarray:
        array = np.atleast_2d(arrays[self.name])
        if self.form == "work":
            return np.stack([array[:, 1:].ravel(), array[:, 0].repeat(2)], axis=-1)
        return np.stack([self.at, array[0]], axis=-1) if self.form == "line" else array


@dataclass(frozen=True)
class Chart(View):
    """Lines, dots, arrows and areas between two axes.

    The control `marker` chooses the place in `at` at which all lines are read out. The point of the
    control `pad` can be dragged. A `square` chart has equal sides.
    """

    of: Sequence[Drawn]
    x: Axis
    y: Axis
    marker: str = ""
    at: Sequence[float] = ()
    pad: str = ""
    square: bool = False
    height: float = 2.0
    kind: ClassVar = "chart"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of what lies between the axes, in SVG's units."""
        return (260, 260) if self.square else (408, 220)

    def more(self, page) -> dict:
        colours = [drawn.coloured(number) for number, drawn in enumerate(self.of)]
        return {"size": self.size, "colours": colours}

    def draw(self, figure, arrays, chosen):
        axes = figure.subplots()
        for number, drawn in enumerate(self.of):
            points, colour = drawn.points(arrays), drawn.coloured(number)
            style = dict(color=COLOURS[colour], label=drawn.label or None)
            if drawn.form == "line":
                axes.plot(*points.T, linestyle=STROKES[colour], **style)
            elif drawn.form == "area":
                axes.fill(*points.T, alpha=0.15, **style)
            elif drawn.form == "work":
                (row, begin, end), now = arrays[drawn.name].T, self.at[chosen[self.marker]]
                done = [COLOURS[colour] if b <= now else GREY for b in end]
                axes.barh(row + 0.5, end - begin, 0.8, begin, color=done, alpha=0.6)
            elif drawn.form == "arrows":
                style |= dict(angles="xy", scale_units="xy", scale=1, width=0.006)
                axes.quiver(*np.zeros_like(points.T), *points.T, **style)
            else:
                sizes = 20 + 180 * arrays[drawn.sizes] if drawn.sizes else 40
                axes.scatter(*points.T, s=sizes, **style)
            for name, point in zip(drawn.names, points, strict=False):
                axes.annotate(name, point, (4, 4), textcoords="offset points", fontsize=8)
        for name, axis in ("x", self.x), ("y", self.y):
            scale = "log" if axis.log else "linear"
            given = {"label": axis.label, "lim": (axis.low, axis.high), "scale": scale}
            axes.set(**{f"{name}{what}": value for what, value in given.items()})
        axes.set_aspect("equal" if self.square else "auto")
        if self.y.names:
            axes.set_yticks(np.arange(len(self.y.names)) + 0.5, self.y.names)
        if self.marker:
            axes.axvline(self.at[chosen[self.marker]], color=GREY)
        if any(drawn.label for drawn in self.of) and not self.y.names:
            axes.legend(fontsize=8)

    def shown(self, arrays, chosen):
        (width, height), shown = self.size, {}
        for drawn in self.of:
            xs, ys = drawn.points(arrays).T
            places = LEFT + width * self.x.share(xs), height * (1 - self.y.share(ys))
            sizes = tenth(3 + 11 * arrays[drawn.sizes]).tolist() if drawn.sizes else None
            at = tenth(np.stack(places, axis=-1)).tolist()
            shown[drawn.name] = {"at": at, "sizes": sizes}
        return {"drawn": shown, "mark": chosen[self.marker] if self.marker else None}


@dataclass(frozen=True)
class Block:
    """A block of a diagram: its name, its label, and where it stands (column, row)."""

    name: str
    label: str
    column: float
    row: float


@dataclass(frozen=True)
class Diagram(View):
    """Blocks, and edges between them along which data go one way and gradients the other.

    `at` names the array () with the index of the block at work, `way` the array () with the
    direction, 1 or -1, and `values` an array (N,) of numbers to show in the blocks. A click on a
    block sets the control `pick`, whose options have the order of the blocks. On a wide page, a
    diagram that `turns` runs from left to right instead of from top to bottom.
    """

    blocks: Sequence[Block]
    edges: Sequence[tuple[str, str]]
    at: str
    way: str = ""
    values: str = ""
    pick: str = ""
    turns: bool = False
    height: float = 2.0
    kind: ClassVar = "diagram"

    def texts(self, arrays: Arrays) -> list[str]:
        return [figure(x) for x in arrays[self.values]] if self.values else []

    def draw(self, figure, arrays, chosen):
        axes, texts = figure.subplots(), self.texts(arrays)
        where = {block.name: (block.column, block.row) for block in self.blocks}
        for a, b in self.edges:
            axes.annotate("", where[b], where[a], arrowprops=dict(arrowstyle="->", color=GREY))
        for number, block in enumerate(self.blocks):
            way = BACKWARD if self.way and int(arrays[self.way]) < 0 else FORWARD
            colour = way if number == int(arrays[self.at]) else GREY
            box = dict(boxstyle="round", facecolor="white", edgecolor=colour)
            text = "\n".join([block.label, *texts[number : number + 1]])
            axes.text(*where[block.name], text, ha="center", va="center", fontsize=8, bbox=box)
        columns, rows = zip(*where.values(), strict=True)
        axes.set_xlim(min(columns) - 0.6, max(columns) + 0.6)
        axes.set_ylim(max(rows) + 0.6, min(rows) - 0.6)
        axes.axis("off")

    def shown(self, arrays, chosen):
        at, way = self.blocks[int(arrays[self.at])].name, int(arrays[self.way]) if self.way else 1
        lit = [edge for edge in self.edges if edge[1 if way > 0 else 0] == at]
        return {"at": at, "texts": self.texts(arrays), "way": way, "lit": lit}


@dataclass(frozen=True)
class Clocks(View):
    """Clock faces side by side; `hands` maps names of arrays (N, 2), a hand's tips, to labels.

    (0, 1) points to twelve, (1, 0) to three. `labels` stand below the faces with the numbers of the
    array `values` (N,). A hand whose length is the array `reach` () ends at the rim.
    """

    hands: Mapping[str, str]
    labels: Sequence[str]
    values: str
    reach: str
    kind: ClassVar = "clocks"

    def draw(self, figure, arrays, chosen):
        faces = figure.subplots(1, len(self.labels), squeeze=False)[0]
        limits = np.array([-1.05, 1.05]) * arrays[self.reach]
        texts = self.shown(arrays, chosen)["values"]
        for n, (axes, label) in enumerate(zip(faces, self.labels, strict=True)):
            axes.add_patch(Circle((0, 0), arrays[self.reach], fill=False, color=GREY))
            for colour, name in zip(COLOURS, self.hands, strict=False):
                axes.plot(*zip((0, 0), arrays[name][n], strict=True), color=colour, linewidth=2)
            axes.set(xlim=limits, ylim=limits, aspect="equal")
            axes.set_title(f"{label}\n{texts[n]}", fontsize=8)
            axes.axis("off")
        labels = zip(COLOURS, self.hands.values(), strict=False)
        for n, (colour, label) in enumerate(labels):
            figure.text(0.5, 0.04 + 0.09 * n, label, color=colour, ha="center", fontsize=9)

    def shown(self, arrays, chosen):
        tips = {name: tenth(48 * arrays[name] / arrays[self.reach]).tolist() for name in self.hands}
        return {"tips": tips, "values": [figure(x) for x in arrays[self.values]]}


@dataclass(frozen=True)
class Figures(View):
    """Numbers with labels: `of` maps the names of arrays to labels.

    Arrays named in `spelled` have ids, shown as the words of `vocabulary` at these places. `right`
    maps some of their names to the arrays that they should equal; other ids are marked as wrong.
    Numbers named in `amounts` are shown in words.
    """

    of: Mapping[str, str]
    spelled: Sequence[str] = ()
    vocabulary: Sequence[str] = ()
    right: Mapping[str, str] = field(default_factory=dict)
    amounts: Sequence[str] = ()
    height: float = 0.4
    kind: ClassVar = "figures"

    def texts(self, arrays: Arrays) -> dict[str, str]:
        def text(name):
            values = np.atleast_1d(arrays[name])
            shown = amount if name in self.amounts else figure
            return " ".join(
                self.vocabulary[int(n)] if name in self.spelled else shown(n) for n in values
            )

        return {name: text(name) for name in self.of}

    def draw(self, figure, arrays, chosen):
        texts, inches = self.texts(arrays), figure.bbox.width / figure.dpi
        words = "   ".join(f"{label}: {texts[name]}" for name, label in self.of.items())
        words = textwrap.fill(words, int(14.5 * inches))
        # Text in axes as wide as the picture would leave the axes of all views no room.
        figure.text(0.5, 0.5, words, ha="center", va="center", fontsize=9)

    def shown(self, arrays, chosen):
        pairs = [[np.atleast_1d(arrays[n]) for n in names] for names in self.right.items()]
        wrong = {
            name: [n for n, each in enumerate(given) if [each] != [*right[n : n + 1]]]
            for name, (given, right) in zip(self.right, pairs, strict=True)
        }
        return self.texts(arrays) | ({"wrong": wrong} if wrong else {})
