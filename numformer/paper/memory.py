"""What decoding remembers of earlier positions, so that nothing is computed twice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Layer, saving


class Memory:
    """The states that the layers of a model keep from one position to the next, for a whole batch.

    One Memory is passed down to every layer, and each layer keeps its own state in it: the keys and
    values of all positions or of the latest ones, or a hidden state. It covers the first `length`
    positions and has room for `room`. Each sequence that was read has `width` hypotheses, side by
    side.
    """

    def __init__(self, room: int):
        self.room, self.length, self.width = room, 0, 1
        self._states: dict[int, Any] = {}

    def of(self, layer: Layer, begin: Callable[["Memory"], Any]):
        """The state of this layer, which `begin(memory)` makes the first time.

        A state has a method `choose(rows)`. Raises InputError while saving is on, because gradients
        could not flow back to earlier positions.
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
        """Add `count` positions, which every layer has now seen, to `length`."""
        self.length += count

    def choose(self, rows: np.ndarray) -> None:
        """Keep the rows `rows` (N,) of the batch, in this order, repeated ones included."""
        read = rows // self.width
        starts = np.flatnonzero(np.diff(read, prepend=-1))
        self.width = len(read) // max(1, len(starts))
        if np.array_equal(read, np.repeat(read[starts], self.width)):
            read = read[starts]
        else:  # some sequences have more hypotheses than others
            self.width = 1
        for state in self._states.values():
            state.choose(read if isinstance(state, Shared) else rows)


class Kept(dict):
    """A state of arrays by name; the first axis of each is the batch."""

    def choose(self, rows: np.ndarray) -> None:
        """As Memory.choose."""
        for name, array in self.items():
            self[name] = array[array_module(array).asarray(rows)]


class Shared(Kept):
    """A state of sequences that were read, written once; all hypotheses of one share its row."""

    def choose(self, rows: np.ndarray) -> None:
        """As Memory.choose, with rows of sequences."""
        if not np.array_equal(rows, np.arange(len(next(iter(self.values()))))):
            super().choose(rows)


class KeysAndValues:
    """The keys and values of all positions so far, as arrays (B, H, room, K) written by index.

    The first `append` makes the arrays, with the batch, heads and dtype of what it appends.
    """

    def __init__(self, memory: Memory):
        self.memory = memory
        self._arrays: list = []

    def append(self, key, value):
        """key (B, H, T, K), value of T new positions -> keys, values and positions of all so far.

        The Memory counts the new positions once the model advances it. Raises InputError if full.
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
        """As Memory.choose. Only the part of the arrays that is filled is copied."""
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

    `ids` (B,) are the first ids for `step`; `past` is what the model and its layers remember.
    """

    ids: np.ndarray
    past: Memory

    def choose(self, rows: np.ndarray) -> None:
        """Keep the rows `rows` (N,) of the batch, in this order, repeated ones included."""
        self.ids = self.ids[rows]
        self.past.choose(rows)
