"""Products of matrices by cuBLAS, called directly: views of transposed matrices need no copy.

cuBLAS reads matrices column by column. A product of ours is one of its own with both factors
exchanged: C = A B row by row is C^T = B^T A^T column by column.
"""

import functools
import importlib
import math
import os

import numpy as np

from numformer.backend import array_module, matrix_product, rows
from numformer.kernels.copies import packed
from numformer.kernels.cuda import Source, threads_for
from numformer.kernels.half import halved
from numformer.kernels.sums import sum_rows

FORMULAS = "matmul", "linear", "linear_backward", "output_projection_backward"
NUMBERS = {"e": 2, "f": 0, "d": 1}  # cudaDataType
SUMS = {"f": 77 if os.environ.get("CUPY_TF32") == "1" else 68, "d": 70}  # cublasComputeType
COARSE = 77  # float32's factors rounded to the 11 bits of half precision (TF32)
OF_HALVES = 68
BY_ITSELF = -1  # cuBLAS chooses the algorithm
SOURCE = Source("""
extern "C" __global__ void add_bias(const T* bias, Int D, Int N, T* y) {
    Int n = Int(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) y[n] += bias[N < 1ll << 32 ? unsigned(n) % unsigned(D) : n % D];
}
""")


def matmul(a, b):
    """As numformer.backend."""
    if b.ndim != 2:
        return product(a, b)
    if a.ndim == 2:
        return product(in_precision(a), in_precision(b))
    return product(in_precision(rows(a)), in_precision(b)).reshape(*a.shape[:-1], b.shape[1])


def linear(x, weight, bias=None):
    """As numformer.paper.linear."""
    y = matmul(x, weight)
    if bias is not None:
        SOURCE.start("add_bias", y, *threads_for(y.size), bias, len(bias), y.size, y)
    return y


def linear_backward(dy, x, weight, bias=None):
    """As numformer.paper.linear."""
    each, of_each = in_precision(rows(dy)), in_precision(rows(x))
    dx = product(each, in_precision(weight).T).reshape(*dy.shape[:-1], len(weight))
    return dx, product(of_each.T, each), None if bias is None else sum_rows(dy)


def output_projection_backward(dlogits, x, weight):
    """As numformer.paper.embedding."""
    each = in_precision(rows(dlogits))
    dx = product(each, in_precision(weight)).reshape(*dlogits.shape[:-1], weight.shape[1])
    return dx, product(each.T, in_precision(rows(x)))


def in_precision(matrix):
    """A matrix as products read it: within half_products() its numbers are of float16."""
    return halved(matrix) if matrix_product.get() and matrix.dtype.char == "f" else matrix


def product(a, b, factor: float = 1.0):
    """a (..., M, N), b (..., N, P) -> factor * a b (..., M, P); of float16, sums are of float32.

    Within half_products() the factors of many products are rounded to TF32, which has 11 bits, too.
    """
    xp, kind, dtype = array_module(a), a.dtype.char, a.dtype
    if kind not in NUMBERS or b.dtype.char != kind or a.shape[:-2] != b.shape[:-2] or not a.size:
        return xp.matmul(a, b) * dtype.type(factor)
    number, sums = NUMBERS[kind], SUMS.get(kind, OF_HALVES)
    if kind == "e":
        kind, dtype = "f", np.float32
    elif kind == "f" and a.ndim > 2 and matrix_product.get():
        sums = COARSE
    (a, turn_a, row_a, step_a), (b, turn_b, row_b, step_b) = _laid_out(a), _laid_out(b)
    *many, M, N = a.shape
    P = b.shape[-1]
    c = xp.empty((*many, M, P), dtype)
    _cublas().gemmStridedBatchedEx(
        *(xp.cuda.device.get_cublas_handle(), turn_b, turn_a, P, M, N, _address(factor, kind)),
        *(b.data.ptr, number, row_b, step_b, a.data.ptr, number, row_a, step_a),
        *(_address(0.0, kind), c.data.ptr, NUMBERS[kind], P, M * P, math.prod(many)),
        *(sums, BY_ITSELF),
    )
    return c


def _laid_out(x):
    """x (..., M, N) -> x, whether it is transposed in memory, entries from row to row, to matrix.

    It is a copy where its matrices do not follow each other evenly.
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
    return packed(x), 0, N, M * N


@functools.cache
def _cublas():
    return importlib.import_module("cupy_backends.cuda.libs.cublas")


@functools.cache
def _held(number: float, kind: str):
    return np.array(number, kind)


@functools.cache
def _address(number: float, kind: str) -> int:
    """Where `number`, as a number of the kind, lies in the host's memory."""
    return _held(number, kind).ctypes.data
