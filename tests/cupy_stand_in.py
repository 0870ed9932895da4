"""A stand-in for CuPy, so that the library's GPU path is tested where there is no GPU.

It keeps its arrays in NumPy memory and computes with NumPy, but it refuses what CuPy refuses, has
only functions of CuPy 14, and counts operations that wait for the device. Where CuPy would silently
do something slow or undefined, it raises an error: for host arrays as indices, NumPy functions of
device arrays, several values for one place. An out-of-range index wraps, as in CuPy.
"""

import contextlib
import ctypes
import operator
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import cuda_on_host
import numpy as np
from cuda_on_host import Undefined

__version__ = "14.0.stand-in"

inf, nan, pi, newaxis = np.inf, np.nan, np.pi, None
bool_, int32, int64, uint16, uint64 = np.bool_, np.int32, np.int64, np.uint16, np.uint64
float16, float32, float64, finfo, iinfo = np.float16, np.float32, np.float64, np.finfo, np.iinfo

# These unions are built once here, not in each of the million calls of a test.
_SCALAR, _SEQUENCE = bool | int | float | complex | np.generic, tuple | list
_TYPE, _HOST_ARRAY = str | type | np.dtype, np.ndarray | np.generic
_HOST_INDEX = np.ndarray | list | bool | np.bool_

_counters: list[Counter] = []


@contextlib.contextmanager
def synchronisations() -> Iterator[Counter]:
    """Count what waits for the device within the block, by operation."""
    _counters.append(Counter())
    try:
        yield _counters[-1]
    finally:
        _counters.pop()


def _wait(what: str) -> None:
    for counter in _counters:
        counter[what] += 1


def _operand(value):
    """The operand for NumPy: a scalar, or the memory of a device array. Host arrays are refused."""
    if isinstance(value, ndarray):
        return value._memory
    if isinstance(value, _SCALAR) or value is None:
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def _argument(value):
    """The argument for NumPy: an operand, a shape, an axis, a dtype, or a sequence of these."""
    if isinstance(value, _SEQUENCE):
        return type(value)(map(_argument, value))
    if isinstance(value, _TYPE):
        return value
    return _operand(value)


def _on_device(result):
    """NumPy's result as device arrays; a scalar becomes an array ()."""
    if isinstance(result, _SEQUENCE):
        return type(result)(map(_on_device, result))
    return ndarray(np.asarray(result)) if isinstance(result, _HOST_ARRAY) else result


class MemoryPointer:
    """The address of an array's memory."""

    def __init__(self, owner: np.ndarray):
        self.owner, self.ptr = owner, owner.ctypes.data

    def copy_from_host_async(self, address: int, size: int) -> None:
        ctypes.memmove(self.ptr, address, size)


class ndarray:
    """An array in device memory. Reading it, as with `float` or `bool`, waits for the device."""

    # NumPy's operators then leave the operation to the methods below, and its ufuncs refuse.
    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, memory, dtype=None, memptr=None):
        """Hold NumPy's `memory`. With a memptr, `memory` is the shape of an array that is there."""
        self._memory = memory if memptr is None else memptr.owner.view(dtype).reshape(memory)

    T = property(lambda self: ndarray(self._memory.T))
    data = property(lambda self: MemoryPointer(self._memory))

    def __len__(self):
        return len(self._memory)

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed; use `.get()`.")

    def __array_function__(self, function, types, args, kwargs):
        raise TypeError(f"numpy.{function.__name__} of a device array; use the array's own module")

    def get(self) -> np.ndarray:
        """A copy on the host."""
        _wait("get")
        return self._memory.copy(order="C")

    def _key(self, key) -> tuple[tuple, bool]:
        """The index for NumPy, with integers wrapped as in CuPy; and whether it contains arrays."""
        keys = key if isinstance(key, tuple) else (key,)
        used = sum(_axes(part) for part in keys)
        axis, fancy, parts = 0, False, []
        for part in keys:
            if isinstance(part, _HOST_INDEX):
                raise TypeError(f"an index of type {type(part)}: CuPy would upload it every time")
            if _is_mask(part):
                _wait("boolean index")  # for the number of its True entries, reading and writing
            memory = part
            if isinstance(part, ndarray):
                fancy = True
                memory = part._memory if _is_mask(part) else part._memory % self.shape[axis]
            parts.append(memory)
            axis += self.ndim - used if part is Ellipsis else _axes(part)
        return tuple(parts), fancy

    def __getitem__(self, key):
        parts, _ = self._key(key)
        if not any(part is Ellipsis for part in parts):
            parts += (Ellipsis,)  # a single entry is a view () then, as in CuPy
        return ndarray(self._memory[parts])

    def __setitem__(self, key, value):
        parts, fancy = self._key(key)
        value = _operand(value)
        if fancy and getattr(value, "ndim", 0):
            _require_different(self, parts, "several values for one place of an array")
        self._memory[parts] = value

    def take(self, indices, axis=None):
        return ndarray(self._memory.take(_operand(indices), axis, mode="wrap"))


