"""CUDA kernels on the host: RawModule of the stand-in for CuPy, where there is a C++ compiler.

The source is compiled by g++ behind `cuda_on_host.hpp`, which has what CUDA has and the sources
use, and runs on the memory of the stand-in's arrays. Threads meet at barriers and shuffles as on a
card. What would go wrong there without a word raises here: an argument of another type than the
kernel's, threads that wait for each other for ever.
"""

import contextlib
import ctypes
import functools
import hashlib
import math
import operator
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HEADER = Path(__file__).with_suffix(".hpp")
FLAGS = "-x c++ -O2 -std=c++17 -w -fPIC -ffp-contract=off".split()
FLAGS += ["-mno-red-zone", "-fcf-protection=none"]  # a thread's stack is left by a jump
CHECKS = ["-fsanitize=bounds,alignment"]  # by the header: the linker needs no library for them
SHARED_MEMORY = 48 * 1024  # bytes that a block has without being asked for more
MOST = (2**31 - 1, 2**16 - 1, 2**16 - 1, 1024, 1024, 64)  # blocks and threads along each axis
ANY = "-"  # for a type that NumPy lacks


class Undefined(AssertionError):
    """What CuPy computes here is undefined."""


class CompileException(Exception):
    """The source is no valid CUDA C++."""


class CUDADriverError(RuntimeError):
    """The driver refuses to start a kernel."""


@functools.cache
def compiler() -> str | None:
    """The C++ compiler, if there is one that knows half precision, on a processor that fits."""
    path = shutil.which("g++")
    if not path or sys.platform == "win32" or platform.machine() != "x86_64":
        return None
    command = [path, *FLAGS, "-fsyntax-only", "-"]
    done = subprocess.run(command, input=b"_Float16 x;", capture_output=True)
    return None if done.returncode else path


def _for_host(source: str) -> str:
    """The source without CUDA's headers, its shared memory undefined when a block begins."""
    source = re.sub(r"^[ \t]*#[ \t]*include[ \t]*<cuda\w*\.h>", "", source, flags=re.M)
    array = r"extern\s+__shared__\s+(?:\w+\(\d+\)\s+)?([\w\s]+?)\s+(\w+)\s*\[\s*\]"
    source = re.sub(array, r"\1* \2 = (\1*)on_host::dynamic_shared", source)
    return re.sub(
        r"(__shared__\s[^;,=]*?\b(\w+)(\s*\[[^;,]*\])?\s*;)", r"\1 ON_HOST_UNDEFINED(\2)", source
    )


def _run_compiler(arguments: list[str], text: str = "") -> str:
    done = subprocess.run([compiler(), *arguments], input=text, capture_output=True, text=True)
    if done.returncode:
        raise CompileException(done.stderr)
    return done.stdout


@functools.cache
def _library(source: str, options: tuple) -> tuple[ctypes.PyDLL, dict[str, int]]:
    """The compiled source, kept among temporary files, and the numbers of its kernels."""
    flags = FLAGS + [option for option in options if re.match("--?(std=|D|I)", option)]
    source = _for_host(source)
    # Without the header and with macros expanded, what is left of a kernel's head is its name.
    expanded = _run_compiler([*flags, "-E", "-P", "-D__launch_bounds__(...)=", "-"], source)
    names = re.findall(r"\b__global__\s+void\s+(\w+)\s*\(", expanded)
    kernels = {name: number for number, name in enumerate(dict.fromkeys(names))}
    text = f'#include "{HEADER}"\n#line 1 "source.cu"\n{source}\n' + "".join(
        f"ON_HOST_KERNEL({number}, {name})\n" for name, number in kernels.items()
    )
    parts = [
        text,
        HEADER.read_text(encoding="utf-8"),
        *flags,
        *CHECKS,
        f"{os.stat(compiler()).st_mtime}",
    ]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"cuda_on_host_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.so"
    if not path.exists():
        # Another process may compile it, too: the whole file appears at once.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            object_, library = f"{own}/object.o", f"{own}/library.so"
            _run_compiler([*flags, *CHECKS, "-c", "-", "-o", object_], text)
            _run_compiler(["-shared", object_, "-o", library])
            os.replace(library, path)
    return ctypes.PyDLL(str(path)), kernels  # which no other Python thread interrupts


