"""Layer normalisation: one warp for each row."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, alike, contiguous, warps
from numformer.kernels.half import new_half_rows
from numformer.kernels.sums import column_sums

FORMULAS = "layer_norm", "layer_norm_backward"
SOURCE = Source("""
#include <cuda_fp16.h>

// Loops over the packs of a row that this thread handles; each begins at index `first`.
#define EACH_PACK for (int first = PACK * threadIdx.x; first < D; first += PACK * 32)

extern "C" __global__ void layer_norm(
    const T* x, const T* gamma, const T* beta, double epsilon, Int N, Int D,
    T* y, __half* rounded_y, T* x_hat, T* rstd
) {
    Int n = Int(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;
    x += n * D; y += n * D; x_hat += n * D; rounded_y += rounded_y ? n * D : 0;

    T sum = 0, squares = 0;
    EACH_PACK {
        Pack values = load(x + first, D - first);
        for (T value : values.entries) sum += value;
    }
    T mean = warp_sum(sum) / D;
    EACH_PACK {
        Pack values = load(x + first, D - first, mean);
        for (T value : values.entries) squares += (value - mean) * (value - mean);
    }
    T scale = 1 / sqrt(warp_sum(squares) / D + T(epsilon));
    EACH_PACK {
        Pack values = load(x + first, D - first), g = load(gamma + first, D - first);
        Pack b = load(beta + first, D - first);
        PackOf<__half> rounded;
        for (int i = 0; i < PACK; i++) {
            T normal = (values.entries[i] - mean) * scale;
            values.entries[i] = normal;
            b.entries[i] += g.entries[i] * normal;
            rounded.entries[i] = __float2half_rn(b.entries[i]);
        }
        store(values, D - first, x_hat + first);
        store(b, D - first, y + first);
        if (rounded_y) store(rounded, D - first, rounded_y + first);
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
    EACH_PACK {
        Pack d = load(dy + first, D - first), g = load(gamma + first, D - first);
        Pack normal = load(x_hat + first, D - first);
        for (int i = 0; i < PACK; i++) {
            sum += d.entries[i] * g.entries[i];
            along_x_hat += d.entries[i] * g.entries[i] * normal.entries[i];
        }
    }
    T mean = warp_sum(sum) / D;
    along_x_hat = warp_sum(along_x_hat) / D;
    EACH_PACK {
        Pack d = load(dy + first, D - first), g = load(gamma + first, D - first);
        Pack normal = load(x_hat + first, D - first);
        for (int i = 0; i < PACK; i++)
            d.entries[i] = rstd[n]
                * (d.entries[i] * g.entries[i] - mean - normal.entries[i] * along_x_hat);
        store(d, D - first, dx + first);
    }
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
        *(N, shape[-1], y, new_half_rows(y), x_hat, rstd),
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