def _reading(name: str, read):
    def method(self, *args):
        _wait(name)
        return _on_device(read(self._memory, *args))

    return method


for _name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags"):
    setattr(ndarray, _name, property(operator.attrgetter(f"_memory.{_name}")))
for _read in (bool, float, int, repr, format):
    setattr(ndarray, f"__{_read.__name__}__", _reading(_read.__name__, _read))
for _name in ("item", "tolist", "nonzero"):
    setattr(ndarray, _name, _reading(_name, getattr(np.ndarray, _name)))


def _require_different(array: ndarray, key: tuple, problem: str) -> None:
    places = np.arange(array.size).reshape(array.shape)[key]
    if len(np.unique(places)) < places.size:
        raise Undefined(f"{problem}; use scatter_add")


def _is_mask(key) -> bool:
    return isinstance(key, ndarray) and key.dtype == bool


def _axes(key) -> int:
    """The number of axes that one part of an index selects from."""
    return 0 if key is None or key is Ellipsis else key.ndim if _is_mask(key) else 1


def _operator(compute):
    return lambda *operands: _on_device(compute(*map(_operand, operands)))


def _reversed(compute):
    return lambda self, other: _operator(compute)(other, self)


def _in_place(compute):
    def method(self, other):
        compute(self._memory, _operand(other))
        return self

    return method


for _name in "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift".split():
    _compute, _plain = getattr(operator, _name), _name.rstrip("_")
    setattr(ndarray, f"__{_plain}__", _operator(_compute))
    setattr(ndarray, f"__r{_plain}__", _reversed(_compute))
    setattr(ndarray, f"__i{_plain}__", _in_place(getattr(operator, f"i{_plain}")))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(ndarray, f"__{_name}__", _operator(getattr(operator, _name)))

# Reductions have no `where` and no `initial`, here as in CuPy.
_KEYWORDS = {"axis", "dtype", "out", "keepdims", "copy", "order", "k", "shape", "kind", "side"}


def _checked(function, name: str):
    def call(*args, **kwargs):
        if not kwargs:
            return _on_device(function(*map(_argument, args)))
        if unknown := kwargs.keys() - _KEYWORDS:
            raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
        arguments = {key: _argument(value) for key, value in kwargs.items()}
        result = function(*map(_argument, args), **arguments)
        return _on_device(result) if kwargs.get("out") is None else kwargs["out"]

    return call


for _name in """all any argmax argmin argsort astype clip conj copy cumsum dot fill max mean min
                prod ravel repeat reshape squeeze std sum swapaxes transpose var view""".split():
    setattr(ndarray, _name, _checked(getattr(np.ndarray, _name), _name))


