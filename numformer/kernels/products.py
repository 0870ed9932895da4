"""Products of matrices by cuBLAS, called directly: views of transposed matrices need no copy.

cuBLAS reads matrices column by column. A product of ours is one of its own with both factors
exchanged: C = A B row by row is C^T = B^T A^T column by column.
"""

import importlib
import math
import os

import numpy as np

from numformer.backend import array_module, matrix_product
from numformer.kernels.copies import packed

FORMULAS = ("matmul",)
NUMBERS = {"e": 2, "f": 0, "d": 1}  # cudaDataType
SUMS = {"f": 77 if os.environ.get("CUPY_TF32") == "1" else 68, "d": 70}  # cublasComputeType
COARSE = 77  # float32's factors rounded to the 11 bits of half precision (TF32)
AS_CUBLAS_LIKES = -1

_addresses: dict[tuple, tuple] = {}


def matmul(a, b):
    """As numformer.backend."""
    if b.ndim != 2:
        return product(a, b)
    matrix = a if a.ndim == 2 else a.reshape(-1, a.shape[-1])
    y = product(matrix, b)
    return y if a.ndim == 2 else y.reshape(*a.shape[:-1], b.shape[1])


def product(a, b, factor: float = 1.0):
    """a (..., M, N), b (..., N, P) -> factor * a b (..., M, P).

    Within half_products(), factors are rounded to 11 bits: a product of two matrices is of float16,
    one of many matrices of TF32.
    """
    xp, kind = array_module(a), a.dtype.char
    if (
        kind not in SUMS
        or b.dtype.char != kind
        or a.shape[:-2] != b.shape[:-2]
        or not a.size * b.size
    ):
        return xp.matmul(a, b) * a.dtype.type(factor)
    c = xp.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    sums, number = SUMS[kind], NUMBERS[kind]
    if matrix_product.get() and kind == "f":
        if a.ndim == 2:
            a, b, number = a.astype(np.float16), b.astype(np.float16), NUMBERS["e"]
        else:
            sums = COARSE
    (a, turn_a, row_a, step_a), (b, turn_b, row_b, step_b) = _laid_out(a), _laid_out(b)
    (M, N), P = a.shape[-2:], b.shape[-1]
    cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
    cublas.gemmStridedBatchedEx(
        *(xp.cuda.device.get_cublas_handle(), turn_b, turn_a, P, M, N, _address(factor, kind)),
        *(b.data.ptr, number, row_b, step_b, a.data.ptr, number, row_a, step_a),
        *(_address(0.0, kind), c.data.ptr, NUMBERS[kind], P, M * P),
        *(math.prod(a.shape[:-2]), sums, AS_CUBLAS_LIKES),
    )
    return c


def _laid_out(x):
    """x (..., M, N) -> x, whether it is transposed in memory, entries from row to row, to matrix.

    It is a copy where its matrices do not follow each other evenly.
    """
    size, (M, N) = x.itemsize, x.shape[-2:]
    *outer, row, column = x.strides
    even = all(step == x.shape[i + 1] * outer[i + 1] for i, step in enumerate(outer[:-1]))
    if even:
        step = outer[-1] // size if outer else 0
        if column == size and row >= N * size:
            return x, 0, row // size, step
        if row == size and column >= M * size:
            return x, 1, column // size, step
    return packed(x), 0, N, M * N


def _address(number: float, kind: str) -> int:
    """Where `number`, as a number of the kind, lies in the host's memory."""
    if (number, kind) not in _addresses:
        held = np.array(number, kind)
        _addresses[number, kind] = held, held.ctypes.data
    return _addresses[number, kind][1]
