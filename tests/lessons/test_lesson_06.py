"""Lesson 6: its numbers and claims, computed again another way."""

import numpy as np
import pytest

from lessons import COURSE
from lessons.kit.models import measured
from lessons.lesson_06 import block, depth
from numformer.gradient_check.gradients import check
from numformer.models.config import TowerConfig


def norm(rows):
    return (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)


def by_formulas(**moved) -> dict[str, np.ndarray]:
    """The block's matrices from the equations of the paper, each moved by what is given for it."""
    arrays = {}

    def keep(name, array):
        arrays[name] = array + moved.get(name, 0)
        return arrays[name]

    query, key, value, output, *_ = block.WEIGHTS.values()
    x = keep("x", block.x)
    exponentials = np.exp(x @ query @ (x @ key).T)  # the root of d_k is 1
    weights = keep("weights", exponentials / exponentials.sum(axis=1, keepdims=True))
    normed = keep("normed", norm(keep("sum_1", x + keep("attended", weights @ x @ value @ output))))
    hidden = np.maximum(keep("before", normed @ block.inner + block.inner_bias), 0)
    written = keep("written", keep("hidden", hidden) @ block.outer)
    keep("y", norm(keep("sum_2", normed + written)))
    return arrays


@pytest.mark.parametrize("option", range(4))
def test_the_block_has_the_numbers_of_plain_formulas(option):
    way, dy = (-1, 1)[option % 2], block.UPSTREAM[option % 3].value
    shown, plain = block.compute(2, way, dy), by_formulas()
    for name in plain.keys() & shown.keys():
        np.testing.assert_allclose(shown[name], plain[name], atol=1e-12, err_msg=name)
    names = ("x", "attended", "sum_1", "normed", "written", "sum_2")
    gradients = {name: shown[f"d{name}"] for name in names} | {"before": shown["dhidden"]}
    for name, gradient in gradients.items():  # how the loss changes as a matrix is moved
        for place in np.ndindex(gradient.shape):
            step = np.zeros_like(gradient)
            step[place] = 1e-6
            change = by_formulas(**{name: step})["y"] - by_formulas(**{name: -step})["y"]
            assert abs((dy * change).sum() / 2e-6 - gradient[place]) < 1e-7, (name, place)
    back = "dx dx_1 dattended dsum_1 dnormed_2 dwritten dsum_2".split()
    results = [shown[name] for name in ((*names, "y") if way > 0 else back)]  # of each part
    sizes = [np.linalg.norm(result) / result.size**0.5 for result in results]
    np.testing.assert_allclose(shown["sizes"], sizes)
    assert shown["way"] == way and block.GROUPS[int(shown["group"])][-1] in ("sum_1", "dattended")


def test_what_is_said_of_the_example_is_so():
    arrays = by_formulas()
    cat = {name: rows[1].tolist() for name, rows in arrays.items() if name != "weights"}
    assert (cat["sum_1"], cat["normed"]) == ([4, -2, 0, 2, 1], [1.5, -1.5, -0.5, 0.5, 0])
    assert (cat["hidden"], cat["written"]) == ([1, 0, 0, 2, 0, 0], [-1, 0, 2, -1, 0])
    assert cat["y"] == cat["sum_2"] == [0.5, -1.5, 1.5, -0.5, 0]


@pytest.mark.parametrize("sound", [-3.0, 5.0])
def test_layer_norm_takes_a_projection_out(sound, rng):
    dy = rng.standard_normal((1, 5))
    first = block.normalise(sound, 1.0, 0.0, dy)
    basis, _ = np.linalg.qr(np.stack([np.ones(5), first["forward"][0]], axis=1))
    left = dy[0] - basis @ basis.T @ dy[0]  # of what is spanned by ones and the row itself
    np.testing.assert_allclose(first["backward"][3], left, atol=1e-12)
    other = block.normalise(sound, 2.0, 1.0, dy)
    np.testing.assert_allclose(other["hat"], first["hat"], atol=1e-12)
    for shown, scale in ((first, 1), (other, 2)):
        np.testing.assert_allclose(shown["dx"], left / (scale * first["deviation"]), atol=1e-12)


