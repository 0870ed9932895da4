"""Softmax over the last axis: one warp for each row."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, alike, contiguous, warps
from numformer.paper.masks import require_mask

FORMULAS = "softmax", "softmax_backward"
SOURCE = Source("""
// Row n is query t of head h of sequence b. Its mask, if there is one, begins at
// b step_b + h step_h + t step_t; its entries are step_s apart.
extern "C" __global__ void softmax(
    const T* scores, const bool* mask, Int step_b, Int step_h, Int step_t, Int step_s,
    Int H, Int queries, Int N, Int S, T* weights
) {
    Int n = Int(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;
    if (mask) mask += n / (queries * H) * step_b + n / queries % H * step_h + n % queries * step_t;
    scores += n * S; weights += n * S;

    // If every entry of a row is masked, highest stays LOWEST and total becomes 1.
    T highest = LOWEST, total = 0;
    for (int s = threadIdx.x; s < S; s += 32)
        if (!mask || mask[s * step_s]) highest = max(highest, scores[s]);
    highest = warp_max(highest);
    for (int s = threadIdx.x; s < S; s += 32)
        if (!mask || mask[s * step_s]) total += exp(scores[s] - highest);
    total = warp_sum(total);
    if (total < 1) total = 1;
    for (int s = threadIdx.x; s < S; s += 32)
        weights[s] = !mask || mask[s * step_s] ? exp(scores[s] - highest) / total : T(0);
}

extern "C" __global__ void softmax_backward(
    const T* dweights, const T* weights, Int N, Int S, T* dscores
) {
    Int n = Int(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;
    dweights += n * S; weights += n * S; dscores += n * S;
    T dot = 0;
    for (int s = threadIdx.x; s < S; s += 32) dot += dweights[s] * weights[s];
    dot = warp_sum(dot);
    for (int s = threadIdx.x; s < S; s += 32) dscores[s] = weights[s] * (dweights[s] - dot);
}
""")


def softmax(scores, mask=None):
    """See numformer.paper.softmax."""
    (scores,) = contiguous(scores)
    weights = array_module(scores).empty(scores.shape, scores.dtype)
    H, queries, S = (1, 1, *scores.shape)[-3:]
    N = scores.size // max(S, 1)
    mask, steps = mask_with_steps(mask, scores)
    SOURCE.start("softmax", scores, *warps(N), scores, mask, *steps, H, queries, N, S, weights)
    return weights


def mask_with_steps(mask, scores):
    """Return the mask, broadcast to scores (..., H, T, S), and its steps along b, h, t and s.

    The steps are in bytes. Raises InputError if the mask is not boolean.
    """
    if mask is None:
        return None, (0, 0, 0, 0)
    require_mask(mask)
    mask = array_module(scores).broadcast_to(mask, scores.shape)
    if mask.ndim > 4:
        (mask,) = contiguous(mask.reshape(-1, *mask.shape[-3:]))
    return mask, (0,) * (4 - mask.ndim) + tuple(mask.strides)  # a boolean is one byte


def softmax_backward(dweights, weights):
    """See numformer.paper.softmax."""
    dweights, weights = alike(dweights, weights)
    dscores, S = array_module(weights).empty(weights.shape, weights.dtype), weights.shape[-1]
    N = weights.size // max(S, 1)
    SOURCE.start("softmax_backward", weights, *warps(N), dweights, weights, N, S, dscores)
    return dscores
