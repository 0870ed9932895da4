"""The number of threads for the matrix products of BLAS, and faster products with few rows.

Writing text multiplies small matrices one after another. A second thread gains little there, and if
other programs run, both threads mostly wait. The number of threads applies to the whole process.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator

import numpy as np
from threadpoolctl import ThreadpoolController

LARGE = 1 << 27  # a product with at least this many multiplications uses all threads
MOST_ROWS = 16  # a product with more rows in its first matrix is not cut into pieces
PIECE = 10**6  # up to this many multiplications, OpenBLAS does not copy the matrices
PIECE_TRANSPOSED = 1200  # maximum number of entries in a piece's result, if b is transposed

blocks = 0  # number of `single_thread` blocks that are active in all Python threads

_change = threading.Lock()
_usual: list[int] = []  # number of threads of each BLAS library outside these blocks
_trainer: int | None = None  # the Python thread that trains a model


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
    """Return the number of threads that a matrix product uses."""
    return max(_counts(), default=1)


def _another_thread_trains() -> bool:
    return _trainer not in (None, threading.get_ident())


@contextlib.contextmanager
def training_threads(count: int) -> Iterator[None]:
    """Make products use `count` threads within the block, where this thread trains a model."""
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
def single_thread() -> Iterator[None]:
    """Make all products but large ones use one thread within the block.

    While another thread trains, the number stays: the results of that thread may depend on it.
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
    """Return a (M, N) @ b (N, P), computed fast in a `single_thread` block.

    If a has 2 to 16 rows, b may be cut into pieces. A large product uses all the usual threads.
    """
    if (size := a.size * b.shape[1]) <= PIECE:
        return a @ b
    if isinstance(a, np.ndarray) and 1 < len(a) <= MOST_ROWS:
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
    """a (M, N) @ b (N, P) for a small M, as products with contiguous pieces of `b`.

    With AVX-512, OpenBLAS multiplies small matrices without copying them first, unlike large ones.
    In pieces, 5 rows times a transposed (10000, 512) matrix take 0.3 of the time, 16 rows 0.5.
    """
    rows, (depth, columns) = len(a), b.shape
    if b.flags.f_contiguous:  # pieces of b's columns, each of which gives columns of y
        width = min(PIECE_TRANSPOSED, PIECE // depth) // rows
        if not 0 < width < columns:
            return a @ b
        end, y = columns // width * width, np.empty((rows, columns), b.dtype)
        pieces = b.T[:end].reshape(-1, width, depth).swapaxes(1, 2)
        np.matmul(a, pieces, out=y[:, :end].reshape(rows, -1, width).swapaxes(0, 1))
        np.matmul(a, b[:, end:], out=y[:, end:])
        return y
    thickness = 2 ** (PIECE // (rows * columns)).bit_length() // 2
    if thickness < 32 or depth % thickness or not b.flags.c_contiguous:
        return a @ b
    pieces = b.reshape(-1, thickness, columns)  # pieces of b's rows, whose products are summed
    return (a.reshape(rows, -1, thickness).swapaxes(0, 1) @ pieces).sum(axis=0)
