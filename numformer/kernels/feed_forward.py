"""ReLU: one thread for each entry, which reads it once."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, contiguous, threads_for
from numformer.kernels.half import new_rounded

FORMULAS = "relu", "relu_backward"
SOURCE = Source("""
#include <cuda_fp16.h>

extern "C" __global__ void relu(
    const T* x, Int N, T* y, __half* rounded_y, bool* positive
) {
    Int n = Int(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= N) return;
    T value = x[n] <= 0 ? T(0) : x[n];
    positive[n] = x[n] > 0;
    y[n] = value;
    if (rounded_y) rounded_y[n] = __float2half_rn(value);
}

extern "C" __global__ void relu_backward(const T* dy, const bool* positive, Int N, T* dx) {
    Int n = Int(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) dx[n] = dy[n] * T(positive[n]);
}
""")


def relu(x):
    """See numformer.paper.feed_forward."""
    (x,) = contiguous(x)
    xp, N = array_module(x), x.size
    y, positive = xp.empty(x.shape, x.dtype), xp.empty(x.shape, bool)
    SOURCE.start("relu", x, *threads_for(N), x, N, y, new_rounded(y), positive)
    return y, positive


def relu_backward(dy, positive):
    """See numformer.paper.feed_forward."""
    xp, (dy,) = array_module(dy), contiguous(dy)
    if positive.shape != dy.shape:
        positive = xp.broadcast_to(positive, dy.shape)
    (positive,) = contiguous(positive)
    dx, N = xp.empty(dy.shape, dy.dtype), dy.size
    SOURCE.start("relu_backward", dy, *threads_for(N), dy, positive, N, dx)
    return dx
