"""Rotary positions: one warp for each query or key; one thread rotates each pair of its entries."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, contiguous, warps

FORMULAS = "rotary", "rotary_backward"
SOURCE = Source("""
struct Turn { T cos, sin; };

// x (B, H, T, K) has strides x_b, x_h, x_t and x_k, in entries; y has strides y_b to y_k. The
// direction is 1, or -1 for the inverse rotation.
extern "C" __global__ void rotary(
    const T* x, Int x_b, Int x_h, Int x_t, Int x_k, const Turn* turns, double direction,
    Int H, Int length, Int pairs, Int N, T* y, Int y_b, Int y_h, Int y_t, Int y_k
) {
    unsigned n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    unsigned t = n % unsigned(length), head = n / unsigned(length);
    unsigned h = head % unsigned(H), b = head / unsigned(H);
    x += b * x_b + h * x_h + t * x_t; y += b * y_b + h * y_h + t * y_t; turns += t * pairs;
    for (Int j = threadIdx.x; j < pairs; j += 32) {
        T u = x[2 * j * x_k], v = x[(2 * j + 1) * x_k];
        T c = turns[j].cos, s = T(direction) * turns[j].sin;
        y[2 * j * y_k] = u * c - v * s;
        y[(2 * j + 1) * y_k] = u * s + v * c;
    }
}
""")


def rotary(x, turns):
    """See numformer.later.attention.rotary."""
    return _rotate(x, turns, 1.0)


def rotary_backward(dy, turns):
    """See numformer.later.attention.rotary."""
    return _rotate(dy, turns, -1.0)


def _rotate(x, turns, direction: float):
    if x.ndim != 4:
        return _rotate(x.reshape(-1, 1, *x.shape[-2:]), turns, direction).reshape(x.shape)
    size, (B, H, length, K) = x.itemsize, x.shape
    # y has the memory order of x, so heads that are side by side in x are side by side in y.
    y, N, (turns,) = array_module(x).empty_like(x), B * H * length, contiguous(turns)
    x_steps, y_steps = ([step // size for step in array.strides] for array in (x, y))
    sizes = H, length, K // 2, N
    SOURCE.start("rotary", x, *warps(N), x, *x_steps, turns, direction, *sizes, y, *y_steps)
    return y
