"""Sums over all axes but the last, and over the blocks of a vector."""

from numformer.backend import array_module
from numformer.kernels.cuda import Source, alike, contiguous

FORMULAS = "sum_rows", "dot_rows", "block_squares"
STRETCH = 768  # rows that one block of threads adds
MOST_BLOCKS = 65535  # CUDA's limit on a grid's blocks along y
SOURCE = Source("""
// Writes, for each stretch of rows, the sum of a and then, if b is given, the sum of a * b.
extern "C" __global__ void column_sums(
    const T* a, const T* b, Int N, Int D, Int stretch, T* sums
) {
    __shared__ T partial_sums[32][33], partial_products[32][33];
    Int d = Int(blockIdx.x) * 32 + threadIdx.x, first = Int(blockIdx.y) * stretch;
    T sum = 0, product = 0;
    if (d < D)
        for (Int n = first + threadIdx.y; n < min(N, first + stretch); n += 32) {
            sum += a[n * D + d];
            if (b) product += a[n * D + d] * b[n * D + d];
        }
    partial_sums[threadIdx.y][threadIdx.x] = sum;
    partial_products[threadIdx.y][threadIdx.x] = product;
    __syncthreads();

    // Now each warp adds the 32 partial sums of one column.
    sum = warp_sum(partial_sums[threadIdx.x][threadIdx.y]);
    product = warp_sum(partial_products[threadIdx.x][threadIdx.y]);
    d = Int(blockIdx.x) * 32 + threadIdx.y;
    if (threadIdx.x == 0 && d < D) {
        sums += Int(blockIdx.y) * (b ? 2 * D : D);
        sums[d] = sum;
        if (b) sums[D + d] = product;
    }
}

extern "C" __global__ void block_squares(const T* vector, Int N, Int size, T* squares) {
    __shared__ T warp_sums[32];
    Int first = Int(blockIdx.x) * size;
    T sum = 0;
    for (Int n = first + threadIdx.x; n < min(N, first + size); n += blockDim.x)
        sum += vector[n] * vector[n];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) sum = warp_sum(warp_sums[threadIdx.x]);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}
""")


def column_sums(a, b=None):
    """a, b (..., D) -> sums of a and a * b over all axes but the last, (2, D); without b, (1, D).

    The rows of each stretch of adjacent rows are added first, then the sums of the stretches.
    """
    a, *others = contiguous(a) if b is None else alike(a, b)
    kinds, D = 1 + len(others), a.shape[-1]
    N = a.size // D
    stretch = max(STRETCH, -(-N // MOST_BLOCKS))
    sums = _stretch_sums(a, *others, kinds=kinds, N=N, D=D, stretch=stretch)
    if len(sums) > 1:
        sums = _stretch_sums(sums, kinds=1, N=len(sums), D=kinds * D, stretch=len(sums))
    return sums.reshape(kinds, D)


def _stretch_sums(a, b=None, *, kinds: int, N: int, D: int, stretch: int):
    stretches = max(1, -(-N // stretch))
    sums = array_module(a).empty((stretches, kinds, D), a.dtype)
    blocks = -(-D // 32), stretches
    SOURCE.start("column_sums", a, blocks, (32, 32), a, b, N, D, stretch, sums)
    return sums


def sum_rows(x):
    """See numformer.arithmetic."""
    return column_sums(x)[0]


def dot_rows(a, b):
    """See numformer.arithmetic."""
    return column_sums(a, b)[1]


def block_squares(vector, blocks):
    """See numformer.optimization.clipping; all blocks but the last have the same size."""
    first, size = blocks[0].start, blocks[0].stop - blocks[0].start
    stretch = vector[first : blocks[-1].stop]
    squares = array_module(vector).empty(len(blocks), vector.dtype)
    SOURCE.start(
        "block_squares", vector, (len(blocks),), (1024,), stretch, len(stretch), size, squares
    )
    return squares
