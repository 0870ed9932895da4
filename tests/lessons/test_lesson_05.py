"""Lesson 5: its numbers and claims, computed again another way."""

import re

import numpy as np
import pytest
from lesson_solutions import words_of

import lessons
from lessons.kit.lesson import pieces
from lessons.lesson_05 import beyond
from lessons.lesson_05.turning import ORDERS, WAYS, likeness, orders, turned, words, x

LESSON = lessons.load(5)


def pe(place: float, width: int) -> np.ndarray:
    """One row of the sinusoids, entry by entry."""
    angles = [place / 10000 ** ((n - n % 2) / width) for n in range(width)]
    return np.array([np.cos(a) if n % 2 else np.sin(a) for n, a in enumerate(angles)])


def attended(rows: np.ndarray, way: str) -> np.ndarray:
    """Weights by plain formulas, one at a time."""
    if way == "sinusoids":
        rows = np.stack([row + pe(place, 8) for place, row in enumerate(rows)])
    pairs, weights = rows[:, ::2] + 1j * rows[:, 1::2], np.zeros((4, 4))
    for t, s in np.ndindex(4, 4):
        angle = (t - s) / 10 ** np.arange(4) if way == "rotary" else np.zeros(4)
        score = (pairs[t] * pairs[s].conj() * np.exp(1j * angle)).sum().real / np.sqrt(8)
        score -= abs(t - s) / 2 * (way == "ALiBi")
        weights[t, s] = np.exp(score) * (way != "only a causal mask" or s <= t)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=[way.label for way in WAYS])
def test_orders_have_the_weights_of_plain_formulas(way):
    label = WAYS[way].label
    for number, option in enumerate(ORDERS):
        shown, order = orders.compute(option.value, WAYS[way].value), option.value
        assert option.label.split() == [words[n] for n in order]
        np.testing.assert_allclose(shown["before"], attended(x, label), atol=1e-12)
        np.testing.assert_allclose(shown["after"], attended(x[order], label), atol=1e-12)
        for i, j in np.ndindex(4, 4):
            assert shown["sorted_back"][order[i], order[j]] == shown["after"][i, j]
        # Without positions an order changes nothing.
        assert shown["largest"] > 0.05 if way and number else shown["largest"] < 1e-14


@pytest.mark.parametrize(("pair", "place", "k"), [(0, 3, 2), (1, 20, 12), (3, 24, 7)])
def test_pairs_turn_as_plain_formulas_say(pair, place, k):
    shown, of_pair = turned("sinusoids", place, k), slice(2 * pair, 2 * pair + 2)
    np.testing.assert_allclose(shown["earlier"][pair], pe(place, 8)[of_pair], atol=1e-12)
    np.testing.assert_allclose(shown["later"][pair], pe(place + k, 8)[of_pair], atol=1e-12)
    np.testing.assert_allclose(shown["scores"][pair], np.cos(k / 10**pair))
    query, key = (row[2 * pair] + 1j * row[2 * pair + 1] for row in x[[1, 3]])
    shown = turned("rotary", place, k)
    for which, by, number in ("later", place + k, query), ("earlier", place, key):
        wanted = number * np.exp(1j * by / 10**pair)
        np.testing.assert_allclose(shown[which][pair], [wanted.real, wanted.imag], atol=1e-12)
    wanted = (query * np.exp(1j * k / 10**pair) * key.conj()).real
    np.testing.assert_allclose(shown["scores"][pair], wanted, atol=1e-12)
    np.testing.assert_allclose(shown["total"], turned("rotary", 0, k)["total"])
    shown = likeness(16, 10, 7)
    wanted = np.cos(40 / 10000 ** (np.arange(8) / 8)).mean()
    np.testing.assert_allclose(shown["alike"][[3, 11]], wanted)


def test_the_numbers_in_the_text_are_these():
    """By hand, or from formulas that the lesson does not use."""
    other = pieces(LESSON.two_orders)[1]
    np.testing.assert_allclose(other.numbers, attended(x[[0, 3, 2, 1]], "none"))
    assert other.rows == ["old", "man", "bites", "dog"] and x[1] @ x[3] == 6
    assert pe(2, 8)[:4].round(2).tolist() == [0.91, -0.42, 0.2, 0.98]
    step, _ = pieces(LESSON.one_matrix_for_all_places)
    np.testing.assert_allclose(step.numbers @ pe(41.5, 8), pe(42.5, 8))
    places = np.array([pe(place, 64) for place in range(100)])
    asked = places[1:] @ LESSON.step(-1, 64).T @ places.T  # each finds the place before
    assert asked.argmax(axis=1).tolist() == [*range(99)]
    apart = np.linalg.norm([pe(place, 64) - places[0] for place in range(1, 5000)], axis=1)
    assert apart.argmin() == 0
    dy, dw = (piece.numbers for piece in pieces(LESSON.a_row_collects)[1:3])
    assert dw.tolist() == [*(dy[:3] + dy[4:]).tolist(), dy[3].tolist(), [0, 0], [0, 0]]


def test_what_is_said_of_places_beyond_training_is_so():
    runs = beyond.trained()
    right = {way: np.mean([run.right for run in of], axis=0) for way, of in runs.items()}
    assert f"{right['rotary'][-1]:.2f} of the letters" in words_of(5, "the_letter_before")
    within = {way: curve[:11].mean() for way, curve in right.items()}
    double = {way: curve[22] for way, curve in right.items()}
    assert min(within[way] for way in ("sinusoidal", "learned", "rotary")) > 0.99
    assert max(double[way] for way in ("sinusoidal", "learned")) < 0.2 < 0.95 < double["rotary"]
    assert right["alibi"].min() > 0.8 > 0.5 > right["rotary"][-1]


def test_a_stored_run_is_that_of_today():
    """Nearly: the rounding of another processor grows in 200 steps."""
    stored, today = beyond.trained()["rotary"][0], beyond.train("rotary", beyond.SEEDS[0])
    np.testing.assert_allclose(today.right, stored.right, atol=0.15)
    np.testing.assert_allclose(today.before, stored.before, atol=0.15)


def test_what_is_said_of_the_study_is_in_its_table():
    shown = beyond.measured()
    assert len(shown) == 15 and min(row["1 to 10"][0] for row in shown.values()) > 0.99
    for task in ("copy", "reverse", "addition"):
        mean = {way: shown[task, way]["15"][0] for way in beyond.WAYS}
        assert max(mean, key=mean.get) == "alibi" and mean["none"] > mean["sinusoidal"]
    mean, low, high = shown["addition", "alibi"]["15"]
    assert high - low > 0.5 and low < mean < high
    (row,) = re.findall(r"\| ALiBi (.*?) \| none", words_of(5, "the_table_of_the_study"))
    assert row.endswith(f" | {mean:.2f} ({low:.2f}–{high:.2f}) |")
