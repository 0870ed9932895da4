"""Simulations: what a reader moves and the page answers, over numbers that numformer computed.

A simulation is declared: its controls, one function from their values to named arrays, and the
views (views.py) that show these. From this come the page's data, the picture for pages without
scripts, the window with matplotlib's widgets, and the lines of Python below it. page/simulation.js
chooses among what was computed here when the page was built.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from lessons.kit.lesson import Picture
from lessons.kit.views import View, numbers, told
from numformer.errors import InputError


@dataclass(frozen=True)
class Option:
    """What a control can be set to: the value that `compute` gets, in words, with a note.

    `code` is the value in Python, where that is not its repr.
    """

    value: Any
    label: str = ""
    note: str = ""
    code: str = ""

    def __post_init__(self):
        words = f"{self.value:g}" if isinstance(self.value, float) else f"{self.value}"
        object.__setattr__(self, "label", self.label or words)
        object.__setattr__(self, "code", self.code or repr(self.value))

    def more(self, page) -> dict:
        return {"value": None}  # the page needs its label alone


@dataclass(frozen=True)
class Control:
    """What a reader sets: one of `options`, Options or plain values; at first the one at `start`.

    `compute` gets the value under the control's name, or with `shows_only` does not: then it is an
    index for views alone, such as which row is picked.
    """

    name: str
    label: str
    options: Sequence[Any] = ()
    start: int = 0
    shows_only: bool = False
    kind: ClassVar = "choice"

    def __post_init__(self):
        made = [option if isinstance(option, Option) else Option(option) for option in self.options]
        object.__setattr__(self, "options", made)


class Choice(Control):
    """Buttons, one for each option."""


@dataclass(frozen=True)
class Thumbnails(Control):
    """Buttons that show, small, what the heatmap of the array `of` would show."""

    of: str = ""
    kind: ClassVar = "thumbnails"


@dataclass(frozen=True)
class Slider(Control):
    """A slider over the options; with `plays` also a button that lets it run."""

    plays: bool = False
    kind: ClassVar = "slider"


@dataclass(frozen=True)
class Pad(Control):
    """A point (x, y) of a grid, moved by dragging it in a Chart or by two sliders.

    The options are made of `across`, the values of x and of y; the value is an array (2,).
    """

    across: Sequence[float] = ()
    kind: ClassVar = "pad"

    def __post_init__(self):
        made = [
            Option(np.array([x, y]), f"({x:g}, {y:g})", code=f"np.array([{x:g}, {y:g}])")
            for y in self.across
            for x in self.across
        ]
        object.__setattr__(self, "options", made)


@dataclass(frozen=True)
class Entries:
    """A matrix of small integers, each chosen by the reader; the arrays are linear in it.

    `presets` are Options whose values are matrices; with the first one the page begins.
    """

    name: str
    label: str
    symbol: str
    rows: Sequence[str]
    columns: Sequence[str]
    presets: Sequence[Option]
    values: Sequence[int] = (3, 2, 1, 0, -1, -2, -3)
    kind: ClassVar = "entries"

    @property
    def start(self) -> np.ndarray:
        return np.asarray(self.presets[0].value, float)

    def units(self) -> list[np.ndarray]:
        """The matrices with a 1 in one entry: all others are sums of these."""
        return list(np.eye(self.start.size).reshape(-1, *self.start.shape))

    def more(self, page) -> dict:
        return {
            "presets": [
                told(preset, page) | {"value": numbers(np.asarray(preset.value, float))}
                for preset in self.presets
            ]
        }


@dataclass(frozen=True, kw_only=True)
class Simulation(Picture):
    """A simulation: `caption` says how to read its picture, `say` what to do with it on a page.

    `compute(**values)` gives the arrays by name for the values of the controls; what it computes is
    linear in the Entries, where there are any. `views` show the arrays. `code` are lines of Python
    that give the same numbers; a line `name = ...` in it becomes the value of that control.
    """

    title: str
    say: str
    controls: Sequence[Control | Entries]
    compute: Callable[..., Mapping[str, np.ndarray]]
    views: Sequence[View]
    code: str
    draw: Callable[[Figure], None] = None
    size: tuple[float, float] = (7.6, 4.2)

    def __post_init__(self):
        def draw(figure):
            self.draw_views(figure, self.arrays(self.at_start()), self.at_start())

        object.__setattr__(self, "draw", self.draw or draw)

    @property
    def discrete(self) -> list[Control]:
        """The controls whose options are all computed."""
        return [c for c in self.controls if isinstance(c, Control) and not c.shows_only]

    @property
    def entries(self) -> Entries | None:
        return next((c for c in self.controls if isinstance(c, Entries)), None)

    def at_start(self) -> dict[str, int]:
        """The index of the option of each control with which the page begins."""
        return {c.name: c.start for c in self.controls if isinstance(c, Control)}

    def arrays(self, chosen: Mapping[str, int], entries: np.ndarray | None = None) -> dict:
        """What `compute` gives for the options of these indices, each a float64 array."""
        values = {c.name: c.options[chosen[c.name]].value for c in self.discrete}
        if self.entries:
            values[self.entries.name] = self.entries.start if entries is None else entries
        return {n: np.asarray(array, float) for n, array in self.compute(**values).items()}

    def table(self) -> dict:
        """Every array for every choice, each different one once.

        `pool` holds the arrays. For each name `index` says which of them it is, by the options of
        those controls on which it depends, `axes`. Names in `linear` have the arrays of all units
        there, of which the page adds up what the entries say.
        """
        sizes = [len(control.options) for control in self.discrete]
        pool: dict[str, int] = {}
        indices: dict[str, np.ndarray] = {}
        linear: set[str] = set()
        for place in itertools.product(*map(range, sizes)):
            chosen = {c.name: i for c, i in zip(self.discrete, place, strict=True)}
            for name, (array, is_linear) in self._units(chosen).items():
                linear |= {name} if is_linear else set()
                where = indices.setdefault(name, np.zeros(sizes, int))
                # What is added up has more decimals, so that sums are right to as many as others.
                text = json.dumps(numbers(array, 9 if is_linear else 6))
                where[place] = pool.setdefault(text, len(pool))
        table = {}
        for name, where in indices.items():
            axes = [a for a in range(len(sizes)) if (where != where.take([0], axis=a)).any()]
            kept = where[tuple(slice(None) if a in axes else 0 for a in range(len(sizes)))]
            names = [self.discrete[a].name for a in axes]
            table[name] = {"axes": names, "index": kept.ravel().tolist()}
        pooled = [json.loads(text) for text in pool]
        return {"pool": pooled, "table": table, "linear": sorted(linear)}

    def _units(self, chosen: Mapping[str, int]) -> dict[str, tuple[np.ndarray, bool]]:
        """Of each name its array, or those of all units where it is linear in the entries."""
        if not self.entries:
            return {name: (array, False) for name, array in self.arrays(chosen).items()}
        none = self.arrays(chosen, np.zeros_like(self.entries.start))
        units = [self.arrays(chosen, unit) for unit in self.entries.units()]
        made = {}
        for name, array in none.items():
            of_units = np.stack([unit[name] for unit in units])
            is_linear = not np.array_equal(of_units, np.broadcast_to(array, of_units.shape))
            if is_linear and array.any():
                raise InputError(
                    "what depends on the entries is linear in them, so it is 0 where they are",
                    f"{name}, which is not",
                    "Compute it so, or show something else.",
                )
            made[name] = (of_units if is_linear else array), is_linear
        return made

    def html(self, page) -> str:
        page.script("simulation")
        parts = told({"controls": self.controls, "views": self.views}, page)
        data = json.dumps(
            {"name": self.name, **parts, **self.table()}, separators=(",", ":"), ensure_ascii=False
        )
        data = data.replace("</", "<\\/")  # or a tag in it would end the script
        places = "".join(f'<i id="{place}"></i>' for view in self.views for place in view.places)
        return f"""\
