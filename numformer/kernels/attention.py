"""Scaled dot-product attention: one block of threads computes one head of one sequence.

Heads too large for a block's shared memory are computed by matrix products and the softmax kernel.
"""

import math

from numformer.arithmetic import transpose
from numformer.backend import array_module
from numformer.kernels.copies import as_contiguous
from numformer.kernels.cuda import Source
from numformer.kernels.products import product
from numformer.kernels.softmax import mask_with_steps, softmax, softmax_backward

FORMULAS = "scaled_dot_product_attention", "scaled_dot_product_attention_backward"
LARGEST = {"f": 64, "d": 32}  # by dtype, the largest T, S, K, K_v that fit shared memory
THREADS = 16, 16
SOURCE = Source("""
// 16 x 16 threads compute a matrix of at most LARGEST rows and columns; each computes PACK x PACK
// adjacent entries. In shared memory, the rows of a matrix begin PITCH entries apart.
const int LARGEST = 16 * PACK, PITCH = LARGEST + PACK;
typedef T Entries[PACK][PACK];
#define EACH_ENTRY for (int i = 0, row = PACK * threadIdx.y; i < PACK; i++, row++) \\
                   for (int j = 0, column = PACK * threadIdx.x; j < PACK; j++, column++)

// Copies a head x (rows, columns) or its transpose into shared memory. The rows of x begin row_step
// entries apart.
template <bool transposed = false>
__device__ void read(const T* x, Int row_step, int rows, int columns, T* shared) {
    __syncthreads();  // until every thread has read the old contents
    for (int row = threadIdx.y; row < rows; row += 16)
        for (int column = threadIdx.x; column < columns; column += 16)
            shared[transposed ? column * PITCH + row : row * PITCH + column]
                = x[row * row_step + column];
    __syncthreads();
}

template <bool transposed = false> __device__ void share(const Entries& entries, T* shared) {
    __syncthreads();
    shared += PACK * (transposed ? threadIdx.x * PITCH + threadIdx.y
                                 : threadIdx.y * PITCH + threadIdx.x);
    for (int i = 0; i < PACK; i++) {
        Pack pack;
        for (int j = 0; j < PACK; j++) pack.entries[j] = transposed ? entries[j][i] : entries[i][j];
        *reinterpret_cast<Pack*>(shared + i * PITCH) = pack;
    }
    __syncthreads();
}

__device__ void write(
    const Entries& entries, T factor, Int row_step, int rows, int columns, T* x
) {
    int row = PACK * threadIdx.y, column = PACK * threadIdx.x;
    for (int i = 0; i < PACK && row + i < rows; i++) {
        Pack pack;
        for (int j = 0; j < PACK; j++) pack.entries[j] = factor * entries[i][j];
        store(pack, columns - column, x + (row + i) * row_step + column);
    }
}

// c[row][column] = sum over n < N of a[n][row] b[n][column]
__device__ void multiply(const T* a, const T* b, int N, Entries& c) {
    for (int i = 0; i < PACK; i++) for (int j = 0; j < PACK; j++) c[i][j] = 0;
    a += PACK * threadIdx.y;
    b += PACK * threadIdx.x;
    #pragma unroll 4
    for (int n = 0; n < N; n++, a += PITCH, b += PITCH) {
        Pack x = *reinterpret_cast<const Pack*>(a), y = *reinterpret_cast<const Pack*>(b);
        for (int i = 0; i < PACK; i++)
            for (int j = 0; j < PACK; j++) c[i][j] += x.entries[i] * y.entries[j];
    }
}

// The 16 threads that share a row are neighbours in a warp.
__device__ T row_sum(T value) {
    for (int lanes = 8; lanes; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
    return value;
}

__device__ T row_max(T value) {
    for (int lanes = 8; lanes; lanes /= 2)
        value = max(value, __shfl_xor_sync(0xffffffff, value, lanes));
    return value;
}

// query_b, query_h and query_t are strides in entries: to the next sequence, head and position.
extern "C" __global__ void attention(
    const T* query, Int query_b, Int query_h, Int query_t,
    const T* key, Int key_b, Int key_h, Int key_s,
    const T* value, Int value_b, Int value_h, Int value_s,
    const bool* mask, Int mask_b, Int mask_h, Int mask_t, Int mask_s,
    double scale, Int H, Int queries, Int keys, Int K, Int K_v,
    T* output, Int output_b, Int output_h, Int output_t, T* weights
) {
    __shared__ alignas(16) T left[LARGEST * PITCH];
    __shared__ alignas(16) T right[LARGEST * PITCH];
    Int head = blockIdx.x, b = head / H, h = head % H;
    Entries w;

    read<true>(query + b * query_b + h * query_h, query_t, queries, K, left);
    read<true>(key + b * key_b + h * key_h, key_s, keys, K, right);
    multiply(left, right, K, w);  // scores = Q K^T / sqrt(d_k)
    if (mask) mask += b * mask_b + h * mask_h;
    for (int i = 0, t = PACK * threadIdx.y; i < PACK; i++, t++) {
        // If every entry of a row is masked, highest stays LOWEST and every weight becomes 0.
        T highest = LOWEST, total = 0;
        bool allowed[PACK];
        for (int j = 0, s = PACK * threadIdx.x; j < PACK; j++, s++) {
            allowed[j] = t < queries && s < keys && (!mask || mask[t * mask_t + s * mask_s]);
            w[i][j] *= T(scale);
            if (allowed[j]) highest = max(highest, w[i][j]);
        }
        highest = row_max(highest);
        for (int j = 0; j < PACK; j++)
            total += w[i][j] = allowed[j] ? exp(w[i][j] - highest) : T(0);
        total = row_sum(total);
        if (total < 1) total = 1;
        for (int j = 0; j < PACK; j++) w[i][j] /= total;
    }
    write(w, 1, keys, queries, keys, weights + head * queries * keys);

    share<true>(w, left);
    read(value + b * value_b + h * value_h, value_s, keys, K_v, right);
    multiply(left, right, keys, w);  // output = weights V
    write(w, 1, output_t, queries, K_v, output + b * output_b + h * output_h);
}

extern "C" __global__ void __launch_bounds__(256, 3) attention_backward(
    const T* doutput, Int doutput_b, Int doutput_h, Int doutput_t,
    const T* query, Int query_b, Int query_h, Int query_t,
    const T* key, Int key_b, Int key_h, Int key_s,
    const T* value, Int value_b, Int value_h, Int value_s,
    const T* weights, double scale, Int H, Int queries, Int keys, Int K, Int K_v,
    T* dquery, T* dkey, T* dvalue
) {
    __shared__ alignas(16) T left[LARGEST * PITCH];
    __shared__ alignas(16) T right[LARGEST * PITCH];
    Int head = blockIdx.x, b = head / H, h = head % H;
    Entries w, dw, result;
    weights += head * queries * keys;
    EACH_ENTRY w[i][j] = row < queries && column < keys ? weights[row * keys + column] : T(0);

    doutput += b * doutput_b + h * doutput_h;
    read<true>(doutput, doutput_t, queries, K_v, left);
    read<true>(value + b * value_b + h * value_h, value_s, keys, K_v, right);
    multiply(left, right, K_v, dw);  // output = weights V
    share(w, right);
    read(doutput, doutput_t, queries, K_v, left);
    multiply(right, left, queries, result);  // output = weights V
    write(result, 1, value_s, keys, K_v, dvalue + b * value_b + h * value_h);

    EACH_ENTRY if (row >= queries || column >= keys) dw[i][j] = 0;
    for (int i = 0; i < PACK; i++) {  // weights = softmax(scores)
        T dot = 0;
        for (int j = 0; j < PACK; j++) dot += dw[i][j] * w[i][j];
        dot = row_sum(dot);
        for (int j = 0; j < PACK; j++) dw[i][j] = w[i][j] * (dw[i][j] - dot);
    }
    share<true>(dw, right);
    read(key + b * key_b + h * key_h, key_s, keys, K, left);
    multiply(right, left, keys, result);  // scores = Q K^T / sqrt(d_k)
    write(result, T(scale), query_t, queries, K, dquery + b * query_b + h * query_h);
    share(dw, right);
    read(query + b * query_b + h * query_h, query_t, queries, K, left);
    multiply(right, left, queries, result);  // scores = Q K^T / sqrt(d_k)
    write(result, T(scale), key_s, keys, K, dkey + b * key_b + h * key_h);
}
""")


