"""Simulations: a reader moves controls, and the page answers with numbers from numformer.

A lesson declares a simulation: its controls, one function from their values to named arrays, and
the views (views.py) that show the arrays. From this come the page's data, the picture for pages
without scripts, the window with matplotlib's widgets, and the lines of Python below it. If a
control is `live`, the function is recorded (recording.py) and the page computes; otherwise the page
chooses among arrays that were computed when it was built. A function that does one step of many,
such as a training step, is repeated: each step finds what the last one has written into its arrays.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from lessons.kit import recorded
from lessons.kit.lesson import Picture
from lessons.kit.recording import Recording, number
from lessons.kit.views import View, numbers, payload


@dataclass(frozen=True)
class Option:
    """What a control can be set to: the value that `compute` gets, its label and a note.

    `code` is the value in Python, if its repr will not do.
    """

    value: Any
    label: str = ""
    note: str = ""
    code: str = ""

    def __post_init__(self):
        if not self.label:
            words = f"{self.value:g}" if isinstance(self.value, float) else f"{self.value}"
            object.__setattr__(self, "label", words)
        object.__setattr__(self, "code", self.code or repr(self.value))

    def more(self, page) -> dict:
        return {"value": None}  # the page needs no value, or has it from `Control.more`


@dataclass(frozen=True)
class Control:
    """What a reader sets: one of `options`, Options or plain values; at first the one at `start`.

    `compute` gets the value under the control's name. With `shows_only` it does not: the control is
    an index for views alone, such as which row is picked. The values of a `live` control are
    numbers, or arrays of one shape; `compute` gets them as recorded arrays.
    """

    name: str
    label: str
    options: Sequence[Any] = ()
    start: Any = 0
    shows_only: bool = False
    live: bool = False
    kind: ClassVar = "choice"

    def __post_init__(self):
        options = (each if isinstance(each, Option) else Option(each) for each in self.options)
        object.__setattr__(self, "options", [*options])

    @property
    def begin(self):
        """What is chosen when a page begins."""
        return self.start

    def value(self, chosen):
        """The value of what is chosen, here an index."""
        return self.options[chosen].value

    def code(self, chosen) -> str:
        """The value in Python."""
        return self.options[chosen].code

    def given(self, recording: Recording):
        """The value of a live control as `compute` gets it when it is recorded."""
        return recording.given(f"given {self.name}", self.value(self.start))

    def more(self, page) -> dict:
        """What the page needs beside the fields: of a live control the numbers of its options."""
        if not self.live:
            return {"start": self.begin}
        values = [np.asarray(option.value, float) for option in self.options]
        values = [value.tolist() if value.ndim else number(value) for value in values]
        return {"start": self.begin, "values": values}


class Choice(Control):
    """Buttons, one for each option."""


@dataclass(frozen=True)
class Thumbnails(Control):
    """Buttons with a small picture of what the heatmap of the array `of` would show."""

    of: str = ""
    kind: ClassVar = "thumbnails"


@dataclass(frozen=True)
class Slider(Control):
    """A slider over the options; with `plays` also a button that lets it run.

    Then a page begins with the first option, and `start` is what the picture shows.
    """

    plays: bool = False
    kind: ClassVar = "slider"

    @property
    def begin(self):
        return 0 if self.plays else self.start


class Ids(Slider):
    """A live slider whose values are ids of symbols; the library takes them as NumPy arrays."""

    def given(self, recording: Recording):
        return recording.given_ids(f"given {self.name}", self.value(self.start))


@dataclass(frozen=True)
class Pad(Control):
    """A point (x, y) of a grid, moved by dragging it in a Chart or by two sliders.

    The options are made from `across`, the values of x and of y; the value is an array (2,).
    """

    across: Sequence[float] = ()
    kind: ClassVar = "pad"

    def __post_init__(self):
        options = [
            Option(np.array([x, y]), f"({x:g}, {y:g})", code=f"np.array([{x:g}, {y:g}])")
            for y in self.across
            for x in self.across
        ]
        object.__setattr__(self, "options", options)

    def more(self, page) -> dict:
        return {"options": []}  # the page makes them of `across`


@dataclass(frozen=True)
class Entries(Control):
    """A matrix whose entries a reader types: `symbol` with the names of its rows and columns.

    `options` are matrices to begin with; what is chosen is a matrix. `step` is what the arrow keys
    add.
    """

    live: bool = True
    symbol: str = ""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    step: float = 1
    kind: ClassVar = "entries"

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "start", np.asarray(self.options[0].value, float).tolist())

    def value(self, chosen):
        return np.asarray(chosen, float)

    def code(self, chosen) -> str:
        return f"np.array({numbers(self.value(chosen))}, float)"


@dataclass(frozen=True, kw_only=True)
class Simulation(Picture):
    """A simulation: `caption` says how to read its picture, `say` what to do with it on a page.

    `compute(**values)` gives the arrays by name for the values of the controls. `views` show the
    arrays. `code` are lines of Python that give the same numbers; in a line `name = ...` the value
    is that of the control.

    With `repeats` the function is called for each step from 1 on. It also gets `step` and the
    arrays of `begin`, and may write into these. The numbers in `collected` are shown for all steps,
    as arrays (repeats,), and the other arrays as they are after the last. All controls are live.
    """

    title: str
    say: str
    controls: Sequence[Control]
    compute: Callable[..., Mapping[str, np.ndarray]]
    views: Sequence[View]
    code: str
    draw: Callable[[Figure], None] = None
    size: tuple[float, float] = (7.6, 4.2)
    repeats: int = 0
    collected: Sequence[str] = ()
    begin: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        def draw(figure):
            chosen = {control.name: control.start for control in self.controls}
            self.draw_views(figure, self.arrays(chosen), chosen)

        object.__setattr__(self, "draw", self.draw or draw)

    def _controls(self, live: bool) -> list[Control]:
        """The controls whose values `compute` gets: the live ones, or the others."""
        return [c for c in self.controls if not c.shows_only and c.live == live]

    def at_start(self) -> dict[str, Any]:
        """What is chosen of each control when the page begins."""
        return {c.name: c.begin for c in self.controls}

    def arrays(self, chosen: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """What `compute` gives for what is chosen, each a float64 array."""
        values = {c.name: c.value(chosen[c.name]) for c in self.controls if not c.shows_only}
        if not self.repeats:
            return {n: np.asarray(array, float) for n, array in self.compute(**values).items()}
        values |= {name: np.array(array, float) for name, array in self.begin.items()}
        steps = []
        for step in range(1, self.repeats + 1):
            arrays = self.compute(step=step, **values)
            steps.append([float(arrays[name]) for name in self.collected])
        last = {n: np.asarray(array, float) for n, array in arrays.items()}
        return last | dict(zip(self.collected, np.array(steps).T, strict=True))

    def recording(self, chosen: Mapping[str, int]) -> dict:
        """`compute` recorded for these options of all controls that are not live."""
        with Recording() as recording:
            values = {c.name: c.value(chosen[c.name]) for c in self._controls(live=False)}
            for c in self._controls(live=True):
                values[c.name] = c.given(recording)
            if self.repeats:
                given = {"step": 1, **self.begin}
                values |= {n: recording.given(f"given {n}", x) for n, x in given.items()}
            for name, array in self.compute(**values).items():
                array = np.asarray(array, float) if isinstance(array, np.ndarray) else array
                recording.name(name, recorded.asarray(array))
        return recording.data()

    def computed(self) -> dict:
        """Every array, or one recording of all, for every choice; equal ones are kept only once.

        `pool` holds them. For each name, `axes` are the controls on which it depends, and `index`
        has its place in `pool` for all choices of their options. Recordings have the name "".
        """
        choices = self._controls(live=False)
        sizes = [len(control.options) for control in choices]
        pool: dict[str, int] = {}
        indices: dict[str, np.ndarray] = {}
        for place in itertools.product(*map(range, sizes)):
            chosen = {c.name: i for c, i in zip(choices, place, strict=True)}
            if self._controls(live=True):
                contents = {"": self.recording(chosen)}
            else:
                contents = {name: numbers(array) for name, array in self.arrays(chosen).items()}
            for name, content in contents.items():
                where = indices.setdefault(name, np.zeros(sizes, int))
                where[place] = pool.setdefault(json.dumps(content), len(pool))
        table = {}
        for name, where in indices.items():
            axes = [a for a in range(len(sizes)) if (where != where.take([0], axis=a)).any()]
            kept = where[tuple(slice(None) if a in axes else 0 for a in range(len(sizes)))]
            names = [choices[a].name for a in axes]
            table[name] = {"axes": names, "index": kept.ravel().tolist()}
        return {"pool": [json.loads(text) for text in pool], "table": table}

    def html(self, page) -> str:
        repeated = {"repeats": self.repeats, "collected": self.collected}
        parts = payload({"controls": self.controls, "views": self.views}, page)
        parts = {"name": self.name, **repeated, **parts, **self.computed()}
        data = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
        data = data.replace("</", "<\\/")  # or a tag in it would end the script
        places = "".join(f'<i id="{place}"></i>' for view in self.views for place in view.places)
        page.script("simulation")  # after the scripts of views, which it needs
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

    def _repr_html_(self) -> str | None:
        """The simulation as a page shows it, for a notebook; None without the extra `docs`.

        Then the notebook shows the picture.
        """
        if not (find_spec("markdown_it") and find_spec("math_core")):
            return None
        from lessons.kit.build import inline_frame  # which imports this module

        return inline_frame(self, self.title)

    def python(self, chosen: Mapping[str, Any] | None = None) -> str:
        """The lines of Python for a choice, by default the one that the page begins with."""
        chosen = chosen or self.at_start()
        code = {control.name: control.code(chosen[control.name]) for control in self.controls}
        names = [line.partition(" = ")[0] for line in self.code.splitlines()]
        return "\n".join(
            f"{name} = {code[name]}" if name in code else line
            for name, line in zip(names, self.code.splitlines(), strict=True)
        )

    def draw_views(self, figure, arrays: Mapping[str, np.ndarray], chosen: Mapping[str, int]):
        """Draw the views one below the other, in proportion to their heights."""
        heights = [view.height for view in self.views]
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
        for part, view in zip(parts.ravel(), self.views, strict=True):
            view.draw(part, arrays, chosen)

    def in_window(self, figure: Figure) -> None:
        """Draw it with matplotlib's sliders, one for each control but Entries."""
        from matplotlib.widgets import Slider as Range

        figure.set_layout_engine("none")  # widgets stand where they are put
        stage, panel = figure.subfigures(1, 2, width_ratios=(3, 1))
        controls = [control for control in self.controls if not isinstance(control, Entries)]
        places = panel.subplots(len(controls), 1, squeeze=False)[:, 0]
        figure.widgets = [  # widgets that nothing refers to do not react
            Range(axes, "", 0, len(control.options) - 1, valinit=control.start, valstep=1)
            for axes, control in zip(places, controls, strict=True)
        ]

        def redraw(_=None) -> None:
            values = {c.name: int(w.val) for c, w in zip(controls, figure.widgets, strict=True)}
            chosen = self.at_start() | values
            for axes, control in zip(places, controls, strict=True):
                label = control.options[chosen[control.name]].label
                axes.set_title(f"{control.label}: {label}", fontsize=9)
            stage.clear()
            self.draw_views(stage, self.arrays(chosen), chosen)
            figure.canvas.draw_idle()

        for widget in figure.widgets:
            widget.on_changed(redraw)
        redraw()
