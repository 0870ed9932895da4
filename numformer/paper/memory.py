"""What a model keeps in memory during generation, so that nothing is computed twice.

The paper does not describe this. Without a memory, the decoder would process all earlier symbols
again for each new one; with their keys and values in memory, it processes only the latest symbol.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Layer, saving


class Memory:
    """The states that the layers of a model keep from one position to the next, for a batch.

    One Memory is passed down to every layer, and each layer keeps a state in it, such as its keys
    and values. `length` counts the positions processed, at most `room`. Each source sequence has
    `width` adjacent rows in the batch, one for each of its hypotheses.
    """

    def __init__(self, room: int):
        self.room, self.length, self.width = room, 0, 1
        self._states: dict[int, Any] = {}

    def state(self, layer: Layer, begin: Any = None):
        """Return the state of a layer; on the first call, `begin(self)` makes it.

        A state has a method `choose(rows)`. Raises InputError if layers save values for backward,
        because gradients could not flow back to earlier positions.
        """
        if saving():
            raise InputError(
                "a Memory is for decoding only",
                "a Memory while layers save for backward",
                "Decode inside `with inference():`.",
            )
        if id(layer) not in self._states:
            self._states[id(layer)] = begin(self)
        return self._states[id(layer)]

    def advance(self, count: int) -> None:
        """Add `count` to `length`, after every layer has processed these new positions."""
        self.length += count

    def choose(self, rows: np.ndarray) -> None:
        """Make the batch consist of its rows `rows` (N,), in this order; rows may repeat."""
        sources = rows // self.width
        starts = np.flatnonzero(np.diff(sources, prepend=-1))
        self.width = len(sources) // max(1, len(starts))
        if np.array_equal(sources, np.repeat(sources[starts], self.width)):
            sources = sources[starts]
        else:  # some sources have more hypotheses than others
            self.width = 1
        for state in self._states.values():
            state.choose(sources if isinstance(state, SourceState) else rows)


class ArrayState(dict):
    """A state that consists of named arrays; the first axis of each is the batch."""

    def choose(self, rows: np.ndarray) -> None:
        """Like Memory.choose."""
        for name, array in self.items():
            self[name] = array[array_module(array).asarray(rows)]


class SourceState(ArrayState):
    """A state with one row for each source sequence, which all hypotheses of the source share."""

    def choose(self, rows: np.ndarray) -> None:
        """Like Memory.choose, but `rows` are indices of sources."""
        if not np.array_equal(rows, np.arange(len(next(iter(self.values()))))):
            super().choose(rows)


class KeysAndValues:
    """All keys and values so far, in arrays (B, H, room, K) that are filled step by step."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self._arrays: list = []

    def append(self, key, value):
        """key, value (B, H, T, K) of T new positions -> all keys, values, positions (S,) so far.

        The model calls `Memory.advance` afterwards. Raises InputError if there is no room.
        """
        start, room = self.memory.length, self.memory.room
        stop = start + key.shape[2]
        if stop > room:
            raise InputError(
                f"this Memory has room for {room} positions",
                f"position {stop}",
                "Start the model with a larger length.",
            )
        self._arrays = self._arrays or [
            array_module(x).empty((*x.shape[:2], room, x.shape[3]), x.dtype) for x in (key, value)
        ]
        for array, new in zip(self._arrays, (key, value), strict=True):
            array[:, :, start:stop] = new
        return *(array[:, :, :stop] for array in self._arrays), np.arange(stop)

    def choose(self, rows: np.ndarray) -> None:
        """Like Memory.choose. Copies only the rows that move, and of these only the filled part."""
        length, places = self.memory.length, np.arange(len(rows))
        for index, array in enumerate(self._arrays):
            xp, shape = array_module(array), (len(rows), *array.shape[1:])
            to = places[(array.shape != shape) | (rows != places)]
            chosen = array if array.shape == shape else xp.empty(shape, array.dtype)
            chosen[xp.asarray(to), :, :length] = array[xp.asarray(rows[to]), :, :length]
            self._arrays[index] = chosen


@dataclass
class State:
    """A model's state in generation, with `ids` (B,) for the first step and the Memory `past`."""

    ids: np.ndarray
    past: Memory

    def choose(self, rows: np.ndarray) -> None:
        """Like Memory.choose."""
        self.ids = self.ids[rows]
        self.past.choose(rows)
