"""Lesson 9's figure: every number of its page is numformer's, whatever a reader changes."""

import json
import shutil

import numpy as np
import pytest
import test_simulations

import lessons
from lessons.lesson_09 import whole

model = whole.model

# Sets weights, masks and controls -> every array of the replay, and what is then shown, as JSON.
SET = """(figure, [typed, chosen]) => {
  const { simulation } = figure, [view] = simulation.views;
  Object.assign(simulation.chosen, chosen);
  view.become(typed);
  const shown = simulation.shown().views[0];
  const { replay } = simulation, texts = (x) => (Array.isArray(x) ? x.map(texts) : String(x));
  const names = Object.keys(replay.names).map((name) => [name, texts(replay.get(name))]);
  return JSON.stringify([Object.fromEntries(names), shown]);
}"""
PICK = """(figure, [name, row, column]) => {
  const [view] = figure.simulation.views;
  view.pick(name, row, column);
  return view.known;
}"""
STEPS = """figure => {
  const { trainer } = figure.simulation.views[0], times = [];
  for (let n = 0; n < 40; n++) {
    const begun = performance.now();
    trainer.run();
    times.push(performance.now() - begun);
  }
  return times;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory, builder):
    """A page with nothing but the figure, as `open_page` expects it."""
    folder, page = tmp_path_factory.mktemp("whole"), builder.Page()
    html = f"<h1>Lesson</h1><h2>Figure</h2>{whole.whole.html(page)}"
    lesson_parts = builder.Made(html, page.scripts, {}, [])
    text = builder.lesson_page(lessons.COURSE[8], lesson_parts)
    (folder / "whole.html").write_text(text, encoding="utf-8")
    sheets = sorted(lessons.FOLDER.glob("page/*.css"), key=lambda p: (p.stem != "style", p))
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    (folder / "style.css").write_text(style, encoding="utf-8")
    for path in lessons.FOLDER.glob("page/numformer_math.*"):
        shutil.copy(path, folder)
    return folder, ""


@pytest.fixture
def figure(open_page):
    return open_page("whole.html").locator("#whole")


def some_state(rng) -> np.ndarray:
    """Weights and a state of Adam somewhere on the way."""
    state = model.fresh()
    size = (len(state) - 1) // 3
    state[:size] += rng.normal(0, 0.3, size)
    state[size : 2 * size] = rng.normal(0, 0.1, size)
    state[2 * size : -1] = rng.random(size)
    state[-1] = 17
    return state


def some_masks(rng) -> np.ndarray:
    return (rng.random((3, 3, 3)) < 0.7).astype(float)


def test_its_step_is_the_library_s_own(rng):
    """With its masks and every gate open, all that is written down changes nothing."""
    for pair in model.PAIRS[::5]:
        objective = model.objective()
        flat = model.pack(objective.model, np.float64)
        state = some_state(rng)
        size = flat.data.size
        flat.data[...] = state[:size]
        optimizer = model.Adam(flat)
        optimizer.state["mean"][...], optimizer.state["square"][...] = state[size:-1].reshape(2, -1)
        optimizer.steps = int(state[-1])
        start, *word = pair
        ids = [word], [[start, *word[:0:-1]]], [word[::-1]]
        loss = objective.forward(*map(np.array, ids))
        objective.backward()
        arrays = model.step(pair, state)
        np.testing.assert_array_equal(arrays["loss"], loss)
        np.testing.assert_array_equal(arrays["gradients"], flat.grad)
        optimizer.step(model.RATE)
        np.testing.assert_array_equal(arrays["after"][:size], flat.data)
        assert arrays["after"][-1] == 18


def test_the_gates_of_all_paths_share_out_the_gradient(rng):
    """Closed, each weight has what no edge with a gate leads to; paths add up to the rest."""
    state, masks, shut = some_state(rng), some_masks(rng), np.zeros(len(model.GATES))

    def paths(block):
        if block == "loss":
            return [[]]
        leading = [edge for edge in model.EDGES if edge.start == block]
        return [[edge, *rest] for edge in leading for rest in paths(edge.end)]

    def gradients(gates):
        return model.step(model.PAIRS[7], state, masks, gates)["gradients"]

    direct, full = gradients(shut), gradients(np.ones(len(shut)))
    assert len(paths("source")) == 32 and len(paths("target")) == 16
    total = direct.copy()
    for path in (*paths("source"), *paths("target")):
        total += gradients(np.array([edge in path for edge in model.GATES], float)) - direct
    begin, shape = whole.PARAMETERS[whole.EMBEDDING]
    embedding = slice(begin, begin + np.prod(shape))
    np.testing.assert_allclose(total[embedding], full[embedding], atol=1e-12)


def test_every_number_is_numformer_s_whatever_changes(figure, rng):
    view = whole.whole.views[0]
    for stage in rng.permutation(len(whole.STAGES))[:10]:
        state, masks = some_state(rng), some_masks(rng)
        chosen = {"pair": int(rng.integers(27)), "stage": int(stage)}
        typed = {"state": state.tolist(), "masks": masks.tolist()}
        replayed, shown = json.loads(figure.evaluate(SET, [typed, chosen]))
        arrays = model.step(model.PAIRS[chosen["pair"]], state, masks)
        replayed["after"] = replayed.pop("given after")
        given = {f"given {name}" for name in ("pair", "state", "masks", "gates")}
        assert replayed.keys() == arrays.keys() | given and len(arrays) > 230
        for name, array in arrays.items():
            computed = np.array(replayed[name], float)
            np.testing.assert_allclose(computed, array, 1e-9, 1e-9, err_msg=name)
        rounded = {name: np.round(np.asarray(x, float), 6) + 0 for name, x in arrays.items()}
        assert shown == json.loads(json.dumps(view.shown(rounded, chosen)))


def test_a_weight_has_its_gradient_difference_and_paths(figure, rng):
    """Of one entry of every parameter, with other weights and masks."""
    state, masks = some_state(rng), some_masks(rng)
    masks[:, :, 0] = 1  # or a position sees nothing, and much has no gradient
    figure.evaluate(SET, [{"state": state.tolist(), "masks": masks.tolist()}, {"pair": 15}])
    gradients = model.step(model.PAIRS[15], state, masks)["gradients"]
    seen = 0
    for name, (begin, shape) in whole.PARAMETERS.items():
        row, column = (int(rng.integers(size)) for size in (1, *shape)[-2:])
        known = figure.evaluate(PICK, [name, row, column])
        gradient = gradients[begin:][: np.prod(shape)].reshape((1, *shape)[-2:])[row, column]
        assert known["gradient"] == pytest.approx(gradient, abs=1e-9), name
        assert known["difference"] == pytest.approx(gradient, abs=1e-6), name
        contributed = [path["value"] for path in known["paths"]]
        assert sum(contributed) == pytest.approx(gradient, abs=1e-9), name
        seen += abs(gradient) > 1e-4
        if name == whole.EMBEDDING:
            assert len(contributed) == 1 + 16 + 32
    assert seen > len(whole.PARAMETERS) / 2


def trained(steps: int) -> tuple[np.ndarray, list[float]]:
    """The state and the losses of training on all pairs."""
    state, losses = model.fresh(), []
    for _ in range(steps):
        loss, *_, after = model.take(model.PAIRS, state, model.open_masks(), None)
        losses.append(float(loss))
        state = np.concatenate(after)
    return state, losses


def test_it_trains_in_the_page(figure):
    """300 steps, of less than 5 ms each, as numformer's until roundings have grown."""
    figure.page.get_by_role("button", name="Train on all 27 pairs").click()
    done = "() => document.querySelector('#whole').simulation.views[0].losses.length"
    figure.page.wait_for_function(f"({done})() === 300", timeout=120_000)
    losses = figure.evaluate("figure => figure.simulation.views[0].losses")
    assert losses[-1] < 0.1
    np.testing.assert_allclose(losses[:50], trained(50)[1], atol=1e-9)
    figure.page.get_by_role("button", name="Train on all 27 pairs").wait_for()
    assert figure.evaluate("figure => figure.simulation.views[0].predicted.textContent") == "c b a"
    assert min(figure.evaluate(STEPS)) < 5


