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
    ask_for_large_pages()


def ask_for_large_pages(size: int = 1 << 28) -> None:
    """Let the next `size` bytes of memory that arrays take come in pages of 2 MiB where they can.

    A step's arrays lie on thousands of pages of 4 KiB, more than the processor remembers the places
    of. After `reuse_freed_memory`; memory that nothing touches is not taken.
    """
    page, huge = 1 << 21, 14  # MADV_HUGEPAGE
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc.restype = ctypes.c_void_p
        if start := libc.malloc(ctypes.c_size_t(size)):
            first = -(-start // page) * page
            length = ctypes.c_size_t(start + size - first)
            libc.madvise(ctypes.c_void_p(first), length, huge)
            libc.free(ctypes.c_void_p(start))


def return_freed_memory() -> None:
    """Give what this process has kept of freed arrays back to the system, once.

    What building a model has needed would stay otherwise, and in every process that is forked.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
