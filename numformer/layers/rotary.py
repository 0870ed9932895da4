"""Rotary positions (Su et al. 2021): queries and keys are turned by angles that grow with position.

The product of a query at t and a key at s then depends on t - s, how far they are apart.
"""

import math

import numpy as np

from numformer.errors import InputError
from numformer.layer import Layer
from numformer.layers.positional import PositionTable


def rotary_turns(length: int, width: int, xp=np):
    """turns (length, K / 2), complex: exp(i t theta_j), theta_j = 10000^(-2j / K), K = width."""
    theta = xp.exp(xp.arange(0, width, 2) * (-math.log(10000) / width))
    return xp.exp(1j * (xp.arange(length)[:, None] * theta))


def rotary(x, turns):
    """x (..., T, K), turns (T, K / 2) -> (..., T, K): y = x turns (Su et al. 2021, section 3.2).

    Each pair (x_2j, x_2j+1) is read as one complex number; its product with exp(i angle) is the
    pair turned by that angle.
    """
    return (x.view(turns.dtype) * turns).view(x.dtype)


def rotary_backward(dy, turns):
    """dy (..., T, K) -> dx (..., T, K): turned back, by the conjugate."""
    return rotary(dy, turns.conj())


def require_pairs(d_k: int) -> None:
    """Raise InputError unless queries and keys consist of pairs."""
    if d_k % 2:
        raise InputError(
            "rotary positions turn pairs of values, so d_k is even",
            f"d_k {d_k}",
            "Change d_k, or d_model and heads, or use other positions.",
        )


class RotaryAttention(Layer):
    """query (..., T, K), key (..., S, K), value (..., S, K_v), mask -> (..., T, K_v).

    `attention` of turned queries and turned keys; values stay as they are. The queries stand at the
    last T of the S positions: at all of them, or at those that come after keys of a cache.
    """

    def __init__(self, attention: Layer):
        self.attention, self._table = attention, PositionTable(rotary_turns)

    def turns(self, like, first: int):
        """Those of the positions from `first` on, for x (..., T, K)."""
        *_, length, width = like.shape
        require_pairs(width)
        return self._table.of(first + length, like)[first : first + length]

    def forward(self, query, key, value, mask=None):
        later = key.shape[-2] - query.shape[-2]
        self.save(later=later)
        query, key = rotary(query, self.turns(query, later)), rotary(key, self.turns(key, 0))
        return self.attention.forward(query, key, value, mask)

    def backward(self, doutput):
        later = self.pop_saved()["later"]
        dquery, dkey, dvalue = self.attention.backward(doutput)
        dquery = rotary_backward(dquery, self.turns(dquery, later))
        return dquery, rotary_backward(dkey, self.turns(dkey, 0)), dvalue
