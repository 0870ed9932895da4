"""An array module like NumPy, whose arrays record what is done to them, for recording.py.

Every line of the library asks its arrays for their module. The arrays of this module compute with
NumPy, and tell the current recording each operation: its name, the views that it reads, and the
view that it writes.
"""

import math
import operator
import traceback
from collections.abc import Sequence

import numpy as np

from numformer.backend import dtype_kind
from numformer.errors import InputError

bool_, int64, float64, inf, finfo = np.bool_, np.int64, np.float64, np.inf, np.finfo

FILES = __file__.removesuffix("ed.py")  # how the paths of this module and of recording.py begin
current = None  # the Recording in progress


class Given(np.ndarray):
    """Ids of symbols that a reader can change; the library takes them as NumPy arrays.

    Which of the ids are padding decides the shapes of arrays, so the padding is fixed.
    """

    def __getitem__(self, key):
        if not isinstance(key, np.ndarray):
            return super().__getitem__(key)
        places = np.arange(self.size).reshape(self.shape)[np.asarray(key)]
        return asarray(self.ravel())[asarray(places)]._memory.view(Given)


def root(memory: np.ndarray) -> np.ndarray:
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    return memory


def refused(rule: str, received: str) -> InputError:
    """The error; it names the line of the library or of the lesson that caused it."""
    frames = traceback.extract_stack()
    caller = [frame for frame in frames if not frame.filename.startswith(FILES)][-1]
    return InputError(
        f"recorded lines {rule}",
        f"{received} in {caller.filename}:{caller.lineno}: {caller.line}",
        "Compute it in another way, or before the recording begins.",
    )


def _memory(value):
    """An operand for NumPy; an array of NumPy is recorded as a constant."""
    if isinstance(value, ndarray):
        return value._memory
    if isinstance(value, bool | int | float | np.bool_ | np.number):
        return value
    if isinstance(value, np.ndarray):
        return current.constant(value)._memory
    raise refused("compute with recorded arrays and numbers", f"{type(value).__name__}")


def _elementwise(name: str, compute, *operands, out=None):
    """An operation entry by entry -> its result; written into the array `out` if given."""
    memories = [_memory(operand) for operand in operands]
    result = np.asarray(compute(*memories))
    out = ndarray(result) if out is None else out
    target = out._memory
    for n, memory in enumerate(memories):
        if isinstance(memory, np.ndarray) and np.may_share_memory(memory, target):
            spread = np.broadcast_to(memory, out.shape)
            if (memory.ctypes.data, spread.strides) != (target.ctypes.data, target.strides):
                memories[n] = ndarray(memory).copy()._memory  # or a page would read it half written
    target[...] = result
    current.write(name, out.shape, target, memories)
    return out


def _reduction(name: str, start: float):
    """sum, max and so on: each result begins as `start` and takes in entry after entry."""
    compute = getattr(np, name)

    def reduce(x, axis=None, keepdims=False):
        kept = compute(_memory(x), axis=axis, keepdims=True)
        result = ndarray(np.array(kept))
        current.write("copy", result.shape, result._memory, [start])
        current.write(name, x.shape, np.broadcast_to(result._memory, x.shape), [x._memory])
        return result if keepdims else result.squeeze(axis)

    return reduce


def _rearranged(name: str):
    """reshape, swapaxes and so on: a view if NumPy gives one, else a copy."""

    def rearrange(x, *arguments, **keywords):
        memory = getattr(np, name)(_memory(x), *arguments, **keywords)
        if root(memory) is root(x._memory):
            return ndarray(memory)
        # A copy lies without gaps, in the order of the entries of x.
        memory = memory.copy()
        current.write("copy", x.shape, memory.reshape(x.shape), [x._memory])
        return ndarray(memory)

    return rearrange


