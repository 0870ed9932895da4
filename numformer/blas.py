"""How many threads the matrix products of BLAS use, and a faster way to multiply a few rows.

To generate, a model multiplies one small matrix after another. A second thread gains little there,
and while other programs run, both mostly wait. The number of threads applies to the whole process.
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

blocks = 0  # how many `single_thread` blocks are active, in all threads of Python

_change = threading.Lock()
_usual: list[int] = []  # how many threads each BLAS library uses outside these blocks
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
    """Return the number of threads that a product uses."""
    return max(_counts(), default=1)


def _another_thread_trains() -> bool:
    return _trainer not in (None, threading.get_ident())


@contextlib.contextmanager
def training_threads(count: int) -> Iterator[None]:
    """Within the block, which trains a model in this thread, products use `count` threads."""
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
    """Within the block, all products but large ones use one thread.

    While another thread trains, the number is kept: a change might alter that thread's results.
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
    """Return a (M, N) @ b (N, P) within `single_thread`; if a has 2 to 16 rows, cut b into pieces.

    A large product uses all the usual threads.
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

    OpenBLAS copies large matrices before multiplying them but, with AVX-512, not small ones. So 5
    rows times the transpose of a (10000, 512) matrix take 0.3 of the time, and 16 rows take 0.5.
    """
    rows, (depth, columns) = len(a), b.shape
    if b.flags.f_contiguous:  # each piece of b's columns gives columns of y
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
