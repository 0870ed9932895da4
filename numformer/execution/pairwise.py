"""Sums of many arrays in an order that does not depend on who adds which of them.

Neighbours are added in pairs, the sums of these in pairs, and so on: ((0 + 1) + (2 + 3)) + 4.
Floating-point addition is not associative, so another order would give other last bits. Whoever has
a whole branch of this tree can add it alone.
"""

from collections.abc import Mapping

from numformer.layer import Array


def add_pairwise(arrays: list[Array]) -> None:
    """Add all arrays into the first, in place; others become sums of branches."""
    stride = 1
    while stride < len(arrays):
        for n in range(0, len(arrays) - stride, 2 * stride):
            arrays[n] += arrays[n + stride]
        stride *= 2


class Branch:
    """The sum of arrays that come one after the other: it keeps one array for each level."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[Array] = []

    def append(self, array: Array) -> None:
        """Take the next array, which becomes the branch's."""
        self._sums.append(array)
        number = self.count
        while number % 2:  # the second of a pair
            self._merge()
            number //= 2
        self.count += 1

    def _merge(self) -> None:
        last = self._sums.pop()
        self._sums[-1] += last

    def finish(self, last: Array, stretch: slice | None = None) -> None:
        """Add what came before to the last array of the branch, in place along a stretch of it."""
        along = slice(len(last)) if stretch is None else stretch
        for array in reversed(self._sums):
            last[along] += array[along]


def branches(first: int, last: int, count: int) -> list[tuple[int, int]]:
    """The largest branches of the tree of `count` arrays within [first, last): where each lies."""
    found = []
    while first < last:
        size = 1
        while first % (2 * size) == 0 and size < count and min(first + 2 * size, count) <= last:
            size *= 2
        found.append((first, min(first + size, count)))
        first += size
    return found


def add_branches(sums: Mapping[tuple[int, int], Array], count: int) -> Array:
    """The sum of all `count` arrays from those of branches, which are written over."""

    def total(first: int, size: int) -> Array:
        last = min(first + size, count)
        if (first, last) in sums:
            return sums[first, last]
        half = size // 2
        whole = total(first, half)
        if first + half < count:
            whole += total(first + half, half)
        return whole

    return total(0, 1 << (count - 1).bit_length())
