"""Sums of many arrays, in an order that does not depend on which process has which array.

Neighbours are added in pairs, then their sums in pairs, and so on: ((0 + 1) + (2 + 3)) + 4.
Floating-point addition is not associative, so another order would give other last bits. These sums
form a tree. A process that has all arrays of one branch can add them without the other processes.
"""

from collections.abc import Mapping

from numformer.layer import Array


class Branch:
    """Sums arrays that come one after the other; keeps at most one sum per level of the tree."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[Array] = []

    def append(self, array: Array) -> None:
        """Add the next array, and keep it: the Branch may overwrite it later."""
        self._sums.append(array)
        number = self.count
        while number % 2:  # the last sum is the second of a pair
            self._merge()
            number //= 2
        self.count += 1

    def _merge(self) -> None:
        last = self._sums.pop()
        self._sums[-1] += last

    def finish(self, last: Array, stretch: slice = slice(None)) -> None:
        """Add the sum of all earlier arrays to the array `last`, in place, within a stretch."""
        for array in reversed(self._sums):
            last[stretch] += array[stretch]


def branches(first: int, last: int, count: int) -> list[tuple[int, int]]:
    """Return the largest branches of a tree of `count` arrays that lie within [first, last)."""
    result = []
    while first < last:
        size = 1
        while first % (2 * size) == 0 and size < count and min(first + 2 * size, count) <= last:
            size *= 2
        result.append((first, min(first + size, count)))
        first += size
    return result


def add_branches(sums: Mapping[tuple[int, int], Array], count: int) -> Array:
    """Return the sum of all `count` arrays, given `sums`: the sum of each branch.

    The given sums are overwritten, and the first of them becomes the result.
    """

    def total(first: int, size: int) -> Array:
        last = min(first + size, count)
        if (first, last) in sums:
            return sums[first, last]
        half = size // 2
        result = total(first, half)
        if first + half < count:
            result += total(first + half, half)
        return result

    return total(0, 1 << (count - 1).bit_length())
