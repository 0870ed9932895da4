"""Scaled dot-product attention: one block of threads computes one head of one sequence.

Heads too large for a block's memory are computed by matrix products and the softmax kernel.
"""

import math

from numformer.arithmetic import transpose
from numformer.backend import array_module
from numformer.kernels.copies import as_contiguous
from numformer.kernels.cuda import Source
from numformer.kernels.products import product
from numformer.kernels.softmax import mask_with_steps, softmax, softmax_backward

FORMULAS = "scaled_dot_product_attention", "scaled_dot_product_attention_backward"
LARGEST = {"f": 64, "d": 32}  # by dtype, the largest T, S, K and K_v that fit a block's memory
THREADS = 16, 16
SOURCE = Source("""
// 16 x 16 threads compute a matrix of at most LARGEST rows and columns. Each thread computes
// SIDE x SIDE entries: in rows threadIdx.y, threadIdx.y + 16, ... and in columns threadIdx.x,
// threadIdx.x + 16, ... In the block's memory the rows of a matrix begin PITCH entries apart.
const int LARGEST = sizeof(T) == 4 ? 64 : 32, SIDE = LARGEST / 16, PITCH = LARGEST + 1;
#define EACH_ENTRY for (int i = 0, row = threadIdx.y; i < SIDE; i++, row += 16) \\
                   for (int j = 0, column = threadIdx.x; j < SIDE; j++, column += 16)

// Copies a head x (rows, columns) into the block's memory; its rows begin row_step entries apart.
__device__ void read(const T* x, Int row_step, int rows, int columns, T* shared) {
    __syncthreads();  // until every thread has used what is there
    for (int n = threadIdx.y * 16 + threadIdx.x; n < rows * columns; n += 256)
        shared[n / columns * PITCH + n % columns] = x[n / columns * row_step + n % columns];
    __syncthreads();
}

__device__ void share(const T (&entries)[SIDE][SIDE], T* shared) {
    __syncthreads();
    EACH_ENTRY shared[row * PITCH + column] = entries[i][j];
    __syncthreads();
}

__device__ void write(
    const T (&entries)[SIDE][SIDE], T factor, Int row_step, int rows, int columns, T* x
) {
    EACH_ENTRY
        if (row < rows && column < columns) x[row * row_step + column] = factor * entries[i][j];
}

// c[row][column] = sum_n a[row * a_row + n * a_n] b[column * b_column + n * b_n]
__device__ void multiply(
    const T* a, int a_row, int a_n, const T* b, int b_column, int b_n, int N, T (&c)[SIDE][SIDE]
) {
    for (int i = 0; i < SIDE; i++) for (int j = 0; j < SIDE; j++) c[i][j] = 0;
    a += threadIdx.y * a_row;
    b += threadIdx.x * b_column;
    #pragma unroll 4
    for (int n = 0; n < N; n++, a += a_n, b += b_n) {
        T x[SIDE], y[SIDE];
        for (int i = 0; i < SIDE; i++) x[i] = a[16 * i * a_row], y[i] = b[16 * i * b_column];
        for (int i = 0; i < SIDE; i++) for (int j = 0; j < SIDE; j++) c[i][j] += x[i] * y[j];
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
    __shared__ T left[LARGEST * PITCH], right[LARGEST * PITCH];
    Int head = blockIdx.x, b = head / H, h = head % H;
    T w[SIDE][SIDE];

    read(query + b * query_b + h * query_h, query_t, queries, K, left);
    read(key + b * key_b + h * key_h, key_s, keys, K, right);
    multiply(left, PITCH, 1, right, PITCH, 1, K, w);
    if (mask) mask += b * mask_b + h * mask_h;
    for (int i = 0, t = threadIdx.y; i < SIDE; i++, t += 16) {
        // If every entry of a row is masked, highest stays LOWEST and every weight becomes 0.
        T highest = LOWEST, total = 0;
        bool allowed[SIDE];
        for (int j = 0, s = threadIdx.x; j < SIDE; j++, s += 16) {
            allowed[j] = t < queries && s < keys && (!mask || mask[t * mask_t + s * mask_s]);
            w[i][j] *= T(scale);
            if (allowed[j]) highest = max(highest, w[i][j]);
        }
        highest = row_max(highest);
        for (int j = 0; j < SIDE; j++)
            total += w[i][j] = allowed[j] ? exp(w[i][j] - highest) : T(0);
        total = row_sum(total);
        if (total < 1) total = 1;
        for (int j = 0; j < SIDE; j++) w[i][j] /= total;
    }
    write(w, 1, keys, queries, keys, weights + head * queries * keys);

    share(w, left);
    read(value + b * value_b + h * value_h, value_s, keys, K_v, right);
    multiply(left, PITCH, 1, right, 1, PITCH, keys, w);
    write(w, 1, output_t, queries, K_v, output + b * output_b + h * output_h);
}

extern "C" __global__ void attention_backward(
    const T* doutput, Int doutput_b, Int doutput_h, Int doutput_t,
    const T* query, Int query_b, Int query_h, Int query_t,
    const T* key, Int key_b, Int key_h, Int key_s,
    const T* value, Int value_b, Int value_h, Int value_s,
    const T* weights, double scale, Int H, Int queries, Int keys, Int K, Int K_v,
    T* dquery, T* dkey, T* dvalue
) {
    __shared__ T left[LARGEST * PITCH], right[LARGEST * PITCH];
    Int head = blockIdx.x, b = head / H, h = head % H;
    T w[SIDE][SIDE], dw[SIDE][SIDE], result[SIDE][SIDE];
    weights += head * queries * keys;
    EACH_ENTRY w[i][j] = row < queries && column < keys ? weights[row * keys + column] : T(0);

    read(doutput + b * doutput_b + h * doutput_h, doutput_t, queries, K_v, left);
    read(value + b * value_b + h * value_h, value_s, keys, K_v, right);
    multiply(left, PITCH, 1, right, PITCH, 1, K_v, dw);  // output = weights V
    share(w, right);
    multiply(right, 1, PITCH, left, 1, PITCH, queries, result);  // output = weights V
    write(result, 1, value_s, keys, K_v, dvalue + b * value_b + h * value_h);

    for (int i = 0, t = threadIdx.y; i < SIDE; i++, t += 16) {  // weights = softmax(scores)
        T dot = 0;
        for (int j = 0, s = threadIdx.x; j < SIDE; j++, s += 16) {
            if (t >= queries || s >= keys) dw[i][j] = 0;
            dot += dw[i][j] * w[i][j];
        }
        dot = row_sum(dot);
        for (int j = 0; j < SIDE; j++) dw[i][j] = w[i][j] * (dw[i][j] - dot);
    }
    share(dw, right);
    read(key + b * key_b + h * key_h, key_s, keys, K, left);
    multiply(right, PITCH, 1, left, 1, PITCH, keys, result);  // scores = Q K^T / sqrt(d_k)
    write(result, T(scale), query_t, queries, K, dquery + b * query_b + h * query_h);
    read(query + b * query_b + h * query_h, query_t, queries, K, left);
    multiply(right, 1, PITCH, left, 1, PITCH, queries, result);  // scores = Q K^T / sqrt(d_k)
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
    """Whether every head is small enough for a block's memory."""
    if query.ndim != 4 or not query.dtype == key.dtype == value.dtype:
        return False
    B, H, queries, K = query.shape
    keys, K_v = value.shape[-2:]
    sizes = max(queries, keys, K, K_v)
    shapes = (key.shape, value.shape) == ((B, H, keys, K), (B, H, keys, K_v))
    return shapes and sizes <= LARGEST.get(query.dtype.char, 0)


def _as_plain(*heads):
    """Return heads (B, H, T, K), copied unless they are plain; and (T, S, K, K_v)."""
    plain = [x if _is_plain(x) else as_contiguous(x) for x in heads]
    return plain, (plain[0].shape[2], plain[-1].shape[2], plain[0].shape[3], plain[-1].shape[3])


def _is_plain(x) -> bool:
    """Whether x (B, H, T, K) lies in memory as (B, H, T, K) or (B, T, H, K), without gaps."""
    _, H, T, K = x.shape
    size = x.itemsize
    side_by_side = x.strides == (T * H * K * size, K * size, H * K * size, size)
    return side_by_side or x.flags.c_contiguous


def _empty(shape: tuple[int, ...], like):
    """Return a new array (B, H, T, K) with the same order in memory as the plain array `like`."""
    xp, (B, H, T, K) = array_module(like), shape
    if like.flags.c_contiguous:
        return xp.empty(shape, like.dtype)
    return xp.empty((B, T, H, K), like.dtype).swapaxes(1, 2)


def _with_steps(x) -> tuple:
    """x (B, H, T, K) -> x, and its strides in entries: to the next sequence, head, position."""
    size = x.itemsize
    step_b, step_h, step_t, _ = x.strides
    return x, step_b // size, step_h // size, step_t // size
