"""How many threads products take: many where they are large or trained by, one in an answer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_limits

from numformer import blas, inference
from numformer.backend import matmul


class Operand:
    """A matrix of 2^10 rows whose products are how many threads make them."""

    ndim = 2

    def __init__(self, columns):
        self.shape, self.size = (1 << 10, columns), columns << 10

    def reshape(self, *shape):
        return self

    def __matmul__(self, other):
        threads = blas.threads()
        return SimpleNamespace(reshape=lambda *shape: threads)


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
        with blas.fixed(2):
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
            with blas.fixed(2):
                over.set()
                beside.result()
                assert taken() == [2, 2, 2]
        assert taken() == [3, 3, 3]
