"""Every simulation of every lesson: what its page shows is what numformer computes anew."""

import json
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import lessons
from lessons.kit.lesson import pieces
from lessons.kit.simulation import Entries, Simulation
from lessons.kit.stepper import Stepper, tagged
from lessons.kit.trace import find, trace
from lessons.kit.views import Chart

LESSONS = [entry for entry in lessons.COURSE if entry.path]
RANDOM = 6  # combinations of what can be chosen, beside each value of each control


def simulations(kind: type | None = None) -> list:
    """(page, simulation) of all lessons, from the functions that are annotated to return one."""
    cases = []
    for entry in LESSONS:
        for shown in vars(lessons.load(entry.number)).values():
            returned = getattr(shown, "__annotations__", {}).get("return")
            if getattr(shown, "shown", False) and returned is Simulation:
                (simulation,) = pieces(shown)
                if kind is None or any(isinstance(view, kind) for view in simulation.views):
                    cases.append(pytest.param(entry.page, simulation, id=simulation.name))
    return cases


every_simulation = pytest.mark.parametrize(("page", "simulation"), simulations())

# Sets controls as a reader does: an option by its index, a matrix of entries.
DRIVE = """(figure, [states, says]) => JSON.stringify(states.map((state) => {
  const say = (input, value, event) => {
    input.value = value;
    input.dispatchEvent(new Event(event));
  };
  for (const [name, value] of Object.entries(state)) {
    const place = figure.querySelector(`[data-control="${name}"]`);
    const [radios, ranges] = ["radio", "range"].map((type) =>
      place.querySelectorAll(`[type=${type}]`));
    if (Array.isArray(value)) {
      const entries = place.querySelectorAll("[data-entry]");
      value.flat().forEach((entry, n) => say(entries[n], entry, "input"));
    } else if (place.hidden) figure.querySelector(`[aria-label^="${value + 1},"]`).click();
    else if (radios.length) radios[value].click();
    else if (ranges.length === 1) say(ranges[0], value, "input");
    else {
      const count = Number(ranges[0].max) + 1;
      say(ranges[0], value % count, "input");
      say(ranges[1], Math.floor(value / count), "input");
    }
  }
  const shown = figure.simulation.shown();
  const high = (part) => part.getBoundingClientRect().height;
  const loose = [...figure.querySelectorAll(innerWidth < 400 ? LOOSE : "none")].map(high);
  const stage = high(figure.querySelector(".simulation-stage"));
  const height = loose.reduce((left, own) => left - own, stage);
  const overprinted = [...figure.querySelectorAll(".chart svg")].flatMap((chart) => [
    ".drawn text", ".label:not(.middle), .end"
  ].flatMap((kind) => {
    const texts = [...chart.querySelectorAll(kind)].map((text) => text.getBBox());
    const meets = (a, b) => Math.abs(a.x - b.x) < (a.x < b.x ? a : b).width - 1
      && Math.abs(a.y - b.y) < a.height - 4;
    return texts.filter((a, n) => texts.some((b, m) => m < n && meets(a, b)));
  })).length;
  const idle = [...figure.querySelectorAll(".views > :not(.stepper)")].filter((view) => {
    const { top, bottom } = view.getBoundingClientRect();
    const ends = [...view.querySelectorAll("*")].filter((part) => !part.childElementCount
      && part.checkVisibility({ visibilityProperty: true }));
    const boxes = [...ends.map((part) => part.getBoundingClientRect()), { top: bottom, bottom }];
    let [last, gap] = [top, 0];
    for (const box of boxes.sort((a, b) => a.top - b.top)) {
      gap = Math.max(gap, Math.min(box.top, bottom) - last);
      last = Math.max(last, box.bottom);
    }
    return gap > Math.max(200, (bottom - top) / 4);
  }).length;
  if (!says) return { height, overprinted, idle };
  const code = figure.querySelector(".simulation-code code").textContent.trim();
  const lines = figure.querySelectorAll(".step:not(.away) .worked dd");
  const worked = [...lines].map((line) => line.textContent);
  const { replay, collected } = figure.simulation;
  const names = Object.keys(replay?.names ?? {}).filter((name) => !name.startsWith("given "));
  const texts = (array) => (Array.isArray(array) ? array.map(texts) : String(array));
  const values = (name) => texts(collected[name] ?? replay.get(name));
  const replayed = Object.fromEntries(names.map((name) => [name, values(name)]));
  return { ...shown, code, worked, replayed, height, overprinted, idle };
}))"""
# What is only as high as its present state on a phone, and what may have no room there.
LOOSE = ".controls, .bench, .groups, .figures:last-child"
DRIVE = DRIVE.replace("LOOSE", repr(LOOSE))
ROOM = """figure => [...figure.querySelectorAll(
  ":is(.bench, .groups, .control > .note, .figures:last-child dd) > .away"
)].filter((part) => part.getClientRects().length).length"""


