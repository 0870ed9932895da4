"""Tell glibc's memory allocator to keep the memory of freed arrays, or to return it."""

import contextlib
import ctypes


def reuse_freed_memory() -> None:
    """Let this process keep the memory of freed arrays instead of returning it to the system.

    By default glibc returns the memory of a large array as soon as it is freed, so every training
    step causes the same page faults again. This affects the whole process, and only with glibc.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(m_mmap_threshold, 1 << 30)
    mallopt(m_trim_threshold, -1)  # never return memory


def return_freed_memory() -> None:
    """Return the memory of freed arrays to the system, once.

    Otherwise this process and its forks would keep the memory that was used to build the model.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
