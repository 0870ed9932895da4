"""What decoding remembers of the positions before, so that nothing is computed twice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Layer, saving


class Memory:
    """The states that the layers of a model keep from one position to the next, for a whole batch.

    One object is handed down to every layer; each keeps what it remembers under itself: the keys
    and values of all positions, the latest ones, a hidden state. The first `length` positions are
    remembered, and `room` is the largest number of them. Of each sequence that was read there are
    `width` hypotheses, side by side.
    """

    def __init__(self, room: int):
        self.room, self.length, self.width = room, 0, 1
        self._states: dict[int, Any] = {}

    def of(self, layer: Layer, begin: Callable[["Memory"], Any]):
        """The state of this layer, which `begin(memory)` makes the first time.

        A state has `choose(rows)`. Raises InputError while saving is on, because nothing could flow
        back to the positions before.
        """
        if saving():
            raise InputError(
                "a Memory serves decoding only",
                "a Memory while saving is on",
                "Decode inside `with inference():`.",
            )
        if id(layer) not in self._states:
            self._states[id(layer)] = begin(self)
        return self._states[id(layer)]

    def advance(self, count: int) -> None:
        """Every layer has seen `count` further positions."""
        self.length += count

    def choose(self, rows: np.ndarray) -> None:
        """Keep the rows `rows` (N,) of the batch, in this order, repeated ones included."""
        read = rows // self.width
        starts = np.flatnonzero(np.diff(read, prepend=-1))
        self.width = len(read) // max(1, len(starts))
        if np.array_equal(read, np.repeat(read[starts], self.width)):
            read = read[starts]
        else:  # of some sequences there are more hypotheses than of others
            self.width = 1
        for state in self._states.values():
            state.choose(read if isinstance(state, Shared) else rows)


class Kept(dict):
    """A state of arrays by name, each of which begins with the batch."""

    def choose(self, rows: np.ndarray) -> None:
        """As Memory.choose."""
        for name, array in self.items():
            self[name] = array[array_module(array).asarray(rows)]


class Shared(Kept):
    """A state that is written once, of what was read: hypotheses of one sequence share its row."""

    def choose(self, rows: np.ndarray) -> None:
        """As Memory.choose, with rows of sequences."""
        if not np.array_equal(rows, np.arange(len(next(iter(self.values()))))):
            super().choose(rows)


class KeysAndValues:
    """The keys and values of all positions so far, as arrays (B, H, room, K) written by index.

    They are made when first written, so that batch, heads and dtype are those of the keys.
    """

    def __init__(self, memory: Memory):
        self.memory = memory
        self._arrays: list = []

    def append(self, key, value):
        """key (B, H, T, K), value of T further positions -> those of all, and their positions.

        They count once the model has advanced the Memory. Raises InputError where there is no room.
        """
        start, room = self.memory.length, self.memory.room
        stop = start + key.shape[2]
        if stop > room:
            raise InputError(
                f"this Memory has room for {room} positions",
                f"position {stop}",
                "Ask for a longer one when generation starts.",
            )
        self._arrays = self._arrays or [self._empty(key), self._empty(value)]
        for array, further in zip(self._arrays, (key, value), strict=True):
            array[:, :, start:stop] = further
        return *(array[:, :, :stop] for array in self._arrays), np.arange(stop)

    def choose(self, rows: np.ndarray) -> None:
        """As Memory.choose. Of the room of each row only what is filled is copied."""
        length = self.memory.length
        for index, array in enumerate(self._arrays):
            chosen = self._empty(array, len(rows))
            chosen[:, :, :length] = array[:, :, :length][array_module(array).asarray(rows)]
            self._arrays[index] = chosen

    def _empty(self, like, batch: int | None = None):
        size, heads, _, width = like.shape
        shape = (size if batch is None else batch, heads, self.memory.room, width)
        return array_module(like).empty(shape, like.dtype)


@dataclass
class State:
    """How far a batch of sequences has been read and written.

    `ids` (B,) are what `step` takes first, `past` is what the model and its layers remember.
    """

    ids: np.ndarray
    past: Memory

    def choose(self, rows: np.ndarray) -> None:
        """Keep the rows `rows` (N,) of the batch, in this order, repeated ones included."""
        self.ids = self.ids[rows]
        self.past.choose(rows)
