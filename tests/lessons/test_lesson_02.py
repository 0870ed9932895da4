"""Lesson 2: its numbers and claims, computed again another way."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from lesson_solutions import words_of
from numpy.testing import assert_allclose

import lessons
from lessons.lesson_02 import lookup
from lessons.lesson_02.lookup import DAY, HARD, key, move_the_wish, value
from numformer.paper import attention

BEGINNINGS = [(1.0, 2.0), (2.0, 0.5), (1.5, -1.5), (-1.0, -1.5)]  # of which the text speaks


def shares(q, temperature: float, distance: bool = False) -> list[float]:
    """The weights of the jugs by plain formulas, at both ends by what the limits are."""
    fits = [q[0] * k[0] + q[1] * k[1] for k in key]
    if distance:
        fits = [-((q[0] - k[0]) ** 2 + (q[1] - k[1]) ** 2) / 2 for k in key]
    if temperature == HARD:
        return [(fit == max(fits)) / fits.count(max(fits)) for fit in fits]
    powers = [1 if temperature == math.inf else math.exp(fit / temperature) for fit in fits]
    return [power / sum(powers) for power in powers]


def loss(q, temperature: float) -> float:
    return sum(a * (v[0] - v[1]) for a, v in zip(shares(q, temperature), value, strict=True))


@pytest.mark.parametrize("score", ["dot product", "distance"])
@pytest.mark.parametrize("temperature", [HARD, 0.125, 0.5, 2.0, 8.0, math.inf])
def test_the_glass_is_mixed_by_plain_formulas(score, temperature):
    assert temperature in [option.value for option in move_the_wish.controls[1].options]
    for q in itertools.product(lookup.GRID[::4], lookup.GRID[::4]):
        shown = lookup.wish(np.array(q), temperature, score)
        expected = shares(q, temperature, score == "distance")
        assert_allclose(shown["weights"], expected, atol=1e-9)
        glass = [sum(a * v[i] for a, v in zip(expected, value, strict=True)) for i in (0, 1)]
        assert_allclose(shown["glass"], glass, atol=1e-9)
        hard = shares(q, HARD, score == "distance")
        assert_allclose(shown["best"] / shown["best"].sum(), hard)
        assert score == "distance" or hard[4] < 1
        assert (shown["undefined"] == (-1 if temperature == HARD else 0)).all()
        assert abs(shown["scaled"]).max() < 200, "a number too wide for its cell"
    assert lookup.wish(key[4], temperature, "distance")["best"].tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("width", lookup.WIDTHS[::9])
def test_the_river_is_that_of_nadaraya_and_watson(width):
    pairs, off = list(zip(lookup.hours, lookup.levels, strict=True)), []
    for place, hour in enumerate(DAY):
        shown = lookup.river(hour, width)
        kernel = [math.exp(-((hour - k) ** 2) / (2 * width**2)) for k in lookup.hours]
        estimate = sum(w * v for w, (_, v) in zip(kernel, pairs, strict=True)) / sum(kernel)
        closest = min(pairs, key=lambda pair: abs(hour - pair[0]))
        off.append(estimate - lookup.true_level(hour))
        assert_allclose(shown["curve"][place], estimate)
        assert_allclose(shown["largest"], max(kernel) / sum(kernel))
        assert_allclose(shown["effective"], sum(kernel) ** 2 / sum(k * k for k in kernel))
        assert shown["nearest"][place] == closest[1]
    assert_allclose(shown["error"], math.sqrt(sum(e * e for e in off) / len(off)))


@pytest.mark.parametrize("start", BEGINNINGS)
@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_a_query_walks_down_the_slope_that_is_measured(start, temperature):
    path, step = lookup.walk(start, temperature), 1e-6 * np.eye(2)
    assert temperature in lookup.SOFTNESS and np.abs(path).max() < 5  # the chart shows it
    for q, after in itertools.pairwise(path):
        slopes = [(loss(q + d, temperature) - loss(q - d, temperature)) / 2e-6 for d in step]
        assert_allclose(after, q - 0.5 * np.array(slopes), atol=1e-6)
    shown = lookup.learn(start, temperature, 7)
    assert_allclose(shown["loss"], [loss(q, temperature) for q in path], atol=1e-9)
    assert_allclose(shown["hard"], [loss(q, HARD) for q in path], atol=1e-9)
    assert_allclose(shown["weights"], shares(path[7], temperature), atol=1e-9)


def test_the_gradients_are_those_of_the_whole_attention():
    lesson, stretch = lessons.load(2), math.sqrt(2) / 2.0  # attention divides by the root of d_k
    inputs, doutput = (lesson.query * stretch, key, value), lesson.doutput
    output, weights = attention.scaled_dot_product_attention(*inputs)
    backward = attention.scaled_dot_product_attention_backward
    expected = backward(doutput, *inputs, weights)
    shown = lesson.glass, lesson.dquery / stretch, lesson.dkey, lesson.dvalue
    for ours, theirs in zip(shown, (output, *expected), strict=True):
        assert_allclose(ours, theirs)
    away = (value - lesson.glass) @ doutput[0]  # how far each value lies from the blend
    assert_allclose(lesson.dscaled, weights * away)


def test_the_numbers_in_the_text_are_these():
    bar = re.search(r"(?s)>>> bar = (.*?\})", Path(lessons.load(2).__file__).read_text())[1]
    bar = eval(bar.replace("# ...", "")).items()
    assert np.array_equal([[*pair] for pair in bar], np.stack([key, value], axis=1))
    rows = [*map(int, re.findall(r"\| (\d+) % \|", words_of(2, "many_wishes")))]
    assert sorted(rows[:4]) == rows[:4] and 29 <= rows[0] < 50 < 90 < rows[3] and rows[4] > 90


def test_what_the_text_says_of_slopes_and_of_weights_holds():
    begin, end = np.linalg.norm(lookup.walk((1.0, 2.0), 2.0)[[0, -1]], axis=1)
    assert 1.9 < end / begin < 2.1
    cold = lookup.lookup(lookup.walk((2.0, 0.5), 0.25)[3:], 0.25)[0]
    assert cold[:, 1].min() > 0.99  # the banana, from the third step on
    assert [loss((x, 2), HARD) for x in (-3, 0.66, 0.67, 3)] == [-3, -3, 3, 3]  # the cliff
    a, changes = np.array(shares((1.5, 0.5), 2.0)), []
    for hidden in range(5):  # the glass of the others, mixed anew
        rest = np.delete(a, hidden) / (1 - a[hidden])
        changes.append(rest @ np.delete(value @ [1, -1], hidden) - a @ value @ [1, -1])
        assert_allclose(lessons.load(2).without(hidden), changes[-1])
    assert np.argmin(np.abs(changes)) == 1 == np.argsort(a)[-2]
