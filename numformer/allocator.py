"""glibc's allocator: whether the memory of freed arrays stays with this process."""

import contextlib
import ctypes


def reuse_freed_memory() -> None:
    """Let this process keep the memory of freed arrays instead of returning it to the system.

    glibc gives large arrays back as soon as they are freed, so every training step pays page faults
    for the same memory again. It governs the whole process; without glibc it does nothing.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(m_mmap_threshold, 1 << 30)
    mallopt(m_trim_threshold, -1)  # never


def return_freed_memory() -> None:
    """Give what this process has kept of freed arrays back to the system, once.

    What building a model has needed would stay otherwise, and in every process that is forked.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
