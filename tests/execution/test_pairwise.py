"""The order of a sum does not depend on how many ranks share the work."""

import itertools

import numpy as np
import pytest

from numformer.execution.pairwise import Branch, add_branches, branches


def random_arrays(count: int) -> list[np.ndarray]:
    """Arrays whose sum depends on the order."""
    rng = np.random.default_rng(count)
    sizes = 10.0 ** rng.integers(-3, 4, (count, 1))
    return [*(sizes * rng.standard_normal((count, 50))).astype(np.float32)]


def add_pairwise(arrays: list[np.ndarray]) -> None:
    """Add all arrays into the first: neighbours, then the sums of neighbours, and so on."""
    stride = 1
    while stride < len(arrays):
        for n in range(0, len(arrays) - stride, 2 * stride):
            arrays[n] += arrays[n + stride]
        stride *= 2


def branch(arrays: list[np.ndarray]) -> np.ndarray:
    before, last = Branch(), arrays[-1].copy()
    for array in arrays[:-1]:
        before.append(array.copy())
    for stretch in (slice(20, 50), slice(0, 20)):
        before.finish(last, stretch)
    return last


@pytest.mark.parametrize("count", range(1, 18))
def test_however_many_ranks_add_it_is_the_same_sum(count):
    arrays = random_arrays(count)
    expected = [array.copy() for array in arrays]
    add_pairwise(expected)
    for ranks in range(1, count + 2):
        bounds = [count * rank // ranks for rank in range(ranks + 1)]
        places = [p for ab in itertools.pairwise(bounds) for p in branches(*ab, count)]
        sums = {(first, last): branch(arrays[first:last]) for first, last in places}
        assert np.array_equal(add_branches(sums, count), expected[0]), ranks


def test_neighbours_are_added_in_pairs():
    a, b, c, d, e = arrays = random_arrays(5)
    expected = ((a + b) + (c + d)) + e
    assert not np.array_equal(expected, (((a + b) + c) + d) + e)  # or this test would show nothing
    add_pairwise(arrays)
    assert np.array_equal(arrays[0], expected)


@pytest.mark.parametrize("count", range(1, 10))
def test_a_rank_adds_as_much_as_it_can(count):
    """A branch begins at a multiple of its size, a power of 2, and is cut where all end."""
    sizes = [16, 8, 4, 2, 1]
    for first, last in itertools.combinations(range(count + 1), 2):
        expected, place = [], first
        while place < last:
            complete = [(place, min(place + size, count)) for size in sizes if place % size == 0]
            expected.append(next(branch for branch in complete if branch[1] <= last))
            place = expected[-1][1]
        assert branches(first, last, count) == expected
    assert branches(1, 4, 4) == [(1, 2), (2, 4)] and branches(4, 7, 7) == [(4, 7)]
    assert branches(2, 2, 4) == []
