"""Lesson 3: its numbers and claims, computed again another way."""

import re

import numpy as np
import pytest

import lessons
from lessons.kit.lesson import pieces
from lessons.kit.models import measured
from lessons.lesson_03 import retrieval
from lessons.lesson_03.attention import MASKS, attention
from lessons.lesson_03.retrieval import RATES, SCORES, SET, Lookup, accuracy, compare, draw
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
    weights = np.exp(scores / np.sqrt(3))
    weights /= weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(lesson.weights, weights, atol=1e-12)
    assert weights[2].argmax() == 2  # `it` takes most from `cat`
    dvalue, dweights = weights.T @ lesson.doutput, lesson.doutput[2] @ lesson.value.T
    assert f"≈ {dvalue[2, 0]:.2f}.".replace("-", "−") in lesson.back_through_the_blend().text
    assert f"= {dweights[2]:.0f}. If" in lesson.back_through_the_blend().text
    dscores = (np.diag(weights[2]) - np.outer(weights[2], weights[2])) @ dweights
    text = lesson.back_through_the_softmax().text
    assert f"≈ {weights[2] @ dweights:.2f}. So" in text
    assert f"≈ {dscores[2]:.2f}.".replace("-", "−") in text


def curves(piece) -> dict[str, np.ndarray]:
    """The heights of a picture's curves by their labels."""
    (axes,) = piece.figure().axes
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.lines}


def test_what_is_said_of_the_scale_is_what_the_picture_shows():
    lesson = lessons.load(3)
    piece = lesson.what_the_scale_does()
    without, with_it = (curves(piece)[key] for key in ("not divided", r"divided by $\sqrt{d_k}$"))
    numbers = re.sub(r"\$(\d) .cdot 10\^\{(.*?)\}\$", r"\1e\2", piece.caption)
    numbers = [float(number) for number in re.findall(r"\d[\d.]*(?:e-\d+)?(?=[ ,.])", numbers)]
    largest = [lesson.random_attention(1024, scaled)[0] for scaled in (False, True)]
    np.testing.assert_allclose(numbers, [without[-1], with_it[-1], *largest], rtol=0.4)
    np.testing.assert_allclose(numbers[1:], [with_it[-1], *largest], rtol=0.03)
    assert without[0] / without[-1] > 1e4 and with_it.max() < 2 * with_it.min()


def test_what_is_said_of_four_scores_is_what_was_measured():
    stored = measured(3)["accuracy"]
    accuracy, words = pieces(lessons.load(3).four_ways_to_score)
    for score, right in stored.items():
        np.testing.assert_allclose(curves(accuracy)[score], right)
        assert f"{score} is at {right[-1]:.2f}" in accuracy.alt
    text = " ".join(words.markdown().split())
    plain, scaled = map(int, re.findall(r"(\d+) %", text))
    found = [stored[score][-1] for score in ("dot product", "scaled dot product")]
    np.testing.assert_allclose([plain, scaled], 100 * np.array(found), atol=0.5)
    assert scaled > 95 > 90 > plain  # the text draws its conclusion from this


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
    words, _ = draw(rng, 3)
    model = Lookup(SCORES["dot product"](2, rng), 2, rng)
    scores = model.scores(words, words)
    right = np.mean([scores[n, own].argmax() == own for n, own in np.ndindex(3, SET)])
    assert 0.05 < right < 0.95 and accuracy(model, words) == right


def test_the_rate_with_the_lowest_last_losses_is_taken(monkeypatch):
    losses = dict(zip(RATES, (4, 2, 3, 5), strict=True))

    def trained(score, width, rate, seed):
        return losses[rate], losses[rate] + seed

    monkeypatch.setattr(retrieval, "run", trained)
    assert compare((0, 2))["additive"] == [3] * len(retrieval.WIDTHS)


def test_the_stored_accuracies_are_those_of_today():
    """Those at the smallest width once more."""
    for score, (right,) in compare(widths=retrieval.WIDTHS[:1]).items():
        assert right == pytest.approx(measured(3)["accuracy"][score][0], abs=0.02)
