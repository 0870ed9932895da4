"""Layer normalisation: one warp for each row."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, alike, contiguous, warps
from numformer.kernels.half import new_rounded
from numformer.kernels.sums import column_sums

FORMULAS = "layer_norm", "layer_norm_backward"
SOURCE = Source("""
#include <cuda_fp16.h>

extern "C" __global__ void layer_norm(
    const T* x, const T* gamma, const T* beta, double epsilon, Int N, Int D,
    T* y, __half* rounded_y, T* x_hat, T* rstd
) {
    Int n = Int(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;
    x += n * D; y += n * D; x_hat += n * D;

    T sum = 0, squares = 0;
    #pragma unroll 4
    for (int d = threadIdx.x; d < D; d += 32) sum += x[d];
    T mean = warp_sum(sum) / D;
    #pragma unroll 4
    for (int d = threadIdx.x; d < D; d += 32) squares += (x[d] - mean) * (x[d] - mean);
    T scale = 1 / sqrt(warp_sum(squares) / D + T(epsilon));
    #pragma unroll 4
    for (int d = threadIdx.x; d < D; d += 32) {
        T normal = (x[d] - mean) * scale, value = gamma[d] * normal + beta[d];
        x_hat[d] = normal;
        y[d] = value;
        if (rounded_y) rounded_y[n * D + d] = __float2half_rn(value);
    }
    if (threadIdx.x == 0) rstd[n] = scale;
}

extern "C" __global__ void layer_norm_backward(
    const T* dy, const T* x_hat, const T* rstd, const T* gamma, Int N, Int D, T* dx
) {
    Int n = Int(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;
    dy += n * D; x_hat += n * D; dx += n * D;

    T sum = 0, along_x_hat = 0;
    #pragma unroll 4
    for (int d = threadIdx.x; d < D; d += 32) {
        sum += dy[d] * gamma[d];
        along_x_hat += dy[d] * gamma[d] * x_hat[d];
    }
    T mean = warp_sum(sum) / D;
    along_x_hat = warp_sum(along_x_hat) / D;
    #pragma unroll 4
    for (int d = threadIdx.x; d < D; d += 32)
        dx[d] = rstd[n] * (dy[d] * gamma[d] - mean - x_hat[d] * along_x_hat);
}
""")


def layer_norm(x, gamma, beta, epsilon):
    """See numformer.paper.layer_norm."""
    xp = array_module(x)
    x, gamma, beta = contiguous(x, gamma, beta)
    shape, dtype = x.shape, x.dtype
    y, x_hat = xp.empty(shape, dtype), xp.empty(shape, dtype)
    rstd = xp.empty((*shape[:-1], 1), dtype)
    N = rstd.size
    SOURCE.start(
        *("layer_norm", x, *warps(N), x, gamma, beta, float(epsilon)),
        *(N, shape[-1], y, new_rounded(y), x_hat, rstd),
    )
    return y, x_hat, rstd


def layer_norm_backward(dy, x_hat, rstd, gamma):
    """See numformer.paper.layer_norm."""
    dy, x_hat = alike(dy, x_hat)
    _, rstd, gamma = contiguous(dy, rstd, gamma)
    dx, N, D = array_module(dy).empty(dy.shape, dy.dtype), rstd.size, dy.shape[-1]
    SOURCE.start("layer_norm_backward", dy, *warps(N), dy, x_hat, rstd, gamma, N, D, dx)
    sums = column_sums(dy, x_hat)
    return dx, sums[1], sums[0]
