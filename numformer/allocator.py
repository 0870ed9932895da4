"""glibc's memory allocator: whether this process keeps the memory of freed arrays."""

import contextlib
import ctypes


def reuse_freed_memory() -> None:
    """Let this process keep the memory of freed arrays instead of returning it to the system.

    glibc returns large arrays as soon as they are freed, so every training step pays page faults
    for the same memory again. This concerns the whole process; without glibc it does nothing.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(m_mmap_threshold, 1 << 30)
    mallopt(m_trim_threshold, -1)  # never


def return_freed_memory() -> None:
    """Return the memory of freed arrays to the system, once.

    Otherwise this process, and each that it forks, would keep what building a model took.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