def test_the_data_and_how_alike_they_are_come_into_a_layer():
    rng = np.random.default_rng(0)
    TowerConfig(d_model=64, d_ff=256, heads=4, layers=2, p_drop=0).encoder(rng)
    x = rng.standard_normal((2, 2, 16, 64))[0]
    of_input = [np.linalg.norm(x) / x.size**0.5, (x.mean(axis=1) ** 2).mean() / (x**2).mean()]
    np.testing.assert_allclose(depth.measure_once("post", True, 2, 0)[:2, 0], of_input)


@pytest.mark.parametrize("norm", depth.NORMS)
@pytest.mark.parametrize("residual", [True, False])
def test_an_altered_encoder_has_right_gradients(norm, residual, rng):
    place = "post" if norm == "none" else norm
    config = TowerConfig(d_model=8, d_ff=6, heads=2, layers=1, norm=place, p_drop=0)
    encoder = config.encoder(rng)
    depth.alter(encoder, norm, residual)
    x = rng.standard_normal((2, 3, 8))
    assert all(row.passed for row in check(encoder, [x]))
    of_norms = [name for name in encoder.named_parameters() if "gamma" in name]
    assert len(of_norms) == {"post": 2, "pre": 3, "none": 0}[norm]
    weights = encoder.named_parameters().items()
    (output,) = [weight for name, weight in weights if name.endswith("output.weight")]
    output.data[...] = 0  # nothing comes through attention, but may come around it
    encoder.forward(x)
    assert encoder.backward(rng.standard_normal(x.shape)).any() == residual


def test_what_is_said_of_depth_was_measured():
    around, without = depth.measure("none", True), depth.measure("none", False)
    assert around["input"][0] > 1e5 and without["input"][0] < 1e-3
    post, lone = depth.measure("post", True), depth.measure("post", False)
    assert lone["alike"][3] > 0.999 and max(lone["query"][4:]) < 1e-6 < 0.1 < post["query"][3]
    near_1 = [depth.measure(n, way)["input"] for n in ("post", "pre") for way in (True, False)]
    assert 0.2 < np.min(near_1) < np.max(near_1) < 1.5
    layers = 3, 6, 12, 24
    post, pre = ([depth.measure(n, True, m)["value"][-1] for m in layers] for n in ("post", "pre"))
    assert max(post) < 1.2 * min(post)
    assert np.ptp(pre * np.sqrt(layers)) < 0.2 * np.min(pre * np.sqrt(layers))
    ends = [losses[-1] for losses in measured(6)["losses"].values()]
    slow, fast, rising, slow_pre, fast_pre, without = ends
    guessing = np.log(depth.SYMBOLS)
    assert max(slow, rising, slow_pre, fast_pre) < guessing - 0.25 < guessing - 0.1 < fast
    assert fast_pre < slow_pre < slow and without > guessing - 0.05


@pytest.mark.parametrize("name", depth.RUNS)
def test_training_repeats_the_stored_runs(name):
    """The first steps once more."""
    (today,) = depth.learn(*depth.RUNS[name], stop=depth.EVERY)
    assert today == pytest.approx(measured(6)["losses"][name][0], abs=0.02)


def test_the_diagram_is_horizontal_on_a_wide_page_and_all_arrows_move_in_it(open_page):
    page = open_page(COURSE[5].page)
    blocks = page.locator("#block .block")
    for width, way, key in (1280, "x", "ArrowRight"), (390, "y", "ArrowDown"):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)  # the diagram turns in the next frame
        places = [part.bounding_box()[way] for part in blocks.all()]
        assert places == sorted({*places}), "each part comes after the one before it"
        wide = "all => all.filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)"
        assert way == "x" or page.eval_on_selector_all("#block .matrices", wide) == []
        blocks.first.focus()
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.block") == block.NAMES[1]
