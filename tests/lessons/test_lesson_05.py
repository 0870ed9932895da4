"""Lesson 5: its numbers and claims, computed again another way."""

import re
from pathlib import Path

import numpy as np
import pytest

import lessons
from lessons.lesson import Matrix, Picture, pieces
from lessons.lesson_05 import beyond
from lessons.lesson_05.turning import (
    ORDERS,
    WAYS,
    hand,
    likeness,
    orders,
    turned,
    words,
    x,
)

LESSON = lessons.load(5)
TEXT = " ".join(Path(LESSON.__file__).read_text().replace("\n#", " ").split())


def words_of(name: str) -> str:
    """What a function of the lesson says, in one line."""
    found = [each.markdown() for each in pieces(getattr(LESSON, name))
             if not isinstance(each, Picture)]  # fmt: skip
    return " ".join(" ".join(found).split())


def pe(place: float, width: int) -> np.ndarray:
    """One row of the sinusoids, entry by entry."""
    angles = [place / 10000 ** ((n - n % 2) / width) for n in range(width)]
    return np.array([np.cos(a) if n % 2 else np.sin(a) for n, a in enumerate(angles)])


def attended(rows: np.ndarray, way: int) -> np.ndarray:
    """Weights by plain formulas, one at a time."""
    here = range(len(rows))
    if WAYS[way].label == "sinusoids":
        rows = np.stack([row + pe(place, 8) for place, row in enumerate(rows)])
    turns = [np.exp(1j * place / 10000 ** (np.arange(4) / 4)) for place in here]
    pairs = [row[::2] + 1j * row[1::2] for row in rows]
    weights = np.zeros((4, 4))
    for t in here:
        for s in here:
            score = rows[t] @ rows[s] / np.sqrt(8)
            if WAYS[way].label == "rotary":
                score = (pairs[t] * turns[t] * np.conj(pairs[s] * turns[s])).sum().real / np.sqrt(8)
            score -= abs(t - s) / 2 * (WAYS[way].label == "ALiBi")
            hidden = WAYS[way].label == "only a causal mask" and s > t
            weights[t, s] = 0 if hidden else np.exp(score)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=[each.label for each in WAYS])
def test_orders_have_the_weights_of_plain_formulas(way):
    for number, option in enumerate(ORDERS):
        found = orders.compute(option.value, WAYS[way].value)
        assert option.label.split() == [words[n] for n in option.value]
        np.testing.assert_allclose(found["before"], attended(x, way), atol=1e-12)
        np.testing.assert_allclose(found["after"], attended(x[option.value], way), atol=1e-12)
        for i, word in enumerate(option.value):
            for j, other in enumerate(option.value):
                assert found["sorted_back"][word, other] == found["after"][i, j]
        changed = found["largest"] > 0.05
        assert changed == bool(way and number)  # without positions an order changes nothing
        names: dict = {}
        exec(orders.python({"order": number, "positions": way}), names)
        np.testing.assert_allclose(names["after"], found["after"], atol=1e-12)


def test_hands_and_pairs_turn_as_plain_formulas_say():
    for pair, place, k in [(0, 3, 2), (1, 20, 12), (3, 24, 7)]:
        found = hand.compute(pair, place, k)
        of_pair = slice(2 * pair, 2 * pair + 2)
        np.testing.assert_allclose(found["here"], pe(place, 8)[of_pair], atol=1e-12)
        np.testing.assert_allclose(found["turn"] @ found["here"], pe(place + k, 8)[of_pair])
        np.testing.assert_allclose(found["likeness"], np.cos(k / 10**pair))
        score = {key: turned(pair, key, k) for key in (0, 5, 12)}
        q, m = (row[2 * pair] + 1j * row[2 * pair + 1] for row in x[[1, 3]])
        for at in score.values():
            np.testing.assert_allclose(at["score"], (q * np.exp(1j * k / 10**pair) * m.conj()).real)
            np.testing.assert_allclose(at["total"], score[0]["total"])
            np.testing.assert_allclose(np.linalg.norm(at["query"]), abs(q))
    found = likeness(16, 10, 7)
    np.testing.assert_allclose(found["table"][3], pe(30, 16), atol=1e-12)
    wanted = np.cos(40 / 10000 ** (np.arange(8) / 8)).mean()
    np.testing.assert_allclose(found["alike"][[3, 11]], wanted)


