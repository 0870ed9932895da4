"""A list of operations on arrays, so that a page can repeat them with other numbers.

The arrays are those of lessons/kit/recorded.py; page/replay.js repeats the list. A list cannot hold
a branch on an array's content, a random number or an unknown operation: these raise an InputError
that names the line.
"""

import contextlib
import math
import sys
from collections.abc import Sequence
from unittest import mock

import numpy as np

from lessons.kit import recorded
from lessons.kit.recorded import Given, ndarray, refused, root
from numformer.errors import InputError
from numformer.randomness import DropoutStream


class Recording:
    """The operations on arrays within `with Recording() as recording`, for fixed shapes.

    `operations` are [name, shape, result, operands, more]. Result and operands are views of
    buffers, [buffer, offset, *strides]: offset and strides, along the axes of `shape`, count
    numbers. An operand may also be a number.
    """

    def __init__(self):
        self.operations: list[list] = []
        self.contents: list[Sequence[float] | None] = []  # what each buffer holds at first
        self.names: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.inputs: set[int] = set()
        self._buffers: dict[int, int] = {}
        self._memories: list[np.ndarray] = []  # kept alive, so that no two have one address

    def __enter__(self):
        if recorded.current:
            raise RuntimeError("a recording is made within another")
        self._patches = contextlib.ExitStack()
        for patch in (
            mock.patch.object(recorded, "current", self),
            mock.patch.dict(sys.modules, recorded=recorded),
            mock.patch.object(DropoutStream, "mask", self._keep),
        ):
            self._patches.enter_context(patch)
        return self

    def __exit__(self, *_):
        self._patches.close()

    def given(self, name: str, values) -> ndarray:
        """A new array that a reader can change; at first it holds `values`."""
        return self.input(name, ndarray(np.array(values, float, order="C")))

    def given_ids(self, name: str, ids) -> Given:
        """Ids of symbols, in an array of NumPy, that a reader can change."""
        memory = np.array(ids, np.int64)
        self.input(name, ndarray(memory))
        return memory.view(Given)

    def input(self, name: str, array: ndarray) -> ndarray:
        """Make `array`, as it is now, an input: a reader can change it, and runs keep it."""
        buffer = self._view(array._memory)[0]
        self.contents[buffer] = root(array._memory).ravel().tolist()
        self.inputs.add(buffer)
        self.operations = [o for o in self.operations if o[2][0] != buffer]  # not what made it
        return self.name(name, array)

    def name(self, name: str, array: ndarray) -> ndarray:
        """Let a page find what `array` holds now by a name: a copy, unless it is an input."""
        if name in self.names:
            raise InputError("each name has one array", f"{name} twice", "Take another name.")
        at = buffer, offset, *strides = self._view(array._memory)
        whole = [0, *_strides(array.shape)]
        if buffer not in self.inputs or [offset, *strides] != whole:
            array = array.copy()
            at = self._view(array._memory)
        self.names[name] = at[0], array.shape
        return array

    def _keep(self, shape, p, like):
        """Used instead of DropoutStream.mask: the mask becomes an input."""
        drawn = sum(name.startswith("keep") for name in self.names)
        kept = np.random.default_rng(drawn).random(shape) >= p
        return self.given(f"keep {drawn}", kept) / (1 - p)

    def _view(self, memory: np.ndarray, shape: tuple | None = None) -> list[int]:
        """Where the numbers of `memory` lie, broadcast to `shape`."""
        whole = root(memory)
        buffer = self._buffers.setdefault(id(whole), len(self.contents))
        if buffer == len(self.contents):
            self.contents.append(None)
            self._memories.append(whole)
        spread = memory if shape is None else np.broadcast_to(memory, shape)
        offset = memory.ctypes.data - whole.ctypes.data
        return [buffer, *(n // memory.itemsize for n in (offset, *spread.strides))]

    def write(self, name: str, shape, result, operands, more: Sequence[int] = ()) -> None:
        """Record an operation on NumPy arrays and numbers."""
        if result.dtype not in (bool, np.int64, np.float64):
            raise refused("compute with float64, integers or booleans", f"{result.dtype}")
        buffer = self._view(result)[0]
        if self.contents[buffer] is not None and buffer not in self.inputs:
            raise refused("never write into a constant array", "such a write")
        views = [
            self._view(operand, shape) if isinstance(operand, np.ndarray) else float(operand)
            for operand in operands
        ]
        self.operations.append([name, list(shape), self._view(result, shape), views, list(more)])

    def constant(self, memory: np.ndarray) -> ndarray:
        """A recorded array for an array of NumPy: a constant, or a reader's ids."""
        if not isinstance(memory, Given) or memory.dtype == bool:
            array = ndarray(np.array(memory, order="C"))
            self.contents[self._view(array._memory)[0]] = array._memory.ravel().tolist()
            return array
        if id(root(memory)) not in self._buffers:
            raise refused("take a reader's ids as they are", "what NumPy computed from them")
        return ndarray(memory.view(np.ndarray))

    def needed(self) -> list[list]:
        """The operations on which a named array or an input of the next run depends."""
        buffers, kept = self.inputs | {buffer for buffer, _ in self.names.values()}, []
        for operation in reversed(self.operations):
            _, _, result, operands, _ = operation
            if result[0] in buffers:
                kept.append(operation)
                buffers |= {view[0] for view in operands if isinstance(view, list)}
        return kept[::-1]

    def data(self) -> dict:
        """The recording for a page, in JSON's types; infinity becomes a text."""
        operations = self.needed()
        views = [view for _, _, *of, _ in operations for view in (of[0], *of[1])]
        used = {view[0] for view in views if isinstance(view, list)}
        used |= {buffer for buffer, _ in self.names.values()}
        places = {buffer: n for n, buffer in enumerate(sorted(used))}

        def operand(view):
            if isinstance(view, list):
                return [places[view[0]], *view[1:]]
            return number(view)

        return {
            "buffers": [
                self._memories[buffer].size
                if self.contents[buffer] is None
                else [*map(number, self.contents[buffer])]
                for buffer in places
            ],
            "operations": [
                [name, shape, operand(result), [*map(operand, operands)], more]
                for name, shape, result, operands, more in operations
            ],
            "names": {name: [places[at], *shape] for name, (at, shape) in self.names.items()},
        }


def number(value: float):
    """A number for JSON; infinity becomes a text."""
    value = float(value)
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return int(value) if value == int(value) else value


def _strides(shape: Sequence[int]) -> list[int]:
    """The strides of an array without gaps, in numbers."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
