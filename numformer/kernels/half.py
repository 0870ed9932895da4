"""Rounding to half precision: one thread for each pack of numbers.

Within half_products(), weights and the inputs of layers are rounded only once, although several
products read them. This is safe because nothing writes to them during a step.
"""

import weakref
from typing import Any

import numpy as np

from numformer.arithmetic import matrix_product, rows
from numformer.backend import array_module
from numformer.kernels.copies import as_contiguous
from numformer.kernels.cuda import Source, packs_for

SOURCE = Source("""
#include <cuda_fp16.h>

extern "C" __global__ void round_to_half(const T* x, Int N, __half* y) {
    Int n = PACK * (Int(blockIdx.x) * blockDim.x + threadIdx.x);
    if (n >= N) return;
    Pack pack = load(x + n, N - n);
    PackOf<__half> rounded;
    for (int i = 0; i < PACK; i++) rounded.entries[i] = __float2half_rn(pack.entries[i]);
    store(rounded, N - n, y + n);
}
""")


def round_to_half(x):
    """x (M, N), float32 -> x rounded to float16 (M, N), stored by rows or columns like x."""
    if x.T.flags.c_contiguous and not x.flags.c_contiguous:
        return round_to_half(x.T).T
    x = as_contiguous(x)
    y, N = array_module(x).empty(x.shape, np.float16), x.size
    SOURCE.start("round_to_half", x, *packs_for(x), x, N, y)
    return y


def in_precision(x, constant: bool = False):
    """x (..., D) -> its rows (N, D) in the precision of products.

    Within half_products(), this is float16 if x is float32. If x is `constant` (a weight or a
    layer's input), its rounded rows are kept until x is freed or the block ends.
    """
    half: Any = matrix_product.get()
    if not half or x.dtype.char != "f":
        return rows(x)
    if entry := half.rounded_copies.get(id(x)):
        return entry[1]
    rounded = round_to_half(rows(x))
    if constant:
        _remember(x, rounded, half.rounded_copies)
    return rounded


def new_half_rows(x):
    """Return an empty float16 array (N, D), to be filled by the kernel that writes x (..., D).

    Products with x then read this rounded copy of x. Outside half_products(), returns None.
    """
    half: Any = matrix_product.get()
    if not half or x.dtype.char != "f":
        return None
    rounded = array_module(x).empty((x.size // x.shape[-1], x.shape[-1]), np.float16)
    _remember(x, rounded, half.rounded_copies)
    return rounded


def _remember(x, rounded, copies: dict) -> None:
    key = id(x)
    copies[key] = weakref.ref(x, lambda _: copies.pop(key)), rounded
