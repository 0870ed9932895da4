"""Lesson 2: its numbers and claims, computed again another way."""

import itertools
import math
import re

import numpy as np
import pytest

import lessons
from lessons.lesson import Picture, pieces
from lessons.lesson_02 import lookup
from lessons.lesson_02.lookup import HARD, STARTS, key, learning, move_the_wish, value
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)

at_each_temperature = [
    pytest.mark.parametrize("temperature", [option.value for option in each.controls[1].options])
    for each in (move_the_wish, learning)
]


def words_of(name: str) -> str:
    """What a function of lesson 2 says, in one line."""
    found = [piece.markdown() for piece in pieces(getattr(lessons.load(2), name))
             if not isinstance(piece, Picture)]  # fmt: skip
    return " ".join(" ".join(found).split())


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
@at_each_temperature[0]
def test_the_glass_is_mixed_by_plain_formulas(score, temperature):
    for q in np.stack(np.meshgrid(lookup.GRID, lookup.GRID), axis=-1).reshape(-1, 2):
        found = lookup.wish(q, temperature, score)
        expected = shares(q, temperature, score == "distance")
        np.testing.assert_allclose(found["weights"], expected, atol=1e-9)
        glass = [sum(a * v[i] for a, v in zip(expected, value, strict=True)) for i in (0, 1)]
        np.testing.assert_allclose(found["glass"], glass, atol=1e-9)
        # Inside the area, to the left of each of its sides, and the apple never alone on top.
        corners = found["corners"]
        for one, other in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            (x, y), (u, w) = other - one, found["glass"] - one
            assert x * w - y * u > -1e-6
        assert score == "distance" or found["best"].tolist() != [4]
    assert lookup.wish(key[4], temperature, "distance")["best"].tolist() == [4]


@pytest.mark.parametrize("width", lookup.WIDTHS)
def test_the_river_is_that_of_nadaraya_and_watson(width):
    def estimate(hour):
        kernel = [math.exp(-((hour - k) ** 2) / (2 * width**2)) for k in lookup.hours]
        mixed = sum(w * v for w, v in zip(kernel, lookup.levels, strict=True))
        return mixed / sum(kernel), max(kernel) / sum(kernel), kernel

    for hour in (2.0, 9.5, 16.0, 23.25):
        found = lookup.river(hour, width)
        expected, largest, kernel = estimate(hour)
        assert found["curve"][round(4 * hour)] == pytest.approx(expected)
        assert found["largest"] == pytest.approx(largest)
        assert found["effective"] == pytest.approx(sum(kernel) ** 2 / sum(k * k for k in kernel))
        closest = min(zip(lookup.hours, lookup.levels, strict=True), key=lambda p: abs(hour - p[0]))
        assert found["nearest"][round(4 * hour)] == closest[1]
    errors = [estimate(hour)[0] - lookup.true_level(hour) for hour in lookup.DAY]
    assert found["error"] == pytest.approx(math.sqrt(sum(e * e for e in errors) / len(errors)))


@pytest.mark.parametrize("start", [option.value for option in STARTS])
@at_each_temperature[1]
def test_a_query_walks_down_the_slope_that_is_measured(start, temperature):
    path = lookup.walk(start, temperature)
    assert np.abs(path).max() < 5  # the chart shows it
    for q, after in itertools.pairwise(path):
        slopes = [(loss(q + d, temperature) - loss(q - d, temperature)) / 2e-6
                  for d in 1e-6 * np.eye(2)]  # fmt: skip
        np.testing.assert_allclose(after, q - 0.5 * np.array(slopes), atol=1e-6)
    shown = lookup.learn(start, temperature, 7)
    np.testing.assert_allclose(shown["loss"], [loss(q, temperature) for q in path], atol=1e-9)
    np.testing.assert_allclose(shown["hard"], [loss(q, HARD) for q in path], atol=1e-9)
    np.testing.assert_allclose(shown["weights"], shares(path[7], temperature), atol=1e-9)
    assert temperature != HARD or (path == start).all()


