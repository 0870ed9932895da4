"""The machine: what differs in name or speed between NumPy and CuPy, and nothing else.

Other array code needs only `xp = array_module(x)`: arrays are computed on where they lie.
"""

import contextvars
import functools
import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from numformer import blas

FEW = 16  # up to this many rows, NumPy's own sum and maximum are faster than the ones below
_kernels: dict[type, dict[str, Callable]] = {np.ndarray: {}}


def array_module(x) -> Any:
    """The module (numpy or cupy) whose functions work on the array `x`."""
    if isinstance(x, np.ndarray):
        return np
    return sys.modules[type(x).__module__.partition(".")[0]]


def kernels_for(array) -> dict[str, Callable]:
    """The kernels (numformer/kernels/) for arrays of this type, by name; imported at first use."""
    if type(array) not in _kernels:
        kernels = importlib.import_module("numformer.kernels")
        _kernels[type(array)] = kernels.kernels_of(array)
    return _kernels[type(array)]


def has_kernel(formula: Callable) -> Callable:
    """Compute `formula` line by line on the host, and on a GPU by the kernel of the same name."""

    @functools.wraps(formula)
    def either(*arguments, **settings):
        array = arguments[0] if arguments else next(iter(settings.values()))
        kernel = not isinstance(array, np.ndarray) and kernels_for(array).get(formula.__name__)
        return (kernel or formula)(*arguments, **settings)

    return either


def on_host(x) -> bool:
    """Whether `x` is a NumPy array, whose numbers can be read without waiting for a device."""
    return isinstance(x, np.ndarray)


def to_host(x) -> np.ndarray:
    """`x` as a NumPy array; from a GPU this waits for the device."""
    return x.get() if hasattr(x, "get") else np.asarray(x)


def dtype_kind(value) -> str:
    """The kind of an array's dtype ("f" floating-point, "b" boolean, "i"); "" without a dtype."""
    return getattr(getattr(value, "dtype", None), "kind", "")


def rows(x):
    """x (..., D) -> (N, D), the same memory where possible."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def transpose(x):
    """x (..., M, N) -> (..., N, M)."""
    return x.swapaxes(-1, -2)


# The function that multiplies two matrices in this thread; None for the usual product.
matrix_product = contextvars.ContextVar[Callable | None]("matrix_product", default=None)


def matmul(a, b):
    """The matrix product over the last two axes, a (..., M, N), b (..., N, P) -> (..., M, P).

    If all matrices of `a` meet one matrix `b`, one large product replaces many small ones.
    """
    if not isinstance(a, np.ndarray) and (kernel := kernels_for(a).get("matmul")):
        return kernel(a, b)
    if b.ndim != 2:
        return a @ b
    matrix = a if a.ndim == 2 else rows(a)
    product = matrix_product.get() or (blas.product if blas.blocks else None)
    y = product(matrix, b) if product else matrix @ b
    return y if a.ndim == 2 else y.reshape(*a.shape[:-1], b.shape[1])


@has_kernel
def sum_rows(x):
    """x (..., D) -> (D,): the sum over all axes but the last, as a product with ones."""
    x = rows(x)
    return array_module(x).ones(len(x), dtype=x.dtype) @ x


def sum_last(x):
    """x (..., D) -> (..., 1): the sum over the last axis, for many rows as a product with ones."""
    if x.size <= FEW * x.shape[-1]:
        return x.sum(axis=-1, keepdims=True)
    return (rows(x) @ array_module(x).ones(x.shape[-1], dtype=x.dtype)).reshape(*x.shape[:-1], 1)


def mean_last(x):
    """x (..., D) -> (..., 1): the mean over the last axis."""
    mean = sum_last(x)
    mean *= 1 / x.shape[-1]
    return mean


def max_last(x):
    """x (..., D) -> (..., 1): the largest number along the last axis.

    NumPy reduces short rows one by one; of the transpose it compares all rows at once.
    """
    if array_module(x) is np and x.shape[-1] <= 64 and x.size > FEW * x.shape[-1]:
        return rows(x).T.copy().max(axis=0).reshape(*x.shape[:-1], 1)
    return x.max(axis=-1, keepdims=True)


def dot_last(a, b):
    """a, b (..., D) -> (..., 1): the dot product along the last axis."""
    if array_module(a) is not np:  # CuPy's einsum computes a matrix product for every single row
        return (a * b).sum(axis=-1, keepdims=True)
    return np.einsum("...d,...d->...", a, b)[..., None]


@has_kernel
def dot_rows(a, b):
    """a, b (..., D) -> (D,): the dot product over all axes but the last.

    einsum adds one row after the other, and a sum of a million numbers would lose digits. So blocks
    of rows are added separately, then their sums.
    """
    if array_module(a) is not np:
        return sum_rows(a * b)
    pair, block = (rows(a), rows(b)), 1024
    whole = math.prod(a.shape[:-1]) // block * block
    rest = np.einsum("nd,nd->d", *(x[whole:] for x in pair))
    if not whole:
        return rest
    blocks = (x[:whole].reshape(-1, block, x.shape[1]) for x in pair)
    return np.einsum("knd,knd->kd", *blocks).sum(axis=0) + rest


def masked(scores, mask):
    """scores (..., S), mask broadcast to it -> scores where the mask is True, elsewhere -inf.

    NumPy adds faster than it selects, above all when the mask is smaller than the scores.
    """
    xp = array_module(scores)
    minus_infinity = scores.dtype.type(-np.inf)
    if xp is np:
        return scores + np.where(mask, scores.dtype.type(0), minus_infinity)
    return xp.where(mask, scores, minus_infinity)


@has_kernel
def scatter_add(target, ids, values) -> None:
    """target[ids[n]] += values[n] for every n, repeated ids included.

    target (V, D), ids (N,), values (N, D). Each sum has a fixed order, so its bits never vary.
    """
    if not isinstance(target, np.ndarray) or len(target) <= 256:
        chosen = ids == array_module(target).arange(len(target))[:, None]
        target += chosen @ values
    elif len(ids):
        order = np.argsort(ids, kind="stable")
        sorted_ids, sorted_values = ids[order], values[order]
        starts = np.flatnonzero(np.diff(sorted_ids, prepend=-1))
        target[sorted_ids[starts]] += np.add.reduceat(sorted_values, starts)


def cache_pieces(x) -> list[slice]:
    """Slices that cover x (N) or the rows of x (N, D): on the host, pieces that fit into its cache.

    Several operations on one piece then read memory only once.
    """
    if not isinstance(x, np.ndarray):
        return [slice(None)]
    size = 1 << 15 if x.ndim == 1 else max(1, (1 << 17) // x.shape[1])
    return [slice(start, start + size) for start in range(0, len(x), size)]
