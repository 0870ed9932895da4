"""CUDA and cuBLAS on the host compute what a card does, and refuse what would go wrong on it."""

import importlib

import cuda_on_host
import numpy as np
import pytest
from cupy_stand_in import Undefined
from numpy.testing import assert_allclose, assert_array_equal

SOURCE = """
#include <cuda_fp16.h>

template <class T> __device__ T block_sum(T value) {
    __shared__ T partial[32];
    for (int by = 16; by; by /= 2) value += __shfl_down_sync(0xffffffffu, value, by);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : T(0);
    if (threadIdx.x < 32)
        for (int by = 16; by; by /= 2) value += __shfl_xor_sync(0xffffffffu, value, by);
    return value;
}

#define ROW_SUMS(T, name)                                                \\
    extern "C" __global__ void __launch_bounds__(1024) name(             \\
        const T* __restrict__ x, T* __restrict__ sums, const int length) \\
    {                                                                    \\
        T sum = 0;                                                       \\
        for (int i = threadIdx.x; i < length; i += blockDim.x)           \\
            sum += x[blockIdx.x * (long long)length + i];                \\
        sum = block_sum(sum);                                            \\
        if (threadIdx.x == 0) sums[blockIdx.x] = sum;                    \\
    }
ROW_SUMS(float, row_sums_float)
ROW_SUMS(double, row_sums_double)

extern "C" __global__ void transposed(const float* x, __half* y, int rows, int columns) {
    __shared__ alignas(16) float tile[8][9];
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
    __syncthreads();
    row = blockIdx.y * 8 + threadIdx.x, column = blockIdx.x * 8 + threadIdx.y;
    if (row < rows && column < columns)
        y[column * rows + row] = __float2half(tile[threadIdx.x][threadIdx.y]);
}

extern "C" __global__ void reversed(float* x, int length) {
    extern __shared__ float buffer[];
    if (threadIdx.x >= length) return;
    buffer[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = buffer[length - 1 - threadIdx.x];
}

extern "C" __global__ void without_barrier(float* x, int length) {
    extern __shared__ float buffer[];
    buffer[threadIdx.x] = x[blockIdx.x * length + threadIdx.x];
    x[blockIdx.x * length + threadIdx.x] = buffer[max(int(threadIdx.x) - 1, 0)];
}

extern "C" __global__ void shuffle_beside_barrier(float* x) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
    else __syncthreads();
}

extern "C" __global__ void two_barriers(float* x) {
    if (threadIdx.x < 32) __syncthreads();
    else
        __syncthreads();
}

extern "C" __global__ void index_outside_array(float* x) {
    __shared__ float buffer[32];
    buffer[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void aligned_loads(float* x) {
    float4 four = reinterpret_cast<float4*>(x)[threadIdx.x];
    x[4 * threadIdx.x] = four.w;
}

extern "C" __global__ void sum_in_unwritten_memory(float* x) {
    __shared__ float sum[1];
    __syncthreads();
    x[threadIdx.x] = sum[0];
}

extern "C" __global__ void value_of_no_thread(float* x) {
    x[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 1);
}

extern "C" __global__ void half_warps(float* x) {  // each shuffles separately, one more often
    unsigned mask = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
    float value = x[threadIdx.x];
    for (int i = 0; i < (mask == 0xffffu ? 3 : 1); i++) value += __shfl_xor_sync(mask, value, 1);
    x[threadIdx.x] = __shfl_sync(0xffffffffu, value, 5, 8);
}
"""


@pytest.fixture
def kernel(with_kernels):
    return with_kernels.RawModule(code=SOURCE, options=("--std=c++17",)).get_function


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_over_a_block(with_kernels, kernel, rng, dtype):
    x = rng.standard_normal((5, 1000)).astype(dtype)
    sums = with_kernels.empty(5, dtype)
    for threads in (32, 96, 1024):
        sums.fill(0)
        name = "row_sums_float" if dtype is np.float32 else "row_sums_double"
        kernel(name)((5,), (threads,), (with_kernels.array(x), sums, 1000))
        assert_allclose(sums.get(), x.sum(1), rtol=1e-4 if dtype is np.float32 else 1e-12)


def test_grids_and_blocks_of_two_axes(with_kernels, kernel, rng):
    x = rng.standard_normal((13, 30)).astype(np.float32)
    y = with_kernels.empty((30, 13), np.float16)
    kernel("transposed")((4, 2), (8, 8), (with_kernels.array(x), y, np.int32(13), np.int64(30)))
    assert_array_equal(y.get(), x.T.astype(np.float16))


