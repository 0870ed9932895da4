"""Rounding to half precision: one thread for each pack of numbers.

Within half_products(), weights and the inputs of layers are rounded only once, although several
products read them: nothing writes into them during a step.
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
    """x (M, N), float32 -> rounded to float16, (M, N); stored by rows or by columns, as x is."""
    if x.T.flags.c_contiguous and not x.flags.c_contiguous:
        return round_to_half(x.T).T
    x = as_contiguous(x)
    y, N = array_module(x).empty(x.shape, np.float16), x.size
    SOURCE.start("round_to_half", x, *packs_for(x), x, N, y)
    return y


def in_precision(x, constant: bool = False):
    """x (..., D) -> its rows (N, D) in the precision of products.

    This is float16 for float32 in half_products(). If x is `constant` (a weight, or the input of a
    layer) its rounded rows are remembered until it is gone.
    """
    block: Any = matrix_product.get()
    if not block or x.dtype.char != "f":
        return rows(x)
    if known := block.rounded.get(id(x)):
        return known[1]
    rounded = round_to_half(rows(x))
    if constant:
        _remember(x, rounded, block.rounded)
    return rounded


def new_rounded(x):
    """Return an empty float16 array (N, D) that a kernel fills when it writes x (..., D).

    Products of x will read it. Outside half_products(), where none would, this is None.
    """
    block: Any = matrix_product.get()
    if not block or x.dtype.char != "f":
        return None
    rounded = array_module(x).empty((x.size // x.shape[-1], x.shape[-1]), np.float16)
    _remember(x, rounded, block.rounded)
    return rounded


def _remember(x, rounded, memory: dict) -> None:
    key = id(x)
    memory[key] = weakref.ref(x, lambda _: memory.pop(key)), rounded
