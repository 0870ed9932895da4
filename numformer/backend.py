"""The machine: what differs in name or speed between NumPy and CuPy, and nothing else.

Ordinary array code needs only `xp = array_module(x)`: the arrays decide where work is done.
"""

import contextlib
import contextvars
import ctypes
import functools
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from numformer import blas
from numformer.errors import InputError

# A rank of MPI's number on its machine and of its GPU.
RANK_HERE = "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"
BACKENDS = ("numpy", "cupy", "auto")
FEW = 16  # rows, at most, of which NumPy's own sum and maximum are faster than their replacements


def array_module(x) -> Any:
    """The module (numpy or cupy) whose functions work on the array `x`."""
    if isinstance(x, np.ndarray):
        return np
    return sys.modules[type(x).__module__.partition(".")[0]]


def on_host(x) -> bool:
    """Whether `x` is a NumPy array: looking at its numbers waits for no device."""
    return isinstance(x, np.ndarray)


def to_host(x) -> np.ndarray:
    """`x` as a NumPy array; from a GPU this waits for the device."""
    return x.get() if hasattr(x, "get") else np.asarray(x)


def find_backend(name: str) -> Any:
    """The array module for `name`: "numpy", "cupy", or "auto" (cupy where a GPU answers).

    Raises InputError where "cupy" is asked for and no GPU can be used. `import cupy` succeeds
    without a GPU and without cuBLAS, which the first product loads: so a product is the test.
    """
    if name not in BACKENDS:
        raise InputError(
            f"the backend is one of {', '.join(BACKENDS)}",
            repr(name),
            "Set --backend (or NUMFORMER_BACKEND) to one of them.",
        )
    if name == "numpy":
        return np
    try:
        import cupy

        if not cupy.cuda.is_available():
            raise RuntimeError("CuPy finds no CUDA device")
        for name in {*RANK_HERE} & {*os.environ}:
            cupy.cuda.Device(int(os.environ[name])).use()
        ones = cupy.ones((2, 3), dtype=cupy.float32)
        if float((ones @ ones.T).sum()) != 12:
            raise RuntimeError("the GPU computes a wrong product")
        return cupy
    except Exception as problem:  # whatever breaks in a driver or an installation means: no GPU
        reason = f"{type(problem).__name__}: {problem}"
        if name == "auto":
            print(f"backend auto: using numpy ({reason})", file=sys.stderr)
            return np
        raise InputError(
            "backend cupy needs CuPy and an NVIDIA GPU",
            reason,
            "Install numformer[cuda12] or numformer[cuda13], or use --backend numpy.",
        ) from None


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


def dtype_kind(value) -> str:
    """The kind of an array's dtype ("f" floating-point, "b" boolean, "i"); "" for what is none."""
    return getattr(getattr(value, "dtype", None), "kind", "")


def memory(xp=np) -> int:
    """How many bytes of memory the arrays of `xp` can have: this machine's, or the GPU's."""
    if xp is not np:
        return xp.cuda.Device().mem_info[1]
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= getattr(os, "sysconf_names", {}).keys():
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def rows(x):
    """x (..., D) -> (N, D), the same memory where possible."""
    return x.reshape(-1, x.shape[-1])


def transpose(x):
    """x (..., M, N) -> (..., N, M)."""
    return x.swapaxes(-1, -2)


def laid_out(x):
    """x (..., M, N) with its rows one after the other in memory, as products read them best."""
    return array_module(x).ascontiguousarray(x)


def matmul(a, b):
    """The matrix product over the last two axes, a (..., M, N), b (..., N, P) -> (..., M, P).

    One matrix `b` for all of `a` becomes a single large product instead of many small ones; within
    `half_products` it is a `half_product`.
    """
    if b.ndim == 2:
        product = half_product if _half.get() else blas.product
        if a.ndim == 2:
            return product(a, b)
        return product(rows(a), b).reshape(*a.shape[:-1], b.shape[1])
    return a @ b


_half = contextvars.ContextVar("half", default=False)


@contextlib.contextmanager
def half_products(half: bool = True) -> Iterator[None]:
    """Within the block, in this thread, products with one matrix are made in half precision.

    These are all but those of attention's queries with keys, and weights with values. CuPy 14 makes
    products of many matrices in float32, whatever it is given.
    """
    token = _half.set(half)
    try:
        yield
    finally:
        _half.reset(token)


