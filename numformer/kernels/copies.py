"""Copies that reorder: to contiguous arrays, from rows to places in a batch, and back to rows."""

import numpy as np

from numformer.backend import array_module
from numformer.kernels.cuda import Source, contiguous, threads_for, warps

FORMULAS = "spread_rows", "gather_rows"
SOURCE = Source("""
// Copies x (B, H, T, K) to y, which is contiguous. Sequences, heads, positions and entries of x are
// step_b, step_h, step_t and step_k apart.
extern "C" __global__ void copy_in_order(
    const T* x, Int step_b, Int step_h, Int step_t, Int step_k,
    Int H, Int length, Int K, Int N, T* y
) {
    unsigned n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    unsigned k = n % unsigned(K), row = n / unsigned(K);
    unsigned t = row % unsigned(length), head = row / unsigned(length);
    y[n] = x[head / unsigned(H) * step_b + head % unsigned(H) * step_h + t * step_t + k * step_k];
}

// y (N, K): for each place n, row row_of_place[n] of x, or zeros if that number is negative.
extern "C" __global__ void spread_rows(const T* x, const Int* row_of_place, Int K, Int N, T* y) {
    Int n = Int(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;
    Int row = row_of_place[n];
    for (Int k = threadIdx.x; k < K; k += 32) y[n * K + k] = row < 0 ? T(0) : x[row * K + k];
}

// y (N, K): for each row n, place place_of_row[n] of x (B, H, T, K); steps as in copy_in_order.
extern "C" __global__ void gather_rows(
    const T* x, Int step_b, Int step_h, Int step_t, Int step_k,
    const Int* place_of_row, Int H, Int length, Int K, Int N, T* y
) {
    Int n = Int(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;
    unsigned place = place_of_row[n], t = place % unsigned(length), head = place / unsigned(length);
    x += head / unsigned(H) * step_b + head % unsigned(H) * step_h + t * step_t;
    for (Int k = threadIdx.x; k < K; k += 32) y[n * K + k] = x[k * step_k];
}
""")


def upload(x, xp):
    """Return a copy, in the module `xp`, of the NumPy array x.

    `cupy.asarray` copies through page-locked memory, which takes longer than all else for the few
    ids and masks of a batch. The driver first copies up to 64 KiB itself, so x may change at once.
    """
    if not 0 < x.nbytes <= 1 << 16:
        return xp.asarray(x)
    x = np.asarray(x, order="C")
    copy = xp.empty(x.shape, x.dtype)
    copy.data.copy_from_host_async(x.ctypes.data, x.nbytes)
    return copy


def as_contiguous(x):
    """x (..., M, N) -> x itself if it is contiguous, otherwise a contiguous copy."""
    xp = array_module(x)
    if x.flags.c_contiguous or x.ndim > 4 or x.dtype.char not in "fd" or x.size >= 1 << 32:
        return xp.ascontiguousarray(x)
    missing = 4 - x.ndim
    steps = (0,) * missing + tuple(step // x.itemsize for step in x.strides)
    _, H, length, K = (1,) * missing + x.shape
    y, N = xp.empty(x.shape, x.dtype), x.size
    SOURCE.start("copy_in_order", x, *threads_for(N), x, *steps, H, length, K, N, y)
    return y


def spread_rows(x, row_of_place, padding):
    """See numformer.paper.masks."""
    (x,), (row_of_place,), N = contiguous(x), contiguous(row_of_place), row_of_place.size
    K = x.shape[1] // row_of_place.shape[1]
    y = array_module(x).empty((*row_of_place.shape, K), x.dtype)
    SOURCE.start("spread_rows", x, *warps(N), x, row_of_place, K, N, y)
    return y


def gather_rows(x, place_of_row):
    """See numformer.paper.masks."""
    size, (_, H, length, K) = x.itemsize, x.shape
    (place_of_row,), steps = contiguous(place_of_row), [step // size for step in x.strides]
    y, N = array_module(x).empty((len(place_of_row), H * K), x.dtype), place_of_row.size
    SOURCE.start("gather_rows", x, *warps(N), x, *steps, place_of_row, H, length, K, N, y)
    return y