def drive(figure, states: list[dict], says: bool = True) -> list[dict]:
    """What a page shows in each state, or the height of its stage alone; JSON travels fast."""
    return json.loads(figure.evaluate(DRIVE, [states, says]))


SHOWN = "figure => JSON.stringify(figure.simulation.shown())"
FOCUSED = "document.activeElement.closest('[data-control]')?.dataset.control"
# Follows the link to each step -> of each the step that is shown, and where the link to its
# derivation leads.
FOLLOW = """async (figure, steps) => {
  const seen = [];
  for (const step of steps) {
    const changed = new Promise((done) => addEventListener("hashchange", done, { once: true }));
    location.hash = `#step-${step}`;
    await changed;
    const links = [...figure.querySelectorAll(".step:not(.away) a")];
    const link = links.find((link) => link.textContent === "Where this is derived");
    seen.push([figure.simulation.shown().views[0].step, link?.hash.slice(1) ?? ""]);
  }
  return seen;
}"""
# Points at the symbol of each of these matrices -> the matrices of what lights up.
POINT = """(figure, names) => names.map((name) => {
  const step = figure.querySelector(".step:not(.away)");
  const symbol = step.querySelector(`.matrix-box[data-matrix="${name}"] .matrix-symbol`);
  symbol.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  return [...step.querySelectorAll(".lit")].map((part) => part.dataset.matrix);
})"""