<figure class="simulation" id="{self.name}" data-simulation="{self.name}">
<figcaption><h3>{self.title}</h3>{page.markdown(self.say)}</figcaption>
<div class="simulation-picture">{self.svg()}{page.markdown(self.caption)}</div>
{places}<div class="simulation-stage" hidden></div>
<details class="simulation-code"><summary>The same numbers in Python</summary>
{page.code(self.python())}</details>
<script type="application/json">{data}</script>
</figure>
"""

    def python(self, chosen: Mapping[str, int] | None = None, entries=None) -> str:
        """The lines of Python for a choice, the first one unless given."""
        chosen, code = chosen or self.at_start(), {}
        for control in self.controls:
            if isinstance(control, Entries):
                value = control.start if entries is None else entries
                code[control.name] = f"np.array({numbers(np.asarray(value))}, float)"
            else:
                code[control.name] = control.options[chosen[control.name]].code
        names = [line.partition(" = ")[0] for line in self.code.splitlines()]
        return "\n".join(
            f"{name} = {code[name]}" if name in code else line
            for name, line in zip(names, self.code.splitlines(), strict=True)
        )

    def draw_views(self, figure, arrays: Mapping[str, np.ndarray], chosen: Mapping[str, int]):
        """The views below each other, each as high as it says."""
        heights = [view.height for view in self.views]
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
        for part, view in zip(parts.ravel(), self.views, strict=True):
            view.draw(part, arrays, chosen)

    def in_window(self, figure: Figure) -> None:
        """Draw it with matplotlib's sliders, one for each control."""
        from matplotlib.widgets import Slider as Range

        figure.set_layout_engine("none")  # widgets stand where they are put
        stage, panel = figure.subfigures(1, 2, width_ratios=(3, 1))
        controls = [control for control in self.controls if isinstance(control, Control)]
        places = panel.subplots(len(controls), 1, squeeze=False)[:, 0]
        figure.widgets = [  # widgets that nothing refers to are deaf
            Range(axes, "", 0, len(control.options) - 1, valinit=control.start, valstep=1)
            for axes, control in zip(places, controls, strict=True)
        ]

        def redraw(_=None) -> None:
            chosen = {c.name: int(w.val) for c, w in zip(controls, figure.widgets, strict=True)}
            for axes, control in zip(places, controls, strict=True):
                axes.set_title(
                    f"{control.label}: {control.options[chosen[control.name]].label}", fontsize=9
                )
            stage.clear()
            self.draw_views(stage, self.arrays(chosen), chosen)
            figure.canvas.draw_idle()

        for widget in figure.widgets:
            widget.on_changed(redraw)
        redraw()