def scaled_dot_product_attention(query, key, value, mask=None):
    """See numformer.paper.attention."""
    scale = 1 / math.sqrt(query.shape[-1])
    if not _fits(query, key, value):
        weights = softmax(product(query, transpose(key), scale), mask)
        return product(weights, value), weights
    (query, key, value), sizes = _as_plain(query, key, value)
    B, H, queries, _ = query.shape
    weights = array_module(query).empty((B, H, queries, key.shape[2]), query.dtype)
    output = _empty((B, H, queries, value.shape[3]), like=query)
    mask, mask_steps = mask_with_steps(mask, weights)
    SOURCE.start(
        *("attention", query, (B * H,), THREADS),
        *(*_with_steps(query), *_with_steps(key), *_with_steps(value)),
        *(mask, *mask_steps, scale, H, *sizes, *_with_steps(output), weights),
    )
    return output, weights


def scaled_dot_product_attention_backward(doutput, query, key, value, weights):
    """See numformer.paper.attention."""
    scale = 1 / math.sqrt(query.shape[-1])
    shape_fits = doutput.shape == (*query.shape[:-1], value.shape[-1])
    if not shape_fits or doutput.dtype != query.dtype or not _fits(query, key, value):
        dvalue = product(transpose(weights), doutput)
        dweights = product(doutput, transpose(value))
        dscores = softmax_backward(dweights, weights)
        return product(dscores, key, scale), product(transpose(dscores), query, scale), dvalue
    (query, key, value), sizes = _as_plain(query, key, value)
    (doutput,), _ = _as_plain(doutput)
    B, H = query.shape[:2]
    gradients = [_empty(x.shape, like=x) for x in (query, key, value)]
    heads = (number for x in (doutput, query, key, value) for number in _with_steps(x))
    SOURCE.start(
        *("attention_backward", query, (B * H,), THREADS),
        *(*heads, as_contiguous(weights), scale, H, *sizes, *gradients),
    )
    return tuple(gradients)


