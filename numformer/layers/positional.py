"""Positions, added to the embeddings because attention alone knows no order (section 3.5)."""

import math

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Layer, Parameter


def sinusoidal_table(length: int, d_model: int, xp=np):
    """The table PE (length, D), float64.

    PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)): the
    first dimensions turn fastest.
    """
    position = xp.arange(length)[:, None]
    angle = position * xp.exp(xp.arange(0, d_model, 2) * (-math.log(10000) / d_model))
    table = xp.empty((length, d_model))
    table[:, 0::2] = xp.sin(angle)
    table[:, 1::2] = xp.cos(angle[:, : d_model // 2])
    return table


class SinusoidalPositions(Layer):
    """x (B, T, D) -> x + PE[offset : offset + T]. No parameters and no limit on the length."""

    def __init__(self):
        self._tables = {}

    def _table(self, stop, like):
        key = array_module(like), like.dtype, like.shape[-1]
        table = self._tables.get(key)
        if table is None or len(table) < stop:
            length = 2 ** math.ceil(math.log2(max(stop, 64)))
            table = sinusoidal_table(length, like.shape[-1], key[0]).astype(like.dtype)
            self._tables[key] = table
        return table

    def forward(self, x, offset: int = 0):
        stop = offset + x.shape[-2]
        return x + self._table(stop, like=x)[offset:stop]

    def backward(self, dy):
        return dy.copy()


class LearnedPositions(Layer):
    """x (B, T, D) -> x + P[offset : offset + T], P (max_length, D) trained (Table 3, row E).

    P starts normal with standard deviation D^-0.5, small beside the embeddings (variance 1), so
    training decides how much position counts. Raises InputError for positions beyond max_length.
    """

    def __init__(self, max_length: int, d_model: int, rng: np.random.Generator):
        self.weight = Parameter(rng.normal(0, d_model**-0.5, (max_length, d_model)))

    def forward(self, x, offset: int = 0):
        stop = offset + x.shape[-2]
        if stop > self.weight.shape[0]:
            raise InputError(
                f"learned positions reach to max_length = {self.weight.shape[0]}",
                f"a sequence of length {stop}",
                "Raise max_length, shorten the sequences, or use sinusoidal positions.",
            )
        self.save(offset=offset)
        return x + self.weight.data[offset:stop]

    def backward(self, dy):
        offset = self.pop_saved()["offset"]
        self.weight.grad[offset : offset + dy.shape[-2]] += dy.sum(axis=0)
        return dy.copy()
