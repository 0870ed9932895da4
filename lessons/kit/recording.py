"""Arrays that write down what is done to them, so that a page can do it again.

Every line of the library asks its arrays for their module. Arrays of this module compute with NumPy
and keep a list of what they computed: which operation, on which views of which buffers, into which.
page/replay.js goes through the list with other numbers. What a list cannot hold is refused with the
line that asks for it: a branch on an array's content, a random number, an unknown operation.
"""

import contextlib
import math
import operator
import sys
import traceback
from collections.abc import Sequence
from unittest import mock

import numpy as np

from numformer.backend import DropoutStream, dtype_kind
from numformer.errors import InputError

bool_, int64, float64, inf, finfo = np.bool_, np.int64, np.float64, np.inf, np.finfo

_current: "Recording | None" = None


class Given(np.ndarray):
    """A reader's numbers that the library takes on the host: the ids of symbols.

    Which of them are padding decides shapes, so that is fixed.
    """

    def __getitem__(self, key):
        if not isinstance(key, np.ndarray):
            return super().__getitem__(key)
        places = np.arange(self.size).reshape(self.shape)[np.asarray(key)]
        return asarray(self.ravel())[asarray(places)]._memory.view(Given)


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
        global _current
        if _current:
            raise RuntimeError("a recording is made within another")
        _current, self._patches = self, contextlib.ExitStack()
        self._patches.enter_context(
            mock.patch.dict(sys.modules, {"recorded": sys.modules[__name__]})
        )
        self._patches.enter_context(mock.patch.object(DropoutStream, "keep", self._keep))
        return self

    def __exit__(self, *_):
        global _current
        _current = None
        self._patches.close()

    def given(self, name: str, values) -> "ndarray":
        """A new array that a reader can change, of the numbers `values`."""
        return self.input(name, ndarray(np.array(values, float)))

    def given_ids(self, name: str, ids) -> Given:
        """Ids of symbols, on the host, that a reader can change."""
        memory = np.array(ids, np.int64)
        self.input(name, ndarray(memory))
        return memory.view(Given)

    def input(self, name: str, array: "ndarray") -> "ndarray":
        """Let `array`, as it is now, be what a reader can change; it goes on from run to run."""
        buffer = self._view(array._memory)[0]
        self.contents[buffer] = _root(array._memory).ravel().tolist()
        self.inputs.add(buffer)
        self.operations = [o for o in self.operations if o[2][0] != buffer]  # those that made it
        return self.name(name, array)

    def name(self, name: str, array: "ndarray") -> "ndarray":
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

    def _keep(self, stream, shape, p, like):
        """What stands in for DropoutStream.keep: its mask becomes an input."""
        drawn = sum(name.startswith("keep") for name in self.names)
        return self.given(f"keep {drawn}", np.random.default_rng(drawn).random(shape) >= p) / (
            1 - p
        )

    def _view(self, memory: np.ndarray, shape: tuple | None = None) -> list[int]:
        """Where the numbers of `memory` lie, spread over `shape`."""
        root = _root(memory)
        buffer = self._buffers.get(id(root))
        if buffer is None:
            buffer = self._buffers[id(root)] = len(self.contents)
            self.contents.append(None)
            self._memories.append(root)
        spread = memory if shape is None else np.broadcast_to(memory, shape)
        offset = memory.ctypes.data - root.ctypes.data
        return [buffer, *(n // memory.itemsize for n in (offset, *spread.strides))]

    def write(self, name: str, shape, result, operands, more: Sequence[int] = ()) -> None:
        """Write down an operation on arrays of NumPy and numbers."""
        if result.dtype not in (bool, np.int64, np.float64):
            raise _refused("are of float64, whole numbers or booleans", f"{result.dtype}")
        buffer = self._view(result)[0]
        if self.contents[buffer] is not None and buffer not in self.inputs:
            raise _refused("never write into what was an array before", "such a write")
        views = [
            self._view(operand, shape) if isinstance(operand, np.ndarray) else float(operand)
            for operand in operands
        ]
        self.operations.append([name, list(shape), self._view(result, shape), views, list(more)])

    def constant(self, memory: np.ndarray) -> "ndarray":
        """An array of the host that no reader changes."""
        if not isinstance(memory, Given) or memory.dtype == bool:
            array = ndarray(np.array(memory))
            self.contents[self._view(array._memory)[0]] = array._memory.ravel().tolist()
            return array
        if id(_root(memory)) not in self._buffers:
            raise _refused("take a reader's ids as they are", "what the host computed of them")
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
        number = {buffer: n for n, buffer in enumerate(sorted(used))}

        def operand(view):
            if isinstance(view, list):
                return [number[view[0]], *view[1:]]
            return _number(view)

        return {
            "buffers": [
                self._memories[buffer].size
                if self.contents[buffer] is None
                else [*map(_number, self.contents[buffer])]
                for buffer in number
            ],
            "operations": [
                [name, shape, operand(result), [*map(operand, operands)], more]
                for name, shape, result, operands, more in operations
            ],
            "names": {name: [number[at], *shape] for name, (at, shape) in self.names.items()},
        }


def _root(memory: np.ndarray) -> np.ndarray:
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    return memory


def _number(value: float):
    value = float(value)
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return int(value) if value == int(value) else value


def _strides(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis lie where nothing lies between."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _refused(rule: str, received: str) -> InputError:
    """The complaint, which names the line of the library or of the lesson that asked."""
    lines = [line for line in traceback.extract_stack() if line.filename != __file__]
    return InputError(
        f"recorded lines {rule}",
        f"{received} in {lines[-1].filename}:{lines[-1].lineno}: {lines[-1].line}",
        "Compute it otherwise, or before the recording begins.",
    )


def _memory(value):
    """An operand for NumPy: arrays of the host alone are none."""
    if isinstance(value, ndarray):
        return value._memory
    if isinstance(value, bool | int | float | np.bool_ | np.number):
        return value
    raise _refused("compute with recorded arrays and numbers", f"{type(value).__name__}")


def _elementwise(name: str, compute, *operands, out=None):
    """An operation entry by entry -> its result; into the array `out` where one is given."""
    memories = [_memory(operand) for operand in operands]
    result = np.asarray(compute(*memories))
    if out is None:
        out = ndarray(result)
    shape, target = out.shape, out._memory
    for n, memory in enumerate(memories):
        if isinstance(memory, np.ndarray) and np.may_share_memory(memory, target):
            spread = np.broadcast_to(memory, shape)
            if (memory.ctypes.data, spread.strides) != (target.ctypes.data, target.strides):
                memories[n] = ndarray(memory).copy()._memory  # or it would be read half written
    if target is not result:
        np.copyto(target, result, casting="same_kind")
    _current.write(name, shape, target, memories)
    return out


def _reduction(name: str, start: float):
    """sum, max and their like: out starts at `start`, then takes in entry after entry."""
    compute = getattr(np, name)

    def reduce(x, axis=None, keepdims=False):
        kept = compute(_memory(x), axis=axis, keepdims=True)
        result = ndarray(np.array(kept))
        _current.write("copy", result.shape, result._memory, [start])
        _current.write(name, x.shape, np.broadcast_to(result._memory, x.shape), [x._memory])
        return (
            result if keepdims else ndarray(result._memory.reshape(compute(x._memory, axis).shape))
        )

    return reduce


def _rearranged(name: str):
    """reshape, swapaxes and their like: a view where NumPy gives one, else a copy."""

    def rearrange(x, *arguments, **keywords):
        memory = getattr(np, name)(x._memory, *arguments, **keywords)
        if _root(memory) is _root(x._memory):
            return ndarray(memory)
        # A copy lies without gaps, in the order of the entries of x.
        memory = memory.copy()
        _current.write("copy", x.shape, memory.reshape(x.shape), [x._memory])
        return ndarray(memory)

    return rearrange


class ndarray:
    """An array whose operations are written down."""

    __array_ufunc__ = None  # NumPy's numbers then leave the operation to the methods below
    __hash__ = None

    def __init__(self, memory: np.ndarray):
        self._memory = memory

    T = property(lambda self: self.transpose())

    def __len__(self):
        return len(self._memory)

    def __iter__(self):
        return (self[n] for n in range(len(self)))

    def __getitem__(self, key):
        view, indices = self._split(key)
        if not indices:
            return ndarray(view)
        result = ndarray(self._memory[_of_numpy(key)])
        start, *places, strides = _places(view, indices, result.shape)
        _current.write("take", result.shape, result._memory, [start, *places], strides)
        return result

    def __setitem__(self, key, value):
        view, indices = self._split(key)
        if not indices:
            _elementwise("copy", lambda x: x, value, out=ndarray(view))
            return
        shape = self._memory[_of_numpy(key)].shape
        if 0 in shape:
            return
        start, *places, strides = _places(view, indices, shape)
        self._memory[_of_numpy(key)] = _memory(value)
        _current.write("put", shape, start, [_memory(value), *places], strides)

    def _split(self, key) -> tuple[np.ndarray, list]:
        """What slices and numbers choose of this array; of each array of indices its axis in it."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(isinstance(k, list | np.ndarray) or dtype_kind(k) == "b" for k in keys):
            raise _refused("are indexed by numbers, slices and recorded ids", "another index")
        if not any(k is Ellipsis for k in keys):
            keys.append(Ellipsis)
        at = next(n for n, k in enumerate(keys) if k is Ellipsis)
        used = sum(k is not None for k in keys) - 1
        keys[at : at + 1] = [slice(None)] * (self._memory.ndim - used)
        kept = [k for k in keys if not isinstance(k, int | np.integer)]
        plain = tuple(slice(None) if isinstance(k, ndarray) else k for k in keys)
        indices = [(axis, k) for axis, k in enumerate(kept) if isinstance(k, ndarray)]
        return self._memory[(*plain, ...)], indices

    def fill(self, value):
        self[...] = value

    def copy(self, order="C"):
        return _elementwise("copy", lambda x: x.copy(order="C"), self)

    def astype(self, dtype, copy=True):
        if self.dtype.kind == "f" and np.dtype(dtype).kind != "f":
            raise _refused("never cut numbers to whole ones", f"astype({np.dtype(dtype)})")
        return _elementwise("copy", lambda x: x.astype(dtype), self)

    def take(self, indices, axis):
        return self[(slice(None),) * axis + (indices,)]

    def __matmul__(self, other):
        a, b = self._memory, _memory(other)
        product = np.asarray(a @ b)
        a, b = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = *batch, a.shape[-2], b.shape[-1]
        # Of each entry the first two numbers that are multiplied, how many, the way to the next.
        first = [a[..., :1], b[..., :1, :]]
        steps = [a.shape[-1], a.strides[-1] // a.itemsize, b.strides[-2] // b.itemsize]
        _current.write("matmul", shape, product.reshape(shape), first, steps)
        return ndarray(product)

    def _look(self, *_, **__):
        raise _refused("never look at an array's content", "a look")


def _of_numpy(key):
    keys = key if isinstance(key, tuple) else (key,)
    return tuple(k._memory if isinstance(k, ndarray) else k for k in keys)


def _places(view: np.ndarray, indices: list, shape: Sequence[int]) -> list:
    """Where take and put find the entries: [start, *indices, strides].

    `start` is `view` with the indexed axes at 0, spread over `shape`; the strides say how many
    numbers further an index of 1 leads.
    """
    axes = [axis for axis, _ in indices]
    if axes != [*range(axes[0], axes[-1] + 1)]:
        raise _refused("index axes that are neighbours", f"indices of the axes {axes}")
    width = len(np.broadcast_shapes(*(index.shape for _, index in indices)))
    first = view[(*(0 if axis in axes else slice(None) for axis in range(view.ndim)), ...)]
    start = np.expand_dims(first, tuple(range(axes[0], axes[0] + width)))
    after = (1,) * (len(shape) - axes[0] - width)
    places = [index._memory.reshape(index.shape + after) for _, index in indices]
    strides = [view.strides[axis] // view.itemsize for axis in axes]
    return [np.broadcast_to(start, shape), *places, strides]


def _ufunc(name: str):
    compute = getattr(np, name)
    return lambda *operands, out=None: _elementwise(name, compute, *operands, out=out)


def _shape(name: str):
    """A method that takes a shape or an order of axes as one argument or as several."""
    function = globals()[name]
    return lambda self, *axes: function(self, axes[0] if len(axes) == 1 else axes or None)


UFUNCS = """absolute add cos divide equal exp greater greater_equal isfinite less less_equal log
            logical_and logical_not logical_or maximum minimum multiply negative not_equal power
            sign sin sqrt square subtract tanh"""
OPERATORS = """add:add sub:subtract mul:multiply truediv:divide pow:power eq:equal ne:not_equal
               lt:less le:less_equal gt:greater ge:greater_equal and:logical_and or:logical_or"""
REDUCTIONS = {"sum": 0, "max": -math.inf, "min": math.inf, "any": 0, "all": 1}
REARRANGED = "broadcast_to expand_dims moveaxis ravel reshape squeeze swapaxes transpose".split()

for _name in UFUNCS.split():
    globals()[_name] = _ufunc(_name)
for _name in REARRANGED:
    globals()[_name] = _rearranged(_name)
    setattr(ndarray, _name, (_shape if _name in ("reshape", "transpose") else globals().get)(_name))
_functions = {name: _reduction(name, start) for name, start in REDUCTIONS.items()}
for _name, _function in _functions.items():
    setattr(ndarray, _name, _function)
for _name, _ufunc_name in (pair.split(":") for pair in OPERATORS.split()):
    _compute = globals()[_ufunc_name]
    setattr(ndarray, f"__{_name}__", lambda self, other, of=_compute: of(self, other))
    setattr(ndarray, f"__r{_name}__", lambda self, other, of=_compute: of(other, self))
    setattr(ndarray, f"__i{_name}__", lambda self, other, of=_compute: of(self, other, out=self))
for _name, _ufunc_name in dict(neg="negative", abs="absolute", invert="logical_not").items():
    _compute = globals()[_ufunc_name]
    setattr(ndarray, f"__{_name}__", lambda self, of=_compute: of(self))
for _name in ("shape", "dtype", "ndim", "size"):
    setattr(ndarray, _name, property(operator.attrgetter(f"_memory.{_name}")))
for _name in "__array__ __bool__ __contains__ __float__ __index__ __int__ get item tolist".split():
    setattr(ndarray, _name, ndarray._look)


def __getattr__(name: str):
    if name in _functions:  # not names of this module, where they would hide Python's sum and max
        return _functions[name]
    raise _refused("use operations that a page knows (page/replay.js)", name)


def where(condition, x, y) -> ndarray:
    return _elementwise("where", np.where, condition, x, y)


def matmul(a, b) -> ndarray:
    return a @ b


def asarray(values, dtype=None) -> ndarray:
    """A recorded array as it is; of one of the host a reader's ids, or a constant."""
    return values if isinstance(values, ndarray) else _current.constant(np.asanyarray(values, dtype))


array = asarray


def arange(*limits, dtype=None) -> ndarray:
    return asarray(np.arange(*limits, dtype=dtype))


def full(shape, value, dtype=float) -> ndarray:
    """A new array, written anew in every run."""
    return _elementwise("copy", lambda x: np.full(shape, x, dtype), value)


def ones(shape, dtype=float) -> ndarray:
    return full(shape, 1, dtype)


def zeros(shape, dtype=float) -> ndarray:
    return full(shape, 0, dtype)


empty = zeros


def zeros_like(x: ndarray) -> ndarray:
    return zeros(x.shape, x.dtype)


empty_like = zeros_like


def tril(x: ndarray, k: int = 0) -> ndarray:
    return where(asarray(np.tri(*x.shape[-2:], k=k) > 0), x, 0)


def concatenate(parts: Sequence[ndarray], axis: int = 0) -> ndarray:
    whole = empty(np.concatenate([part._memory for part in parts], axis).shape, parts[0].dtype)
    end = 0
    for part in parts:
        begin, end = end, end + part.shape[axis]
        whole[(slice(None),) * (axis % part.ndim) + (slice(begin, end),)] = part
    return whole


ndarray.__module__ = "recorded"  # array_module() finds this module under that name
