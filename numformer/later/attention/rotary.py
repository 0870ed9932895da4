"""Rotary positions (Su et al. 2021): queries and keys rotated by angles that grow with position.

The dot product of a query at t and a key at s then depends on t and s only through t - s.
"""

import math
from functools import partial

import numpy as np

from numformer.backend import has_kernel
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.paper.positions import PositionTable


def rotary_turns(length: int, width: int, xp=np, base: float = 10000):
    """Return rotations (length, K / 2): exp(i t theta_j), theta_j = base^(-2j / K), K = width."""
    theta = xp.exp(xp.arange(0, width, 2) * (-math.log(base) / width))
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


def require_pairs(d_k: int) -> None:
    """Raise InputError for an odd d_k, because rotary positions rotate pairs of values."""
    if d_k % 2:
        raise InputError(
            "rotary positions rotate pairs of values, so d_k is even",
            f"d_k {d_k}",
            "Change d_k, or d_model and heads, or use other position encodings.",
        )


class Rotary(Layer):
    """x (..., T, K), positions (T,) -> (..., T, K): each query or key rotated by its position.

    `positions` is a host array; the default is 0 to T - 1. Su et al. use the `base` 10000. With a
    larger base, as in models for long texts, all pairs but the first rotate more slowly.
    """

    def __init__(self, base: float = 10000):
        self._table = PositionTable(partial(rotary_turns, base=base))

    def turns(self, like, positions: np.ndarray):
        """Return the rotations (T, K / 2) at positions (T,), for an x like `like` (..., T, K)."""
        require_pairs(like.shape[-1])
        return self._table.rows_at(positions, like)

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        turns = self.turns(x, np.arange(x.shape[-2]) if positions is None else positions)
        self.save(turns=turns)
        return rotary(with_adjacent_pairs(x), turns)

    def backward(self, dy: Array) -> Array:
        return rotary_backward(with_adjacent_pairs(dy), **self.pop_saved())