def _fits(query, key, value) -> bool:
    """Whether every head is small enough for a block's shared memory."""
    if query.ndim != 4 or not query.dtype == key.dtype == value.dtype:
        return False
    B, H, queries, K = query.shape
    keys, K_v = value.shape[-2:]
    sizes = max(queries, keys, K, K_v)
    shapes = (key.shape, value.shape) == ((B, H, keys, K), (B, H, keys, K_v))
    return shapes and sizes <= LARGEST.get(query.dtype.char, 0)


def _as_plain(*heads):
    """Return the arrays (B, H, T, K), copied unless `_is_plain`, and their T, S, K and K_v."""
    plain = [x if _is_plain(x) else as_contiguous(x) for x in heads]
    return plain, (plain[0].shape[2], plain[-1].shape[2], plain[0].shape[3], plain[-1].shape[3])


def _is_plain(x) -> bool:
    """Whether x (B, H, T, K) lies in memory as (B, H, T, K) or (B, T, H, K), without gaps."""
    _, H, T, K = x.shape
    size = x.itemsize
    side_by_side = x.strides == (T * H * K * size, K * size, H * K * size, size)
    return side_by_side or x.flags.c_contiguous


def _empty(shape: tuple[int, ...], like):
    """Return a new array (B, H, T, K) with the memory order of `like`, which must be plain."""
    xp, (B, H, T, K) = array_module(like), shape
    if like.flags.c_contiguous:
        return xp.empty(shape, like.dtype)
    return xp.empty((B, T, H, K), like.dtype).swapaxes(1, 2)


def _with_steps(x) -> tuple:
    """x (B, H, T, K) -> x, and its strides in entries: to the next sequence, head, position."""
    size = x.itemsize
    step_b, step_h, step_t, _ = x.strides
    return x, step_b // size, step_h // size, step_t // size
