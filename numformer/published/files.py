"""The files of a published model: its config, and its arrays in safetensors files, one or several.

Nothing is run that stands in them, and nothing is read before it is known to be as large as its
file says.
"""

import json
import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from numformer.errors import InputError

CONFIG, ONE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LARGEST_JSON = 100_000_000
"""Bytes of the largest JSON file that is read; a tokenizer of 250,000 symbols has 17 million."""

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""What arrays may be made of; NumPy has no bfloat16, whose bits are the upper half of a float32."""

PIECE = 1 << 20  # numbers that are made float32 at once, in the cache


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published model: a config.json that names a model_type."""
    path = folder / CONFIG
    return (
        path.is_file()
        and not (folder / "best.safetensors").exists()
        and (b'"model_type"' in path.read_bytes()[:LARGEST_JSON])
    )


def read_json(path: Path) -> Any:
    """What a JSON file says. Raises InputError where it is none."""
    rule = "a published model's files are as they were published"
    if not path.is_file():
        raise InputError(rule, f"no file {path}", "Download the whole folder.")
    if path.stat().st_size > LARGEST_JSON:
        raise InputError(rule, f"{path}, which is too large", "Download it again.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise InputError(rule, f"{path} ({problem})", "Download it again.") from None


class Place(NamedTuple):
    """Where an array lies: its file, the kind of its numbers, its shape and its bytes."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Arrays:
    """The arrays of a folder by name, each read when it is asked for, as float32 or float64."""

    def __init__(self, folder: Path):
        self.places: dict[str, Place] = {}
        for path in _files(folder):
            for name, place in _contents(path).items():
                if name in self.places:
                    raise InputError(
                        "a published array is in one file",
                        f"{name} in {self.places[name].path.name} and {path.name}",
                        "Download the folder again.",
                    )
                self.places[name] = place

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __getitem__(self, name: str) -> np.ndarray:
        """The array, float64 if the file has it so, otherwise float32, copied piece by piece.

        Raises InputError where a number is not finite.
        """
        place = self.places[name]
        kind = np.dtype(DTYPES[place.dtype])
        whole = np.empty(place.shape, np.float64 if place.dtype == "F64" else np.float32)
        flat = whole.reshape(-1)
        with (
            place.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            for first in range(0, flat.size, PIECE):
                last = min(first + PIECE, flat.size)
                at, count = place.begin + first * kind.itemsize, last - first
                numbers = np.frombuffer(mapped, kind, count, at)
                if place.dtype == "BF16":
                    wide = numbers.astype(np.uint32)
                    wide <<= 16
                    numbers = wide.view(np.float32)
                flat[first:last] = numbers
                del numbers  # or the file stays mapped
                if hasattr(mapped, "madvise"):  # what was read need not stay in memory
                    mapped.madvise(mmap.MADV_DONTNEED)
        if not np.isfinite(whole.min(initial=0) - whole.max(initial=0)):
            raise InputError(
                "the weights of a published model are numbers",
                f"{name} in {place.path} with NaN or infinity",
                "Download it again.",
            )
        return whole

    @property
    def dtype(self) -> type[np.floating]:
        """What a model of these arrays is made of."""
        doubled = any(place.dtype == "F64" for place in self.places.values())
        return np.float64 if doubled else np.float32


def _files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or those that its index names."""
    if (folder / ONE).is_file():
        return [folder / ONE]
    rule = f"a published model's arrays are in {ONE}, or in the files that {INDEX} names"
    if (folder / INDEX).is_file():
        told = read_json(folder / INDEX)
        map_ = told.get("weight_map") if isinstance(told, dict) else None
        if not isinstance(map_, dict) or not map_:
            raise InputError(rule, f"{folder / INDEX} without a weight_map", "Download it again.")
        names = sorted({str(name) for name in map_.values()})
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                fix = "Do not use this folder: files lie beside their index."
                raise InputError(rule, f"{name!r} in {folder / INDEX}", fix)
            if not (folder / name).is_file():
                raise InputError(rule, f"no {folder / name}", "Download the whole folder.")
        return [folder / name for name in names]
    pickled = sorted(path.name for path in folder.glob("*.bin")) or sorted(
        path.name for path in folder.glob("*.pt*")
    )
    if pickled:
        raise InputError(
            rule,
            f"{folder / pickled[0]}, a pickle, which may run any program when it is opened",
            "Convert it where it is trusted: in transformers, "
            "AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER).",
        )
    raise InputError(rule, f"{folder} without", "Download the whole folder.")


def _contents(path: Path) -> dict[str, Place]:
    """What a safetensors file holds, by name. Raises InputError for a file that is none."""
    rule = "a published model's arrays are in whole safetensors files"
    try:
        with safetensors.safe_open(path, framework="np") as file:  # checks header and size
            names = [*file.keys()]
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header, start = json.loads(file.read(size)), 8 + size
        places = {}
        for name in names:
            told = header[name]
            begin, end = told["data_offsets"]
            shape, dtype = tuple(told["shape"]), told["dtype"]
            if dtype in DTYPES:
                width = np.dtype(DTYPES[dtype]).itemsize
                if math.prod(shape) * width != end - begin:
                    raise ValueError(f"{name} of {shape} in {end - begin} bytes")
            places[name] = Place(path, dtype, shape, start + begin, start + end)
        return places
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, OSError) as problem:
        raise InputError(rule, f"{path} ({problem})", "Download it again.") from None
