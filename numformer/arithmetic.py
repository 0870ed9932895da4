"""Products and sums of arrays, computed in ways that are fast with NumPy and with CuPy."""

import contextvars
import math
from collections.abc import Callable

import numpy as np

from numformer import blas
from numformer.backend import array_module, has_kernel, kernels_for

MAX_ROWS = 16  # up to this many rows, NumPy's own sum and max are faster than the methods below


def rows(x):
    """x (..., D) -> (N, D), a view if possible."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def transpose(x):
    """x (..., M, N) -> (..., N, M)."""
    return x.swapaxes(-1, -2)


# This thread's function for a product of two matrices; None means the usual product.
matrix_product = contextvars.ContextVar[Callable | None]("matrix_product", default=None)


def matmul(a, b):
    """The matrix product over the last two axes, a (..., M, N), b (..., N, P) -> (..., M, P).

    If `b` is one matrix (N, P), one large product replaces many small ones.
    """
    if not isinstance(a, np.ndarray) and (kernel := kernels_for(a).get("matmul")):
        return kernel(a, b)
    if b.ndim != 2:
        return a @ b
    product = matrix_product.get() or (blas.product if blas.blocks else None)
    y = product(rows(a), b) if product else rows(a) @ b
    return y if a.ndim == 2 else y.reshape(*a.shape[:-1], b.shape[1])


@has_kernel
def sum_rows(x):
    """x (..., D) -> (D,): the sum over all axes but the last, by a product with ones."""
    x = rows(x)
    return array_module(x).ones(len(x), dtype=x.dtype) @ x


def sum_last(x):
    """x (..., D) -> (..., 1): the sum over the last axis; for many rows, a product with ones."""
    if x.size <= MAX_ROWS * x.shape[-1]:
        return x.sum(axis=-1, keepdims=True)
    return (rows(x) @ array_module(x).ones(x.shape[-1], dtype=x.dtype)).reshape(*x.shape[:-1], 1)


def mean_last(x):
    """x (..., D) -> (..., 1): the mean over the last axis."""
    mean = sum_last(x)
    mean *= 1 / x.shape[-1]
    return mean


def max_last(x):
    """x (..., D) -> (..., 1): the largest number along the last axis; -inf if D is 0.

    NumPy reduces rows one by one, which is slow if they are short; it reduces columns together.
    """
    if not x.shape[-1]:
        return array_module(x).full_like(x, -np.inf, shape=(*x.shape[:-1], 1))
    if array_module(x) is np and x.shape[-1] <= 64 and x.size > MAX_ROWS * x.shape[-1]:
        return rows(x).T.copy().max(axis=0).reshape(*x.shape[:-1], 1)
    return x.max(axis=-1, keepdims=True)


def dot_last(a, b):
    """a, b (..., D) -> (..., 1): the dot product along the last axis."""
    if array_module(a) is not np:  # CuPy's einsum would compute a matrix product for each row
        return (a * b).sum(axis=-1, keepdims=True)
    return np.einsum("...d,...d->...", a, b)[..., None]


@has_kernel
def dot_rows(a, b):
    """a, b (..., D) -> (D,): the dot product over all axes but the last.

    einsum adds rows one by one, which loses digits when there are a million. So the rows of each
    block are added first, then the sums of the blocks.
    """
    if array_module(a) is not np:
        return sum_rows(a * b)
    pair, block = (rows(a), rows(b)), 1024
    end = math.prod(a.shape[:-1]) // block * block
    rest = np.einsum("nd,nd->d", *(x[end:] for x in pair))
    if not end:
        return rest
    blocks = (x[:end].reshape(-1, block, x.shape[1]) for x in pair)
    return np.einsum("knd,knd->kd", *blocks).sum(axis=0) + rest


@has_kernel
def scatter_add(target, ids, values) -> None:
    """target[ids[n]] += values[n] for every n, repeated ids included.

    target (V, D), ids (N,), values (N, D). Each sum has a fixed order, so its bits never change.
    """
    if not isinstance(target, np.ndarray) or len(target) <= 256:
        one_hot = ids == array_module(target).arange(len(target))[:, None]
        target += one_hot @ values
    elif len(ids):
        order = np.argsort(ids, kind="stable")
        sorted_ids, sorted_values = ids[order], values[order]
        starts = np.flatnonzero(np.diff(sorted_ids, prepend=-1))
        target[sorted_ids[starts]] += np.add.reduceat(sorted_values, starts)
