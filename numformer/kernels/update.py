"""Kernels before and after an update: gradient norm, loss scale, undoing a non-finite step."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, contiguous, threads_for

FORMULAS = "norm_of", "clip_factor", "next_scale", "all_finite", "restore"
SOURCE = Source("""
extern "C" __global__ void norm_of(const T* squares, Int M, T* norm) {
    T sum = 0;
    for (Int m = 0; m < M; m++) sum += squares[m];
    *norm = sqrt(sum);
}

extern "C" __global__ void clip_factor(const T* norm, double max_norm, T* factor) {
    *factor = *norm <= T(max_norm) ? T(1) : T(max_norm) / *norm;
}

extern "C" __global__ void next_scale(
    const T* loss, const T* norm, const T* scale, const T* finite_steps,
    Int growth_interval, double largest, bool* skipped, T* state
) {
    bool skips = isfinite(*loss) && !isfinite(*norm) && *scale > 1;
    T steps = *finite_steps + 1;
    bool grows = steps == growth_interval;
    *skipped = skips;
    state[0] = skips ? *scale / 2 : grows ? min(2 * *scale, T(largest)) : *scale;
    state[1] = skips || grows ? 0 : steps;
}

extern "C" __global__ void all_finite(
    const T* loss, const T* norm, const bool* before, bool* result
) {
    *result = isfinite(*loss) && isfinite(*norm) && (!before || *before);
}

extern "C" __global__ void restore(const T* values, const bool* moves, Int N, T* vector) {
    Int n = Int(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N && !*moves) vector[n] = values[n];
}
""")
ONE_THREAD = (1,), (1,)


def norm_of(squares):
    """See numformer.optimization.clipping."""
    (squares,), norm = contiguous(squares), array_module(squares).empty((), squares.dtype)
    SOURCE.start("norm_of", squares, *ONE_THREAD, squares, squares.size, norm)
    return norm


def clip_factor(norm, max_norm):
    """See numformer.optimization.clipping."""
    factor = array_module(norm).empty((), norm.dtype)
    SOURCE.start("clip_factor", norm, *ONE_THREAD, norm, float(max_norm), factor)
    return factor


def next_scale(loss, norm, scale, finite_steps, growth_interval: int, largest: float):
    """See numformer.optimization.loss_scale."""
    xp = array_module(scale)
    scale, finite_steps, loss, norm = contiguous(scale, finite_steps, loss, norm)
    skipped, state = xp.empty((), bool), xp.empty(2, scale.dtype)
    arguments = loss, norm, scale, finite_steps, growth_interval, float(largest), skipped, state
    SOURCE.start("next_scale", scale, *ONE_THREAD, *arguments)
    return skipped, *state


def all_finite(loss, norm, before):
    """See numformer.training.broken_numbers."""
    (loss, norm), result = contiguous(loss, norm), array_module(norm).empty((), bool)
    before = None if before is True else before
    SOURCE.start("all_finite", loss, *ONE_THREAD, loss, norm, before, result)
    return result


def restore(vector, values, moves) -> None:
    """See numformer.training.broken_numbers."""
    N = vector.size
    SOURCE.start("restore", vector, *threads_for(N), values, moves, N, vector)
