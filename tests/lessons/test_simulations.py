"""Every simulation of every lesson: what its page shows is what numformer computes anew."""

import json

import numpy as np
import pytest

import lessons
from lessons.lesson import pieces
from lessons.simulation import Entries, Pad, Simulation

LESSONS = [entry for entry in lessons.COURSE if entry.path]
RANDOM = 25  # combinations of what can be chosen, beside each value of each control


def simulations() -> list:
    """(page, number on it, simulation) of all lessons."""
    found = []
    for entry in LESSONS:
        module = lessons.load(entry.number)
        marked = [f for f in vars(module).values() if getattr(f, "shown", False)]
        made = [p for f in marked if getattr(f, "simulates", False) for p in pieces(f)]
        found += [
            pytest.param(f"{entry.path.stem}.html", n, made[n], id=made[n].name)
            for n in range(len(made)) if isinstance(made[n], Simulation)
        ]  # fmt: skip
    return found


class Driver:
    """Sets the controls of a simulation on its page as a reader does."""

    def __init__(self, page, number: int, simulation: Simulation):
        self.simulation, self.chosen, self.entries = simulation, simulation.at_start(), None
        self.figure = page.locator("figure[data-simulation]").nth(number)

    def control(self, name: str):
        return self.figure.locator(f'[data-control="{name}"]')

    def set(self, control, value) -> None:
        """The index of an option, or a matrix of entries."""
        place = self.control(control.name)
        if isinstance(control, Entries):
            for (row, column), entry in np.ndenumerate(value):
                place.locator(f'[data-entry="{row},{column}"]').select_option(f"{entry:.0f}")
            self.entries = value
            return
        self.chosen[control.name] = value
        parts = [value]
        if isinstance(control, Pad):
            parts = [value % len(control.across), value // len(control.across)]
        ranges, buttons = place.locator("input[type=range]"), place.locator("input[type=radio]")
        if buttons.count():
            buttons.nth(value).check(force=True)
        for number in range(ranges.count()):
            ranges.nth(number).evaluate(
                "(range, value) => { range.value = value; range.dispatchEvent(new Event('input')) }",
                parts[number],
            )

    def shown(self) -> dict:
        return self.figure.evaluate("figure => figure.simulation.shown()")

    def wanted(self) -> dict:
        """The same as numformer computes it now."""
        simulation = self.simulation
        arrays = {n: np.round(x, 6) for n, x in
                  simulation.arrays(self.chosen, self.entries).items()}  # fmt: skip
        small = {}
        for control in simulation.controls:
            if getattr(control, "of", ""):
                (view,) = (v for v in simulation.views if getattr(v, "name", "") == control.of)
                each = [self.chosen | {control.name: n} for n in range(len(control.all))]
                small[control.name] = [
                    view.levels(simulation.arrays(at, self.entries)[control.of]).tolist()
                    for at in each
                ]
        shown = [view.shown(arrays, self.chosen) for view in simulation.views]
        return json.loads(json.dumps({"views": shown, "thumbnails": small}))


def values_of(control) -> list:
    if isinstance(control, Entries):
        return [np.asarray(each.value, float) for each in control.presets]
    return list(range(len(control.all)))


@pytest.mark.parametrize(("page", "number", "simulation"), simulations())
def test_a_simulation_shows_what_numformer_computes(page, number, simulation, open_page):
    driver = Driver(open_page(page), number, simulation)
    assert driver.shown() == driver.wanted()
    for control in simulation.controls:
        values = values_of(control)
        for value in values[:: max(1, len(values) // 40)]:
            driver.set(control, value)
            assert driver.shown() == driver.wanted(), (control.name, value)
    rng = np.random.default_rng(number)
    for _ in range(RANDOM):
        for control in simulation.controls:
            if isinstance(control, Entries):
                driver.set(control, rng.choice(control.values, control.start.shape).astype(float))
            else:
                driver.set(control, int(rng.integers(len(control.all))))
        assert driver.shown() == driver.wanted(), driver.chosen
    code = driver.figure.locator(".simulation-code code").text_content()
    assert code.strip() == simulation.python(driver.chosen, driver.entries).strip()


@pytest.mark.parametrize(("page", "number", "simulation"), simulations())
def test_the_python_below_a_simulation_gives_its_numbers(page, number, simulation, capsys):
    chosen = {c.name: len(c.all) - 1 for c in simulation.controls if not isinstance(c, Entries)}
    names: dict = {}
    exec(simulation.python(chosen), names)
    arrays = simulation.arrays(chosen)
    same = [name for name in arrays if name in names]
    assert same and capsys.readouterr().out
    for name in same:
        np.testing.assert_allclose(names[name], arrays[name], atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("page", "number", "simulation"), simulations())
def test_a_simulation_is_used_by_the_keyboard_and_fits_a_phone(page, number, simulation, open_page):
    opened = open_page(page, 375)
    figure = opened.locator("figure[data-simulation]").nth(number)
    assert figure.evaluate("figure => figure.scrollWidth <= figure.clientWidth + 1")
    before = figure.evaluate("figure => JSON.stringify(figure.simulation.shown())")
    reached = set()
    figure.locator(".controls input, .controls select").first.focus()
    for _ in range(60):
        reached.add(opened.evaluate("document.activeElement.closest('[data-control]')?.dataset.control"))
        opened.keyboard.press("ArrowRight")
        opened.keyboard.press("Tab")
    assert {c.name for c in simulation.controls} <= reached
    assert figure.evaluate("figure => JSON.stringify(figure.simulation.shown())") != before
