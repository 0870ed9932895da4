"""Rotary positions (Su et al. 2021): queries and keys rotated by angles that grow with position.

The dot product of a query at t and a key at s then depends on t and s only through t - s.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from numformer.backend import has_kernel
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.paper.positions import PositionTable


def rotary_turns(length: int, width: int, xp=np, base: float = 10000):
    """Return rotations (length, K / 2): exp(i t theta_j), theta_j = base^(-2j / K), K = width."""
    theta = xp.exp(xp.arange(0, width, 2) * (-math.log(base) / width))
    return xp.exp(1j * (xp.arange(length)[:, None] * theta))


def turns_of_frequencies(length: int, width: int, xp, frequencies: Sequence[float]):
    """Return rotations (length, K / 2): exp(i t theta_j), theta_j the j-th frequency, or else 0."""
    theta = xp.zeros(width // 2)
    theta[: len(frequencies)] = xp.asarray(frequencies)
    return xp.exp(1j * (xp.arange(length)[:, None] * theta))


@has_kernel
def rotary(x, turns):
    """x (..., T, K), turns (T, K / 2) -> (..., T, K): y = x * turns (Su et al. 2021, section 3.2).

    Each pair (x_2j, x_2j+1) is read as one complex number; multiplying it by exp(i angle) rotates
    the pair by that angle.
    """
    return (x.view(turns.dtype) * turns).view(x.dtype)


@has_kernel
def rotary_backward(dy, turns):
    """dy (..., T, K) -> dx (..., T, K): the inverse rotation, dx = dy * conjugate of turns."""
    return rotary(dy, turns.conj())


def with_adjacent_pairs(x):
    """Return x, or a copy whose pairs have adjacent values in memory, as `rotary` needs them."""
    return x if x.strides[-1] == x.itemsize else x.copy()


def require_pairs(d_k: int, frequencies: Sequence[Sequence[float]] = ()) -> None:
    """Raise InputError for an odd d_k, or for more frequencies than pairs of values."""
    if d_k % 2:
        raise InputError(
            "rotary positions rotate pairs of values, so d_k is even",
            f"d_k {d_k}",
            "Change d_k, or d_model and heads, or use other position encodings.",
        )
    if any(len(pairs) > d_k // 2 for pairs in frequencies):
        raise InputError(
            "rotary_frequencies has at most one frequency for each pair of values",
            f"{max(map(len, frequencies))} frequencies, d_k {d_k}",
            "Leave some out, or change d_k.",
        )


def new_rotary(config) -> dict[str, Any]:
    """Return the part `rotary` that a TowerConfig describes; none if no pair rotates."""
    if config.rotary_frequencies == ((),):
        return {}
    (frequencies,) = config.rotary_frequencies or (None,)
    return {"rotary": Rotary(config.rotary_base, frequencies, config.rotary_longest)}


class Rotary(Layer):
    """x (..., T, K), positions (T,) -> (..., T, K): each query or key rotated by its position.

    `positions` is a host array; the default is 0 to T - 1. Su et al. use the `base` 10000. With a
    larger base, as in models for long texts, all pairs but the first rotate more slowly. With
    `frequencies`, pair j rotates by the j-th of them from each position to the next, and the pairs
    after the last one do not rotate. A position from `longest` on raises InputError.
    """

    def __init__(
        self,
        base: float = 10000,
        frequencies: Sequence[float] | None = None,
        longest: int | None = None,
    ):
        build = partial(rotary_turns, base=base)
        if frequencies is not None:
            build = partial(turns_of_frequencies, frequencies=frequencies)
        self._table = PositionTable(build)
        self.longest = longest

    def turns(self, like, positions: np.ndarray):
        """Return the rotations (T, K / 2) at positions (T,), for an x like `like` (..., T, K)."""
        require_pairs(like.shape[-1])
        if self.longest and positions.max() >= self.longest:
            raise InputError(
                f"these rotary positions are those of sequences up to length {self.longest}",
                f"a sequence of length {positions.max() + 1}",
                "Shorten the sequence.",
            )
        return self._table.rows_at(positions, like)

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        turns = self.turns(x, np.arange(x.shape[-2]) if positions is None else positions)
        self.save(turns=turns)
        return rotary(with_adjacent_pairs(x), turns)

    def backward(self, dy: Array) -> Array:
        return rotary_backward(with_adjacent_pairs(dy), **self.pop_saved())
