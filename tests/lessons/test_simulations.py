"""Every simulation of every lesson: what its page shows is what numformer computes anew."""

import contextlib
import json
import re
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import lessons
from lessons.lesson import pieces
from lessons.simulation import Entries, Simulation
from lessons.stepper import Stepper, equation, tagged
from lessons.trace import find, trace

LESSONS = [entry for entry in lessons.COURSE if entry.path]
RANDOM = 12  # combinations of what can be chosen, beside each value of each control


def simulations(kind: type | None = None) -> list:
    """(page, simulation) of all lessons, from the functions that are annotated to return one."""
    found = []
    for entry in LESSONS:
        for shown in vars(lessons.load(entry.number)).values():
            returned = getattr(shown, "__annotations__", {}).get("return")
            if getattr(shown, "shown", False) and returned is Simulation:
                (made,) = pieces(shown)
                if kind is None or any(isinstance(view, kind) for view in made.views):
                    page = f"{entry.path.stem}.html"
                    found.append(pytest.param(page, made, id=made.name))
    return found


every_simulation = pytest.mark.parametrize(("page", "simulation"), simulations())
every_stepper = pytest.mark.parametrize(("page", "simulation"), simulations(Stepper))

# Sets controls as a reader does: an option by its index, a matrix of entries -> what then is shown.
DRIVE = """(figure, states) => states.map((state) => {
  const say = (input, value, event) => {
    input.value = value;
    input.dispatchEvent(new Event(event));
  };
  for (const [name, value] of Object.entries(state)) {
    const place = figure.querySelector(`[data-control="${name}"]`);
    const [radios, ranges] = ["radio", "range"].map((type) =>
      place.querySelectorAll(`[type=${type}]`));
    if (Array.isArray(value)) {
      value.flat().forEach((entry, n) => say(place.querySelectorAll("select")[n], entry, "change"));
    } else if (place.hidden) figure.querySelector(`[aria-label^="${value + 1},"]`).click();
    else if (radios.length) radios[value].click();
    else if (ranges.length === 1) say(ranges[0], value, "input");
    else {
      const count = Number(ranges[0].max) + 1;
      say(ranges[0], value % count, "input");
      say(ranges[1], Math.floor(value / count), "input");
    }
  }
  const code = figure.querySelector(".simulation-code code").textContent.trim();
  return { ...figure.simulation.shown(), code };
})"""


FOCUSED = "document.activeElement.closest('[data-control]')?.dataset.control"


