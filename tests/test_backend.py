"""The few functions that differ between NumPy and CuPy: their numbers, and how they get them."""

import math

import numpy as np
import pytest
from cupy_stand_in import synchronisations
from numpy.testing import assert_allclose, assert_array_equal

from numformer import backend, randomness
from numformer.backend import to_host
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.half_precision import half_product, half_products
from numformer.kernels import kernels_of
from numformer.later.normal import normal
from numformer.paper.softmax import softmax


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
    """`watched(array)` is the array with its notes, which are in `watched.notes`."""

    def watch(array):
        return np.asarray(array).view(Watched)

    watch.notes = Watched.notes = []
    return watch


def test_the_module_of_an_array_and_its_array_on_the_host(stand_in):
    for x in (np.zeros(3), np.float32(3), np.zeros(3).view(Watched)):
        assert backend.array_module(x) is np
    for x in (3.0, [3.0], np.float64(3.0), np.array(3.0), stand_in.asarray(3.0)):
        assert type(to_host(x)) is np.ndarray and to_host(x) == 3.0


@pytest.mark.parametrize(
    ("a", "b", "product"),
    [((2, 3, 4, 5), (5, 7), ((24, 5), (5, 7))), ((3, 4, 5), (3, 5, 7), ((3, 4, 5), (3, 5, 7)))],
)
def test_one_matrix_for_all_is_one_product(a, b, product, watched, rng):
    a, b = rng.standard_normal(a), rng.standard_normal(b)
    assert_allclose(backend.matmul(watched(a), b), a @ b, rtol=1e-14, atol=1e-14)
    assert watched.notes == [product]


# 1 + 2^-11 is no float16, nor 2049; 2048 + 1 + 1 summed in float16 is 2048; 1e5 is infinite.
ROUNDED = [([1 + 2**-11, 0, 0], 3.0, 3.0), ([2048, 1, 1], 1.0, 2050.0), ([2048, 1, 0], 1.0, 2048.0)]
ROUNDED += [([1e5, 0, 1], 1.0, np.inf), ([300, 0, 0], 300.0, np.inf), ([2e-8, 0, 0], 1.0, 0.0)]
ROUNDED += [([1, 0, 0], 2e-8, 0.0), ([1e-4, 0, 0], 1e-4, 0.0), ([6e-8, 0, 0], 1.0, 2.0**-24)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("row", "factor", "product"), ROUNDED)
def test_half_products_are_of_float16_numbers_summed_in_float32(row, factor, product, dtype, xp):
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


def test_within_half_products_those_with_one_matrix_are_half(rng, xp):
    """As explicit float16 arithmetic has them; a product of many matrices keeps its bits."""
    a, b = rng.standard_normal((2, 4, 3)), rng.standard_normal((3, 5))
    many = rng.standard_normal((2, 3, 5))
    halves = a.astype(np.float16).astype(float) @ b.astype(np.float16).astype(float)
    x, y, z = (xp.asarray(array.astype(np.float32)) for array in (a, b, many))
    outside = [to_host(backend.matmul(x, other)) for other in (y, z)]
    with half_products(), synchronisations() as waits:
        products = [backend.matmul(x, other) for other in (y, z)]
        with half_products(False):
            exact = backend.matmul(x, y)
        again_half = backend.matmul(x, y)
    assert not waits
    found, of_many = map(to_host, products)
    assert_array_equal(to_host(again_half), found)
    assert_array_equal(found, halves.astype(np.float16).astype(np.float32), strict=True)
    assert_array_equal(of_many, outside[1])
    for again in (exact, backend.matmul(x, y)):
        assert_array_equal(to_host(again), outside[0])
    assert (found != outside[0]).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_products_with_ones_of_the_same_dtype(dtype, watched, rng):
    x = rng.standard_normal((4, 5, 5)).astype(dtype)
    for found, expected in (
        (backend.sum_rows(watched(x)), x.sum(axis=(0, 1))),
        (backend.sum_last(watched(x)), x.sum(axis=-1, keepdims=True)),
        (backend.mean_last(watched(x)), x.mean(axis=-1, keepdims=True)),
    ):
        assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert found.dtype == dtype and found.shape == expected.shape
    assert watched.notes == [((20,), (20, 5)), ((20, 5), (5,)), ((20, 5), (5,))]