class RawModule:
    """The kernels of a CUDA source."""

    def __init__(self, *, code: str, options: tuple = ()):
        if not isinstance(options, tuple):
            raise TypeError(f"options must be a tuple, not {type(options)}")
        self._code, self._options = code, options

    def get_function(self, name: str) -> "Kernel":
        library, kernels = _library(self._code, self._options)
        if name not in kernels or not hasattr(library, name):
            raise CUDADriverError(f'CUDA_ERROR_NOT_FOUND: no extern "C" kernel {name}')
        return Kernel(name, library, kernels[name])


class Kernel:
    """A kernel, called as CuPy's: `kernel(grid, block, arguments)`."""

    def __init__(self, name: str, library: ctypes.PyDLL, number: int):
        types = getattr(library, f"types_{number}")
        self._launch = getattr(library, f"launch_{number}")
        types.restype = self._launch.restype = ctypes.c_char_p
        self._launch.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._types = re.findall("..", types().decode())
        self.__name__, self.max_dynamic_shared_size_bytes = name, SHARED_MEMORY

    def __call__(self, grid: tuple, block: tuple, args, shared_mem: int = 0) -> None:
        if not isinstance(grid, tuple) or not isinstance(block, tuple):
            raise TypeError("the sizes of grid and block must be tuples")
        if len(args) != len(self._types):
            raise Undefined(f"{self.__name__} takes {len(self._types)} arguments, not {len(args)}")
        # CuPy starts one block, too, where none was asked for.
        sizes = [max(1, size) for sizes in (grid, block) for size in (*sizes, 1, 1)[:3]]
        if any(map(operator.gt, sizes, MOST)) or math.prod(sizes[3:]) > 1024:
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {self.__name__} {grid} {block}")
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {shared_mem} bytes of shared memory")
        slots = []
        for position, (type_, value) in enumerate(zip(self._types, args, strict=True)):
            try:
                slots.append(_slot(type_, value))
            except (TypeError, Undefined) as error:
                raise type(error)(f"argument {position} of {self.__name__}: {error}") from None
        numbers = (ctypes.c_uint * 7)(*sizes, shared_mem)
        if problem := self._launch(numbers, b"".join(slots)):
            raise Undefined(f"{self.__name__}: {problem.decode()}")


def _slot(type_: str, value) -> bytes:
    """The eight bytes of an argument for a parameter like "*f", a pointer to float, or "=f"."""
    pointer, letter = type_[0] == "*", type_[1]
    if isinstance(value, bool | int | float | np.generic):
        if not pointer:
            return _number(letter, value)
        raise Undefined("a number, not an array")
    memory = None if isinstance(value, np.ndarray) else getattr(value, "data", value)
    address = 0 if value is None else getattr(memory, "ptr", None)
    if address is None:
        raise TypeError(f"a {type(value)}, which is not on the device")
    dtype = getattr(value, "dtype", letter)
    if not pointer or (letter != ANY and dtype != letter):
        raise Undefined(f"an array of {dtype}, where the kernel has {type_}")
    return address.to_bytes(8, "little")


def _number(letter: str, value) -> bytes:
    """The bytes of a number, of which CuPy passes on as many as its own type has.

    Of a larger integer the kernel reads the lower bytes, which are the number if it fits.
    """
    given = getattr(value, "dtype", None) or np.dtype(type(value))
    whole = given.kind in "iub" and letter in "?bBhHiIqQ"
    if given.itemsize >= struct.calcsize(letter) if whole else given == letter:
        with contextlib.suppress(struct.error):
            return struct.pack(letter, value).ljust(8, b"\0")
    raise Undefined(f"{value!r} of {given}, where the kernel has {letter}")
