"""Where arrays lie, and what depends on it: modules, kernels, pieces, devices, dropout's masks."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer import backend, randomness
from numformer.backend import to_host
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.kernels import kernels_of
from numformer.later.normal import normal
from numformer.paper.softmax import softmax


class Subclass(np.ndarray):
    """NumPy's, too."""


def test_the_module_of_an_array_and_its_array_on_the_host(stand_in):
    for x in (np.zeros(3), np.float32(3), np.zeros(3).view(Subclass)):
        assert backend.array_module(x) is np
    for x in (3.0, [3.0], np.float64(3.0), np.array(3.0), stand_in.asarray(3.0)):
        assert type(to_host(x)) is np.ndarray and to_host(x) == 3.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-7), (np.float64, 2e-14)])
def test_the_normal_distribution_has_all_digits(dtype, error, xp):
    """Over more than one piece, and far from 0 on both sides."""
    x = np.concatenate([np.linspace(-13, 13, 33_001), [-1e30, 1e30]]).astype(dtype)
    found, density = map(to_host, normal(xp.asarray(x.reshape(1, -1))))
    expected = [math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()]
    assert found.dtype == dtype and found.shape == (1, len(x))
    assert_allclose(found[0], expected, rtol=0, atol=error)
    densities = np.exp(-np.minimum(x.astype(float) ** 2, 1400) / 2) / math.sqrt(2 * math.pi)
    assert_allclose(density[0], densities, rtol=0, atol=error)


def test_a_device_has_kernels_and_formulas_use_them(stand_in, monkeypatch):
    """Also with named arguments. On the host a formula is computed line by line."""
    assert softmax.__name__ == "softmax" and "True = may attend" in str(softmax.__doc__)
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


NO_GPU = {  # the message: what is broken
    "CuPy finds no CUDA device": ("is_available", lambda: False),
    "AttributeError: ": ("__matmul__", lambda a, b: a.nothing),  # cuBLAS is loaded only then
    "the GPU computes a wrong product": ("__matmul__", lambda a, b: b.T * 5),
}


@pytest.mark.parametrize("reason", NO_GPU)
def test_a_gpu_that_cannot_multiply_is_not_used(reason, stand_in, monkeypatch):
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
def test_dropout_drops_the_words_below_p(p):
    """2^18 words hold every 16-bit value a few times. For p close to 1 the scale stays finite."""
    stream = randomness.DropoutStream()
    stream.reseed(3, 7)
    dropped = min(round(p * 2**16), 2**16 - 1)
    keep = stream.mask((2**18,), p, np.zeros(0))
    assert_array_equal(keep != 0, words(3, 7, 2**16) >= dropped)
    assert set(np.unique(keep)) == {0, 65536 / (65536 - dropped)}


def test_masks_follow_each_other_in_the_stream():
    """Four entries take 64 bits; the next mask begins with the next 64. A new stream has seed 0."""
    stream, like = randomness.DropoutStream(), np.zeros(0)
    assert_array_equal(stream.mask((8,), 0.5, like) != 0, words(0, 0, 2) >= 32768)
    stream.reseed(3, 7)
    stream.mask((5,), 0.5, like)
    assert_array_equal(stream.mask((8, 9), 0.5, like).ravel() != 0, words(3, 7, 20)[8:] >= 32768)
