"""The arrays in a file of torch.save, such as pytorch_model.bin.

Such a file has a pickle, a program that builds objects by calling functions. Here it is read as a
list of instructions: no function that it names is called, and only those that describe tensors may
be named.
"""

import io
import math
import mmap
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

LARGEST = 100_000_000
"""The size limit of a pickle in bytes; one of 10,000 tensors has a million."""

STORAGES = {
    "torch DoubleStorage": ("F64", 8),
    "torch FloatStorage": ("F32", 4),
    "torch HalfStorage": ("F16", 2),
    "torch BFloat16Storage": ("BF16", 2),
    "torch LongStorage": ("I64", 8),
    "torch IntStorage": ("I32", 4),
    "torch ShortStorage": ("I16", 2),
    "torch CharStorage": ("I8", 1),
    "torch ByteStorage": ("U8", 1),
    "torch BoolStorage": ("BOOL", 1),
}
"""The type of the numbers in each kind of storage, and the size of one in bytes."""

TENSORS = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor"
PARAMETER, DICTIONARY = "torch._utils _rebuild_parameter", "collections OrderedDict"
MAGIC = 0x1950A86A20F9469CFC6C
"""The first number in files of releases before 1.6, which are no zip archives."""

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
VALUES |= {"BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"}


class Place(NamedTuple):
    """Where an array is stored: its file, its type, its shape, and the place of its first byte."""

    path: Path
    dtype: str
    shape: list[int]
    begin: int


class Name(NamedTuple):
    """A module and a name in it."""

    name: str


class Storage(NamedTuple):
    """The numbers of one or several tensors: their type, their file and how many they are."""

    kind: str
    key: str
    size: int


class Tensor(NamedTuple):
    """A tensor in a Storage, from the number `offset` on."""

    storage: Storage
    offset: int
    shape: tuple
    strides: tuple


def _described(name: Any, arguments: tuple) -> Any:
    """What a call describes. Raises ValueError for any that describes no tensor."""
    function = name.name if isinstance(name, Name) else ""
    if function in TENSORS:
        return Tensor(*arguments[:4])
    if function == PARAMETER:
        return arguments[0]
    if function == DICTIONARY and not arguments:
        return {}
    raise ValueError(f"it calls {function or 'no function'}")


def read_pickle(file: Any) -> Any:
    """Read a pickle from a file. Raises ValueError for whatever describes no tensors."""
    stack: list[Any] = []
    marks: list[int] = []
    memory: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for code, value, _ in pickletools.genops(file):
        argument: Any = value
        name: str = code.name
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in TUPLES:
            start = len(stack) - TUPLES[name]
            stack[start:] = [tuple(stack[start:])]
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(since_mark())
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                argument = " ".join([stack.pop(-2), stack.pop()])
            if argument not in (*STORAGES, *TENSORS, PARAMETER, DICTIONARY):
                raise ValueError(f"it names {argument.replace(' ', '.')}")
            stack.append(Name(argument))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memory[len(memory) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memory[argument])
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_described(stack.pop(), arguments))
        elif name == "BINPERSID":
            kind, number, key, _, count, *view = stack.pop()
            if kind != "storage" or any(part is not None for part in view):
                raise ValueError(f"it has a {kind} that is no storage of its own")
            stack.append(Storage(number.name, key, count))
        elif name in ("SETITEM", "SETITEMS"):
            items = since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            items = since_mark() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(items)
        elif name == "BUILD":  # attributes of a dictionary, such as the versions of its parts
            stack.pop()
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it has the instruction {name}")
    (result,) = stack
    return result


def tensor_places(path: Path) -> dict[str, Place]:
    """Where each array of a file of torch.save is. Raises ValueError for a damaged file."""
    try:
        with path.open("rb") as file:
            tensors, begins = (_read_zip if zipfile.is_zipfile(file) else _read_stream)(file)
        return {name: _place(path, name, tensor, begins) for name, tensor in tensors.items()}
    except (LookupError, TypeError, AttributeError, OverflowError, MemoryError) as problem:
        raise ValueError(f"{type(problem).__name__}: {problem}") from None
    except (zipfile.BadZipFile, struct.error, EOFError, NotImplementedError) as problem:
        raise ValueError(problem) from None


def _place(path: Path, name: str, tensor: Any, begins: dict[str, tuple[int, int]]) -> Place:
    if not (isinstance(name, str) and isinstance(tensor, Tensor)):
        raise ValueError(f"{name!r:.60} is no tensor")
    storage, offset, shape, strides = tensor
    dtype, size = STORAGES[storage.kind]
    begin, room = begins[storage.key]
    numbers = [offset, *shape]
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"{name} has the sizes {numbers}")
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if any(n > 1 and found != step for n, found, step in zip(shape, strides, steps, strict=True)):
        raise ValueError(f"{name} is not stored row by row")
    if (offset + math.prod(shape)) * size > room:
        raise ValueError(f"{name} {shape} has more numbers than the file")
    return Place(path, dtype, [*shape], begin + offset * size)


def _read_zip(file: Any) -> tuple[dict, dict[str, tuple[int, int]]]:
    """The tensors of an archive; for each storage, its first byte and how many it has."""
    length = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        (folder,) = [n.removesuffix("data.pkl") for n in archive.namelist() if n.endswith(".pkl")]
        begins: dict[str, tuple[int, int]] = {}
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename} is compressed")
            file.seek(entry.header_offset)
            widths = struct.unpack("<26xHH", file.read(30))
            begin = entry.header_offset + 30 + sum(widths)
            if begin + entry.file_size > length:
                raise ValueError(f"{entry.filename} is cut off")
            if entry.filename.startswith(f"{folder}data/"):
                begins[entry.filename.removeprefix(f"{folder}data/")] = begin, entry.file_size
        if archive.getinfo(f"{folder}data.pkl").file_size > LARGEST:
            raise ValueError("its pickle is too large")
        if f"{folder}byteorder" in archive.namelist():
            if archive.read(f"{folder}byteorder") != b"little":
                raise ValueError("it is of a machine with another order of bytes")
        return read_pickle(io.BytesIO(archive.read(f"{folder}data.pkl"))), begins


def _read_stream(file: Any) -> tuple[dict, dict[str, tuple[int, int]]]:
    """As `_read_zip`, for a file of an earlier release: several pickles, then the storages."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if read_pickle(content) != MAGIC:
            raise ValueError("it is no file of torch.save")
        _, _, tensors, keys = (read_pickle(content) for _ in range(4))
        sizes = {t.storage.key: STORAGES[t.storage.kind][1] for t in tensors.values()}
        begins: dict[str, tuple[int, int]] = {}
        for key in keys:
            (count,) = struct.unpack("<q", content.read(8))
            begins[key] = content.tell(), count * sizes[key]
            content.seek(count * sizes[key], io.SEEK_CUR)
        return tensors, begins