class ndarray:
    """An array whose operations are recorded."""

    __hash__ = None

    def __init__(self, memory: np.ndarray):
        self._memory = memory

    T = property(lambda self: self.transpose())

    def __array_ufunc__(self, ufunc, method, *operands, out=(None,), **others):
        """Let a NumPy function of such an array be the function of this module."""
        if method != "__call__" or others:
            raise refused("call functions without further settings", f"{ufunc.__name__} {method}")
        return _named(ufunc.__name__)(*operands, **({} if out[0] is None else {"out": out[0]}))

    def __array_function__(self, function, _, arguments, keywords):
        return _named(function.__name__)(*arguments, **keywords)

    def __len__(self):
        return len(self._memory)

    def __iter__(self):
        return (self[n] for n in range(len(self)))

    def __getitem__(self, key):
        view, indices = self._split(key)
        if not indices:
            return ndarray(view)
        result = ndarray(np.asarray(self._memory[_of_numpy(key)]))
        start, *places, strides = _places(view, indices, result.shape)
        current.write("take", result.shape, result._memory, [start, *places], strides)
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
        current.write("put", shape, start, [_memory(value), *places], strides)

    def _split(self, key) -> tuple[np.ndarray, list]:
        """The view that slices and numbers choose; the axis in it of each array of indices."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(isinstance(k, list | np.ndarray) or dtype_kind(k) == "b" for k in keys):
            raise refused("index arrays by numbers, slices and recorded ids", "another index")
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
            raise refused("never truncate numbers to integers", f"astype({np.dtype(dtype)})")
        return _elementwise("copy", lambda x: x.astype(dtype), self)

    def take(self, indices, axis):
        return self[(slice(None),) * axis + (indices,)]

    def __matmul__(self, other):
        a, b = self._memory, _memory(other)
        product = np.asarray(a @ b)
        a, b = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = *batch, a.shape[-2], b.shape[-1]
        # For each entry: its first two factors, the number of products, the steps to the next two.
        first = [a[..., :1], b[..., :1, :]]
        steps = [a.shape[-1], a.strides[-1] // a.itemsize, b.strides[-2] // b.itemsize]
        current.write("matmul", shape, product.reshape(shape), first, steps)
        return ndarray(product)

    def _look(self, *_, **__):
        raise refused("never look at an array's content", "a look")


def _of_numpy(key):
    keys = key if isinstance(key, tuple) else (key,)
    return tuple(k._memory if isinstance(k, ndarray) else k for k in keys)


def _places(view: np.ndarray, indices: list, shape: Sequence[int]) -> list:
    """Where take and put find the entries: [start, *indices, strides].

    `start` is `view` with the indexed axes at 0, broadcast to `shape`. A stride says how many
    numbers an index of 1 moves on from there.
    """
    axes = [axis for axis, _ in indices]
    if axes != [*range(axes[0], axes[-1] + 1)]:
        raise refused("index axes that are neighbours", f"indices of the axes {axes}")
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


def _mean(x, axis=None, keepdims=False):
    total = x.sum(axis, keepdims)
    return total * (total.size / x.size)


_functions["mean"] = _mean
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


def _named(name: str):
    return globals().get(name) or __getattr__(name)


def __getattr__(name: str):
    if name in _functions:  # not names of this module, where they would hide Python's sum and max
        return _functions[name]
    if name.startswith("__"):  # Python asks any module for these
        raise AttributeError(name)
    raise refused("use operations that a page knows (page/replay.js)", name)


def where(condition, x, y) -> ndarray:
    return _elementwise("where", np.where, condition, x, y)


def matmul(a, b) -> ndarray:
    return asarray(a) @ b


def asarray(values, dtype=None) -> ndarray:
    """A recorded array as it is; an array of NumPy as a reader's ids or as a constant."""
    return values if isinstance(values, ndarray) else current.constant(np.asanyarray(values, dtype))


array = asarray


def arange(*limits, dtype=None) -> ndarray:
    return asarray(np.arange(*limits, dtype=dtype))


def ones(shape, dtype=float, value=1) -> ndarray:
    """A new array, written anew in every run."""
    return _elementwise("copy", lambda x: np.full(shape, x, dtype), value)


def zeros(shape, dtype=float) -> ndarray:
    return ones(shape, dtype, 0)


def zeros_like(x: ndarray) -> ndarray:
    return zeros(x.shape, x.dtype)


empty, empty_like = zeros, zeros_like


def full_like(x: ndarray, value) -> ndarray:
    whole = zeros_like(x)
    whole[...] = value
    return whole


def stack(parts: Sequence[ndarray], axis: int = 0) -> ndarray:
    return concatenate([np.expand_dims(asarray(part), axis) for part in parts], axis)


def concatenate(parts: Sequence[ndarray], axis: int = 0) -> ndarray:
    parts = [asarray(part) for part in parts]
    whole = zeros(np.concatenate([part._memory for part in parts], axis).shape)
    end = 0
    for part in parts:
        begin, end = end, end + part.shape[axis]
        whole[(slice(None),) * (axis % part.ndim) + (slice(begin, end),)] = part
    return whole


ndarray.__module__ = "recorded"  # array_module() finds this module under that name
