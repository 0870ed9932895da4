"""Lesson 13: its numbers and claims, computed again another way."""

import re

import numpy as np
import pytest
from lesson_solutions import words_of

from lessons.kit.lesson import Beside
from lessons.lesson_13 import cost, patterns, walk
from lessons.lesson_13.exercises import merge, one_after_the_other


def attention(query, key, value, allowed):
    """Row by row, and the gradients by moving each entry."""
    scores = np.where(allowed, query @ key.T, -np.inf)
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(axis=1, keepdims=True) @ value


def slopes(of, x, upstream):
    """The gradient of <upstream, of(x)>, measured."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        gradient[place] = ((of(x + step) - of(x - step)) * upstream).sum() / 2e-5
    return gradient


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", walk.BLOCKS, ids=lambda option: option.label)
def test_a_walk_ends_where_plain_attention_does(block, causal, rng):
    query, key, value = rng.normal(0, 2, (4, 2)), walk.key, walk.value
    allowed = np.tri(4, dtype=bool) if causal else np.ones((4, 4), bool)
    states = [walk.compute(step, query, block.value, causal) for step in range(9)]
    np.testing.assert_allclose(states[4]["output"], attention(query, key, value, allowed))
    for name, x, of in (
        ("dquery", query, lambda x: attention(x, key, value, allowed)),
        ("dkey", key, lambda x: attention(query, x, value, allowed)),
        ("dvalue", value, lambda x: attention(query, key, x, allowed)),
    ):
        np.testing.assert_allclose(states[8][name], slopes(of, x, walk.doutput), atol=1e-8)
    verdicts = [walk.WORDS[int(state["same"])] for state in states]
    first = next(n for n, state in enumerate(states) if (state["done"] == 0).all())
    last = max(n for n, state in enumerate(states) if state["there"])
    assert verdicts[:first] == first * ["not yet"] and verdicts[first:last] == (last - first) * [
        "O alone"
    ]
    assert verdicts[last:] == (9 - last) * ["O and all gradients"]


def test_a_walk_never_holds_more_than_a_block_and_skips_what_is_later():
    for block in walk.BLOCKS:
        for causal in (False, True):
            states = [walk.compute(step, block=block.value, causal=causal) for step in range(9)]
            size = np.prod(block.value)
            assert max(state["there"] for state in states) <= size
            for state in states:
                assert (state["tile"] == 1).sum() == state["there"]
            pairs = sum(
                np.isfinite(np.where(s["tile"] == 1, s["scores"], -np.inf)).sum() for s in states
            )
            assert pairs == 2 * (10 if causal else 16)
    skipped = walk.compute(2, causal=True)
    assert walk.WORDS[int(skipped["now"])].startswith("skipped") and not skipped["there"]
    # Two blocks of two keys; only where the maximum rises is what was there made smaller.
    before, after = (walk.compute(step)["kept"] for step in (3, 4))
    np.testing.assert_allclose(after[3], [4, np.exp(-2), 2 * np.exp(-2) + np.exp(-4) + 1])
    assert before[3, 0] == 2 and after[0, 1] == 1


def test_who_knows_of_whom_is_what_paths_say():
    for kind in ("all", "window", "global", "strided"):
        seen = patterns.seen(kind, 4).any(axis=0)
        t, s = np.indices(seen.shape)
        near = t - s < 4
        wanted = {
            "all": True,
            "window": near,
            "global": near | (s == 0),
            "strided": near | ((t - s) % 4 == 0),
        }[kind]
        np.testing.assert_array_equal(seen, (s <= t) & wanted)
        for layers in (1, 2, 5):
            known = patterns.compute(layers, kind, 4)["known"] > 0
            np.testing.assert_array_equal(
                known, np.linalg.matrix_power(seen.astype(int), layers) > 0
            )
    reached = [
        patterns.compute(layers, "window", size) for layers, size in ((1, 2), (3, 6), (7, 4))
    ]
    assert [float(state["back"]) for state in reached] == [1, 15, 21]
    assert patterns.compute(1, "strided", 4)["needed"] == 2


def test_what_is_said_of_costs_is_what_was_measured():
    found = cost.measured()
    memory = {kind: cost.exponent(costs[1]) for kind, costs in found.items()}
    assert memory["plain"] > 1.85 and all(memory[kind] < 1.1 for kind in memory if kind != "plain")
    assert memory["window"] < memory["blocks"]
    times = {kind: cost.exponent(costs[0]) for kind, costs in found.items()}
    assert abs(cost.exponent(3.0 * cost.LENGTHS**1.5) - 1.5) < 1e-9
    text = words_of(13, "what_it_costs")
    for kind, (_, *theory) in cost.KINDS.items():
        of_time, time, of_memory, measured = re.search(
            rf"\| {kind} \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|", text
        ).groups()
        assert [int(of_time), int(of_memory)] == theory
        assert (time, measured) == (f"{times[kind]:.2f}", f"{memory[kind]:.2f}")


def test_parts_of_a_row_in_any_order_are_the_row(rng):
    scores, value = 40 * rng.standard_normal((5, 7)), rng.standard_normal((7, 3))
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted = exponentials / exponentials.sum(axis=1, keepdims=True) @ value
    np.testing.assert_allclose(one_after_the_other(scores, value), wanted, atol=1e-12)
    parts = []
    for keys in (slice(0, 2), slice(2, 7)):
        highest = scores[:, keys].max(axis=1, keepdims=True)
        total = np.exp(scores[:, keys] - highest).sum(axis=1, keepdims=True)
        parts.append((highest, total, one_after_the_other(scores[:, keys], value[keys])))
    for first, second in (parts, parts[::-1]):
        highest, total, output = merge(*first, *second)
        np.testing.assert_allclose(output, wanted, atol=1e-12)
        sums = np.exp(scores - highest).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(total, sums)


def looped(x):
    y = 0
    for n in range(3):
        y += n * x
        if n:
            y += 1
    return y


def test_the_lines_of_a_loop_have_notes_of_their_own():
    notes = {"y = 0": "", "for n": "Three times.", "y += n": "More.", "if n": "", "return": ""}
    lines = [line for _, line in Beside(looped, notes, loops=True).rows()]
    assert lines[1:3] == ["for n in range(3):", "    y += n * x"]
    assert lines[3] == "    if n:\n        y += 1"
    (row,) = Beside(looped, {"y += n": "More."}, whole=False, loops=True).rows()
    assert row == ("More.", "    y += n * x")
    with pytest.raises(ValueError, match="mend the lesson"):
        Beside(looped, notes).rows()
