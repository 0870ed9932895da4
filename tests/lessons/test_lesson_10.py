"""Lesson 10: its numbers and claims, computed again another way."""

import itertools
import re

import numpy as np
import pytest
from lesson_solutions import words_of

from lessons import COURSE, load
from lessons.kit import models
from lessons.kit.lesson import Picture, pieces
from lessons.lesson_10 import beams, cache, drawing, measured
from numformer import Sampling
from numformer.generation import length_penalty


def shares(place: str) -> np.ndarray:
    return np.exp(drawing.log_p(place))


@pytest.mark.parametrize("place", measured.PLACES)
def test_what_may_be_drawn_is_what_the_library_draws_by(place, rng):
    """At random settings; the cuts by a loop, too."""
    log_p = drawing.log_p(place)
    assert abs(shares(place).sum() - 1) < 1e-12 and (np.diff(log_p) <= 0).all()
    for _ in range(20):
        t, k, p = rng.choice(drawing.TEMPERATURES), rng.choice(drawing.KS), rng.choice(drawing.PS)
        (right,) = Sampling(float(t), int(k), float(p)).probabilities(log_p[None])
        tempered, drawn = drawing.kept(log_p, t, k, p)
        np.testing.assert_allclose(drawn, right, atol=1e-12)
        count, total = 0, 0.0
        while total < p and count < k:
            total += tempered[count]
            count += 1
        assert (drawn > 0).sum() == count


def test_draws_are_as_frequent_as_they_are_probable_and_counted():
    state = drawing.choose("torn", 1.0, 1e9, 2.0, 100)
    assert state["counts"].sum() == 100
    ends = state["after"].cumsum()
    where = [int((ends <= number).sum()) for number in drawing.NUMBERS]
    assert state["counts"].tolist() == [where.count(n) for n in range(11)]
    for draw in (1, 2, 57):
        state = drawing.choose("torn", 1.0, 1e9, 2.0, draw)
        assert state["latest"] == where[draw - 1] and state["counts"].sum() == draw
        assert state["number"] == drawing.NUMBERS[draw - 1]
    alone = drawing.choose("open", 1.0, 1.0, 2.0, 40)
    assert alone["counts"].tolist() == [40] + 10 * [0] and alone["left"] == 1


def test_the_small_language_by_hand():
    lesson = load(10)
    assert lesson.SENTENCES_OF_TWO["der hund"] == max(lesson.SENTENCES_OF_TWO.values())
    assert abs(sum(lesson.SENTENCES_OF_TWO.values()) - 1) < 1e-12
    two = sorted(lesson.FIRST, key=lesson.FIRST.get)[-2:]  # a beam of 2
    kept = {f"{a} {b}": lesson.FIRST[a] * p for a in two for b, p in lesson.SECOND[a].items()}
    assert max(kept, key=kept.get) == "der hund"


@pytest.mark.parametrize(
    ("sentence", "beam"), [*itertools.product(measured.TREES, measured.WIDTHS)]
)
def test_a_tree_is_a_beam(sentence, beam):
    """Log probabilities fall along a line; the best that has ended is best by its score."""
    for alpha in measured.ALPHAS:
        state = beams.grow(sentence, beam, alpha, beams.STEPS)
        rows = int(state["steps"])
        there = state["state"] > 0
        assert there.sum() == rows * beam
        for row, column in np.argwhere(there):
            if row:
                before = state["log_p"][row - 1, int(state["parents"][row, column])]
                assert state["log_p"][row, column] <= before
            if column:
                assert state["log_p"][row, column] <= state["log_p"][row, column - 1]
        ends = state["ends"][state["ends"] < 0]
        assert state["score"] == ends.max()
        best = np.argwhere(state["state"] == 3)
        assert len(best) == len(state["best"]) and state["score"] * length_penalty(
            len(best) + 1, alpha
        ) == pytest.approx(state["sum"])
    greedy, widest = (beams.grow(sentence, b, 0.6, beams.STEPS)["sum"] for b in (1, 4))
    assert greedy <= widest


