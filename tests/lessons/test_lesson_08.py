"""Lesson 8: its numbers and claims, computed again another way."""

import numpy as np
import pytest
from lesson_solutions import words_of

from lessons.lesson_08 import by_hand, runs, training
from lessons.lesson_08.measured import RUNS
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.recipe import warmup_rate
from numformer.paper.dropout import Dropout


@pytest.fixture(scope="module")
def trained():
    """`trained(**changes)`: the losses of the recipe with these changes."""
    return lambda **changes: training.train(**(training.RECIPE | changes))


def test_what_is_said_of_the_first_simulation_is_so(trained):
    lowest = float(training.training.arrays(training.training.at_start())["lowest"])
    recipe, sudden, stays = trained(), trained(warmup=1), trained(warmup=1, fall=0.0)
    assert recipe[0] > np.log(training.SYMBOLS)
    assert recipe[80] < lowest + 0.01 and lowest < recipe.min()
    assert sudden[-1] > 0.7 and stays[-1] > 1.1
    assert trained(beta2=0.5).min() > lowest + 0.2


@pytest.mark.parametrize("warmup", [1, 30, 120])
def test_the_schedule_that_a_page_repeats_is_the_paper_s(warmup):
    for step in training.STEP:
        rate = training.rate_at(step, 0.5, warmup, 0.04)
        paper = warmup_rate(step, d_model=1, warmup=warmup, factor=0.04 * warmup**0.5)
        assert rate == pytest.approx(paper, rel=1e-12)
    assert training.rate_at(120, 0.0, warmup, 0.04) == 0.04


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_the_program_and_the_steps_train_alike(smoothing, trained):
    simulation = training.training
    (slider,) = (c for c in simulation.controls if c.name == "smoothing")
    option = [option.value for option in slider.options].index(smoothing)
    arrays = simulation.arrays(simulation.at_start() | {"smoothing": option})
    np.testing.assert_array_equal(arrays["loss"], trained(smoothing=smoothing))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_no_loss_is_lower_than_that_of_the_target(smoothing, rng):
    symbols = 4 + training.SYMBOLS
    target = np.full(symbols, smoothing / symbols)
    target[0] += 1 - smoothing
    begun = {name: array.copy() for name, array in training.begin().items()}
    arrays = training.step_of_training(1, **begun, **(training.RECIPE | {"smoothing": smoothing}))
    entropy = -sum(share * np.log(share) for share in target if share)
    assert float(arrays["lowest"]) == pytest.approx(entropy)


def test_the_target_that_is_shown_adds_up_to_1():
    view, slider = by_hand.smoothed.views[0], by_hand.smoothed.controls[1]
    for at in range(len(slider.options)):
        chosen = by_hand.smoothed.at_start() | {slider.name: at}
        (cells,) = view.shown(by_hand.smoothed.arrays(chosen), chosen)["target"]["cells"]
        assert sum(map(float, cells)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_is_the_probabilities_less_the_target(smoothing, rng):
    logits = rng.normal(size=(1, 4))
    target = (1 - smoothing) * np.eye(4)[0] + smoothing / 4

    def loss(logits):
        p = np.exp(logits[0]) / np.exp(logits).sum()
        return -(target * np.log(p)).sum()

    arrays = by_hand.loss_and_gradient(logits, smoothing)
    measured = [loss(logits + 1e-6 * row) - loss(logits - 1e-6 * row) for row in np.eye(4)]
    np.testing.assert_allclose(arrays["dlogits"][0], np.array(measured) / 2e-6, atol=1e-8)
    np.testing.assert_allclose(arrays["p"] - arrays["target"], arrays["dlogits"], atol=1e-12)
    assert arrays["loss"] == pytest.approx(loss(logits))


@pytest.mark.parametrize("beta2", [0.5, 0.98])
def test_ten_steps_of_adam_are_those_of_its_equations(beta2, rng):
    gradients, mean, square = rng.normal(size=10), 0.0, 0.0
    steps = by_hand.ten_steps(gradients.reshape(2, 5), beta2)["steps"]
    for step, g in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * g, beta2 * square + (1 - beta2) * g**2
        m, n = mean / (1 - 0.9**step), square / (1 - beta2**step)
        expected = g, mean, square**0.5, m, n**0.5, m / (n**0.5 + 1e-9)
        np.testing.assert_allclose(steps[step - 1], expected)


def test_the_first_step_is_the_rate_and_the_size_of_gradients_does_not_matter(rng):
    gradients = rng.normal(size=(2, 5))
    one, thousand = (by_hand.ten_steps(k * gradients, 0.98)["change"] for k in (1, 1000))
    np.testing.assert_allclose(one, thousand, atol=1e-6)
    assert abs(one[0]) == pytest.approx(1)
    in_turn = by_hand.ten_steps(by_hand.ten([1, -1] * 5), 0.98)["change"]
    assert abs(in_turn[1:]).max() < 0.4


def test_dropout_keeps_the_mean_and_clipping_the_direction(rng):
    dropped = Dropout(0.25).forward(np.ones(100_000))
    assert set(dropped.round(6)) == {0, 1.333333} and dropped.mean() == pytest.approx(1, abs=0.01)
    gradient = rng.normal(size=50)
    clipped = gradient.copy()
    norm = clip_global_norm(clipped, 1.0)
    np.testing.assert_allclose(clipped, gradient / norm)
    assert clip_global_norm(clipped.copy(), 2.0) == pytest.approx(1)


def test_a_run_without_warm_up_begins_at_the_highest_rate():
    rates = [
        [warmup_rate(step, 1, warmup, runs.PEAK * warmup**0.5) for step in (1, runs.STEPS)]
        for warmup in (1, runs.WARMUP)
    ]
    assert rates[0] == pytest.approx([runs.PEAK, runs.PEAK / runs.STEPS**0.5])
    assert rates[1] == pytest.approx([runs.PEAK / runs.WARMUP, runs.PEAK / 2])


def test_most_steps_are_clipped_where_the_question_says_so():
    stored = runs.trained("clipped at 1")
    assert 0.3 < np.mean([run.clipped for run in stored]) < 0.7
    assert all(1000 * run.shortest > 1 for run in stored)


def test_the_text_has_the_numbers_of_the_runs():
    text = words_of(8, "each_switched_off")
    for name in runs.CHANGES:
        repeats = runs.trained(name)
        loss, right = [run.held_out for run in repeats], [100 * run.right for run in repeats]
        row = f"{name} | {np.mean(loss):.2f} ({min(loss):.2f} to {max(loss):.2f}) | "
        assert row + f"{np.mean(right):.0f} ({min(right):.0f} to {max(right):.0f})" in text
        if name == "no warm-up":
            assert f"With none {np.mean(right):.0f} % of the sentences are right, not" in text


@pytest.mark.parametrize(("name", "sentences"), RUNS)
def test_training_repeats_the_stored_runs(name, sentences, monkeypatch):
    """Training repeats the first steps; rounding changes the later steps."""
    monkeypatch.setattr(runs, "writes", lambda model, french: french)
    stored, today = runs.trained(name, sentences)[0], runs.train(name, 1, sentences, 2 * runs.EVERY)
    np.testing.assert_allclose(today.losses, stored.losses[:2], atol=0.02)
