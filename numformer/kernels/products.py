"""Matrix products by cuBLAS, called directly, so that transposed views need no copy.

cuBLAS reads matrices column by column, but our arrays are stored row by row. So cuBLAS gets the two
factors in reverse order: C = A B, row by row, is C^T = B^T A^T, column by column.
"""

import functools
import importlib
import math
import os

import numpy as np

from numformer.backend import array_module
from numformer.kernels.copies import as_contiguous
from numformer.kernels.cuda import Source, contiguous, packs_for
from numformer.kernels.half import in_precision
from numformer.kernels.sums import sum_rows

FORMULAS = "matmul", "linear", "linear_backward", "output_projection_backward"
# By dtype of the factors: cudaDataType of the factors and of the result, cublasComputeType (68 is
# float32, 77 TF32, 70 float64), dtype of the result. TF32 and float16 have 11 significant bits.
TYPES = {
    "e": (2, 0, 68, np.float32),
    "f": (0, 0, 77 if os.environ.get("CUPY_TF32") == "1" else 68, np.float32),
    "d": (1, 1, 70, np.float64),
}
ANY_ALGORITHM = -1  # cuBLAS chooses it
SOURCE = Source("""
extern "C" __global__ void add_bias(const T* bias, Int D, Int N, T* y) {
    Int n = PACK * (Int(blockIdx.x) * blockDim.x + threadIdx.x);
    if (n >= N) return;
    Pack pack = load(y + n, N - n);
    int d = N < 1ll << 32 ? unsigned(n) % unsigned(D) : n % D;
    for (int i = 0; i < PACK; i++, d = d + 1 < D ? d + 1 : 0) pack.entries[i] += bias[d];
    store(pack, N - n, y + n);
}
""")


def matmul(a, b):
    """See numformer.arithmetic."""
    if b.ndim != 2:
        return product(a, b)
    y = product(in_precision(a), in_precision(b))
    return y if a.ndim == 2 else y.reshape(*a.shape[:-1], b.shape[1])


def linear(x, weight, bias=None):
    """See numformer.paper.linear."""
    y = product(in_precision(x, constant=True), in_precision(weight, constant=True))
    if bias is not None:
        _, bias = contiguous(y, bias)
        SOURCE.start("add_bias", y, *packs_for(y), bias, len(bias), y.size, y)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[1])


def linear_backward(dy, x, weight, bias=None):
    """See numformer.paper.linear."""
    dy_rows = in_precision(dy)
    dx = product(dy_rows, in_precision(weight, constant=True).T)
    dweight = product(in_precision(x, constant=True).T, dy_rows)
    dx = dx if dy.ndim == 2 else dx.reshape(*dy.shape[:-1], dx.shape[1])
    return dx, dweight, None if bias is None else sum_rows(dy)


def output_projection_backward(dlogits, x, weight):
    """See numformer.paper.embedding."""
    dlogits_rows = in_precision(dlogits)
    dx = product(dlogits_rows, in_precision(weight, constant=True))
    dweight = product(dlogits_rows.T, in_precision(x, constant=True))
    return dx.reshape(*dlogits.shape[:-1], dx.shape[1]), dweight


def product(a, b, factor: float = 1.0):
    """a (..., M, N), b (..., N, P) -> factor * a b (..., M, P); float16 gives float32."""
    xp, kind, shape = array_module(a), a.dtype.char, b.shape
    *batch, M, N = a.shape
    P = shape[-1]
    fits = b.dtype.char == kind and shape == (*batch, N, P) and M * N * P * math.prod(batch)
    if not fits or kind not in TYPES:
        return xp.matmul(a, b) * a.dtype.type(factor)
    data_type, result_type, compute_type, dtype = TYPES[kind]
    (a, transposed_a, row_a, step_a), (b, transposed_b, row_b, step_b) = _layout(a), _layout(b)
    c = xp.empty((*batch, M, P), dtype)
    _cublas().gemmStridedBatchedEx(
        *(xp.cuda.device.get_cublas_handle(), transposed_b, transposed_a, P, M, N),
        *(_address(factor, dtype), b.data.ptr, data_type, row_b, step_b),
        *(a.data.ptr, data_type, row_a, step_a, _address(0.0, dtype)),
        *(c.data.ptr, result_type, P, M * P, math.prod(batch), compute_type, ANY_ALGORITHM),
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
def _host_scalar(number: float, dtype: type):
    return np.array(number, dtype)


@functools.cache
def _address(number: float, dtype: type) -> int:
    """Return the address, in the host's memory, of `number` as a `dtype`."""
    return _host_scalar(number, dtype).ctypes.data
