"""Dropout masks: one thread for each random word of 64 bits, which determines four entries."""

import math

from numformer.backend import array_module
from numformer.kernels.cuda import Source, threads_for

FORMULAS = ("dropout_mask",)
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
""")


def dropout_mask(like, shape, p, key, start, stop):
    """See numformer.randomness."""
    keep, N = array_module(like).empty(shape, like.dtype), math.prod(shape)
    dropped = min(round(p * 65536), 65535)
    launch = threads_for(-(-N // 4))
    scale = 65536 / (65536 - dropped)
    SOURCE.start("dropout_mask", keep, *launch, key, start, dropped, scale, N, keep)
    return keep