def test_threads_that_return_before_a_barrier(with_kernels, kernel):
    x = with_kernels.arange(50, dtype=np.float32)
    kernel("reversed")((1,), (64,), (x, 50), shared_mem=4 * 64)
    assert_array_equal(x.get(), np.arange(50)[::-1])


def test_numbers_that_are_undefined_on_a_card_are_nan(with_kernels, kernel):
    x = with_kernels.ones((2, 64), np.float32)
    kernel("without_barrier")((2,), (64,), (x, 64), shared_mem=4 * 64)
    assert np.isnan(x.get()).any()  # in one of the two orders in which blocks run their threads
    kernel("sum_in_unwritten_memory")((1,), (64,), (x,))
    assert np.isnan(x.get()[0]).all()
    x = with_kernels.arange(10, dtype=np.float32)
    kernel("value_of_no_thread")((1,), (10,), (x,))
    assert_array_equal(x.get(), [*range(1, 10), np.nan])  # NaN from a thread that is not there


def test_shuffles_of_parts_of_a_warp(with_kernels, kernel):
    x = with_kernels.arange(32, dtype=np.float32)
    kernel("half_warps")((1,), (32,), (x,))
    assert_array_equal(x.get(), np.repeat([4 * (4 + 5), 4 * (12 + 13), 20 + 21, 28 + 29], 8))


WRONG = {
    "shuffle_beside_barrier": "wait elsewhere",
    "two_barriers": "wait at two",
    "index_outside_array": "line .*: an index",
    "aligned_loads": "line .*: an address",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_stops_a_kernel(with_kernels, kernel, name):
    x = with_kernels.arange(260, dtype=np.float32)
    with pytest.raises(Undefined, match=f"{name}: .*{WRONG[name]}"):
        kernel(name)((1,), (64,), (x[1:],))
    kernel("aligned_loads")((1,), (64,), (x,))  # the next kernel runs
    assert_array_equal(x.get()[:256:4], np.arange(3, 256, 4))


def test_arguments_of_other_types(with_kernels, kernel):
    sums, x = kernel("row_sums_float"), with_kernels.ones((1, 4), np.float32)
    y = with_kernels.empty(1, np.float32)
    with pytest.raises(TypeError, match="not on the device"):
        sums((1,), (32,), (np.ones(4, np.float32), y, 4))
    for arguments in [(x.astype(np.float64), y, 4), (x, y, 4.0), (x, y, 2**33), (x, y)]:
        with pytest.raises(Undefined):
            sums((1,), (32,), arguments)
    with pytest.raises(cuda_on_host.CUDADriverError, match="INVALID_VALUE"):
        sums((1,), (1025,), (x, y, 4))
    with pytest.raises(cuda_on_host.CUDADriverError, match="NOT_FOUND"):
        kernel("block_sum")


@pytest.mark.parametrize("kind, dtype", [(0, np.float32), (1, np.float64), (2, np.float16)])
@pytest.mark.parametrize("transposes", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products_of_many_matrices(with_kernels, rng, kind, dtype, transposes):
    cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
    handle = with_kernels.cuda.device.get_cublas_handle()
    m, n, k, many = 3, 4, 5, 2

    def memory(rows, columns):
        """Parts of larger matrices that lie column by column, so NumPy's shapes are transposed."""
        larger = rng.standard_normal((many, columns + 1, rows + 2)).astype(dtype)
        return (
            with_kernels.array(larger),
            larger[:, :columns, :rows].swapaxes(1, 2),
            (rows + 2, larger[0].size),
        )

    a, x, a_steps = memory(*((k, m) if transposes[0] else (m, k)))
    b, y, b_steps = memory(*((n, k) if transposes[1] else (k, n)))
    c, z, c_steps = memory(m, n)
    before, sums = c.get(), np.float64 if kind == 1 else np.float32
    alpha, beta = np.array(0.5, sums), np.array(-2, sums)
    x = x.swapaxes(1, 2) if transposes[0] else x
    y = y.swapaxes(1, 2) if transposes[1] else y
    cublas.gemmStridedBatchedEx(
        handle, *transposes, m, n, k, alpha.ctypes.data, a.data.ptr, kind, *a_steps,
        b.data.ptr, kind, *b_steps, beta.ctypes.data, c.data.ptr, kind, *c_steps,
        many, 70 if kind == 1 else 68, -1,
    )  # fmt: skip
    expected = before.copy()
    expected[:, :n, :m] = (0.5 * (x.astype(sums) @ y.astype(sums)) - 2 * z).swapaxes(1, 2)
    assert_allclose(c.get(), expected, rtol=1e-2 if kind == 2 else 1e-5, atol=1e-3)
