"""ReLU: one thread for each pack of entries."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, contiguous, packs_for
from numformer.kernels.half import new_half_rows

FORMULAS = "relu", "relu_backward"
SOURCE = Source("""
#include <cuda_fp16.h>

extern "C" __global__ void relu(
    const T* x, Int N, T* y, __half* rounded_y, bool* positive
) {
    Int n = PACK * (Int(blockIdx.x) * blockDim.x + threadIdx.x);
    if (n >= N) return;
    Pack values = load(x + n, N - n);
    PackOf<bool> flags;
    PackOf<__half> rounded;
    for (int i = 0; i < PACK; i++) {
        flags.entries[i] = values.entries[i] > 0;
        if (values.entries[i] <= 0) values.entries[i] = 0;
        rounded.entries[i] = __float2half_rn(values.entries[i]);
    }
    store(flags, N - n, positive + n);
    store(values, N - n, y + n);
    if (rounded_y) store(rounded, N - n, rounded_y + n);
}

extern "C" __global__ void relu_backward(const T* dy, const bool* positive, Int N, T* dx) {
    Int n = PACK * (Int(blockIdx.x) * blockDim.x + threadIdx.x);
    if (n >= N) return;
    Pack d = load(dy + n, N - n);
    PackOf<bool> flags = load(positive + n, N - n);
    for (int i = 0; i < PACK; i++) d.entries[i] *= T(flags.entries[i]);
    store(d, N - n, dx + n);
}
""")


def relu(x):
    """See numformer.paper.feed_forward."""
    (x,) = contiguous(x)
    xp, N = array_module(x), x.size
    y, positive = xp.empty(x.shape, x.dtype), xp.empty(x.shape, bool)
    SOURCE.start("relu", x, *packs_for(x), x, N, y, new_half_rows(y), positive)
    return y, positive


def relu_backward(dy, positive):
    """See numformer.paper.feed_forward."""
    xp, (dy,) = array_module(dy), contiguous(dy)
    if positive.shape != dy.shape:
        positive = xp.broadcast_to(positive, dy.shape)
    (positive,) = contiguous(positive)
    dx, N = xp.empty(dy.shape, dy.dtype), dy.size
    SOURCE.start("relu_backward", dy, *packs_for(dy), dy, positive, N, dx)
    return dx