def states_of(simulation: Simulation) -> list[dict]:
    """Each control's values by themselves, then random combinations of all."""
    rng, states, mixed = np.random.default_rng(7), [], [{} for _ in range(RANDOM)]
    for control in simulation.controls:
        if isinstance(control, Entries):
            values = [np.asarray(option.value, float).tolist() for option in control.options]
            picked = (
                rng.normal(0, 2, (RANDOM, *np.shape(control.start))).round(4).tolist()
            )  # no ties
        else:
            count = len(control.options)
            values = range(0, count, max(1, count // (2 if simulation.repeats else 15)))
            picked = rng.integers(count, size=RANDOM).tolist()
        states += [{control.name: value} for value in values]
        for state, value in zip(mixed, picked, strict=True):
            state[control.name] = value
    return states + mixed


def wanted(simulation: Simulation, chosen: dict, arrays: dict) -> dict:
    """What a page has to show of these arrays."""
    chosen = simulation.at_start() | chosen
    arrays = {n: np.round(x, 6) + 0 for n, x in arrays.items()}
    small = {}
    for control in simulation.controls:
        if of := getattr(control, "of", ""):
            (view,) = (v for v in simulation.views if getattr(v, "name", "") == of)
            options = [chosen | {control.name: n} for n in range(len(control.options))]
            arrays_of = [np.round(simulation.arrays(at)[of], 6) for at in options]
            small[control.name] = [view.levels(array) for array in arrays_of]
    shown = [view.shown(arrays, chosen) for view in simulation.views]
    code = simulation.python(chosen).strip()
    return json.loads(json.dumps({"views": shown, "thumbnails": small, "code": code}))


# The sliders that are too short for a finger.
SHORT = """figure => [...figure.querySelectorAll(".range input")]
  .map((input) => input.offsetWidth).filter((wide) => wide && wide < 120)"""
# The texts of a stage that are smaller than 11 pixels on the screen.
SMALL = """figure => [...figure.querySelectorAll(".simulation-stage *")].filter((part) => {
  const scale = part.ownerSVGElement ? part.getScreenCTM?.().a : 1;
  const texts = [...part.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return texts && part.getClientRects().length
    && scale * parseFloat(getComputedStyle(part).fontSize) < 10.95;
}).map((part) => part.textContent)"""
# How far down the first screen of a stepper goes: what a phone shows of it, or all.
REACH = """(figure, onPhone) => {
  const bottom = (part) => part.getBoundingClientRect().bottom;
  const step = figure.querySelector(".step:not(.away)");
  const parts = onPhone ? [".says > :nth-child(2)", ".worked", ".result .picked"] : ["*"];
  const shown = parts.flatMap((of) => [...step.querySelectorAll(of)]).map(bottom);
  const top = figure.querySelector(onPhone ? ".turn" : ".simulation-stage");
  return Math.max(...shown) - top.getBoundingClientRect().top;
}"""
# Scrolls to the top of each view -> how much of it is seen and should be, and where controls are.
TOGETHER = """(figure) => [...figure.querySelectorAll(".views > *")].map((view) => {
  const bar = innerWidth < 1200 ? 44 : 0; // the folded contents
  scrollTo(0, scrollY + view.getBoundingClientRect().top - bar);
  const controls = figure.querySelector(".controls");
  const [box, { left, right, top, bottom, height }] = [controls, view].map((part) =>
    part.getBoundingClientRect());
  const beside = box.left >= right || box.right <= left;
  const seen = Math.min(bottom, innerHeight, beside ? Infinity : box.top) - Math.max(top, 0);
  const least = Math.min(height, 0.5 * innerHeight);
  return [seen, least, beside ? 0 : box.top, box.bottom - innerHeight];
})"""


def fits(figure, simulation: Simulation, driven: list[dict], width: int) -> None:
    """A stage keeps its height, a step with its controls fits a screen, and all can be read."""
    heights = {shown["height"] for shown in driven}
    assert max(heights) - min(heights) < 1, f"{width}: {sorted(heights)}"
    assert width > 390 or figure.evaluate(ROOM) == 0, "room for what is not shown"
    assert not any(shown["overprinted"] for shown in driven), "texts of a chart lie on others"
    assert not any(shown["idle"] for shown in driven), f"{width}: a view is mostly empty"
    assert figure.evaluate(SMALL) == [] == figure.evaluate(SHORT)
    for seen, least, top, below in figure.evaluate(TOGETHER):
        assert seen >= least - 1 and top >= 0 and below < 1, f"{width}: controls hide the figure"
    for view in simulation.views:
        for number, step in enumerate(getattr(view, "steps", ())):
            drive(figure, [{view.control: number}], False)
            reach, most = figure.evaluate(REACH, width == 390), 844 if width == 390 else 900
            assert reach <= most, f"{step.id} needs {reach} of {most} pixels at {width}"


@every_simulation
def test_a_page_shows_what_numformer_computes_for_every_choice(page, simulation, open_page):
    """Nothing jumps, all fits and can be read, on a phone, too, and a keyboard reaches it all."""
    states, chosen = states_of(simulation), {}
    # numbers that glide are tested below
    opened = open_page(page, 390, reduced_motion="reduce")
    figure = opened.locator(f"#{simulation.name}")
    assert figure.evaluate("figure => figure.simulation.chosen") == simulation.at_start()
    assert all(not c.begin for c in simulation.controls if getattr(c, "plays", False))
    on_phone = drive(figure, states)
    opened.set_viewport_size({"width": 390, "height": 844})
    fits(figure, simulation, on_phone, 390)
    opened.set_viewport_size({"width": 1280, "height": 900})
    drive(figure, [simulation.at_start()], False)
    fits(figure, simulation, drive(figure, states, False), 1280)
    opened.set_viewport_size({"width": 375, "height": 900})
    for state, shown in zip(states, on_phone, strict=True):
        chosen |= state
        replayed = {name: np.array(x, float) for name, x in shown.pop("replayed").items()}
        if simulation.repeats:  # whose rounding grows from step to step; each is tried below
            arrays = replayed
        else:
            arrays = simulation.arrays(simulation.at_start() | chosen)
        assert not replayed or replayed.keys() == arrays.keys()
        for name, computed in replayed.items():
            np.testing.assert_allclose(computed, arrays[name], 1e-12, 1e-12, err_msg=name)
        del shown["worked"], shown["height"], shown["overprinted"], shown["idle"]
        assert shown == wanted(simulation, chosen, arrays), chosen
    assert figure.evaluate("figure => figure.scrollWidth <= figure.clientWidth + 1")
    if figure.locator(".all-controls").count():
        figure.locator(".all-controls").click()
    left = {control.name for control in simulation.controls if control.kind != "steps"}
    seen = {figure.evaluate(SHOWN)}
    figure.locator(".controls :is(input, select)").first.focus()
    for _ in range(40):
        left.discard(opened.evaluate(FOCUSED))
        for key in ("ArrowRight", "ArrowLeft"):
            opened.keyboard.press(key)
            seen.add(figure.evaluate(SHOWN))
        if not left and len(seen) > 1:
            break
        opened.keyboard.press("Tab")
    assert left == set(), f"the keyboard does not reach {left}"
    assert len(seen) > 1, "the keyboard changes nothing"


# Does all steps once more -> of some the values before and after.
REPEAT = """(figure, some) => {
  const { simulation } = figure;
  const { replay } = simulation;
  const texts = (array) => (Array.isArray(array) ? array.map(texts) : String(array));
  const values = () =>
    Object.fromEntries(Object.keys(replay.names).map((name) => [name, texts(replay.get(name))]));
  const [seen, run] = [[], replay.run.bind(replay)];
  replay.run = () => {
    const before = values();
    run();
    if (some.includes(simulation.done)) seen.push([before, values()]);
  };
  simulation.update();
  simulation.finish();
  delete replay.run;
  return seen;
}"""
REPEATED = [case for case in simulations() if case.values[1].repeats]


@pytest.mark.parametrize(("page", "simulation"), REPEATED)
def test_each_step_that_a_page_repeats_is_numformer_s(page, simulation, open_page):
    opened, count = open_page(page, reduced_motion="reduce"), simulation.repeats
    figure = opened.locator(f"#{simulation.name}")
    some = [1, 2, count // 4, count // 2, count]
    for state in [{}, *states_of(simulation)[-3:]]:
        drive(figure, [state], False)
        for number, texts in zip(some, figure.evaluate(REPEAT, some), strict=True):
            before, after = (
                {name: np.array(x, float) for name, x in text.items()} for text in texts
            )
            given = {
                name.removeprefix("given "): before[name] for name in before if "given " in name
            }
            if number == 1:
                for name, array in simulation.begin.items():
                    np.testing.assert_array_equal(given[name], array)
            assert given.pop("step") == number
            arrays = simulation.compute(step=number, **given)
            arrays |= {f"given {name}": given[name] for name in simulation.begin}
            for name, array in arrays.items():
                np.testing.assert_allclose(after[name], array, 1e-9, 1e-9, err_msg=name)


@every_simulation
def test_its_labels_are_english_and_its_dots_are_within_their_chart(page, simulation):
    labels = [option.label for control in simulation.controls for option in control.options]
    assert [label for label in labels if re.fullmatch(r"1 \w+s", label)] == []
    charts = [view for view in simulation.views if isinstance(view, Chart)]
    dots = [(chart, drawn) for chart in charts for drawn in chart.of if drawn.form == "dots"]
    for state in states_of(simulation) if dots else ():
        arrays = simulation.arrays(simulation.at_start() | state)
        for chart, drawn in dots:
            for axis, values in zip((chart.x, chart.y), drawn.points(arrays).T, strict=True):
                assert axis.low <= values.min() and values.max() <= axis.high, (state, drawn.name)


@every_simulation
def test_the_python_below_it_gives_its_numbers(page, simulation, capsys):
    start = simulation.at_start()
    last = {c.name: len(c.options) - 1 for c in simulation.controls if not isinstance(c, Entries)}
    for chosen in (start,) if simulation.repeats else (start, start | last):
        names: dict = {}
        exec(simulation.python(chosen), names)
        arrays = simulation.arrays(chosen)
        same = [name for name in arrays if name in names]
        assert same and capsys.readouterr().out
        for name in same:
            np.testing.assert_allclose(names[name], arrays[name], atol=1e-9, err_msg=name)


# Chooses an option, and tells whether numbers are on their way.
GLIDES = """(figure, [name, option]) => {
  figure.simulation.choose(name, option);
  return Boolean(figure.simulation.settle);
}"""


KINDS = {view.kind: case for case in reversed(simulations()) for view in case.values[1].views}
CASES = {case.id: case for case in KINDS.values()}  # every view occurs in one


@pytest.mark.parametrize(("page", "simulation"), CASES.values())
def test_its_numbers_glide_and_its_state_is_in_the_address(page, simulation, open_page):
    control = next(c for c in simulation.controls if not isinstance(c, Entries))
    other = 0 if control.start else len(control.options) - 1
    for motion in ("no-preference", "reduce"):
        opened = open_page(page, reduced_motion=motion)
        figure = opened.locator(f"#{simulation.name}")
        opened.wait_for_timeout(400)  # what follows a change at once is there at once
        glides = figure.evaluate(GLIDES, [control.name, other])
        assert glides == (motion == "no-preference")
    opened.wait_for_function(f"location.hash.startsWith('#{simulation.name}?')")
    before = figure.evaluate(SHOWN)
    opened.reload()
    assert figure.evaluate(SHOWN) == before
    styles = figure.locator("svg.dragged").evaluate_all(
        "all => all.map(getComputedStyle).map((chart) => chart.touchAction + chart.userSelect)"
    )
    assert {*styles} <= {"pan-ynone"}, "a finger scrolls the page, a pointer selects no text"


# Plays for three seconds -> in each frame, the share of a timeline that the curtain covers.
PLAYED = """async (figure) => {
  const [covered, begun] = [[], performance.now()];
  figure.querySelector(".play").click();
  while (performance.now() < begun + 3000) {
    const { transform } = getComputedStyle(figure.querySelector(".curtain"));
    covered.push(new DOMMatrix(transform).a);
    await new Promise(requestAnimationFrame);
  }
  return covered;
}"""


def test_a_timeline_fills_without_a_stop(open_page):
    page = open_page(lessons.COURSE[13].page, reduced_motion="no-preference")
    covered = page.locator("#overlap").evaluate(PLAYED)
    assert covered[0] == 1 and np.mean(np.diff(covered[len(covered) // 2 :]) < 0) > 0.8


GETTERS = "get_text", "get_xydata", "get_offsets", "get_array", "get_path", "get_linewidth"


@pytest.mark.parametrize(("page", "simulation"), CASES.values())
def test_its_window_shows_what_a_widget_says(page, simulation):
    def visible() -> list:
        """What the stage shows, as text, because drawing takes longer."""
        getters = (getattr(part, name, None) for part in stage.findobj() for name in GETTERS)
        return [str(getter()) for getter in getters if getter]

    figure = Figure(figsize=simulation.size)
    FigureCanvasAgg(figure).draw_idle = lambda: None
    simulation.in_window(figure)
    stage = figure.subfigs[0]
    before = visible()
    for widget in figure.widgets:
        widget.eventson = widget is figure.widgets[-1]  # drawn once
        widget.set_val(widget.valmax)
    assert visible() != before


@pytest.mark.parametrize(("page", "simulation"), simulations(Stepper))
def test_a_stepper_walks_by_buttons_keys_and_links(page, simulation, open_page):
    opened = open_page(page)
    (view,) = (view for view in simulation.views if isinstance(view, Stepper))
    figure = opened.locator(f"#{simulation.name}")

    def here():
        return figure.evaluate("figure => figure.simulation.shown().views[0].step")

    figure.locator(".next").click()
    assert here() == view.steps[1].id
    for _ in view.steps:
        opened.keyboard.press("ArrowRight")
    assert here() == view.steps[-1].id and figure.locator(".previous").evaluate(
        "button => document.activeElement === button"  # the focus is not lost where it ends
    )
    headings = opened.locator("h2[id], h3[id]").evaluate_all("all => all.map(({ id }) => id)")
    shown = figure.evaluate(FOLLOW, [step.id for step in view.steps])
    for step, (name, derived) in zip(view.steps, shown, strict=True):
        assert name == step.id and (derived in headings if step.see else not derived), step.see

    # Each line of arithmetic, computed again from the digits that it prints, gives what it says.
    lines = []
    (picked,) = (c for c in simulation.controls if c.name == view.picked)
    for number, step in enumerate(view.steps):
        states = [{view.control: number, view.picked: row} for row in range(len(picked.options))]
        lines += [line for shown in drive(figure, states) for line in shown["worked"]]
        for name, lit in zip(step.results, figure.evaluate(POINT, step.results), strict=True):
            assert len(lit) >= 3 and {*lit} == {name}, (step.id, lit)  # matrix, button, equation
    for line in lines:
        left, sign, right = re.fullmatch(r"(.*) ([=≈]) (\S+)", line).groups()
        by_hand = eval(left.replace("·", "*").replace("−", "-"))
        far = abs(by_hand - float(right.replace("−", "-")))
        assert far < (0.0051 if sign == "≈" else 1e-9), line
    assert bool(lines) == any(step.worked for step in view.steps)


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
    ran = [f"{line.function} {line.text}" for line in lines]
    first = ["def doubled(x, flag=True):", "y = 2 * x", "if not flag:", "y[0] = helper(y)"]
    within = ["def helper(y):", "y[-1] = 7", "return 5"]
    assert ran[:4] == [f"doubled {text}" for text in first]
    assert ran[4:] == [*(f"helper {text}" for text in within), "doubled return y"]
    assert [line.comment for line in lines if line.comment] == ["a comment"]
    after = [{name: x.tolist() for name, x in line.after.items()} for line in lines]
    x = {"x": [1, 2]}
    assert after[:4] == [x, x | {"y": [2, 4]}, x | {"y": [2, 4]}, x | {"y": [5, 7]}]
    assert after[5] == {"y": [2, 7]} and lines[6].value == 5
    assert find(lines, "doubled", "y = ").text == "y = 2 * x"
    assert "'y = 3'" in complaint(find, lines, "doubled", "y = 3")  # a line that is gone


def test_a_name_carries_its_matrices_in_turn():
    html = '<span class="n">s</span> = <span class="n">s</span> + <span class="n">t</span>'
    assert tagged(html, {"s": ("masked", "scaled")}) == (
        '<span class="n" data-matrix="masked">s</span> = '
        '<span class="n" data-matrix="scaled">s</span> + <span class="n">t</span>'
    )
