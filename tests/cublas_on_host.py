"""cuBLAS on the host: `cupy_backends.cuda.libs.cublas` for the stand-in for CuPy.

Its product of many matrices, with CuPy's arguments: it receives the addresses of matrices that lie
column by column, and NumPy multiplies them.
"""

import ctypes
import sys
from types import ModuleType

import numpy as np

_FLOAT32, _FLOAT64, _FLOAT16 = 0, 1, 2  # cudaDataType
_DTYPES = {_FLOAT32: np.float32, _FLOAT64: np.float64, _FLOAT16: np.float16}
_SUMS_32, _SUMS_64, _TF32 = 68, 70, 77  # cublasComputeType
# For each compute type, the allowed pairs: the type of A and B, and the type of C.
_ALLOWED = {
    _SUMS_32: {(_FLOAT32, _FLOAT32), (_FLOAT16, _FLOAT16), (_FLOAT16, _FLOAT32)},
    _SUMS_64: {(_FLOAT64, _FLOAT64)},
    _TF32: {(_FLOAT32, _FLOAT32)},
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
    dtype = np.float64 if computeType == _SUMS_64 else np.float32
    scalar = ctypes.c_double if dtype is np.float64 else ctypes.c_float
    alpha, beta = (scalar.from_address(address).value for address in (alpha, beta))
    x, y = a.astype(dtype), b.astype(dtype)
    product = (x.swapaxes(1, 2) if transa else x) @ (y.swapaxes(1, 2) if transb else y)
    product *= dtype(alpha)
    if beta:  # otherwise C may hold anything, even NaN
        product += dtype(beta) * c.astype(dtype)
    c[...] = product