def half_product(a, b):
    """a (M, N), b (N, P) -> a @ b (M, P) of numbers rounded to float16, of the dtype of `a`.

    float16 has 11 bits and reaches from 6e-8 to 65504: smaller numbers become 0, larger ones
    infinite. The sums are made in float32, then rounded, too. A GPU's tensor cores do just this,
    many times as fast as float32. NumPy would multiply float16 numbers one by one, so here numbers
    that were rounded are float32 again: the same arithmetic, and slower than without it.
    """
    with np.errstate(over="ignore"):
        x, y = a.astype(np.float16), b.astype(np.float16)
        if on_host(a):
            x, y = x.astype(np.float32), y.astype(np.float32)
        return (x @ y).astype(np.float16).astype(a.dtype)


def sum_rows(x):
    """x (..., D) -> (D,): the sum over all axes but the last, as a product with ones."""
    x = rows(x)
    return _ones(len(x), x) @ x


def sum_last(x):
    """x (..., D) -> (..., 1): the sum over the last axis, for many rows as a product with ones."""
    if x.size <= FEW * x.shape[-1]:
        return x.sum(axis=-1, keepdims=True)
    return (rows(x) @ _ones(x.shape[-1], x)).reshape(*x.shape[:-1], 1)


def _ones(size: int, like):
    """Ones (size,) of the dtype and device of `like`; on the host they are kept for the next."""
    if isinstance(like, np.ndarray):
        return _ones_on_host(size, like.dtype)
    return array_module(like).ones(size, dtype=like.dtype)


@functools.lru_cache(maxsize=64)
def _ones_on_host(size: int, dtype):
    ones = np.ones(size, dtype=dtype)
    ones.flags.writeable = False  # everybody who asks gets the same
    return ones


def mean_last(x):
    """x (..., D) -> (..., 1): the mean over the last axis."""
    mean = sum_last(x)
    mean *= 1 / x.shape[-1]
    return mean


def max_last(x):
    """x (..., D) -> (..., 1): the largest along the last axis.

    NumPy takes each short row by itself; transposed, all rows are compared at once.
    """
    if array_module(x) is np and x.shape[-1] <= 64 and x.size > FEW * x.shape[-1]:
        return rows(x).T.copy().max(axis=0).reshape(*x.shape[:-1], 1)
    return x.max(axis=-1, keepdims=True)


def dot_last(a, b):
    """a, b (..., D) -> (..., 1): the dot product along the last axis."""
    if array_module(a) is not np:  # there einsum makes a matrix product of every single row
        return (a * b).sum(axis=-1, keepdims=True)
    return np.einsum("...d,...d->...", a, b)[..., None]


def dot_rows(a, b):
    """a, b (..., D) -> (D,): the dot product over all axes but the last.

    einsum adds row after row, so each block of rows is added by itself: a sum of a million numbers
    would lose digits.
    """
    if array_module(a) is not np:
        return sum_rows(a * b)
    pair, block = (rows(a), rows(b)), 1024
    whole = math.prod(a.shape[:-1]) // block * block
    rest = np.einsum("nd,nd->d", *(x[whole:] for x in pair))
    if not whole:
        return rest
    blocks = (x[:whole].reshape(-1, block, x.shape[1]) for x in pair)
    return np.einsum("knd,knd->kd", *blocks).sum(axis=0) + rest


def masked(scores, mask):
    """scores (..., S), mask broadcast to it -> scores where the mask is True, elsewhere -inf.

    NumPy adds faster than it chooses, the more so as the mask has fewer entries than the scores.
    """
    xp = array_module(scores)
    minus_infinity = scores.dtype.type(-np.inf)
    if xp is np:
        return scores + np.where(mask, scores.dtype.type(0), minus_infinity)
    return xp.where(mask, scores, minus_infinity)


