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
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HEADER = Path(__file__).with_suffix(".hpp")
FLAGS = ["-x", "c++", "-O2", "-std=c++17", "-w", "-fPIC", "-U_FORTIFY_SOURCE", "-ffp-contract=off"]
SHARED_MEMORY = 48 * 1024  # bytes that a block has without being asked for more


class Undefined(AssertionError):
    """What CuPy computes here is undefined."""


class CompileException(Exception):
    """The source is no valid CUDA C++."""


class CUDADriverError(RuntimeError):
    """The driver refuses to start a kernel."""


@functools.cache
def compiler() -> str | None:
    """The C++ compiler, if there is one that knows half precision."""
    path = shutil.which("g++") if os.name == "posix" else None
    knows_half = (
        path
        and not subprocess.run(
            [path, *FLAGS, "-fsyntax-only", "-"], input=b"_Float16 x;", capture_output=True
        ).returncode
    )
    return path if knows_half else None


def _without_cuda(source: str) -> str:
    """The source without the headers of CUDA, and with dynamic shared memory as a pointer."""
    source = re.sub(r"^[ \t]*#[ \t]*include[ \t]*<cuda\w*\.h>", "", source, flags=re.M)
    array = (
        r"extern\s+__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s+)?([\w\s]+?)\s+(\w+)\s*\[\s*\]"
    )
    return re.sub(array, r"\1* \2 = (\1*)on_host::dynamic_shared", source)


def _run_compiler(arguments: list[str], text: str) -> str:
    done = subprocess.run([compiler(), *arguments], input=text, capture_output=True, text=True)
    if done.returncode:
        raise CompileException(done.stderr)
    return done.stdout


@functools.cache
def _library(source: str, options: tuple) -> tuple[ctypes.PyDLL, dict[str, int]]:
    """The compiled source, kept among temporary files, and the numbers of its kernels."""
    flags = FLAGS + [option for option in options if re.match("--?(std=|D|I)", option)]
    source = _without_cuda(source)
    # Without the header and with macros expanded, what is left of a kernel's head is its name.
    expanded = _run_compiler([*flags, "-E", "-P", "-D__launch_bounds__(...)=", "-"], source)
    names = re.findall(r"\b__global__\s+void\s+(\w+)\s*\(", expanded)
    kernels = {name: number for number, name in enumerate(dict.fromkeys(names))}
    text = f'#include "{HEADER}"\n#line 1 "source.cu"\n{source}\n' + "".join(
        f"KERNEL({number}, {name})\n" for name, number in kernels.items()
    )
    parts = [text, HEADER.read_text(encoding="utf-8"), *flags, str(os.stat(compiler()))]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"cuda_on_host_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.so"
    if not path.exists():
        # Another process may compile it, too: the whole file appears at once.
        part = path.with_suffix(f".{os.getpid()}")
        with contextlib.ExitStack() as stack:
            stack.callback(part.unlink, missing_ok=True)
            _run_compiler([*flags, "-shared", "-", "-o", str(part)], text)
            part.replace(path)
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
        letters = getattr(library, f"letters_{number}")
        self._launch = getattr(library, f"launch_{number}")
        letters.restype = self._launch.restype = ctypes.c_char_p
        self._launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._parameters = re.findall("..", letters().decode())
        self.__name__, self.max_dynamic_shared_size_bytes = name, SHARED_MEMORY

    def __call__(self, grid: tuple, block: tuple, args, shared_mem: int = 0) -> None:
        if not isinstance(grid, tuple) or not isinstance(block, tuple):
            raise TypeError("sizes of grid and block must be tuples")
        if len(args) != len(self._parameters):
            raise Undefined(f"{self.__name__}: {len(args)} of {len(self._parameters)} arguments")
        # As in CuPy, which starts one block where there should be none.
        sizes = [max(1, size) for sizes in (grid, block) for size in (*sizes, 1, 1)[:3]]
        limits = [2**31 - 1, 2**16 - 1, 2**16 - 1, 1024, 1024, 64]
        if any(map(int.__gt__, sizes, limits)) or sizes[3] * sizes[4] * sizes[5] > 1024:
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {self.__name__} {grid} {block}")
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {shared_mem} bytes of shared memory")
        numbers = (ctypes.c_uint * 7)(*sizes, shared_mem)
        slots = b"".join(map(self._slot, range(len(args)), self._parameters, args))
        if problem := self._launch(ctypes.addressof(numbers), slots):
            raise Undefined(f"{self.__name__}: {problem.decode()}")

    def _slot(self, position: int, parameter: str, value) -> bytes:
        """The eight bytes of an argument."""
        pointer, letter = parameter[0] == "*", parameter[1]
        of = f"argument {position} of {self.__name__}"
        if isinstance(value, np.ndarray):
            raise TypeError(f"{of} is a host array")
        if isinstance(value, bool | int | float | np.generic):
            return self._number(of, parameter, np.asarray(value))
        memory = getattr(value, "data", value)
        if not pointer or (value is not None and not hasattr(memory, "ptr")):
            raise TypeError(f"{of}: {type(value)}, not {parameter}")
        if hasattr(value, "dtype") and letter != "-" and value.dtype != letter:
            raise Undefined(f"{of} has dtype {value.dtype}, not {np.dtype(letter)}")
        return (0 if value is None else memory.ptr).to_bytes(8, "little")

    @staticmethod
    def _number(of: str, parameter: str, given: np.ndarray) -> bytes:
        """The bytes of a number, which CuPy passes on without a look at the kernel's type.

        Of a larger integer the kernel reads the lower bytes, and they are the number if it fits.
        """
        pointer, letter = parameter
        wanted = given.dtype if letter == "-" else np.dtype(letter)
        whole = given.dtype.kind in "iub" and wanted.kind in "iub"
        fits = given.itemsize >= wanted.itemsize if whole else given.dtype == wanted
        number = given.astype(wanted)
        if pointer == "*" or not fits or number.tobytes() != given.tobytes()[: wanted.itemsize]:
            raise Undefined(f"{of} is {given!r}, not {parameter}")
        if whole and number != given:
            raise Undefined(f"{of} is {given!r}, too large for {wanted}")
        return number.tobytes().ljust(8, b"\0")