def test_a_reader_changes_what_they_point_at(figure):
    def shown():
        return figure.evaluate("figure => figure.simulation.shown().views[0]")

    def wanted(pair=whole.WORD, **given):
        arrays = model.step(model.PAIRS[pair], **given)
        rounded = {name: np.round(np.asarray(x, float), 6) + 0 for name, x in arrays.items()}
        return json.loads(json.dumps(whole.whole.views[0].shown(rounded, {"stage": stage})))

    figure.locator("[data-block=cross]").click()
    stage = whole.STAGES.index(("forward", "cross"))
    assert shown() == wanted()
    figure.locator(".symbol").nth(1).click()  # abc to acc
    assert shown() == wanted(model.WORDS.index("acc"))
    figure.locator(".symbol").nth(2).click()  # from the last one to the first
    assert shown() == wanted(model.WORDS.index("aca"))
    figure.locator(".symbol").nth(2).click(click_count=2)
    figure.locator(".symbol").nth(1).click(click_count=2)
    masks = model.open_masks()
    masks[2, 1, 2] = 0
    look = figure.locator(".looks").nth(2).locator(".look").nth(5)
    look.click()
    assert look.get_attribute("aria-pressed") == "true" and shown() == wanted(masks=masks)
    look.press("Enter")
    name = f"{model.CROSS}.sublayer.key.weight"
    figure.locator(f'[data-matrix="{name}"] td[data-row="2"][data-column="3"]').click()
    entry = figure.locator("[aria-label='the picked weight']")
    state = model.fresh()
    at = whole.PARAMETERS[name][0] + 2 * 8 + 3
    assert float(entry.input_value()) == state[at]
    entry.fill("1.5")
    state[at] = 1.5
    assert shown() == wanted(state=state)
    paths = figure.locator(".paths button")
    paths.first.hover()
    assert figure.locator(".traced .flow.path").count() > 1
    figure.page.get_by_role("button", name="One step on this pair").click()
    assert shown() == wanted(state=model.step(model.PAIRS[whole.WORD], state)["after"])
    figure.page.get_by_role("button", name="Start again").click()
    assert shown() == wanted()


@pytest.mark.skipif(lessons.COURSE[8].path is not None, reason="tested with all others")
def test_it_is_a_simulation_as_all_others(open_page, capsys):
    page, simulation = "whole.html", whole.whole
    test_simulations.test_a_page_shows_what_numformer_computes_for_every_choice(
        page, simulation, open_page
    )
    test_simulations.test_the_python_below_it_gives_its_numbers(page, simulation, capsys)
    test_simulations.test_its_window_shows_what_a_widget_says(page, simulation)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_everyone_can_use_it(open_page, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page("whole.html", width, color_scheme=scheme)
    for stage in (0, whole.STAGES.index(("backward", "cross"))):
        page.evaluate(f"document.querySelector('#whole').simulation.choose('stage', {stage})")
        page.evaluate("document.querySelector('#whole').simulation.shown()")  # nothing glides
        options = {"preload": False, "resultTypes": ["violations"]}
        found = axe.Axe().run(page, "html", options).response["violations"]
        assert [(v["id"], [node["html"] for node in v["nodes"]][:3]) for v in found] == []
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(wide)
