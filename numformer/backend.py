"""Finds out whether NumPy or CuPy holds an array, and which functions and kernels work on it.

Array code begins with `xp = array_module(x)`, so it computes on the device that holds `x`.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_kernels: dict[type, dict[str, Callable]] = {np.ndarray: {}}
_modules: dict[type, Any] = {}


def array_module(x) -> Any:
    """The module (numpy or cupy) whose functions work on the array `x`."""
    if type(x) not in _modules:
        name = "numpy" if isinstance(x, np.ndarray) else type(x).__module__.partition(".")[0]
        _modules[type(x)] = sys.modules[name]
    return _modules[type(x)]


def kernels_for(array) -> dict[str, Callable]:
    """The kernels for arrays of this type, by name; numformer/kernels is imported at first use."""
    if type(array) not in _kernels:
        kernels = importlib.import_module("numformer.kernels")
        _kernels[type(array)] = kernels.kernels_of(array)
    return _kernels[type(array)]


def has_kernel(formula: Callable) -> Callable:
    """Make a formula use the kernel of the same name on a GPU, if there is one."""

    @functools.wraps(formula)
    def kernel_or_formula(*arguments, **settings):
        array = arguments[0] if arguments else next(iter(settings.values()))
        return kernels_for(array).get(formula.__name__, formula)(*arguments, **settings)

    return kernel_or_formula


def on_host(x) -> bool:
    """Whether `x` is a NumPy array, which can be read without waiting for a GPU."""
    return isinstance(x, np.ndarray)


def to_host(x) -> np.ndarray:
    """`x` as a NumPy array. An array on a GPU is copied when the GPU has computed it."""
    return x.get() if hasattr(x, "get") else np.asarray(x)


def to_module(x, xp: Any):
    """`x`, a NumPy array or an array of the module `xp`, as an array of `xp`."""
    if not xp.__name__.startswith("cupy") or not isinstance(x, np.ndarray):
        return xp.asarray(x)
    return importlib.import_module("numformer.kernels.copies").upload(x, xp)


def dtype_kind(value) -> str:
    """The kind of an array's dtype: "f" float, "b" boolean, "i" integer; "" without a dtype."""
    return getattr(getattr(value, "dtype", None), "kind", "")


def cache_pieces(x) -> list[slice]:
    """Slices of x (N) or of the rows of x (N, D): small ones on the host, one slice on a GPU.

    Pieces on the host fit into the cache, so several operations on one read main memory once.
    """
    if not isinstance(x, np.ndarray):
        return [slice(None)]
    size = 1 << 15 if x.ndim == 1 else max(1, (1 << 17) // x.shape[1])
    return [slice(start, start + size) for start in range(0, len(x), size)]
