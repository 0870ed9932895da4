"""CUDA kernels on the host: `RawModule` of the stand-in for CuPy, if there is a C++ compiler.

g++ compiles a CUDA source after `cuda_on_host.hpp`, which defines what the sources use of CUDA. The
kernels work in the memory of the stand-in's arrays. Threads meet at barriers and shuffles, as on a
card. Mistakes that a card would not report raise an error here: an argument whose type is not the
kernel's, threads that wait for each other forever.
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
FLAGS += ["-mno-red-zone", "-fcf-protection=none"]  # a jump leaves a thread's stack
CHECKS = ["-fsanitize=bounds,alignment"]  # the header reports these, so no library is linked
SHARED_MEMORY = 48 * 1024  # bytes of a block, unless a kernel asks for more
LIMITS = (2**31 - 1, 2**16 - 1, 2**16 - 1, 1024, 1024, 64)  # of blocks and threads, by axis
ANY = "-"  # for a type that NumPy lacks


class Undefined(AssertionError):
    """The result would be undefined in CuPy."""


class CompileException(Exception):
    """The source is not valid CUDA C++."""


class CUDADriverError(RuntimeError):
    """The driver refuses to start a kernel."""


@functools.cache
def compiler() -> str | None:
    """The path of g++, if it knows half precision and the processor is an x86-64 on Unix."""
    path = shutil.which("g++")
    if not path or sys.platform == "win32" or platform.machine() != "x86_64":
        return None
    command = [path, *FLAGS, "-fsyntax-only", "-"]
    process = subprocess.run(command, input=b"_Float16 x;", capture_output=True)
    return None if process.returncode else path


def _for_host(source: str) -> str:
    """The source without CUDA's headers; each block begins with its shared memory undefined."""
    source = re.sub(r"^[ \t]*#[ \t]*include[ \t]*<cuda\w*\.h>", "", source, flags=re.M)
    array = r"extern\s+__shared__\s+(?:\w+\(\d+\)\s+)?([\w\s]+?)\s+(\w+)\s*\[\s*\]"
    source = re.sub(array, r"\1* \2 = (\1*)on_host::dynamic_shared", source)
    return re.sub(
        r"(__shared__\s[^;,=]*?\b(\w+)(\s*\[[^;,]*\])?\s*;)", r"\1 ON_HOST_UNDEFINED(\2)", source
    )


def _run_compiler(arguments: list[str], text: str = "") -> str:
    process = subprocess.run([compiler(), *arguments], input=text, capture_output=True, text=True)
    if process.returncode:
        raise CompileException(process.stderr)
    return process.stdout


@functools.cache
def _library(source: str, options: tuple) -> tuple[ctypes.PyDLL, dict[str, int]]:
    """The compiled source, cached among the temporary files, and a number for each kernel."""
    flags = FLAGS + [option for option in options if re.match("--?(std=|D|I)", option)]
    source = _for_host(source)
    # Macros can declare kernels, so they are expanded before the names of kernels are read.
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
        # Another process may compile it, too, so the file is moved into place when complete.
        with tempfile.TemporaryDirectory(dir=folder) as workspace:
            object_, library = f"{workspace}/object.o", f"{workspace}/library.so"
            _run_compiler([*flags, *CHECKS, "-c", "-", "-o", object_], text)
            _run_compiler(["-shared", object_, "-o", library])
            os.replace(library, path)
    return ctypes.PyDLL(str(path)), kernels  # PyDLL: no other Python thread interrupts


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
    """A kernel, called like CuPy's: `kernel(grid, block, arguments)`."""

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
        # CuPy takes a size of 0 as 1.
        sizes = [max(1, size) for sizes in (grid, block) for size in (*sizes, 1, 1)[:3]]
        if any(map(operator.gt, sizes, LIMITS)) or math.prod(sizes[3:]) > 1024:
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
    """The eight bytes of an argument for a parameter: "*f" is a pointer to float, "=f" a float."""
    pointer, letter = type_[0] == "*", type_[1]
    if isinstance(value, bool | int | float | np.generic):
        if not pointer:
            return _number(letter, value)
        raise Undefined("a number, where the kernel takes an array")
    memory = None if isinstance(value, np.ndarray) else getattr(value, "data", value)
    address = 0 if value is None else getattr(memory, "ptr", None)
    if address is None:
        raise TypeError(f"a {type(value)}, which is not on the device")
    dtype = getattr(value, "dtype", letter)
    if not pointer or (letter != ANY and dtype != letter):
        raise Undefined(f"an array of {dtype}, where the kernel takes {type_}")
    return address.to_bytes(8, "little")


def _number(letter: str, value) -> bytes:
    """The eight bytes of a number. CuPy passes as many of them as the number's own type has.

    If an integer's type is larger than the kernel's, the kernel reads the lower bytes. They hold
    the number if it fits.
    """
    dtype = getattr(value, "dtype", None) or np.dtype(type(value))
    integers = dtype.kind in "iub" and letter in "?bBhHiIqQ"
    if dtype.itemsize >= struct.calcsize(letter) if integers else dtype == letter:
        with contextlib.suppress(struct.error):
            return struct.pack(letter, value).ljust(8, b"\0")
    raise Undefined(f"{value!r} of {dtype}, where the kernel takes {letter}")
