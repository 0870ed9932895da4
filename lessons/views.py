"""What simulations show arrays with: matrices, heatmaps, curves, a plane, a timeline, a diagram.

A view has two halves. This one tells the page what it needs (`data`), draws the picture for those
without scripts and for windows (`draw`), and knows what a page has to show for given arrays
(`shown`), which the tests compare with what it shows. The other half is page/views.js.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lessons.lesson import BLUE, GREEN, GREY, ORANGE, Matrix, plain

COLOURS = BLUE, ORANGE, GREEN, GREY
STROKES = "", "6 3", "2 3", "8 3 2 3"  # of curves, in SVG; so that colour alone tells nothing
WIDTH, HEIGHT, LEFT, BOTTOM = 460, 260, 52, 40  # of a chart and its axes, in SVG's units
Arrays = Mapping[str, np.ndarray]
Chosen = Mapping[str, int]


class View(ABC):
    """One way to show arrays; `height` is its share of the picture's height."""

    kind: ClassVar[str]
    height: float = 1.0

    @abstractmethod
    def data(self, page) -> dict:
        """What the page's half needs to know, with its `kind`."""

    @abstractmethod
    def draw(self, figure, arrays: Arrays, chosen: Chosen) -> None:
        """Draw it with matplotlib."""

    @abstractmethod
    def shown(self, arrays: Arrays, chosen: Chosen):
        """What `shown()` of the page's half has to return, as JSON has it."""


@dataclass(frozen=True)
class Of:
    """An array shown as a matrix: its name, its symbol, the names of its rows and columns.

    `largest` is the size of an entry of the darkest colour: one for all matrices that a reader
    compares. `words` stand for 0 and 1.
    """

    name: str
    symbol: str
    rows: Sequence[str]
    columns: Sequence[str]
    largest: float
    note: str = ""
    words: tuple[str, str] | None = None

    def data(self, page) -> dict:
        kept = {name: value for name, value in vars(self).items() if name != "symbol"}
        return kept | {"symbol": page.math(self.symbol), "plain": plain(self.symbol)}

    def matrix(self, arrays: Arrays) -> Matrix:
        array = np.atleast_2d(arrays[self.name])
        return Matrix(self.symbol, array, self.rows, self.columns, self.largest)

    def texts(self, arrays: Arrays) -> list[list[str]]:
        """What stands in the cells."""
        matrix = self.matrix(arrays)
        if self.words:
            return [[self.words[int(x)] for x in row] for row in matrix.numbers]
        return matrix.cells()


@dataclass(frozen=True)
class Matrices(View):
    """Matrices side by side, an arrow before each name in `after`; `picked` is a control's name.

    The control's index is the row that is marked in those whose rows it counts.
    """

    of: Sequence[Of]
    after: Sequence[str] = ()
    picked: str = ""
    marked: Sequence[str] = ()
    height: float = 1.0
    kind: ClassVar = "matrices"

    def data(self, page) -> dict:
        return {"kind": self.kind, "of": [each.data(page) for each in self.of],
                "after": self.after, "picked": self.picked, "marked": self.marked}  # fmt: skip

    def draw(self, figure, arrays, chosen):
        for axes, of in zip(figure.subplots(1, len(self.of), squeeze=False)[0], self.of):
            of.matrix(arrays).draw(axes)
            if of.name in self.marked:
                row = chosen[self.picked]
                axes.axhspan(row - 0.5, row + 0.5, fill=False, color=BLUE, linewidth=1.5)

    def shown(self, arrays, chosen):
        found = {}
        for of in self.of:
            row = chosen[self.picked] if of.name in self.marked else None
            found[of.name] = {"cells": of.texts(arrays), "picked": row}
        return found


