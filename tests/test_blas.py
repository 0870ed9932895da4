"""The threads of products, for inference and for training; products of a few rows."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numformer import blas, inference
from numformer.arithmetic import matmul


class Operand:
    """A matrix of 2^10 rows; a product with it is the number of threads that it would use."""

    ndim = 2

    def __init__(self, columns):
        self.shape, self.size = (1 << 10, columns), columns << 10

    def reshape(self, *shape):
        return self

    def __matmul__(self, other):
        return blas.threads()


SMALL, LARGE = Operand((1 << 7) - 1), Operand(1 << 7)
SQUARE = Operand(1 << 10)


def threads_used():
    return [matmul(SMALL, SQUARE), matmul(LARGE, SQUARE), blas.threads()]


def threads_in_inference():
    with inference():
        return threads_used()


def threads_in_another_thread():
    with ThreadPoolExecutor() as pool:
        return pool.submit(threads_in_inference).result()


def test_inference_uses_one_thread_except_for_large_products():
    with threadpool_limits(3, "blas"):
        assert threads_used() == [3, 3, 3]
        with pytest.raises(ValueError, match="an error"), inference():
            assert (
                threads_used() == threads_in_inference() == threads_in_another_thread() == [1, 3, 1]
            )
            raise ValueError("an error")
        assert threads_used() == [3, 3, 3]


def test_training_keeps_its_threads_beside_inference():
    with threadpool_limits(3, "blas"):
        with blas.training_threads(2):
            assert threads_used() == threads_in_another_thread() == [2, 2, 2]
            assert threads_in_inference() == [1, 2, 1]  # an evaluation
        began, over = threading.Event(), threading.Event()

        def answer():
            with inference():
                began.set()
                over.wait()

        with ThreadPoolExecutor() as pool:
            beside = pool.submit(answer)
            began.wait()
            with blas.training_threads(2):
                over.set()
                beside.result()
                assert threads_used() == [2, 2, 2]
        assert threads_used() == [3, 3, 3]


@pytest.mark.parametrize("rows", [2, 5, 16, 17])
@pytest.mark.parametrize("depth, columns", [(512, 1024), (300, 2048), (64, 9999), (2000, 600)])
@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
def test_a_product_of_few_rows_is_the_same_in_pieces(rows, depth, columns, transposed, monkeypatch):
    calls = []
    matmul_of_numpy = np.matmul
    monkeypatch.setattr(np, "matmul", lambda *a, **b: calls.append(a) or matmul_of_numpy(*a, **b))
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(rows, depth)), rng.normal(size=(depth, columns))
    with inference():
        product = matmul(a, np.asfortranarray(b) if transposed else b)
    np.testing.assert_allclose(product, np.einsum("mn,np->mp", a, b), atol=1e-11)
    assert bool(calls) == (transposed and rows <= 16)
