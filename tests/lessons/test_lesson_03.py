"""Lesson 3: its numbers and claims, computed again another way."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

import lessons
from lessons.lesson import pieces
from lessons.lesson_03 import retrieval
from lessons.lesson_03.attention import MASKS, TEMPERATURES, attention
from lessons.lesson_03.retrieval import RATES, SCORES, SET, Lookup, compare, draw, look
from numformer.gradient_check.gradients import GradientCheck
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.softmax import softmax_backward


@pytest.mark.parametrize(("mask", "temperature"), [(0, 0), (1, 2), (2, 4), (3, 3)])
def test_the_simulation_has_the_numbers_of_plain_formulas(mask, temperature, rng):
    lesson, allowed = lessons.load(3), MASKS[mask].value
    doutput = rng.integers(-3, 4, (4, 2)).astype(float)
    shown = attention.compute(allowed, TEMPERATURES[temperature].value, doutput)
    scores = lesson.query @ lesson.key.T / TEMPERATURES[temperature].value
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


def test_what_is_said_of_the_scale_is_what_was_measured(monkeypatch):
    lesson, lengths = lessons.load(3), {}
    measure = lesson.random_attention

    def remembered(d_k, scaled, rng):
        *others, lengths[scaled], dquery = measure(d_k, scaled, rng)
        return *others, lengths[scaled], dquery

    monkeypatch.setattr(lesson, "random_attention", remembered)
    *pictures, words = pieces(lesson.what_the_scale_does)
    shown = {}
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
    pattern = r"from (\d+) of the 400 rows\. With the\s+scale they come from (\d+)"
    told = re.search(pattern, words.markdown())
    for count, scaled in zip(map(int, told.groups()), (False, True), strict=True):
        share = np.sort(lengths[scaled])[::-1].cumsum() / lengths[scaled].sum()
        assert share[count - 2] < 0.9 <= share[count - 1]


@pytest.mark.parametrize("scaled", [True, False])
def test_random_attention_has_the_gradients_of_numformer(scaled):
    """Values that are the identity make dweights of doutput."""
    measure, rng = lessons.load(3).random_attention, np.random.default_rng(1)
    _, weights, dscores, dquery = measure(9, scaled, np.random.default_rng(1))
    query, key = rng.standard_normal((400, 1, 9)), rng.standard_normal((400, 16, 9))
    query = query if scaled else 3 * query
    inputs = query, key, np.broadcast_to(np.eye(16), (400, 16, 16))
    _, expected, _ = scaled_dot_product_attention(*inputs)
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    doutput = rng.standard_normal((400, 1, 16))
    back = scaled_dot_product_attention_backward(doutput, *inputs, expected, expected, None)
    lengths = np.linalg.norm(back[0], axis=-1).ravel() * (1 if scaled else 3)
    np.testing.assert_allclose(dquery, lengths)
    lengths = np.linalg.norm(softmax_backward(doutput, expected), axis=-1).ravel()
    np.testing.assert_allclose(dscores, lengths)


def test_what_is_said_of_four_scores_is_what_was_measured():
    lesson = lessons.load(3)
    accuracy, _, before, words = pieces(lesson.four_ways_to_score)
    results = lesson.compare()
    wide = {result.score: result for result in results if result.width == 256}
    for score, result in wide.items():
        row = re.search(rf"\| {score} \| (.*) \|", before.markdown())[1]
        told = [float(cell) for cell in row.split(" | ")]
        measured = [result.spread, result.largest, result.gradient]
        np.testing.assert_allclose(told, measured, atol=0.05, rtol=0.02)
        curve = curves(accuracy)[score]
        means = [result.accuracy.mean() for result in results if result.score == score]
        np.testing.assert_allclose(curve, means)
        assert f"{score} is at {means[-1]:.2f}" in accuracy.alt
    said = " ".join(words.markdown().split())
    pattern = r"standard deviation of (\d+):.* is (\d+) times smaller"
    told = [int(number) for number in re.search(pattern, said).groups()]
    ratio = wide["scaled dot product"].gradient / wide["dot product"].gradient
    np.testing.assert_allclose(told, [wide["dot product"].spread, ratio], atol=0.5)
    small, large = map(int, re.findall(r"finds (?:only )?(\d+) %", said))
    assert small > 95 > 90 > large  # the text draws its conclusion from this


# The dictionary: its gradients, and how it is measured


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


def test_what_is_looked_at_is_what_it_is_called(rng):
    """Row by row, with numerical gradients of each query's own mean squared error."""
    words, value = draw(rng, 3)
    model = Lookup(SCORES["dot product"](2, rng), 2, rng)
    query, key = (layer.forward(words) for layer in (model.query, model.key))
    scores = query @ key.swapaxes(1, 2)
    largest, lengths, right = [], [], []
    for n, wanted in np.ndindex(3, SET):
        row, values = scores[n, wanted].astype(float), value[n].astype(float)

        def error(row, values=values, wanted=wanted):
            weights = np.exp(row) / np.exp(row).sum()
            return ((weights @ values - values[wanted]) ** 2).mean()

        moved = [error(row + h) - error(row - h) for h in 1e-5 * np.eye(SET)]
        lengths.append(np.linalg.norm(moved) / 2e-5)
        largest.append((np.exp(row) / np.exp(row).sum()).max())
        right.append(row.argmax() == wanted)
    expected = scores.std(), np.median(largest), np.median(lengths), np.mean(right)
    assert 0.05 < np.mean(right) < 0.95
    np.testing.assert_allclose(look(model, words, value), expected, rtol=1e-3)


def test_of_the_rates_that_begin_well_the_one_with_the_lowest_last_losses_is_taken(monkeypatch):
    last = dict(zip(RATES, ([9, 1], [4, 3], [5, 2], [8.1, 1]), strict=True))  # of a seed, of all

    def trained(score, build, width, rate, seeds):
        wanted = last[rate][len(seeds) > 1]
        return SimpleNamespace(rate=rate, losses=np.repeat([10.0 - wanted, wanted], [90, 10]))

    monkeypatch.setattr(retrieval, "train", trained)
    assert [result.rate for result in compare((4,), (0, 1), {"any": None})] == [RATES[2]]