@dataclass(frozen=True)
class Heatmap(View):
    """A large matrix as colours, from `low` to `high`; its cells are read by pointer or arrow keys.

    `rows` and `columns` say what its axes count; `row` is the control whose index is a marked row.
    """

    name: str
    rows: str
    columns: str
    low: float = 0.0
    high: float = 1.0
    row: str = ""
    height: float = 2.0
    kind: ClassVar = "heatmap"

    def data(self, page) -> dict:
        return {"kind": self.kind} | {n: v for n, v in vars(self).items() if n != "height"}

    def levels(self, array: np.ndarray) -> np.ndarray:
        """How strong each cell's colour is, 0 to 255."""
        share = (array - self.low) / (self.high - self.low)
        return np.floor(255 * np.clip(share, 0, 1) + 0.5).astype(int)

    def draw(self, figure, arrays, chosen):
        axes = figure.subplots()
        axes.imshow(arrays[self.name], vmin=self.low, vmax=self.high, cmap="Blues", aspect="auto")
        axes.set(xlabel=self.columns, ylabel=self.rows)
        if self.row:
            axes.axhline(chosen[self.row], color=ORANGE)

    def shown(self, arrays, chosen):
        return {"levels": self.levels(arrays[self.name]).tolist(),
                "row": chosen[self.row] if self.row else None}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """A chart's axis: what it counts and from where to where, `log` in powers of ten."""

    label: str
    low: float
    high: float
    log: bool = False

    def share(self, values):
        """Where values stand, 0 at the beginning and 1 at the end; what is outside at its edge."""
        low, high = (np.log10(each) if self.log else each for each in (self.low, self.high))
        with np.errstate(divide="ignore"):
            values = np.log10(values) if self.log else np.asarray(values, float)
        return np.clip((values - low) / (high - low), 0, 1)

    def ticks(self) -> list[float]:
        """The numbers that stand beside it."""
        if self.log:
            first, last = np.ceil(np.log10(self.low)), np.floor(np.log10(self.high))
            step = max(1, round((last - first) / 5))
            return [float(10.0**power) for power in np.arange(first, last + 1, step)]
        step = 10 ** np.floor(np.log10(self.high - self.low))
        step = next(s for s in (step, step / 2, step / 5) if (self.high - self.low) / s >= 3)
        first = np.ceil(self.low / step - 1e-9)
        return [float(round(k * step, 9)) for k in np.arange(first, self.high / step + 1e-9)]

    def data(self) -> dict:
        ticks = [{"at": float(self.share(tick)), "label": f"{tick + 0:g}".replace("-", "−")}
                 for tick in self.ticks()]  # fmt: skip
        return {"label": self.label, "low": self.low, "high": self.high, "log": self.log,
                "ticks": ticks}  # fmt: skip


def places(x: Axis, y: Axis, xs, ys) -> list[list[float]]:
    """Points in a chart's SVG, to a tenth."""
    xs = LEFT + (WIDTH - LEFT) * x.share(xs)
    ys = (HEIGHT - BOTTOM) * (1 - y.share(ys))
    return np.round(np.stack([xs, ys], axis=-1), 1).tolist()


@dataclass(frozen=True)
class Curves(View):
    """Curves over `at`, a name of an array or numbers: `of` has the label of each array (N,).

    `marker` is a control whose index is the place on all curves that is read out.
    """

    at: Sequence[float]
    of: Mapping[str, str]
    x: Axis
    y: Axis
    marker: str = ""
    height: float = 2.0
    kind: ClassVar = "curves"

    def data(self, page) -> dict:
        return {"kind": self.kind, "at": list(map(float, self.at)), "of": dict(self.of),
                "x": self.x.data(), "y": self.y.data(), "marker": self.marker}  # fmt: skip

    def draw(self, figure, arrays, chosen):
        axes = figure.subplots()
        for (name, label), colour, stroke in zip(self.of.items(), COLOURS, ("-", "--", ":", "-.")):
            axes.plot(self.at, arrays[name], color=colour, linestyle=stroke, label=label)
        axes.set(xlabel=self.x.label, ylabel=self.y.label, xlim=(self.x.low, self.x.high),
                 ylim=(self.y.low, self.y.high))  # fmt: skip
        axes.set_xscale("log" if self.x.log else "linear")
        axes.set_yscale("log" if self.y.log else "linear")
        if self.marker:
            axes.axvline(self.at[chosen[self.marker]], color=GREY)
        axes.legend(fontsize=8)

    def shown(self, arrays, chosen):
        lines = {name: places(self.x, self.y, self.at, arrays[name]) for name in self.of}
        mark = chosen[self.marker] if self.marker else None
        return {"lines": lines, "mark": mark}


@dataclass(frozen=True)
class Points:
    """An array (N, 2) of points, or (2,) of one: drawn as dots, as arrows from 0 or as an area.

    `labels` stand beside them; `weights` names an array (N,) from 0 to 1 that is the dots' size.
    """

    name: str
    labels: Sequence[str] = ()
    form: str = "dots"
    colour: int = 0
    weights: str = ""


