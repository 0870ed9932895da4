"""Products and sums: their numbers, and how NumPy and CuPy compute them."""

import numpy as np
import pytest
from cupy_stand_in import synchronisations
from numpy.testing import assert_allclose, assert_array_equal

from numformer import arithmetic
from numformer.backend import to_host
from numformer.half_precision import half_product, half_products


class Watched(np.ndarray):
    """An array that notes its matrix products (shapes) and maxima (shape, axis, rows in order)."""

    notes: list

    def __matmul__(self, other):
        self.notes.append((self.shape, other.shape))
        return np.asarray(self) @ np.asarray(other)

    def __rmatmul__(self, other):
        self.notes.append((other.shape, self.shape))
        return np.asarray(other) @ np.asarray(self)

    def max(self, axis, **others):
        self.notes.append((self.shape, axis, self.flags.c_contiguous))
        return np.asarray(self).max(axis=axis, **others)


@pytest.fixture
def watched():
    """`watched(array)` is an array that notes its operations in `watched.notes`."""

    def watch(array):
        return np.asarray(array).view(Watched)

    watch.notes = Watched.notes = []
    return watch


@pytest.mark.parametrize(
    ("a", "b", "product"),
    [((2, 3, 4, 5), (5, 7), ((24, 5), (5, 7))), ((3, 4, 5), (3, 5, 7), ((3, 4, 5), (3, 5, 7)))],
)
def test_one_matrix_for_all_takes_one_product(a, b, product, watched, rng):
    a, b = rng.standard_normal(a), rng.standard_normal(b)
    assert_allclose(arithmetic.matmul(watched(a), b), a @ b, rtol=1e-14, atol=1e-14)
    assert watched.notes == [product]


# 1 + 2^-11 is no float16, nor 2049; 2048 + 1 + 1 summed in float16 is 2048; 1e5 is infinite.
ROUNDED = [([1 + 2**-11, 0, 0], 3.0, 3.0), ([2048, 1, 1], 1.0, 2050.0), ([2048, 1, 0], 1.0, 2048.0)]
ROUNDED += [([1e5, 0, 1], 1.0, np.inf), ([300, 0, 0], 300.0, np.inf), ([2e-8, 0, 0], 1.0, 0.0)]
ROUNDED += [([1, 0, 0], 2e-8, 0.0), ([1e-4, 0, 0], 1e-4, 0.0), ([6e-8, 0, 0], 1.0, 2.0**-24)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("row", "factor", "product"), ROUNDED)
def test_half_products_round_to_float16_and_sum_in_float32(row, factor, product, dtype, xp):
    a, b = xp.asarray(np.array([row], dtype)), xp.asarray(np.full((3, 2), factor, dtype))
    found = to_host(half_product(a, b))
    assert_array_equal(found, np.full((1, 2), product, dtype), strict=True)


def test_a_gpu_multiplies_float16_and_numpy_float32(stand_in, monkeypatch):
    """NumPy's own products of float16 take a hundred times as long."""
    seen = []

    class Noted(np.ndarray):
        def __matmul__(self, other):
            seen.append({self.dtype.name, other.dtype.name})
            return np.asarray(self) @ np.asarray(other)

    ones = np.ones((2, 2), np.float32)
    half_product(ones.view(Noted), ones)
    multiply = stand_in.ndarray.__matmul__
    noted = lambda a, b: seen.append({a.dtype.name, b.dtype.name}) or multiply(a, b)  # noqa: E731
    monkeypatch.setattr(stand_in.ndarray, "__matmul__", noted)
    half_product(stand_in.asarray(ones), stand_in.asarray(ones))
    assert seen == [{"float32"}, {"float16"}]


def test_half_products_concern_products_with_one_matrix(rng, xp):
    """They equal explicit float16 arithmetic. A product of many matrices keeps its bits."""
    a, b = rng.standard_normal((2, 4, 3)), rng.standard_normal((3, 5))
    many = rng.standard_normal((2, 3, 5))
    halves = a.astype(np.float16).astype(float) @ b.astype(np.float16).astype(float)
    x, y, z = (xp.asarray(array.astype(np.float32)) for array in (a, b, many))
    outside = [to_host(arithmetic.matmul(x, other)) for other in (y, z)]
    with half_products(), synchronisations() as waits:
        products = [arithmetic.matmul(x, other) for other in (y, z)]
        with half_products(False):
            exact = arithmetic.matmul(x, y)
        again_half = arithmetic.matmul(x, y)
    assert not waits
    found, all_products = map(to_host, products)
    assert_array_equal(to_host(again_half), found)
    assert_array_equal(found, halves.astype(np.float16).astype(np.float32), strict=True)
    assert_array_equal(all_products, outside[1])
    for again in (exact, arithmetic.matmul(x, y)):
        assert_array_equal(to_host(again), outside[0])
    assert (found != outside[0]).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_products_with_ones_of_the_same_dtype(dtype, watched, rng):
    x = rng.standard_normal((4, 5, 5)).astype(dtype)
    for found, expected in (
        (arithmetic.sum_rows(watched(x)), x.sum(axis=(0, 1))),
        (arithmetic.sum_last(watched(x)), x.sum(axis=-1, keepdims=True)),
        (arithmetic.mean_last(watched(x)), x.mean(axis=-1, keepdims=True)),
    ):
        assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert found.dtype == dtype and found.shape == expected.shape
    assert watched.notes == [((20,), (20, 5)), ((20, 5), (5,)), ((20, 5), (5,))]


