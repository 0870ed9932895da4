"""Matrix products by cuBLAS, called directly, so that transposed views need no copy.

cuBLAS reads matrices column by column, but our arrays are stored row by row. So cuBLAS gets the two
factors in reverse order: C = A B, row by row, is C^T = B^T A^T, column by column.
"""

import functools
import importlib
import math
import os

import numpy as np

from numformer.arithmetic import matrix_product, rows
from numformer.backend import array_module
from numformer.kernels.copies import as_contiguous
from numformer.kernels.cuda import Source, contiguous, threads_for
from numformer.kernels.half import round_to_half
from numformer.kernels.sums import sum_rows

FORMULAS = "matmul", "linear", "linear_backward", "output_projection_backward"
DATA_TYPES = {"e": 2, "f": 0, "d": 1}  # cudaDataType
# cublasComputeType; TF32 rounds float32 factors to the 11 bits of half precision.
FLOAT32, TF32, FLOAT64 = 68, 77, 70
COMPUTE_TYPES = {"f": TF32 if os.environ.get("CUPY_TF32") == "1" else FLOAT32, "d": FLOAT64}
ANY_ALGORITHM = -1  # cuBLAS chooses it
SOURCE = Source("""
extern "C" __global__ void add_bias(const T* bias, Int D, Int N, T* y) {
    Int n = Int(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) y[n] += bias[N < 1ll << 32 ? unsigned(n) % unsigned(D) : n % D];
}
""")


def matmul(a, b):
    """See numformer.arithmetic."""
    if b.ndim != 2:
        return product(a, b)
    if a.ndim == 2:
        return product(in_precision(a), in_precision(b))
    return product(in_precision(rows(a)), in_precision(b)).reshape(*a.shape[:-1], b.shape[1])


def linear(x, weight, bias=None):
    """See numformer.paper.linear."""
    y = matmul(x, weight)
    if bias is not None:
        _, bias = contiguous(y, bias)
        SOURCE.start("add_bias", y, *threads_for(y.size), bias, len(bias), y.size, y)
    return y


def linear_backward(dy, x, weight, bias=None):
    """See numformer.paper.linear."""
    dy_rows, x_rows = in_precision(rows(dy)), in_precision(rows(x))
    dx = product(dy_rows, in_precision(weight).T).reshape(*dy.shape[:-1], len(weight))
    return dx, product(x_rows.T, dy_rows), None if bias is None else sum_rows(dy)


def output_projection_backward(dlogits, x, weight):
    """See numformer.paper.embedding."""
    dlogits_rows = in_precision(rows(dlogits))
    dx = product(dlogits_rows, in_precision(weight)).reshape(*dlogits.shape[:-1], weight.shape[1])
    return dx, product(dlogits_rows.T, in_precision(rows(x)))


def in_precision(matrix):
    """Return the matrix in the precision of products: float16 for float32 in half_products()."""
    return round_to_half(matrix) if matrix_product.get() and matrix.dtype.char == "f" else matrix


def product(a, b, factor: float = 1.0):
    """a (..., M, N), b (..., N, P) -> factor * a b (..., M, P); float16 factors give float32."""
    xp, kind, dtype = array_module(a), a.dtype.char, a.dtype
    inner = a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2] and a.size * b.size
    if kind not in DATA_TYPES or b.dtype.char != kind or not inner:
        return xp.matmul(a, b) * dtype.type(factor)
    data_type, compute_type = DATA_TYPES[kind], COMPUTE_TYPES.get(kind, FLOAT32)
    if kind == "e":
        kind, dtype = "f", np.float32
    (a, transposed_a, row_a, step_a), (b, transposed_b, row_b, step_b) = _layout(a), _layout(b)
    *batch, M, N = a.shape
    P = b.shape[-1]
    c = xp.empty((*batch, M, P), dtype)
    handle = xp.cuda.device.get_cublas_handle()
    _cublas().gemmStridedBatchedEx(
        *(handle, transposed_b, transposed_a, P, M, N, _address(factor, kind)),
        *(b.data.ptr, data_type, row_b, step_b, a.data.ptr, data_type, row_a, step_a),
        *(_address(0.0, kind), c.data.ptr, DATA_TYPES[kind], P, M * P, math.prod(batch)),
        *(compute_type, ANY_ALGORITHM),
    )
    return c


def _layout(x):
    """x (..., M, N) -> x, 1 if its matrices are transposed in memory (else 0), and two steps.

    The first step is from one row (transposed: column) to the next, the second from one matrix to
    the next, both in entries. x is copied if its rows or matrices are not evenly spaced.
    """
    shape, strides, size = x.shape, x.strides, x.itemsize
    M, N = shape[-2:]
    row, column = strides[-2:]
    step = strides[-3] if x.ndim > 2 else 0
    if x.ndim < 4 or all(strides[i] == shape[i + 1] * strides[i + 1] for i in range(x.ndim - 3)):
        if column == size and row >= N * size:
            return x, 0, row // size, step // size
        if row == size and column >= M * size:
            return x, 1, column // size, step // size
    return as_contiguous(x), 0, N, M * N


@functools.cache
def _cublas():
    return importlib.import_module("cupy_backends.cuda.libs.cublas")


@functools.cache
def _host_scalar(number: float, kind: str):
    return np.array(number, kind)


@functools.cache
def _address(number: float, kind: str) -> int:
    """Return the address, in the host's memory, of `number` with the dtype `kind`."""
    return _host_scalar(number, kind).ctypes.data