@dataclass(frozen=True)
class Plane(View):
    """Points and arrows in a plane from -`reach` to `reach`; `pad` is the control that is dragged."""

    of: Sequence[Points]
    reach: float
    pad: str = ""
    x: str = "x"
    y: str = "y"
    height: float = 2.5
    kind: ClassVar = "plane"

    side: ClassVar = 320

    def data(self, page) -> dict:
        return {"kind": self.kind, "of": [vars(each) for each in self.of], "reach": self.reach,
                "pad": self.pad, "x": self.x, "y": self.y}  # fmt: skip

    def draw(self, figure, arrays, chosen):
        axes = figure.subplots()
        for each in self.of:
            points, colour = np.atleast_2d(arrays[each.name]), COLOURS[each.colour]
            if each.form == "area":
                axes.fill(*points.T, color=colour, alpha=0.15)
            elif each.form == "arrows":
                none = np.zeros(len(points))
                axes.quiver(none, none, *points.T, color=colour, angles="xy", scale_units="xy",
                            scale=1, width=0.006)  # fmt: skip
            else:
                sizes = 20 + 180 * arrays[each.weights] if each.weights else 40
                axes.scatter(*points.T, s=sizes, color=colour)
            for label, point in zip(each.labels, points, strict=False):
                axes.annotate(label, point, (4, 4), textcoords="offset points", fontsize=8)
        limits = -self.reach, self.reach
        axes.set(xlim=limits, ylim=limits, aspect="equal", xlabel=self.x, ylabel=self.y)

    def shown(self, arrays, chosen):
        half, found = self.side / 2, {}
        for each in self.of:
            points = np.atleast_2d(arrays[each.name]) / self.reach
            places = np.round(half * (1 + points * [1, -1]), 1)
            sizes = np.round(3 + 11 * arrays[each.weights], 1) if each.weights else None
            found[each.name] = {"at": places.tolist(),
                                "sizes": None if sizes is None else sizes.tolist()}  # fmt: skip
        return found


@dataclass(frozen=True)
class Timeline(View):
    """Work over time: the array `of` (N, 3) has of each piece its row, its begin and its end.

    `now` is the control whose index is the time; what has ended is filled, what goes on striped.
    """

    of: str
    rows: Sequence[str]
    until: float
    now: str
    x: str = "steps in time"
    height: float = 1.5
    kind: ClassVar = "timeline"

    def data(self, page) -> dict:
        return {"kind": self.kind} | {n: v for n, v in vars(self).items() if n != "height"}

    def draw(self, figure, arrays, chosen):
        axes, now = figure.subplots(), chosen[self.now]
        for row, begin, end in arrays[self.of]:
            alpha = 1 if end <= now else 0.5 if begin < now else 0.15
            axes.barh(row, end - begin, left=begin, color=BLUE, alpha=alpha, edgecolor="white")
        axes.axvline(now, color=ORANGE)
        axes.set(xlim=(0, self.until), xlabel=self.x)
        axes.set_yticks(range(len(self.rows)), self.rows)
        axes.invert_yaxis()

    def shown(self, arrays, chosen):
        now = chosen[self.now]
        states = ["done" if end <= now else "doing" if begin < now else "open"
                  for _, begin, end in arrays[self.of]]  # fmt: skip
        return {"states": states, "pieces": arrays[self.of].tolist(), "now": now}


@dataclass(frozen=True)
class Block:
    """A block of a diagram: its name, its label, and where it stands (column, row)."""

    name: str
    label: str
    column: float
    row: float


@dataclass(frozen=True)
class Diagram(View):
    """Blocks, and edges between them along which data (up) and gradients (down) travel.

    `at` is the array of the index of the block at work, `way` that of the direction, 1 or -1;
    `values` an array (N,) of numbers in the blocks. `pick` is the control that a block sets, whose
    options have the blocks' order.
    """

    blocks: Sequence[Block]
    edges: Sequence[tuple[str, str]]
    at: str
    way: str = ""
    values: str = ""
    pick: str = ""
    height: float = 2.0
    kind: ClassVar = "diagram"
    size: ClassVar = (150, 46)

    def data(self, page) -> dict:
        return {"kind": self.kind, "blocks": [vars(each) for each in self.blocks],
                "edges": self.edges, "at": self.at, "way": self.way, "values": self.values,
                "pick": self.pick}  # fmt: skip

    def draw(self, figure, arrays, chosen):
        axes = figure.subplots()
        where = {block.name: (block.column, block.row) for block in self.blocks}
        for a, b in self.edges:
            axes.annotate("", where[b], where[a], arrowprops=dict(arrowstyle="->", color=GREY))
        for number, block in enumerate(self.blocks):
            words = block.label
            if self.values:
                words += f"\n{arrays[self.values][number]:.2f}"
            colour = ORANGE if number == int(arrays[self.at]) else BLUE
            axes.text(*where[block.name], words, ha="center", va="center", fontsize=8,
                      bbox=dict(boxstyle="round", facecolor="white", edgecolor=colour))  # fmt: skip
        axes.set(xlim=(-0.6, 0.6 + max(block.column for block in self.blocks)),
                 ylim=(0.6 + max(block.row for block in self.blocks), -0.6))  # fmt: skip
        axes.axis("off")

    def shown(self, arrays, chosen):
        texts = None
        if self.values:
            texts = [f"{x:.2f}".replace("-", "−") for x in arrays[self.values]]
        return {"at": self.blocks[int(arrays[self.at])].name, "texts": texts,
                "way": int(arrays[self.way]) if self.way else 1}  # fmt: skip