def test_where_greedy_loses_a_beam_wins():
    lost = [
        beams.grow(name, 1, 0.6, beams.STEPS)["sum"] < beams.grow(name, 4, 0.6, beams.STEPS)["sum"]
        for name in measured.TREES
    ]
    assert all(lost)


def test_a_text_computes_with_the_digits_that_it_shows():
    text = words_of(10, "why_cut")
    share, power, after = re.search(
        r"\(1 - ([\d.]+)\)\^\{(\d+)\}\$, which is ([\d.]+),", text
    ).groups()
    assert round(1 - (1 - float(share)) ** int(power), 2) == float(after)


def test_with_the_cache_and_without_the_same_is_written():
    for step in range(1, len(cache.WORDS) + 1):
        kept, again = cache.write(step, True), cache.write(step, False)
        for name in ("k", "v"):
            np.testing.assert_allclose(kept[name], again[name], atol=1e-12)
        for name in ("q", "a", "y"):
            np.testing.assert_allclose(kept[name][step - 1], again[name][step - 1], atol=1e-12)
        assert (kept["rows"], kept["total"]) == (1, step)
        assert kept["kept"] == kept["k"][:step].size + kept["v"][:step].size
        assert (again["rows"], again["total"]) == (step, sum(range(step + 1)))
        q, k, v = (cache.X @ w for w in (cache.W_Q, cache.W_K, cache.W_V))
        row = np.exp(q[step - 1] @ k[:step].T / np.sqrt(3))
        np.testing.assert_allclose(kept["y"][step - 1], row / row.sum() @ v[:step], atol=1e-12)
        assert kept["lit k"].ravel().tolist() == [0] * (step - 1) + [1] + [-1] * (5 - step)


def test_numbers_of_the_questions_and_of_reinforce():
    lesson = load(10)
    answers = [question.answer for question in lesson.quiz() if not question.choices]
    squares = np.array([0.6, 0.3, 0.1]) ** 2
    assert answers == pytest.approx([squares[0] / squares.sum(), 55, 0.7])
    exact = lesson.FOUR * ([0, 1, 2, -1] - lesson.FOUR @ [0, 1, 2, -1])
    text = words_of(10, "reinforce")
    assert all(f"{x:.3f}".replace("-", "−") in text for x in exact)


def test_what_is_measured_is_of_these_models_and_says_what_the_text_says():
    results = models.measured(10)
    assert {row["beam"] for row in results["beams"]} == {*measured.BEAMS}
    assert {len(drawing.log_p(place)) for place in measured.PLACES} == {
        drawing.OTHERS + measured.SHOWN
    }
    left = {p: drawing.choose(p, 1.0, 1e9, 0.9, 1)["left"] for p in measured.PLACES}
    assert left["sure"] <= 2 < left["torn"] < left["open"]
    picture = next(piece for piece in pieces(load(10).wider_beams) if isinstance(piece, Picture))
    none, paper = (line.get_ydata() for line in picture.figure().axes[0].lines)
    for line in none, paper:
        assert line[0] + 1 < line[2] < max(line) + 0.2 and line[-1] < max(line)
    log_p = [row["log_p"] for row in results["beams"]]
    lengths = [row["none"][1] for row in results["beams"]]
    assert log_p == sorted(log_p) and lengths == sorted(lengths, reverse=True)


# Chooses a step -> how far its boxes are inside the visible part of the tree.
IN_SIGHT = """(figure, step) => {
  figure.simulation.choose("step", step);
  figure.simulation.settle?.();
  const { left, right } = figure.querySelector(".tree").getBoundingClientRect();
  const boxes = [...figure.querySelectorAll(".node:not(.gone)")].slice(-4);
  const sides = boxes.map((box) => box.getBoundingClientRect());
  return Math.min(...sides.map((box) => Math.min(box.left - left, right - box.right)));
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_latest_step_of_the_tree_is_in_sight(open_page, width):
    page = open_page(COURSE[9].page, width, reduced_motion="reduce")
    figure = page.locator("#tree")
    assert all(figure.evaluate(IN_SIGHT, step) >= 0 for step in range(beams.STEPS))
