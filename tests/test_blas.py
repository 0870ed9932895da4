"""How many threads products take, many where they are large or trained by; products of few rows."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numformer import blas, inference
from numformer.arithmetic import matmul


class Operand:
    """A matrix of 2^10 rows whose products are how many threads make them."""

    ndim = 2

    def __init__(self, columns):
        self.shape, self.size = (1 << 10, columns), columns << 10

    def reshape(self, *shape):
        return self

    def __matmul__(self, other):
        return blas.threads()


SMALL, LARGE = Operand((1 << 7) - 1), Operand(1 << 7)
SQUARE = Operand(1 << 10)


def taken():
    return [matmul(SMALL, SQUARE), matmul(LARGE, SQUARE), blas.threads()]


def answering():
    with inference():
        return taken()


def answering_in_another_thread():
    with ThreadPoolExecutor() as pool:
        return pool.submit(answering).result()


def test_an_answer_takes_one_thread_but_for_large_products():
    with threadpool_limits(3, "blas"):
        assert taken() == [3, 3, 3]
        with pytest.raises(ValueError, match="is given back"), inference():
            assert taken() == answering() == answering_in_another_thread() == [1, 3, 1]
            raise ValueError("is given back")
        assert taken() == [3, 3, 3]


def test_a_training_keeps_its_threads_whoever_answers_beside_it():
    with threadpool_limits(3, "blas"):
        with blas.training_threads(2):
            assert taken() == answering_in_another_thread() == [2, 2, 2]
            assert answering() == [1, 2, 1]  # an evaluation
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
                assert taken() == [2, 2, 2]
        assert taken() == [3, 3, 3]


@pytest.mark.parametrize("rows", [2, 5, 16, 17])
@pytest.mark.parametrize("depth, columns", [(512, 1024), (300, 2048), (64, 9999), (2000, 600)])
@pytest.mark.parametrize("transposed", [False, True], ids=["as it is", "transposed"])
def test_a_product_of_few_rows_is_the_same_in_pieces(rows, depth, columns, transposed, monkeypatch):
    made = []
    matmul_of_numpy = np.matmul
    monkeypatch.setattr(np, "matmul", lambda *a, **b: made.append(a) or matmul_of_numpy(*a, **b))
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(rows, depth)), rng.normal(size=(depth, columns))
    with inference():
        product = matmul(a, np.asfortranarray(b) if transposed else b)
    np.testing.assert_allclose(product, np.einsum("mn,np->mp", a, b), atol=1e-11)
    assert bool(made) == (transposed and rows <= 16)
