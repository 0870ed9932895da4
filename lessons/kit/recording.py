"""A list of what was done to arrays, so that a page can do it again with other numbers.

The arrays are those of lessons/kit/recorded.py, page/replay.js goes through the list. What a list
cannot hold is refused with the line that asks for it: a branch on an array's content, a random
number, an unknown operation.
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
    """What was done to arrays within `with Recording() as recording`, for one shape of each.

    `operations` are [name, shape, result, operands, more]. A view of a buffer is [buffer, offset,
    *strides], along `shape`, in numbers; an operand may be a number instead.
    """

    def __init__(self):
        self.operations: list[list] = []
        self.contents: list[Sequence[float] | None] = []  # of each buffer: what it begins with
        self.names: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.inputs: set[int] = set()
        self._buffers: dict[int, int] = {}
        self._memories: list[np.ndarray] = []  # alive, so that no two have one address

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
        """A new array that a reader can change, of the numbers `values`."""
        return self.input(name, ndarray(np.array(values, float, order="C")))

    def given_ids(self, name: str, ids) -> Given:
        """Ids of symbols, on the host, that a reader can change."""
        memory = np.array(ids, np.int64)
        self.input(name, ndarray(memory))
        return memory.view(Given)

    def input(self, name: str, array: ndarray) -> ndarray:
        """Let `array`, as it is now, be what a reader can change; it goes on from run to run."""
        buffer = self._view(array._memory)[0]
        self.contents[buffer] = root(array._memory).ravel().tolist()
        self.inputs.add(buffer)
        self.operations = [o for o in self.operations if o[2][0] != buffer]  # those that made it
        return self.name(name, array)

    def name(self, name: str, array: ndarray) -> ndarray:
        """Let `array` be looked up by its name: what it holds now, whatever is written later."""
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
        """What stands in for DropoutStream.mask: the mask becomes an input."""
        drawn = sum(name.startswith("keep") for name in self.names)
        kept = np.random.default_rng(drawn).random(shape) >= p
        return self.given(f"keep {drawn}", kept) / (1 - p)

    def _view(self, memory: np.ndarray, shape: tuple | None = None) -> list[int]:
        """Where the numbers of `memory` lie, spread over `shape`."""
        whole = root(memory)
        buffer = self._buffers.setdefault(id(whole), len(self.contents))
        if buffer == len(self.contents):
            self.contents.append(None)
            self._memories.append(whole)
        spread = memory if shape is None else np.broadcast_to(memory, shape)
        offset = memory.ctypes.data - whole.ctypes.data
        return [buffer, *(n // memory.itemsize for n in (offset, *spread.strides))]

    def write(self, name: str, shape, result, operands, more: Sequence[int] = ()) -> None:
        """Write down an operation on arrays of NumPy and numbers."""
        if result.dtype not in (bool, np.int64, np.float64):
            raise refused("are of float64, whole numbers or booleans", f"{result.dtype}")
        buffer = self._view(result)[0]
        if self.contents[buffer] is not None and buffer not in self.inputs:
            raise refused("never write into what was an array before", "such a write")
        views = [
            self._view(operand, shape) if isinstance(operand, np.ndarray) else float(operand)
            for operand in operands
        ]
        self.operations.append([name, list(shape), self._view(result, shape), views, list(more)])

    def constant(self, memory: np.ndarray) -> ndarray:
        """An array of the host that no reader changes."""
        if not isinstance(memory, Given) or memory.dtype == bool:
            array = ndarray(np.array(memory, order="C"))
            self.contents[self._view(array._memory)[0]] = array._memory.ravel().tolist()
            return array
        if id(root(memory)) not in self._buffers:
            raise refused("take a reader's ids as they are", "what the host computed of them")
        return ndarray(memory.view(np.ndarray))

    def needed(self) -> list[list]:
        """The operations of which something comes: a named array, or an input of the next run."""
        buffers, kept = self.inputs | {buffer for buffer, _ in self.names.values()}, []
        for operation in reversed(self.operations):
            _, _, result, operands, _ = operation
            if result[0] in buffers:
                kept.append(operation)
                buffers |= {view[0] for view in operands if isinstance(view, list)}
        return kept[::-1]

    def told(self) -> dict:
        """The recording as a page has it, in JSON's types; infinity is a text."""
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
    """A number as JSON has it; infinity is a text."""
    value = float(value)
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return int(value) if value == int(value) else value


def _strides(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis lie where nothing lies between."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
