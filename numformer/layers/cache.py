"""The key-value cache: keys and values of the positions before, computed once."""

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Layer


class KeyValueCache:
    """Keys and values of the first `length` positions of a batch, for every attention of a model.

    One object for a whole model: it is handed down to each attention, which finds its own arrays
    by itself. `room` is the largest number of positions. The arrays (B, H, room, K) are made when
    first written, so that batch, heads and dtype are those of the keys.
    """

    def __init__(self, room: int):
        self.room, self.length = room, 0
        self._positions: dict[int, list] = {}  # by attention: key and value, filled up to `length`
        self._memory: dict[int, list] = {}  # likewise, of what cross-attention looks at

    def append(self, attention: Layer, key, value) -> list:
        """key (B, H, T, K), value (B, H, T, K_v) of T further positions -> those of all so far.

        They count once the model has `advance`d. Raises InputError where there is no room.
        """
        stop = self.length + key.shape[2]
        if stop > self.room:
            raise InputError(
                f"this cache has room for {self.room} positions",
                f"position {stop}",
                "Ask for a longer cache when generation starts.",
            )
        if id(attention) not in self._positions:
            self._positions[id(attention)] = [self._empty(x) for x in (key, value)]
        arrays = self._positions[id(attention)]
        for array, new in zip(arrays, (key, value), strict=True):
            array[:, :, self.length : stop] = new
        return [array[:, :, :stop] for array in arrays]

    def memory(self, attention: Layer, compute):
        """Key and value of a cross-attention's memory: `compute()` the first time, then kept."""
        if id(attention) not in self._memory:
            self._memory[id(attention)] = list(compute())
        return self._memory[id(attention)]

    def advance(self, count: int) -> None:
        """`count` further positions have been appended by every attention."""
        self.length += count

    def choose(self, rows: np.ndarray) -> None:
        """Keep the rows `rows` (N,) of the batch, in this order, repeated ones included.

        Of the room of each row only what is filled is copied.
        """
        for arrays in self._positions.values():
            for index, array in enumerate(arrays):
                arrays[index] = self._empty(array, len(rows))
                filled = array[:, :, : self.length]
                arrays[index][:, :, : self.length] = filled[array_module(array).asarray(rows)]
        for arrays in self._memory.values():
            arrays[:] = [array[array_module(array).asarray(rows)] for array in arrays]

    def _empty(self, like, batch: int | None = None):
        size, heads, _, width = like.shape
        shape = (size if batch is None else batch, heads, self.room, width)
        return array_module(like).empty(shape, like.dtype)
