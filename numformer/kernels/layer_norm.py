"""Layer normalisation: one warp for each row."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, alike, contiguous, warps
from numformer.kernels.sums import column_sums

FORMULAS = "layer_norm", "layer_norm_backward"
SOURCE = Source("""
extern "C" __global__ void layer_norm(
    const T* x, const T* gamma, const T* beta, double epsilon, Int N, Int D, T* y, T* x_hat, T* rstd
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
        T normal = (x[d] - mean) * scale;
        x_hat[d] = normal;
        y[d] = gamma[d] * normal + beta[d];
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
    y, x_hat, rstd = xp.empty_like(x), xp.empty_like(x), xp.empty((*x.shape[:-1], 1), x.dtype)
    SOURCE.start(
        *("layer_norm", x, *warps(rstd.size), x, gamma, beta, float(epsilon)),
        *(rstd.size, x.shape[-1], y, x_hat, rstd),
    )
    return y, x_hat, rstd


def layer_norm_backward(dy, x_hat, rstd, gamma):
    """See numformer.paper.layer_norm."""
    dy, x_hat = alike(dy, x_hat)
    _, rstd, gamma = contiguous(dy, rstd, gamma)
    dx, D = array_module(dy).empty_like(dy), dy.shape[-1]
    launch = warps(rstd.size)
    SOURCE.start("layer_norm_backward", dy, *launch, dy, x_hat, rstd, gamma, rstd.size, D, dx)
    dbeta, dgamma = column_sums(dy, x_hat)
    return dx, dgamma, dbeta
