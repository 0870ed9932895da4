"""Position encodings, added to the embeddings because attention ignores order (section 3.5)."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numformer.arithmetic import scatter_add
from numformer.backend import array_module, to_module
from numformer.errors import InputError
from numformer.layer import Array, Layer, Parameter


def sinusoidal_table(length: int, d_model: int, xp=np):
    """Return the table PE (length, D), float64.

    PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)). The first
    dimensions have the highest frequencies.
    """
    position = xp.arange(length)[:, None]
    angle = position * xp.exp(xp.arange(0, d_model, 2) * (-math.log(10000) / d_model))
    table = xp.empty((length, d_model))
    table[:, ::2] = xp.sin(angle)
    table[:, 1::2] = xp.cos(angle[:, : d_model // 2])
    return table


class PositionTable:
    """A table with one row for each position, made by `build(length, width, xp)`; it can grow."""

    def __init__(self, build: Callable):
        self.build = build
        self._tables: dict[tuple, Any] = {}

    def rows_at(self, positions: np.ndarray, like):
        """Return the rows at positions (N,), with `like`'s width D, dtype and backend."""
        xp, stop = array_module(like), positions.max() + 1
        key = (type(like), like.dtype, like.shape[-1])
        table = self._tables.get(key)
        if table is None or len(table) < stop:
            length = 2 ** math.ceil(math.log2(max(stop, 64)))
            table = self.build(length, like.shape[-1], xp)
            table = table.astype(like.dtype if table.dtype.kind == "f" else f"c{2 * like.itemsize}")
            self._tables[key] = table
        consecutive = (positions == np.arange(stop - len(positions), stop)).all()
        return table[slice(positions[0], stop) if consecutive else to_module(positions, xp)]


class SinusoidalPositions(Layer):
    """x (B, T, D) -> x + PE[positions]. There are no parameters and no limit on the length.

    `positions` (T,) is a host array, by default 0 to T - 1; for rows x (N, D) it is (N,).
    """

    def __init__(self, build: Callable = sinusoidal_table):
        self._table = PositionTable(build)

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        positions = np.arange(x.shape[-2]) if positions is None else positions
        return x + self._table.rows_at(positions, like=x)

    def backward(self, dy: Array) -> Array:
        return dy.copy()


class LearnedPositions(Layer):
    """x (B, T, D) -> x + P[positions], P (max_length, D) trained (Table 3, row E).

    `positions` is as in SinusoidalPositions. A sequence longer than max_length raises InputError.
    The initial P is normal with standard deviation D^-0.5, small compared with the embeddings
    (variance 1), so training decides how much positions matter.
    """

    role = "positions"

    def __init__(self, max_length: int, d_model: int, rng: np.random.Generator):
        self.weight = Parameter(rng.normal(0, d_model**-0.5, (max_length, d_model)))

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        positions = np.arange(x.shape[-2]) if positions is None else positions
        if positions.max() >= len(self.weight.data):
            raise InputError(
                f"learned positions end at max_length = {self.weight.shape[0]}",
                f"a sequence of length {positions.max() + 1}",
                "Increase max_length, shorten the sequences, or use sinusoidal positions.",
            )
        positions = to_module(positions, array_module(x))
        self.save(positions=positions)
        return x + self.weight.data[positions]

    def backward(self, dy: Array) -> Array:
        positions = self.pop_saved()["positions"]
        dy_of_position = dy.reshape(-1, *dy.shape[-2:]).sum(axis=0)  # over the batch
        scatter_add(self.weight.grad, positions, dy_of_position)  # y = x + P[positions]
        return dy.copy()