def values_of(control) -> list:
    if isinstance(control, Entries):
        return [np.asarray(each.value, float).tolist() for each in control.presets]
    count = len(control.options)
    return list(range(0, count, max(1, count // 15)))


def states_of(simulation: Simulation) -> list[dict]:
    """Each control's values by themselves, then random combinations of all."""
    rng = np.random.default_rng(7)
    states = [{c.name: value} for c in simulation.controls for value in values_of(c)]
    for _ in range(RANDOM):
        state = {}
        for control in simulation.controls:
            if isinstance(control, Entries):
                state[control.name] = rng.choice(control.values, control.start.shape).tolist()
            else:
                state[control.name] = int(rng.integers(len(control.options)))
        states.append(state)
    return states


def wanted(simulation: Simulation, chosen: dict) -> dict:
    """What a page has to show, from what numformer computes now."""
    entered = None
    if simulation.entries:
        entered = np.asarray(chosen.get(simulation.entries.name, simulation.entries.start), float)
    indices = simulation.at_start() | {k: v for k, v in chosen.items() if isinstance(v, int)}
    arrays = {n: np.round(x, 6) for n, x in simulation.arrays(indices, entered).items()}
    small = {}
    for control in simulation.controls:
        if of := getattr(control, "of", ""):
            (view,) = (v for v in simulation.views if getattr(v, "name", "") == of)
            options = [indices | {control.name: n} for n in range(len(control.options))]
            arrays_of = [simulation.arrays(at, entered)[of] for at in options]
            small[control.name] = [view.levels(array) for array in arrays_of]
    shown = [view.shown(arrays, indices) for view in simulation.views]
    code = simulation.python(indices, entered).strip()
    return json.loads(json.dumps({"views": shown, "thumbnails": small, "code": code}))


@every_simulation
def test_a_page_shows_what_numformer_computes_for_every_choice(page, simulation, open_page):
    figure, states = open_page(page).locator(f"#{simulation.name}"), states_of(simulation)
    chosen: dict = {}
    for state, shown in zip(states, figure.evaluate(DRIVE, states), strict=True):
        chosen |= state
        assert shown == wanted(simulation, chosen), chosen


@every_simulation
def test_the_python_below_it_gives_its_numbers(page, simulation, capsys):
    last = {c.name: len(c.options) - 1 for c in simulation.controls if not isinstance(c, Entries)}
    for chosen in simulation.at_start(), last:
        names: dict = {}
        exec(simulation.python(chosen), names)
        arrays = simulation.arrays(chosen)
        same = [name for name in arrays if name in names]
        assert same and capsys.readouterr().out
        for name in same:
            np.testing.assert_allclose(names[name], arrays[name], atol=1e-9, err_msg=name)


@every_simulation
def test_its_picture_and_its_window_show_the_same(page, simulation):
    figure = Figure(figsize=simulation.size)
    FigureCanvasAgg(figure)
    simulation.in_window(figure)
    figure.canvas.draw()
    before = np.asarray(figure.canvas.buffer_rgba()).copy()
    for widget in figure.widgets:
        widget.set_val(widget.valmax)
    figure.canvas.draw()
    assert (np.asarray(figure.canvas.buffer_rgba()) != before).any()
    assert "<svg" in simulation.svg() and len(simulation.alt) > 40


@every_simulation
def test_the_keyboard_reaches_every_control_and_it_fits_a_phone(page, simulation, open_page):
    opened = open_page(page, 375)
    figure = opened.locator(f"#{simulation.name}")
    assert figure.evaluate("figure => figure.scrollWidth <= figure.clientWidth + 1")
    seen = {c.name for c in simulation.controls if c.kind != "steps"}
    before, reached = figure.evaluate("figure => JSON.stringify(figure.simulation.shown())"), set()
    figure.locator(".controls :is(input, select)").first.focus()
    for _ in range(40):
        reached.add(opened.evaluate(FOCUSED))
        opened.keyboard.press("ArrowRight")
        opened.keyboard.press("Tab")
    assert seen <= reached
    assert figure.evaluate("figure => JSON.stringify(figure.simulation.shown())") != before


@every_stepper
def test_a_stepper_walks_by_buttons_keys_and_links(page, simulation, open_page):
    opened = open_page(page)
    (view,) = (v for v in simulation.views if isinstance(v, Stepper))
    figure = opened.locator(f"#{simulation.name}")

    def here():
        return figure.evaluate("figure => figure.simulation.shown().views[0].step")

    figure.locator(".next").click()
    assert here() == view.steps[1].id
    opened.keyboard.press("ArrowRight")
    assert here() == view.steps[2].id
    for _ in view.steps:
        opened.keyboard.press("ArrowRight")
    assert here() == view.steps[-1].id and figure.locator(".previous").evaluate(
        "button => document.activeElement === button"  # the focus is not lost where it ends
    )
    headings = opened.locator("h2[id], h3[id]").evaluate_all("all => all.map((one) => one.id)")
    for step in view.steps:
        opened.evaluate(f"location.hash = '#step-{step.id}'")
        opened.wait_for_function(
            "([name, id]) => document.getElementById(name).simulation.shown().views[0].step === id",
            arg=[simulation.name, step.id],
        )
        derived = figure.get_by_text("Where this is derived")
        if step.see:
            assert derived.get_attribute("href")[1:] in headings, step.see
        # A step fits a screen: words, equation, code and matrices.
        assert figure.locator(".bench").bounding_box()["height"] < 760, step.id


@every_stepper
def test_symbol_matrix_and_code_light_up_together(page, simulation, open_page):
    opened = open_page(page)
    (view,) = (v for v in simulation.views if isinstance(v, Stepper))
    figure = opened.locator(f"#{simulation.name}")
    for number, step in enumerate(view.steps):
        figure.evaluate(DRIVE, [{view.control: number}])
        for name in step.results:
            figure.locator(f'.matrix-box[data-matrix="{name}"] .matrix-symbol').hover()
            lit = figure.locator(".lit").evaluate_all("all => all.map((one) => one.dataset.matrix)")
            assert len(lit) >= 3 and {*lit} == {name}, (step.id, name)  # matrix, button, equation


@every_stepper
def test_the_arithmetic_that_is_spelt_out_comes_out(page, simulation, open_page):
    """Each line, computed again from the digits that it prints, gives what it says."""
    opened = open_page(page)
    (view,) = (v for v in simulation.views if isinstance(v, Stepper))
    figure, lines = opened.locator(f"#{simulation.name}"), 0
    (picked,) = (c for c in simulation.controls if c.name == view.picked)
    for number in range(len(view.steps)):
        figure.evaluate(DRIVE, [{view.control: number}])
        for row in range(len(picked.options)):
            figure.evaluate(DRIVE, [{view.picked: row}])
            for text in figure.locator(".worked dd").all_text_contents():
                left, sign, right = re.fullmatch(r"(.*) ([=≈]) (\S+)", text).groups()
                by_hand = eval(left.replace("·", "*").replace("−", "-"))
                far = abs(by_hand - float(right.replace("−", "-")))
                assert far < (0.0051 if sign == "≈" else 1e-9), text
                lines += 1
    assert lines > len(view.steps) or not any(step.worked for step in view.steps)


def doubled(x, flag=True):
    y = 2 * x
    if not flag:  # a comment
        y += 1
    y[0] = helper(y)
    return y


def helper(y):
    y[-1] = 7
    return 5


def test_a_trace_is_the_lines_that_ran_and_the_arrays_after_each(complaint):
    x = np.array([1.0, 2])
    lines = trace(doubled, x, into=[helper])
    assert [(line.function, line.text) for line in lines] == [
        ("doubled", "def doubled(x, flag=True):"), ("doubled", "y = 2 * x"),
        ("doubled", "if not flag:"), ("doubled", "y[0] = helper(y)"),
        ("helper", "def helper(y):"), ("helper", "y[-1] = 7"), ("helper", "return 5"),
        ("doubled", "return y"),
    ]  # fmt: skip
    assert [line.comment for line in lines if line.comment] == ["a comment"]
    after = [{name: x.tolist() for name, x in line.after.items()} for line in lines]
    x = {"x": [1, 2]}
    assert after[:4] == [x, x | {"y": [2, 4]}, x | {"y": [2, 4]}, x | {"y": [5, 7]}]
    assert after[5] == {"y": [2, 7]} and lines[6].value == 5
    assert {line.function for line in trace(doubled, np.ones(2))} == {"doubled"}
    assert find(lines, "doubled", "y = ").text == "y = 2 * x"
    assert "'y = 3'" in complaint(find, lines, "doubled", "y = 3")  # a line that is gone


def test_what_traced_before_goes_on():
    def before(frame, event, argument):
        return None

    outer = sys.gettrace()
    try:
        sys.settrace(before)
        with contextlib.suppress(TypeError):
            trace(doubled, None)
        after = sys.gettrace()
    finally:
        sys.settrace(outer)
    assert after is before


def test_symbols_and_names_carry_their_matrices():
    """A name that stands for several matrices does so in turn."""
    html = '<span class="n">s</span> = <span class="n">s</span> + <span class="n">t</span>'
    assert tagged(html, {"s": ("masked", "scaled")}) == (
        '<span class="n" data-matrix="masked">s</span> = '
        '<span class="n" data-matrix="scaled">s</span> + <span class="n">t</span>'
    )

    class Plain:
        def math(self, latex, display=False):
            return "<math>" + "".join(f"<mi>{letter}</mi>" for letter in latex) + "</math>"

    assert equation("@scores=@query\n\n2", {"query": "Q", "scores": "E"}, Plain()) == (
        '<math><mrow data-matrix="scores"><mi>E</mi></mrow><mi>=</mi>'
        '<mrow data-matrix="query"><mi>Q</mi></mrow></math><math><mi>2</mi></math>'
    )
