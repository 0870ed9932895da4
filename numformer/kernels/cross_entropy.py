"""Cross-entropy with label smoothing: one block of threads for each row of logits."""

import numpy as np

from numformer.backend import array_module
from numformer.kernels.cuda import Source, contiguous

FORMULAS = "cross_entropy", "cross_entropy_backward"
SOURCE = Source("""
// Returns, in every thread of a block, the sum or the maximum of the threads' values.
template <bool largest> __device__ T over_block(T value) {
    __shared__ T results[32];
    value = largest ? warp_max(value) : warp_sum(value);
    __syncthreads();  // until every thread has read the results of the previous call
    if (threadIdx.x % 32 == 0) results[threadIdx.x / 32] = value;
    __syncthreads();
    value = largest ? LOWEST : T(0);
    if (threadIdx.x % 32 < blockDim.x / 32) value = results[threadIdx.x % 32];
    return largest ? warp_max(value) : warp_sum(value);
}

// Loops over the packs of a row that this thread handles; each begins at index `first`.
#define EACH_PACK for (int first = PACK * threadIdx.x; first < V; first += PACK * blockDim.x)

extern "C" __global__ void cross_entropy(
    const T* logits, const Int* targets, double smoothing, Int V,
    T* losses, T* exponentials, T* total
) {
    Int n = blockIdx.x;
    int target = targets[n];
    logits += n * V; exponentials += n * V;
    T at_target = logits[target];  // exponentials may be written over the logits
    T highest = LOWEST, sum = 0, spread = 0;
    EACH_PACK {
        Pack x = load(logits + first, V - first, LOWEST);
        for (T logit : x.entries) highest = max(highest, logit);
    }
    highest = over_block<true>(highest);
    EACH_PACK {
        Pack x = load(logits + first, V - first);
        for (int i = 0; i < PACK; i++) {
            T shifted = x.entries[i] - highest;
            x.entries[i] = exp(shifted);
            if (first + i < V) spread += shifted, sum += x.entries[i];
        }
        store(x, V - first, exponentials + first);
    }
    sum = over_block<false>(sum);
    spread = smoothing ? T(smoothing) * over_block<false>(spread) / V : T(0);
    if (threadIdx.x == 0) {
        total[n] = sum;
        losses[n] = log(sum) - (1 - T(smoothing)) * (at_target - highest) - spread;
    }
}

extern "C" __global__ void cross_entropy_backward(
    T* exponentials, const T* total, const Int* targets, const T* dlosses, double smoothing, Int V
) {
    Int n = blockIdx.x;
    int target = targets[n];
    exponentials += n * V;
    T p_factor = dlosses[n] / total[n], common = dlosses[n] * T(smoothing) / V;
    T at_target = dlosses[n] * (1 - T(smoothing));
    EACH_PACK {
        Pack x = load(exponentials + first, V - first);
        for (int i = 0; i < PACK; i++)
            x.entries[i] = x.entries[i] * p_factor - common - (first + i == target ? at_target : 0);
        store(x, V - first, exponentials + first);
    }
}
""")


def _blocks_of_rows(logits) -> tuple[tuple[int], tuple[int]]:
    """Return one block per row; long rows get more threads, so that fewer rows share the cache."""
    rows, V = logits.shape
    return (rows,), (min(1024, max(32, V // 8 // 32 * 32)),)


def cross_entropy(logits, targets, share, smoothing, out=None):
    """See numformer.paper.cross_entropy."""
    xp, (logits,) = array_module(logits), contiguous(logits)
    exponentials = xp.empty(logits.shape, logits.dtype) if out is None else out
    losses, total = (xp.empty(shape, logits.dtype) for shape in (len(logits), (len(logits), 1)))
    V = logits.shape[1]
    (targets,) = contiguous(targets.astype(np.int64, copy=False))
    SOURCE.start(
        *("cross_entropy", logits, *_blocks_of_rows(logits), logits, targets, float(smoothing), V),
        *(losses, exponentials, total),
    )
    return losses @ share, exponentials, total


def cross_entropy_backward(dlosses, exponentials, total, targets, smoothing):
    """See numformer.paper.cross_entropy."""
    launch, V = _blocks_of_rows(exponentials), exponentials.shape[1]
    _, total, dlosses = contiguous(exponentials, total, dlosses)
    (targets,) = contiguous(targets.astype(np.int64, copy=False))
    SOURCE.start(
        *("cross_entropy_backward", exponentials, *launch, exponentials, total, targets),
        *(dlosses, float(smoothing), V),
    )
    return exponentials
