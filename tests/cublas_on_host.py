"""cuBLAS on the host: `cupy_backends.cuda.libs.cublas` for the stand-in for CuPy.

Two of its functions, with CuPy's arguments. They receive the addresses of matrices that lie column
by column; NumPy multiplies these matrices.
"""

import ctypes
import sys
from types import ModuleType

import numpy as np

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F = 68, 70
CUBLAS_COMPUTE_32F_FAST_16F, CUBLAS_COMPUTE_32F_FAST_16BF = 74, 75
CUBLAS_COMPUTE_32F_FAST_TF32 = 77

_R_32F, _R_64F, _R_16F, _R_16BF = 0, 1, 2, 14
# bfloat16, which NumPy lacks, is the upper half of a float32.
_DTYPES = {_R_32F: np.float32, _R_64F: np.float64, _R_16F: np.float16, _R_16BF: np.uint16}
_FAST = {(_R_32F, _R_32F)}
# For each compute type, the allowed pairs: the type of A and B, and the type of C.
_ALLOWED = {
    CUBLAS_COMPUTE_32F: {(kind, kind) for kind in (_R_32F, _R_16F, _R_16BF)}
    | {(_R_16F, _R_32F), (_R_16BF, _R_32F)},
    CUBLAS_COMPUTE_64F: {(_R_64F, _R_64F)},
    CUBLAS_COMPUTE_32F_FAST_16F: _FAST,
    CUBLAS_COMPUTE_32F_FAST_16BF: _FAST,
    CUBLAS_COMPUTE_32F_FAST_TF32: _FAST,
}


class CUBLASError(RuntimeError):
    """cuBLAS refuses its arguments."""


def modules() -> dict[str, ModuleType]:
    """This module and its parent packages, by the names that an import looks up."""
    packages = {"cupy_backends.cuda.libs.cublas": sys.modules[__name__]}
    name = "cupy_backends.cuda.libs.cublas"
    while "." in name:
        parent, _, child = name.rpartition(".")
        packages[parent] = ModuleType(parent)
        setattr(packages[parent], child, packages[name])
        name = parent
    return packages


def _matrices(
    address: int, kind: int, rows: int, columns: int, leading: int, stride: int, count: int
):
    """The matrices (count, rows, columns) at an address, as a view of the memory."""
    if leading < max(1, rows):
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: {leading} numbers cannot hold {rows} rows")
    dtype = np.dtype(_DTYPES[kind])
    size = max(0, (count - 1) * stride + (columns - 1) * leading + rows)
    memory = np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)
    steps = tuple(dtype.itemsize * step for step in (stride, 1, leading))
    return np.lib.stride_tricks.as_strided(memory, (count, rows, columns), steps)


def _numbers(matrices, kind: int, dtype):
    if kind == _R_16BF:
        return (matrices.astype(np.uint32) << 16).view(np.float32)
    return matrices.astype(dtype)


def _bfloat16(numbers):
    """The bits of the nearest bfloat16; of two equally near, the even one."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FFF, rounded).astype(np.uint16)


def gemmStridedBatchedEx(
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB,
    beta, C, Ctype, ldc, strideC, batchCount, computeType, algo,
) -> None:  # fmt: skip
    """C = alpha op(A) op(B) + beta C, op(A) (m, k), op(B) (k, n), C (m, n), batchCount times."""
    if Atype != Btype or (Atype, Ctype) not in _ALLOWED[computeType]:
        raise CUBLASError(f"CUBLAS_STATUS_NOT_SUPPORTED: {Atype, Btype, Ctype, computeType}")
    shape_a, shape_b = (k, m) if transa else (m, k), (n, k) if transb else (k, n)
    a = _matrices(A, Atype, *shape_a, lda, strideA, batchCount)
    b = _matrices(B, Btype, *shape_b, ldb, strideB, batchCount)
    c = _matrices(C, Ctype, m, n, ldc, strideC, batchCount)
    dtype = np.float64 if computeType == CUBLAS_COMPUTE_64F else np.float32
    scalar = ctypes.c_double if dtype is np.float64 else ctypes.c_float
    alpha, beta = (scalar.from_address(address).value for address in (alpha, beta))
    x, y = _numbers(a, Atype, dtype), _numbers(b, Btype, dtype)
    product = (x.swapaxes(1, 2) if transa else x) @ (y.swapaxes(1, 2) if transb else y)
    product *= dtype(alpha)
    if beta:  # otherwise C may hold anything, even NaN
        product += dtype(beta) * _numbers(c, Ctype, dtype)
    c[...] = _bfloat16(product) if Ctype == _R_16BF else product


def gemmEx(
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc,
    computeType, algo,
) -> None:  # fmt: skip
    """gemmStridedBatchedEx for single matrices."""
    gemmStridedBatchedEx(
        handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0,
        beta, C, Ctype, ldc, 0, 1, computeType, algo,
    )  # fmt: skip
