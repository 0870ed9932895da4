"""Rounding to half precision: one thread for every two numbers."""

import numpy as np

from numformer.backend import array_module
from numformer.kernels.copies import as_contiguous
from numformer.kernels.cuda import Source, threads_for

SOURCE = Source("""
#include <cuda_fp16.h>

extern "C" __global__ void round_to_half(const T* x, Int N, __half* y) {
    Int n = 2 * (Int(blockIdx.x) * blockDim.x + threadIdx.x);
    if (n + 1 < N) {
        __half2 pair = {__float2half_rn(x[n]), __float2half_rn(x[n + 1])};
        *reinterpret_cast<__half2*>(y + n) = pair;
    } else if (n < N) y[n] = __float2half_rn(x[n]);
}
""")


def round_to_half(x):
    """x (M, N), float32 -> rounded to float16, (M, N); stored by rows or by columns, as x is."""
    if x.T.flags.c_contiguous and not x.flags.c_contiguous:
        return round_to_half(x.T).T
    x = as_contiguous(x)
    y = array_module(x).empty(x.shape, np.float16)
    SOURCE.start("round_to_half", x, *threads_for(-(-x.size // 2)), x, x.size, y)
    return y