def test_the_gradients_are_those_of_the_whole_attention():
    lesson, stretch = lessons.load(2), math.sqrt(2) / 2.0
    inputs = lesson.query * stretch, key, value
    output, weights, dropped = scaled_dot_product_attention(*inputs)
    np.testing.assert_allclose(output, lesson.glass)
    dquery, dkey, dvalue = scaled_dot_product_attention_backward(
        lesson.doutput, *inputs, weights, dropped, None
    )
    np.testing.assert_allclose(lesson.dquery, dquery * stretch)
    np.testing.assert_allclose(lesson.dkey, dkey)
    np.testing.assert_allclose(lesson.dvalue, dvalue)
    away = (value - lesson.glass) @ lesson.doutput[0]  # the distance of each value from the blend
    np.testing.assert_allclose(lesson.dscaled[0], weights[0] * away)


def test_arithmetic_that_is_spelt_out_comes_out():
    names = "hard_and_soft", "back_through_the_blend", "back_through_the_softmax"
    said = " ".join(map(words_of, (*names, "back_through_the_score")))
    sums = re.findall(r"((?:[(\d−][\d.−()]* · [\d.−()]+(?: \+ )?)+) [≈=] (−?\d+(?:\.\d+)?)", said)
    for left, right in sums:
        left, right = (text.replace("·", "*").replace("−", "-") for text in (left, right))
        digits = len(right.partition(".")[2])
        assert abs(eval(left) - float(right)) <= 0.5 * 10**-digits + 1e-9, left
    assert len(sums) == 5


def test_the_numbers_in_the_text_are_these():
    lesson = lessons.load(2)
    for name, said in {
        "a_python_dictionary": ["(-1, 2)] [2, 5]", "KeyError: (1, 2)"],
        "hard_and_soft": ["pours cherry: price 4, vitamin C 1"],
        "temperatures": ["the mean of the five contents, (1.6, 2)"],
        "blur_and_noise": ["error 0.192, most of it noise (0.160)", "0.085: 0.041 noise and 0.044"],
        "a_cliff_and_slopes": ["a cliff at 0.67"],
        "back_through_the_score": ["that is 1.746", "(−0.444)"],
        "the_first_steps": ["| 1 | 0.13 | 2.22 |", "has moved by 0."],
        "many_wishes": ["| 8 | 100 % |", "first step 29 %", "from the length 2.2 to 4.3"],
        "often_told": ["| banana | 0.28 | +0.09 |", "0.478 cherry, 0.163 banana, 0.359 lemon",
                       "that of the apple, and a hard lookup pours cherry"],
    }.items():  # fmt: skip
        for words in said:
            assert words in words_of(name), (name, words_of(name))
    # By hand.
    assert lesson.scores[0, 2] == 1 * -1 + 2 * 2 == 3 and sum(lesson.doutput[0] * [2, 5]) == -3
    assert lesson.glass[0, 1] > 2 * value[0, 1]
    assert all(int(power) <= -9 for power in re.findall(r"\{(-\d+)\}", words_of("promises_kept")))
    for temperature in (0.5, 2, 8):
        assert loss((1.01, 2), temperature) > loss((0.99, 2), temperature)
    thrown = lookup.walk((2.0, 0.5), 0.25)
    assert shares(thrown[2], 0.25)[1] < 0.7 and shares(thrown[3], 0.25)[1] > 0.9999
    assert np.abs(thrown[30] - thrown[3]).max() < 1e-3
    lengths = re.search(r"length of dq \| ([\d. |]*) \|", words_of("gradient_against_temperature"))[
        1
    ]
    lengths = [float(x) for x in lengths.split(" | ")]
    assert max(lengths) == lengths[3] > 4 and lengths[0] < 1e-5 and lengths[-1] < 0.06
    # Whoever is hidden: the glass of the others, mixed anew.
    changes = []
    for hidden in range(5):
        a = np.array(shares((1.5, 0.5), 2.0))
        rest = np.delete(a, hidden) / (1 - a[hidden])
        changes.append(rest @ np.delete(value @ [1, -1], hidden) - a @ value @ [1, -1])
        assert lesson.without(hidden) == pytest.approx(changes[-1])
    assert np.argmin(np.abs(changes)) == 1 == np.argsort(shares((1.5, 0.5), 2.0))[-2]
