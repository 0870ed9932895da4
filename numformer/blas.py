"""Products of matrices: how many threads BLAS takes, and what makes those of few rows fast.

A model that answers multiplies small matrices in turn. A second thread gains little there, and
beside other programs the two mostly wait. The number of threads is the whole process's.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator

import numpy as np
from threadpoolctl import ThreadpoolController

LARGE = 1 << 27  # multiplications of a product that is worth all threads: some milliseconds of one
IN_PIECES = 16  # rows of a product that a model answers with, at most, for it to be made in pieces
PIECE = 10**6  # multiplications of a product that OpenBLAS makes of matrices as they lie in memory
PIECE_TRANSPOSED = 1200  # entries of its result, at most, where the second matrix is a transpose

blocks = 0  # `sparing` blocks that are at work, in all threads of Python

_change = threading.Lock()
_usual: list[int] = []  # the threads of each library outside of them
_trainer: int | None = None  # the thread of Python in which a training is at work


@functools.cache
def _libraries() -> list:
    return ThreadpoolController().select(user_api="blas").lib_controllers


def _counts() -> list[int]:
    return [library.num_threads for library in _libraries()]


def _set(counts: list[int]) -> None:
    for library, count in zip(_libraries(), counts, strict=True):
        library.set_num_threads(count)
        # Since threadpoolctl 3.7 only the thread that set the number first may change it again.
        getattr(library, "clear_controlling_thread", lambda: None)()


def threads() -> int:
    """How many threads a product takes."""
    return max(_counts(), default=1)


def _another_thread_trains() -> bool:
    return _trainer not in (None, threading.get_ident())


@contextlib.contextmanager
def fixed(count: int) -> Iterator[None]:
    """Within the block, a training in this thread, products take `count` threads."""
    global _trainer
    with _change:
        before = _usual if blocks else _counts()
        _trainer = threading.get_ident()
        _set([count] * len(before))
    try:
        yield
    finally:
        with _change:
            _trainer = None
            _set(before)


@contextlib.contextmanager
def sparing() -> Iterator[None]:
    """Within the block one thread makes all products but large ones.

    Where another thread trains, nothing changes: the number may decide the bits of its products.
    """
    global blocks, _usual
    if _another_thread_trains():
        yield
        return
    with _change:
        if not blocks:
            _usual = _counts()
            _set([1] * len(_usual))
        blocks += 1
    try:
        yield
    finally:
        with _change:
            blocks -= 1
            if not (blocks or _another_thread_trains()):
                _set(_usual)


def product(a, b):
    """a (M, N) @ b (N, P) within `sparing`: few rows, but not one, are multiplied in pieces.

    Where it is large, it takes all threads that there were before.
    """
    if (size := a.size * b.shape[1]) <= PIECE:
        return a @ b
    if isinstance(a, np.ndarray) and 1 < len(a) <= IN_PIECES:
        return _in_pieces(a, b)
    if size < LARGE or _another_thread_trains():
        return a @ b
    with _change:
        _set(_usual)
    try:
        return a @ b
    finally:
        with _change:
            if blocks and not _another_thread_trains():
                _set([1] * len(_usual))


def _in_pieces(a, b):
    """a (M, N) @ b (N, P) for few rows of `a`, as products with pieces of `b`, whole in memory.

    OpenBLAS lays out both matrices anew before it multiplies, but with AVX-512 not for small ones:
    5 rows by a (10000, 512) transposed then take 0.3 of the time, 16 rows 0.5.
    """
    rows, (depth, columns) = len(a), b.shape
    if b.flags.f_contiguous:  # pieces of its columns give columns of the result
        width = min(PIECE_TRANSPOSED, PIECE // depth) // rows
        if not 0 < width < columns:
            return a @ b
        whole, y = columns // width * width, np.empty((rows, columns), b.dtype)
        pieces = b.T[:whole].reshape(-1, width, depth).swapaxes(1, 2)
        np.matmul(a, pieces, out=y[:, :whole].reshape(rows, -1, width).swapaxes(0, 1))
        np.matmul(a, b[:, whole:], out=y[:, whole:])
        return y
    thickness = 2 ** (PIECE // (rows * columns)).bit_length() // 2
    if thickness < 32 or depth % thickness or not b.flags.c_contiguous:
        return a @ b
    pieces = b.reshape(-1, thickness, columns)  # of its rows: the products are summed
    return (a.reshape(rows, -1, thickness).swapaxes(0, 1) @ pieces).sum(axis=0)