def scatter_add(target, ids, values) -> None:
    """target[ids[n]] += values[n] for every n, repeated ids included.

    target (V, D), ids (N,), values (N, D). The order of each sum is fixed, so its bits are too.
    """
    xp = array_module(target)
    small = 256
    if len(target) <= small:
        chosen = ids == xp.arange(len(target))[:, None]
        target += chosen @ values
    elif len(ids):
        order = xp.argsort(ids, kind="stable")
        sorted_ids, sorted_values = ids[order], values[order]
        if xp is not np:
            _add_runs_on_device(target, sorted_ids, sorted_values)
            return
        starts = np.flatnonzero(np.diff(sorted_ids, prepend=-1))
        target[sorted_ids[starts]] += np.add.reduceat(sorted_values, starts)


def _add_runs_on_device(target, ids, values) -> None:
    """scatter_add of sorted ids, without waiting for how many differ; overwrites `values`.

    Atomic adds would sum in any order, and CuPy's reduceat subtracts sums of everything. So each
    value becomes the sum of its run up to it, in log2 N passes over the values (Hillis and Steele
    1986), and each row of the target gets the one at the end of its run.
    """
    xp, reach = array_module(target), 1
    while reach < len(ids):  # values[n] is the sum of up to `reach` values of its run, n the last
        same = (ids[reach:] == ids[:-reach])[:, None]
        values[reach:] += xp.where(same, values[:-reach], 0)
        reach *= 2
    symbols = xp.arange(len(target))
    last = xp.searchsorted(ids, symbols, side="right") - 1
    target += xp.where((ids[last] == symbols)[:, None], values[last], 0)


def normal(x):
    """x (...) -> P(X <= x) of a standard normal X, and its density at x, each (...).

    NumPy has no such function, nor erf.
    The tail beyond a = |x| is exp(-a^2 / 2) times a smooth function of t = 3 / (3 + a): so smooth
    that a polynomial gives all digits of the dtype. Beyond 40 the exponential is 0 in every dtype.
    """
    xp = array_module(x)
    highest, *coefficients, constant = _tail_polynomial(7 if x.dtype == np.float32 else 18)
    flat, (cdf, density) = x.reshape(-1), xp.empty((2, x.size), x.dtype)
    for piece in cache_sized_pieces(flat):
        value, tail, exponential = flat[piece], cdf[piece], density[piece]
        a = xp.minimum(xp.absolute(value), 40)
        xp.multiply(a, a, out=exponential)
        t = a + 3
        xp.divide(3, t, out=t)
        xp.multiply(t, highest, out=tail)
        for coefficient in coefficients:
            tail += coefficient
            tail *= t
        tail += constant
        exponential *= -0.5
        tail *= xp.exp(exponential, out=exponential)
        exponential *= 1 / math.sqrt(2 * math.pi)
        # P(X <= x) is the tail for an x below 0, otherwise 1 - tail.
        tail -= value > 0
        xp.absolute(tail, out=tail)
    return cdf.reshape(x.shape), density.reshape(x.shape)


@functools.cache
def _tail_polynomial(degree: int) -> list[float]:
    """The coefficients, highest first, of exp(a^2 / 2) P(X > a) in powers of 3 / (3 + a).

    They are Python's numbers: NumPy's own would make each sum a float64, in twice the time.
    """

    def scaled_tail(t: float) -> float:
        a = 3 / t - 3
        return math.exp(a * a / 2) * math.erfc(a / math.sqrt(2)) / 2

    values = np.vectorize(scaled_tail)
    interpolated = np.polynomial.Chebyshev.interpolate(values, degree, domain=[0.2, 1])
    return interpolated.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist()


def cache_sized_pieces(vector) -> list[slice]:
    """Slices that cover `vector`: on the host short enough to stay in the processor's cache.

    Several operations in turn on one piece then read memory once instead of once each.
    """
    return _pieces(vector, 1 << 15)


def rows_in_cache(x) -> list[slice]:
    """Slices that cover the rows of x (N, D), by the same reason."""
    return _pieces(x, max(1, (1 << 17) // x.shape[1]))


def _pieces(x, size: int) -> list[slice]:
    if not isinstance(x, np.ndarray):
        return [slice(None)]
    return [slice(start, start + size) for start in range(0, len(x), size)]


def default_backend() -> str:
    """The backend that scripts use unless told otherwise: NUMFORMER_BACKEND, or numpy."""
    return os.environ.get("NUMFORMER_BACKEND", "numpy")
