"""Embeddings: reading rows by id, and adding up the gradients of equal ids."""

import math

import numpy as np

from numformer.arithmetic import rows
from numformer.backend import array_module
from numformer.kernels.cuda import Source, contiguous

FORMULAS = "embed", "embed_backward", "scatter_add"
MAX_PAIRS = 1 << 20  # up to this many (row, id) pairs, comparing all is faster than sorting ids
SOURCE = Source("""
extern "C" __global__ void embed(const Int* ids, const T* weight, double factor, Int D, T* x) {
    Int n = blockIdx.x;
    x += n * D; weight += ids[n] * D;
    for (Int d = threadIdx.x; d < D; d += blockDim.x) x[d] = weight[d] * T(factor);
}

// target[v] += factor * values[n] for every n with ids[n] = v: one block for each row v.
extern "C" __global__ void add_where_equal(
    const Int* ids, const T* values, double factor, Int N, Int D, T* target
) {
    Int v = blockIdx.x;
    for (Int d = threadIdx.x; d < D; d += blockDim.x) {
        T sum = 0;
        for (Int n = 0; n < N; n++)
            if (ids[n] == v) sum += values[n * D + d];
        target[v * D + d] += T(factor) * sum;
    }
}

// The first n with ids[n] >= v, by binary search.
__device__ Int first_from(Int v, const Int* ids, Int N) {
    Int first = 0, last = N;
    while (first < last) {
        Int middle = (first + last) / 2;
        if (ids[middle] < v) first = middle + 1; else last = middle;
    }
    return first;
}

// Like add_where_equal, but for ids in ascending order; values[order[n]] belongs to ids[n].
extern "C" __global__ void add_runs(
    const Int* ids, const Int* order, const T* values, double factor, Int N, Int D, T* target
) {
    Int v = blockIdx.x, first = first_from(v, ids, N), last = first_from(v + 1, ids, N);
    if (first == last) return;
    for (Int d = threadIdx.x; d < D; d += blockDim.x) {
        T sum[4] = {0, 0, 0, 0};
        Int n = first;
        for (; n + 4 <= last; n += 4)  // four sums, which do not wait for each other
            for (int i = 0; i < 4; i++) sum[i] += values[order[n + i] * D + d];
        for (; n < last; n++) sum[0] += values[order[n] * D + d];
        target[v * D + d] += T(factor) * ((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}
""")


def _threads(D: int) -> tuple[int]:
    return (min(256, -(-D // 32) * 32),)


def embed(ids, weight):
    """See numformer.paper.embedding."""
    (ids,), (weight,) = contiguous(ids.astype(np.int64, copy=False)), contiguous(weight)
    D = weight.shape[1]
    x = array_module(weight).empty((*ids.shape, D), weight.dtype)
    SOURCE.start("embed", weight, (ids.size,), _threads(D), ids, weight, math.sqrt(D), D, x)
    return x


def embed_backward(dx, ids, dweight) -> None:
    """See numformer.paper.embedding."""
    _scatter_add(dweight, ids.ravel(), rows(dx), math.sqrt(dx.shape[-1]))


def scatter_add(target, ids, values) -> None:
    """See numformer.arithmetic."""
    _scatter_add(target, ids, values, 1.0)


def _scatter_add(target, ids, values, factor: float) -> None:
    xp, (ids,) = array_module(target), contiguous(ids.astype(np.int64, copy=False))
    sums, values = contiguous(target, values)
    (V, D), N = target.shape, len(ids)
    launch, arguments = ((V,), _threads(D)), (values, factor, N, D, sums)
    if N * V <= MAX_PAIRS:
        SOURCE.start("add_where_equal", target, *launch, ids, *arguments)
    else:
        order = xp.argsort(ids, kind="stable")
        SOURCE.start("add_runs", target, *launch, ids[order], order, *arguments)
    if sums is not target:
        target[...] = sums