@pytest.mark.parametrize("rows", [1, 16])
def test_of_few_rows_sums_and_maxima_are_those_of_numpy(rows, watched, rng):
    x = rng.standard_normal((rows, 1, 5))
    assert_array_equal(backend.sum_last(watched(x)), x.sum(axis=-1, keepdims=True))
    assert_array_equal(backend.max_last(watched(x)), x.max(axis=-1, keepdims=True))
    assert watched.notes == [(x.shape, -1, True)]


@pytest.mark.parametrize("width", [1, 64, 65])
def test_short_rows_are_compared_all_at_once(width, watched, rng):
    x = rng.standard_normal((2, 9, width))
    assert_array_equal(backend.max_last(watched(x)), x.max(axis=-1, keepdims=True))
    transposed, each_by_itself = ((width, 18), 0, True), (x.shape, -1, True)
    assert watched.notes == [transposed if width <= 64 else each_by_itself]


def test_dot_products_on_the_host_store_no_products(rng):
    """The bits are einsum's, which keeps no array of all a b as (a * b).sum() does."""
    a, b = rng.standard_normal((2, 400, 301)).astype(np.float32)
    assert (backend.dot_last(a, b)[:, 0] != (a * b).sum(axis=-1)).any()
    assert_array_equal(backend.dot_last(a, b)[:, 0], np.einsum("nd,nd->n", a, b))
    assert_array_equal(backend.dot_rows(a, b), np.einsum("nd,nd->d", a, b))


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 2**20])
def test_a_dot_product_over_many_rows_keeps_its_digits(count, rng, xp):
    """One row added after the other, a million of them were wrong by 1e-4."""
    a = rng.uniform(0.5, 1.5, (count, 3)).astype(np.float32)
    b = np.full_like(a, 0.1)
    found = backend.dot_rows(xp.asarray(a), xp.asarray(b))
    assert found.shape == (3,) and found.dtype == np.float32
    assert_allclose(to_host(found), (a.astype(float) * b).sum(axis=0), rtol=4e-5)


def test_a_dot_product_over_many_rows_has_blocks_of_1024(rng):
    """Other blocks give other last bits, and so other weights after training."""
    a, b = rng.standard_normal((2, 5000, 3)).astype(np.float32)
    blocks = [slice(start, start + 1024) for start in range(0, 5000, 1024)]
    *sums, rest = (np.einsum("nd,nd->d", a[block], b[block]) for block in blocks)
    found = backend.dot_rows(a.reshape(5, 1000, 3), b.reshape(5, 1000, 3))
    assert_array_equal(found, np.sum(sums, axis=0) + rest)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-7), (np.float64, 2e-14)])
def test_the_normal_distribution_has_all_digits(dtype, error, xp):
    """Over more than one piece, and far out on both sides."""
    x = np.concatenate([np.linspace(-13, 13, 33_001), [-1e30, 1e30]]).astype(dtype)
    found, density = map(to_host, normal(xp.asarray(x.reshape(1, -1))))
    expected = [math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()]
    assert found.dtype == dtype and found.shape == (1, len(x))
    assert_allclose(found[0], expected, rtol=0, atol=error)
    densities = np.exp(-np.minimum(x.astype(float) ** 2, 1400) / 2) / math.sqrt(2 * math.pi)
    assert_allclose(density[0], densities, rtol=0, atol=error)