def test_the_numbers_in_the_text_are_these():
    """By hand, or from formulas that the lesson does not use."""
    a, other, _ = pieces(LESSON.two_orders)
    np.testing.assert_allclose(other.numbers, attended(x[[0, 3, 2, 1]], 0))
    assert other.rows == "old man bites dog".split() and x[1] @ x[3] == 6 == 2 * 2 + 1 + 1
    (table,) = pieces(LESSON.the_first_places)
    np.testing.assert_allclose(table.numbers[2], pe(2, 8))
    step, far = pieces(LESSON.one_matrix_for_all_places)
    np.testing.assert_allclose(step.numbers @ pe(41.5, 8), pe(42.5, 8))
    assert int(re.search(r"10\^\{(-\d+)\}", far.markdown())[1]) <= -12
    assert np.linalg.norm(pe(710, 64)[:2] - pe(0, 64)[:2]) == pytest.approx(6.03e-5, rel=1e-3)
    for name, said in {
        "two_orders": ["*man* the weight 0.28", "*dog* 0.10", "1.74, 0.75, 0.66, 0.41"],
        "never_twice": ["After 710 places", "113.0000 turns", "0.00006", "7.3 apart", "1.47 away"],
        "likeness_by_distance": [
            f"| {d} | {pe(1, d) @ pe(0, d) * 2 / d:.2f} | {pe(7, d) @ pe(5, d) * 2 / d:.2f} |"
            for d in (8, 64, 512)
        ],
        "a_row_collects": ["so its row gets (1, 1)"],
        "scores_by_distance": ["| 7 | 5 | 2 | −1.2847 |", "| 4 | 4 | 0 | 6.0000 |"],
        "lower_by_distance": ["from 0.28 to 0.13", "1.4 places", "177 places"],
        "often_told": ["6.3 places", "60,611", "62,832", "They are 0.97 and 0.49", "by 0.10."],
    }.items():  # fmt: skip
        for each in said:
            assert each in words_of(name), (name, each, words_of(name))
    waves = [pe(k, 64) @ pe(0, 64) for k in (50, 100)]
    assert waves[1] > waves[0]  # as the text says
    u, v = 2 * np.cos(1) - np.sin(1), 2 * np.sin(1) + np.cos(1)
    assert (round(u, 2), round(v, 2)) == (0.24, 2.22) and "= 0.24$ and $v'" in TEXT
    assert x[1, :2].tolist() == [2, 1]
    checked = words_of("gradient_check")
    assert all(int(power) <= -8 for power in re.findall(r"10\^\{(-\d+)\}", checked))
    assert checked.count("| rotary |") == checked.count("| ALiBi |") == 3
    lines = [len(Path(f"numformer/layers/{name}.py").read_text().splitlines())
             for name in ("positional", "rotary", "alibi")]  # fmt: skip
    assert f"all of this lesson in {sum(lines)} lines" in TEXT


def test_learned_positions_collect_row_by_row():
    chosen, dy, dw, _ = (each for each in pieces(LESSON.a_row_collects))
    wanted = np.zeros((6, 2))
    for row, place in zip(dy.numbers, [0, 1, 2, 3, 0, 1, 2], strict=True):
        wanted[place] += row
    assert all(isinstance(each, Matrix) for each in (chosen, dy, dw))
    assert dw.numbers.tolist() == wanted.tolist()


def test_the_letter_before_is_asked_for_and_told_of():
    rng = np.random.default_rng(1)
    ids, target, counts = beyond.draw(rng, 3, 5)
    for row in range(3):
        assert target[row, 1:].tolist() == ids[row, :-1].tolist()
    assert counts.tolist() == 3 * [[False, True, True, True, True]]
    picture, told = pieces(LESSON.the_letter_before)
    (axes,) = picture.figure().axes
    runs = beyond.compare()
    assert [len(of) for of in runs.values()] == 5 * [3]
    for line, of in zip(axes.lines, runs.values(), strict=False):
        assert [*line.get_xdata()] == [*range(2, 49)]
        np.testing.assert_allclose(line.get_ydata(), np.mean([run.right for run in of], axis=0))
    said = " ".join(told.markdown().split())
    of_place = {place: np.mean([run.right[place - 2] for run in runs["rotary"]])
                for place in (13, 24, 48)}  # fmt: skip
    assert of_place[24] > 0.95 and f"and {of_place[48]:.2f} of the letters are right" in said


def test_the_table_is_the_one_that_was_measured():
    found = beyond.measured()
    assert len(found) == 15 and found["copy", "rotary"]["12"] == (0.831, 0.711, 0.906)
    assert "copy, rotary | 1.00 | 0.83 (0.71–0.91) | 0.09 (0.02–0.20) | 0.00 |" in words_of(
        "the_table_of_the_study"
    )