@pytest.mark.parametrize("rows", [1, 16])
def test_sums_and_maxima_of_few_rows_are_numpy_s_own(rows, watched, rng):
    x = rng.standard_normal((rows, 1, 5))
    assert_array_equal(arithmetic.sum_last(watched(x)), x.sum(axis=-1, keepdims=True))
    assert_array_equal(arithmetic.max_last(watched(x)), x.max(axis=-1, keepdims=True))
    assert watched.notes == [(x.shape, -1, True)]


@pytest.mark.parametrize("width", [1, 64, 65])
def test_short_rows_are_compared_all_at_once(width, watched, rng):
    x = rng.standard_normal((2, 9, width))
    assert_array_equal(arithmetic.max_last(watched(x)), x.max(axis=-1, keepdims=True))
    none = arithmetic.max_last(x[..., :0].astype(np.float32))
    assert_array_equal(none, np.full((2, 9, 1), -np.inf, np.float32), strict=True)
    transposed, each_by_itself = ((width, 18), 0, True), (x.shape, -1, True)
    assert watched.notes == [transposed if width <= 64 else each_by_itself]


def test_dot_products_on_the_host_store_no_products(rng):
    """The bits are einsum's, which keeps no array of all a b as (a * b).sum() does."""
    a, b = rng.standard_normal((2, 400, 301)).astype(np.float32)
    assert (arithmetic.dot_last(a, b)[:, 0] != (a * b).sum(axis=-1)).any()
    assert_array_equal(arithmetic.dot_last(a, b)[:, 0], np.einsum("nd,nd->n", a, b))
    assert_array_equal(arithmetic.dot_rows(a, b), np.einsum("nd,nd->d", a, b))


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 2**20])
def test_a_dot_product_over_many_rows_keeps_its_digits(count, rng, xp):
    """Adding a million rows one after the other was wrong by 1e-4."""
    a = rng.uniform(0.5, 1.5, (count, 3)).astype(np.float32)
    b = np.full_like(a, 0.1)
    found = arithmetic.dot_rows(xp.asarray(a), xp.asarray(b))
    assert found.shape == (3,) and found.dtype == np.float32
    assert_allclose(to_host(found), (a.astype(float) * b).sum(axis=0), rtol=4e-5)


def test_a_dot_product_over_many_rows_has_blocks_of_1024(rng):
    """Other blocks give other last bits, and so other weights after training."""
    a, b = rng.standard_normal((2, 5000, 3)).astype(np.float32)
    blocks = [slice(start, start + 1024) for start in range(0, 5000, 1024)]
    *sums, rest = (np.einsum("nd,nd->d", a[block], b[block]) for block in blocks)
    found = arithmetic.dot_rows(a.reshape(5, 1000, 3), b.reshape(5, 1000, 3))
    assert_array_equal(found, np.sum(sums, axis=0) + rest)


@pytest.mark.parametrize("count", [0, 1, 500])
@pytest.mark.parametrize("symbols", [5, 256, 257, 300])
def test_scatter_add_uses_one_product_for_few_symbols(symbols, count, watched, rng, stand_in):
    """With many symbols, on the host, NaN affects only its own row. A device never waits."""
    ids, values = rng.integers(1, symbols, count), rng.standard_normal((count, 3))
    ids[: count // 3] = symbols - 2
    ids[-2:-1] = 1
    values[ids == 1] = np.nan if symbols > 256 else 1
    added, expected = np.ones((2, symbols, 3))
    np.add.at(expected, ids, values)
    arithmetic.scatter_add(added, ids, watched(values))
    numbers = np.nan_to_num(values, nan=1)
    on_device, placed = stand_in.ones((symbols, 3)), stand_in.asarray(numbers)
    with synchronisations() as waits:
        arithmetic.scatter_add(on_device, stand_in.asarray(ids), placed)
    assert not waits and len(watched.notes) == (symbols <= 256)
    assert_allclose(added, expected, rtol=1e-12, atol=1e-12)
    expected[1] = 1 + numbers[ids == 1].sum(axis=0)
    assert_allclose(to_host(on_device), expected, rtol=1e-12, atol=1e-12)
    assert_array_equal(placed.get(), numbers)


def test_scatter_add_sums_in_the_order_of_the_ids(rng):
    """Another order gives other last bits, and an unstable sort would choose one at random."""
    ids = rng.integers(1, 4, 1000)  # the smallest id is not 0
    values = rng.standard_normal((1000, 3)).astype(np.float32)
    found, expected = np.zeros((2, 300, 3), np.float32)
    arithmetic.scatter_add(found, ids, values)
    for symbol in (1, 2, 3):
        expected[symbol] = np.add.reduceat(values[ids == symbol], [0])[0]
    assert_array_equal(found, expected)