class _Ufunc:
    """A ufunc, which has no `where` in CuPy."""

    def __init__(self, name: str):
        self.__name__, self._compute = name, getattr(np, name)

    def __call__(self, *inputs, out=None, dtype=None, casting="same_kind"):
        inputs = map(_operand, inputs)
        if out is not None and not isinstance(out, ndarray):
            raise TypeError(f"Unsupported type {type(out)}")
        memory = out if out is None else out._memory
        result = self._compute(*inputs, out=memory, dtype=dtype, casting=casting)
        return _on_device(result) if out is None else out

    def at(self, array, indices, values):
        key = array._key(indices)[0]
        if array.dtype.kind == "f":
            _require_different(array, key, "several values for one place are added in any order")
        self._compute.at(array._memory, key, _operand(values))


_functions = {}  # not names of this module, where they would hide Python's all, min and sum
_UFUNCS = """absolute add copysign cos divide exp greater isfinite isnan log logaddexp logical_and
             logical_or maximum minimum multiply negative not_equal power sign sin sqrt square
             subtract tanh"""
_OTHERS = """all any arange argmax argmin argpartition argsort ascontiguousarray broadcast_to clip
             concatenate cumsum dot einsum empty_like expand_dims full_like matmul max mean min
             moveaxis ones ones_like outer pad prod ravel repeat reshape searchsorted sort split
             squeeze stack sum swapaxes take_along_axis tensordot transpose tril triu vdot zeros
             zeros_like"""
_functions |= {name: _Ufunc(name) for name in _UFUNCS.split()}
_functions |= {name: _checked(getattr(np, name), name) for name in _OTHERS.split()}


def array(values, dtype=None) -> ndarray:
    """A new device array from a host or device array, or from numbers."""
    return ndarray(np.array(values._memory if isinstance(values, ndarray) else values, dtype))


def asarray(values, dtype=None) -> ndarray:
    """`values` itself if it is a device array of this dtype, otherwise a new one."""
    same = isinstance(values, ndarray) and dtype in (None, values.dtype)
    return values if same else array(values, dtype)


def asnumpy(values) -> np.ndarray:
    """A copy on the host."""
    return array(values).get()


def empty(shape, dtype=float) -> ndarray:
    """A new array; floating-point numbers are NaN, so reading unwritten ones shows."""
    return _fill_with_nan(np.empty(shape, dtype))


def empty_like(a: ndarray, dtype=None) -> ndarray:
    """Like `empty`, with the shape and memory order of `a`."""
    return _fill_with_nan(np.empty_like(a._memory, dtype))


def _fill_with_nan(memory: np.ndarray) -> ndarray:
    if memory.dtype.kind == "f":
        memory.fill(np.nan)
    return ndarray(memory)


def copyto(dst: ndarray, src, casting="same_kind", where=None) -> None:
    mask = True if where is None else _operand(where)
    np.copyto(dst._memory, _operand(src), casting, mask)


def where(condition: ndarray, x, y) -> ndarray:
    """As numpy.where with three arguments; with one, it would be nonzero, which waits."""
    return _on_device(np.where(*map(_operand, (condition, x, y))))


def shares_memory(a: ndarray, b: ndarray) -> bool:
    _wait("shares_memory")
    return np.shares_memory(a._memory, b._memory)


_stream = SimpleNamespace(synchronize=lambda: _wait("synchronize"))
cuda = SimpleNamespace(
    is_available=lambda: True,
    get_current_stream=lambda: _stream,
    Device=lambda number=0: SimpleNamespace(
        mem_info=(1 << 30, 1 << 31), use=lambda: None
    ),  # free, all
    device=SimpleNamespace(get_cublas_handle=lambda: 1),
    runtime=SimpleNamespace(
        driverGetVersion=lambda: 0,
        runtimeGetVersion=lambda: 0,
        getDeviceProperties=lambda device: {"name": b"the stand-in for CuPy"},
    ),
)

ndarray.__module__ = "cupy"  # so that array_module() finds this module under that name


def __getattr__(name: str):
    if name in _functions:
        return _functions[name]
    if name == "RawModule" and cuda_on_host.compiler():
        return cuda_on_host.RawModule
    raise AttributeError(
        f"the stand-in for CuPy has no {name!r}. If CuPy 14 has it, name it in {__file__}."
    )
