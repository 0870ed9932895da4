"""Dropout: masks, with one thread for each random word of 64 bits, and products with a mask."""

import math

from numformer.backend import array_module
from numformer.kernels.cuda import Source, alike, packs_for, threads_for

FORMULAS = "dropout_mask", "dropout", "dropout_backward"
SOURCE = Source("""
extern "C" __global__ void dropout_mask(
    Word key, Int start, Int dropped, double scale, Int N, T* keep
) {
    Int word = Int(blockIdx.x) * blockDim.x + threadIdx.x;
    if (4 * word >= N) return;
    Word bits = Word(start + word) * 0x9E3779B97F4A7C15 + key;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    bits ^= bits >> 31;
    for (Int n = 4 * word; n < min(N, 4 * word + 4); n++, bits >>= 16)
        keep[n] = Int(bits & 0xffff) >= dropped ? T(scale) : T(0);
}

extern "C" __global__ void multiply(const T* x, const T* keep, Int N, T* y) {
    Int n = PACK * (Int(blockIdx.x) * blockDim.x + threadIdx.x);
    if (n >= N) return;
    Pack product = load(x + n, N - n), factors = load(keep + n, N - n);
    for (int i = 0; i < PACK; i++) product.entries[i] *= factors.entries[i];
    store(product, N - n, y + n);
}
""")


def dropout_mask(like, shape, p, key, start, stop):
    """See numformer.randomness."""
    keep, N = array_module(like).empty(shape, like.dtype), math.prod(shape)
    dropped = min(round(p * 65536), 65535)
    launch = threads_for(-(-N // 4))
    scale = 65536 / (65536 - dropped)
    SOURCE.start("dropout_mask", keep, *launch, key, start, dropped, scale, N, keep)
    return keep


def dropout(x, keep):
    """See numformer.paper.dropout."""
    if keep is None:
        return x
    x, keep = alike(x, keep)
    y = array_module(x).empty(x.shape, x.dtype)
    SOURCE.start("multiply", x, *packs_for(x), x, keep, x.size, y)
    return y


def dropout_backward(dy, keep):
    """See numformer.paper.dropout."""
    return dropout(dy, keep)
