"""CUDA sources, compiled for the dtype of the arrays that their kernels work on."""

from typing import Any

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError

WARP = 32
# T is float or double. A warp is 32 neighbouring threads, which can exchange values. A Pack is 16
# bytes of T; reading Packs uses more of the memory bandwidth than reading single numbers.
HEAD = """
typedef {T} T;
typedef long long Int;
typedef unsigned long long Word;
#define LOWEST T({lowest})

__device__ __forceinline__ T warp_sum(T value) {{
    for (int lanes = 16; lanes; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
    return value;
}}

__device__ __forceinline__ T warp_max(T value) {{
    for (int lanes = 16; lanes; lanes /= 2)
        value = max(value, __shfl_xor_sync(0xffffffff, value, lanes));
    return value;
}}

const int PACK = 16 / sizeof(T);
template <class E> struct alignas(PACK * sizeof(E)) PackOf {{ E entries[PACK]; }};
typedef PackOf<T> Pack;

// Reads PACK numbers, beginning at x. If only `count` of them exist, the rest becomes `fill`.
template <class E>
__device__ __forceinline__ PackOf<E> load(const E* x, Int count, E fill = 0) {{
    typedef PackOf<E> P;
    if (count >= PACK && Word(x) % sizeof(P) == 0) return *reinterpret_cast<const P*>(x);
    P pack;
    for (int i = 0; i < PACK; i++) pack.entries[i] = i < count ? x[i] : fill;
    return pack;
}}

template <class E>
__device__ __forceinline__ void store(const PackOf<E>& pack, Int count, E* x) {{
    typedef PackOf<E> P;
    if (count >= PACK && Word(x) % sizeof(P) == 0) *reinterpret_cast<P*>(x) = pack;
    else for (int i = 0; i < PACK && i < count; i++) x[i] = pack.entries[i];
}}
"""


class Source:
    """The CUDA source of kernels, in which T is the dtype of the arrays: float or double.

    Kernels receive a Python int as `Int` and a Python float as `double`.
    """

    def __init__(self, text: str):
        self.text = text
        self._functions: dict[tuple, Any] = {}

    def start(self, name: str, like, blocks: tuple[int, ...], threads: tuple[int, ...], *arguments):
        """Start the kernel `name`, compiled for the dtype of `like`, on these blocks of threads."""
        key = name, like.dtype.char, type(like)
        if key not in self._functions:
            self._functions[key] = self._compile(like).get_function(name)
        if min(blocks):
            self._functions[key](blocks, threads, arguments)

    def _compile(self, like):
        key = like.dtype.char, array_module(like)
        if key not in self._functions:
            types = {"f": "float", "d": "double"}
            if like.dtype.char not in types:
                raise InputError(
                    "a GPU's kernels compute in float32 or float64",
                    like.dtype,
                    "Pack the model in one of them; for float16 use --precision mixed.",
                )
            lowest = repr(float(np.finfo(like.dtype).min))
            code = HEAD.format(T=types[like.dtype.char], lowest=lowest) + self.text
            module = array_module(like).RawModule(code=code, options=("-std=c++17",))
            self._functions[key] = module
        return self._functions[key]


def warps(rows: int, warps_per_block: int = 8) -> tuple[tuple[int], tuple[int, int]]:
    """Return the numbers of blocks and threads that give each row its own warp."""
    return (-(-rows // warps_per_block),), (WARP, warps_per_block)


def threads_for(entries: int, threads: int = 256) -> tuple[tuple[int], tuple[int]]:
    """Return the numbers of blocks and threads that give each entry its own thread."""
    return (-(-entries // threads),), (threads,)


def packs_for(x) -> tuple[tuple[int], tuple[int]]:
    """Return the numbers of blocks and threads that give each 16-byte pack of x its own thread."""
    return threads_for(-(-x.nbytes // 16))


def contiguous(*arrays):
    """Return the arrays, contiguous and in the first array's dtype; copied if necessary."""
    xp, dtype = array_module(arrays[0]), arrays[0].dtype
    return [
        x if x.dtype == dtype and x.flags.c_contiguous else xp.ascontiguousarray(x, dtype)
        for x in arrays
    ]


def alike(*arrays):
    """Return the arrays, broadcast to one shape, contiguous and in the first array's dtype."""
    if len({x.shape for x in arrays}) > 1:
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        arrays = tuple(array_module(x).broadcast_to(x, shape) for x in arrays)
    return contiguous(*arrays)
