"""How many threads BLAS takes for a product of matrices; the number is the whole process's.

A model that answers multiplies small matrices, one product after the other. A second thread gains
little there, and beside other programs the two wait for each other most of the time.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

LARGE = 1 << 27  # multiplications of a product that is worth all threads: some milliseconds of one

_change = threading.Lock()
_blocks = 0  # `sparing` blocks that are at work, in all threads of Python
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
        before = _usual if _blocks else _counts()
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
    global _blocks, _usual
    if _another_thread_trains():
        yield
        return
    with _change:
        if not _blocks:
            _usual = _counts()
            _set([1] * len(_usual))
        _blocks += 1
    try:
        yield
    finally:
        with _change:
            _blocks -= 1
            if not (_blocks or _another_thread_trains()):
                _set(_usual)


def product(a, b):
    """a (M, N) @ b (N, P); where it is large, by all threads that there were before `sparing`."""
    if not _blocks or a.size * b.shape[1] < LARGE or _another_thread_trains():
        return a @ b
    with _change:
        _set(_usual)
    try:
        return a @ b
    finally:
        with _change:
            if _blocks and not _another_thread_trains():
                _set([1] * len(_usual))
