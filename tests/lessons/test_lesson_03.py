"""Lesson 3: its numbers and claims, computed again another way."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

import lessons
from lessons.kit.lesson import pieces
from lessons.lesson_03 import retrieval
from lessons.lesson_03.attention import MASKS, attention
from lessons.lesson_03.retrieval import RATES, SCORES, SET, Lookup, compare, draw, look
from numformer.gradient_check.gradients import GradientCheck


@pytest.mark.parametrize(("mask", "temperature"), [(0, 0.25), (1, 1), (2, 4), (3, 2)])
def test_the_simulation_has_the_numbers_of_plain_formulas(mask, temperature, rng):
    lesson, allowed = lessons.load(3), MASKS[mask].value
    doutput = rng.integers(-3, 4, (4, 2)).astype(float)
    query = lesson.query.copy()
    query[2] = rng.normal(size=3)
    shown = attention.compute(
        mask=allowed, temperature=temperature, own=query[2:3], doutput=doutput
    )
    scores = query @ lesson.key.T / temperature
    for t, row in enumerate(scores):
        seen = np.flatnonzero(allowed[t])
        exponentials = np.exp(row[seen] / np.sqrt(3))
        a = exponentials / exponentials.sum()
        jacobian = np.diag(a) - np.outer(a, a)
        weights, dscaled = np.zeros((2, 5))
        weights[seen], dscaled[seen] = a, jacobian @ (lesson.value[seen] @ doutput[t])
        np.testing.assert_allclose(shown["weights"][t], weights, atol=1e-12)
        np.testing.assert_allclose(shown["output"][t], weights @ lesson.value, atol=1e-12)
        np.testing.assert_allclose(shown["dscaled"][t], dscaled, atol=1e-12)
    dscores = shown["dscaled"] / np.sqrt(3)
    np.testing.assert_allclose(shown["dquery"], np.einsum("ts,si->ti", dscores, lesson.key))
    dkey = np.einsum("ts,ti->si", dscores, shown["query"])
    np.testing.assert_allclose(shown["dkey"], dkey, atol=1e-12)
    dvalue = np.einsum("ts,tj->sj", shown["weights"], doutput)
    np.testing.assert_allclose(shown["dvalue"], dvalue, atol=1e-12)


def test_the_numbers_in_the_text_are_these():
    """By hand, or from formulas that the lesson does not use."""
    lesson = lessons.load(3)
    scores = np.array([[0, 0, 4, 2, 0], [0, 4, 0, -1, 2], [0, -2, 4, 2, 0], [0, 0, 4, 3, -2]])
    scaled = scores / np.sqrt(3)
    weights = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
    steps = scores, scaled, weights, weights @ lesson.value
    for piece, expected in zip(pieces(lesson.four_steps), steps, strict=True):
        np.testing.assert_allclose(piece.numbers, expected, atol=1e-12)
    doutput, dvalue, dweights, _ = pieces(lesson.back_through_the_blend)
    np.testing.assert_allclose(dvalue.numbers, weights.T @ doutput.numbers)
    np.testing.assert_allclose(dweights.numbers, doutput.numbers @ lesson.value.T)
    da = dweights.numbers[2]
    centred = da - weights[2] @ da
    wanted = [weights[2], da, centred, weights[2] * centred]
    rows, _ = pieces(lesson.back_through_the_softmax)
    np.testing.assert_allclose(rows.numbers, wanted, atol=1e-12)
    wanted = np.diag(weights[2]) - np.outer(weights[2], weights[2])
    np.testing.assert_allclose(pieces(lesson.jacobian)[0].numbers, wanted, atol=1e-12)


def curves(piece) -> dict[str, np.ndarray]:
    """The heights of a picture's curves by their labels."""
    (axes,) = piece.figure().axes
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.lines}


def test_what_is_said_of_the_scale_is_what_the_pictures_show():
    lesson, shown = lessons.load(3), {}
    *pictures, _ = pieces(lesson.what_the_scale_does)
    for piece, name in zip(pictures, ("variance", "largest", "gradient"), strict=True):
        assert name in piece.alt
        without, with_it = (curves(piece)[key] for key in ("as it is", r"divided by $\sqrt{d_k}$"))
        shown[name] = without, with_it
        told = re.sub(r"\$(\d) .cdot 10\^\{(.*?)\}\$", r"\1e\2", piece.caption)
        told = re.sub(r"\$d_k = 1024\$|16 keys", "", told)
        told = [float(number) for number in re.findall(r"\d[\d.]*(?:e-\d+)?(?=[ .])", told)]
        np.testing.assert_allclose(told, [without[-1], with_it[-1]], rtol=0.5 / min(told[0], 5))
    without, with_it = shown["variance"]
    np.testing.assert_allclose(without, lesson.WIDTHS, rtol=0.2)
    np.testing.assert_allclose(with_it, 1, rtol=0.2)


def test_what_is_said_of_four_scores_is_what_was_measured():
    lesson = lessons.load(3)
    accuracy, _, _, words = pieces(lesson.four_ways_to_score)
    results = lesson.compare()
    for score in SCORES:
        curve = curves(accuracy)[score]
        means = [result.accuracy.mean() for result in results if result.score == score]
        np.testing.assert_allclose(curve, means)
        assert f"{score} is at {means[-1]:.2f}" in accuracy.alt
    said = " ".join(words.markdown().split())
    small, large = map(int, re.findall(r"finds (?:only )?(\d+) %", said))
    assert small > 95 > 90 > large  # the text draws its conclusion from this


@pytest.mark.parametrize("score", SCORES)
def test_gradients_agree_with_numerical_ones(score, rng):
    """With more keys than queries, and with words that occur twice."""
    query, key = rng.integers(0, 6, (3, 4)), rng.integers(0, 6, (3, 5))
    layer = Lookup(SCORES[score](4, rng), 4, rng)
    checked = GradientCheck(layer, [query, key, rng.standard_normal((3, 5, 2))])
    assert len(checked.tensors) == 1 + len(layer.named_parameters())
    for name in checked.tensors:
        row = checked.row(name, directions=1)
        assert row.passed, str(row)


def test_a_query_is_right_where_its_own_key_has_the_largest_score(rng):
    words, value = draw(rng, 3)
    model = Lookup(SCORES["dot product"](2, rng), 2, rng)
    scores = model.scores(words, words)
    right = np.mean([scores[n, own].argmax() == own for n, own in np.ndindex(3, SET)])
    assert 0.05 < right < 0.95 and look(model, words, value)[3] == right


def test_of_the_rates_that_begin_well_the_one_with_the_lowest_last_losses_is_taken(monkeypatch):
    last = dict(zip(RATES, ([9, 1], [4, 3], [5, 2], [8.1, 1]), strict=True))  # of a seed, of all

    def trained(score, build, width, rate, seeds):
        wanted = last[rate][len(seeds) > 1]
        return SimpleNamespace(rate=rate, losses=np.repeat([10.0 - wanted, wanted], [90, 10]))

    monkeypatch.setattr(retrieval, "train", trained)
    assert [result.rate for result in compare((4,), (0, 1), {"any": None})] == [RATES[2]]