@pytest.mark.parametrize("count", [0, 1, 500])
@pytest.mark.parametrize("symbols", [5, 256, 257, 300])
def test_rows_are_added_to_what_is_there_those_of_few_symbols_by_one_product(
    symbols, count, watched, rng, stand_in
):
    """Of many symbols on the host NaN reaches its own alone; a device waits for nothing."""
    ids, values = rng.integers(1, symbols, count), rng.standard_normal((count, 3))
    ids[: count // 3] = symbols - 2
    ids[-2:-1] = 1
    values[ids == 1] = np.nan if symbols > 256 else 1
    added, expected = np.ones((2, symbols, 3))
    np.add.at(expected, ids, values)
    backend.scatter_add(added, ids, watched(values))
    numbers = np.nan_to_num(values, nan=1)
    on_device, placed = stand_in.ones((symbols, 3)), stand_in.asarray(numbers)
    with synchronisations() as waits:
        backend.scatter_add(on_device, stand_in.asarray(ids), placed)
    assert not waits and len(watched.notes) == (symbols <= 256)
    assert_allclose(added, expected, rtol=1e-12, atol=1e-12)
    expected[1] = 1 + numbers[ids == 1].sum(axis=0)
    assert_allclose(to_host(on_device), expected, rtol=1e-12, atol=1e-12)
    assert_array_equal(placed.get(), numbers)


def test_many_symbols_are_summed_in_the_order_in_which_they_come(rng):
    """Another order gives other last bits, and which one an unstable sort takes is chance."""
    ids = rng.integers(1, 4, 1000)  # the smallest id is not 0
    values = rng.standard_normal((1000, 3)).astype(np.float32)
    found, expected = np.zeros((2, 300, 3), np.float32)
    backend.scatter_add(found, ids, values)
    for symbol in (1, 2, 3):
        expected[symbol] = np.add.reduceat(values[ids == symbol], [0])[0]
    assert_array_equal(found, expected)


def test_a_device_has_kernels_and_formulas_use_them(stand_in, monkeypatch):
    """Also where the arguments are named. On the host a formula is computed line by line."""
    host, device = np.zeros((1, 2)), stand_in.zeros((1, 2))
    monkeypatch.delitem(backend._kernels, stand_in.ndarray)
    assert backend.kernels_for(device).keys() == kernels_of(device).keys()
    kernels = {"softmax": lambda scores, mask=None: (scores, mask)}
    monkeypatch.setitem(backend._kernels, stand_in.ndarray, kernels)
    assert softmax(device) == softmax(scores=device) == (device, None)
    assert softmax(host).tolist() == softmax(scores=host).tolist() == [[0.5, 0.5]]


def test_pieces_on_the_host_have_128_kilobytes_of_float32(stand_in):
    for length, sizes in ((0, []), (5, [5]), (32768, [32768]), (32769, [32768, 1])):
        vector = np.arange(length)
        pieces = [vector[piece] for piece in backend.cache_pieces(vector)]
        assert [len(piece) for piece in pieces] == sizes
        assert np.concatenate([*pieces, []]).tolist() == vector.tolist()
    assert backend.cache_pieces(stand_in.zeros(100_000)) == [slice(None)]
    for width, count in ((1 << 16, 2), (50_257, 2), (43_691, 2), (1000, 131), (1 << 18, 1)):
        rows = np.broadcast_to(np.float32(0), (2 * count + 1, width))
        starts = [0, count, 2 * count]
        expected = [slice(start, start + count) for start in starts]
        assert backend.cache_pieces(rows) == expected


NO_GPU = {  # what is broken, and how that is told
    "CuPy finds no CUDA device": ("is_available", lambda: False),
    "AttributeError: ": ("__matmul__", lambda a, b: a.nothing),  # cuBLAS is loaded only then
    "the GPU computes a wrong product": ("__matmul__", lambda a, b: b.T * 5),
}


@pytest.mark.parametrize("reason", NO_GPU)
def test_a_gpu_that_cannot_multiply_is_none(reason, stand_in, monkeypatch):
    assert find_backend("auto") is find_backend("cupy") is stand_in
    name, broken = NO_GPU[reason]
    monkeypatch.setattr(stand_in.cuda if "is_" in name else stand_in.ndarray, name, broken)
    assert find_backend("auto") is np
    with pytest.raises(InputError, match=reason):
        find_backend("cupy")


def words(seed, step, count):
    key = int(randomness.seed_sequence(seed, "dropout", step, 0).generate_state(1, np.uint64)[0])
    return randomness.splitmix64(key, np.arange(count, dtype=np.uint64)).view(np.uint16)


@pytest.mark.parametrize("p", [2**-16, 0.1, 0.5, 0.9, 1 - 1e-9])
def test_exactly_those_words_below_p_are_dropped(p):
    """2^18 words hold every value of 16 bits a few times; next to 1 the scale stays finite."""
    stream = randomness.DropoutStream()
    stream.reseed(3, 7)
    dropped = min(round(p * 2**16), 2**16 - 1)
    keep = stream.keep((2**18,), p, np.zeros(0))
    assert_array_equal(keep != 0, words(3, 7, 2**16) >= dropped)
    assert set(np.unique(keep)) == {0, 65536 / (65536 - dropped)}


def test_draws_follow_each_other_and_waste_less_than_a_word():
    """Four entries take 64 bits; the next draw begins with the next 64. A new one is that of 0."""
    stream, like = randomness.DropoutStream(), np.zeros(0)
    assert_array_equal(stream.keep((8,), 0.5, like) != 0, words(0, 0, 2) >= 32768)
    stream.reseed(3, 7)
    stream.keep((5,), 0.5, like)
    assert_array_equal(stream.keep((8, 9), 0.5, like).ravel() != 0, words(3, 7, 20)[8:] >= 32768)
