"""The files of a published model: JSON, and arrays in files of safetensors or of torch.save.

Nothing in them is executed, and an array is read only if its file holds as many bytes as its header
says.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from numformer.errors import InputError
from numformer.published.pickles import Place, tensor_places

CONFIG, GENERATION = "config.json", "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
LARGEST_JSON = 100_000_000
"""The size limit of JSON files in bytes; a tokenizer of 250,000 symbols has 17 million."""

UNCHANGED = "a published model's files are unchanged"

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""The types of arrays. NumPy lacks bfloat16, whose bits are the upper half of a float32."""

PIECE = 1 << 20  # how many numbers are converted at once: few enough for the cache


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published model: its config.json names a kind of model."""
    path = folder / CONFIG
    if not path.is_file() or (folder / "best.safetensors").exists():
        return False
    content = path.read_bytes()[:LARGEST_JSON]
    return b'"model_type"' in content or b'"architectures"' in content


def snapshot(folder: Path) -> Path:
    """The folder with the files of a hub's cache of one model; any other folder as it is."""
    snapshots, main = folder / "snapshots", folder / "refs" / "main"
    if not snapshots.is_dir():
        return folder
    if main.is_file() and (named := snapshots / main.read_text(encoding="utf-8").strip()).is_dir():
        return named
    return max(snapshots.iterdir(), key=lambda path: path.stat().st_mtime, default=folder)


def advice(folder: Path) -> str | None:
    """What to do with a folder, a file or a name that is no published model; None for others."""
    parent = folder.parent
    is_path = folder.exists() or parent == Path("runs") or (parent != Path() and parent.exists())
    if not is_path and re.fullmatch(r"[\w.-]+/[\w.-]+|[\w-]+", str(folder)):
        return (
            "Name the folder of a run, such as runs/reverse. If this is a model on the hub, "
            f"download it: hf download {folder} --local-dir {folder.name}, then name {folder.name}."
        )
    files = [folder, *folder.iterdir()] if folder.is_dir() else [folder]
    if any(path.suffix == ".gguf" for path in files):
        return "A GGUF is for llama.cpp: take the model with config.json and model.safetensors."
    if (adapter := folder / "adapter_config.json").is_file():
        base = read_json(adapter).get("base_model_name_or_path")
        return (
            f"An adapter changes another model, {base}: merge them with the library peft, by "
            "AutoPeftModel.from_pretrained(FOLDER).merge_and_unload().save_pretrained(OTHER)."
        )
    return None


def require_readable(path: Path) -> None:
    """Raise InputError if a file is missing or too large."""
    if not path.is_file():
        raise InputError(UNCHANGED, f"no file {path}", "Download the whole folder.")
    if path.stat().st_size > LARGEST_JSON:
        raise InputError(UNCHANGED, f"{path}, which is too large", "Download it again.")


def read_json(path: Path, kind: type = dict) -> Any:
    """The object, or the list if `kind` is list, in a JSON file.

    Raises InputError if the file is missing, too large or invalid.
    """
    require_readable(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, kind):
            raise ValueError(f"it holds no JSON {'object' if kind is dict else 'list'}")
        return values
    except (ValueError, RecursionError) as problem:
        raise InputError(UNCHANGED, f"{path} ({problem})", "Download it again.") from None


class Arrays:
    """The arrays of a folder by name, each read on access, as float32 or float64."""

    def __init__(self, folder: Path):
        self.places: dict[str, Place] = {}
        for path in _files(folder):
            places = _places if path.suffix == ".safetensors" else _pickled_places
            for name, place in places(path).items():
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
        """Read an array as float64 if its file has float64, otherwise as float32.

        Raises InputError for numbers that are not finite.
        """
        place = self.places[name]
        array = np.empty(place.shape, np.float64 if place.dtype == "F64" else np.float32)
        flat = array.reshape(-1)
        with place.path.open("rb") as file:
            file.seek(place.begin)
            for start in range(0, flat.size, PIECE):
                piece = flat[start : start + PIECE]
                numbers = np.fromfile(file, DTYPES[place.dtype], piece.size)
                if place.dtype == "BF16":
                    numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
                if not np.isfinite(numbers).all():
                    raise InputError(
                        "the weights of a published model are finite",
                        f"{name} in {place.path} with NaN or infinity",
                        "Download it again.",
                    )
                piece[...] = numbers
        return array

    @property
    def dtype(self) -> type[np.floating]:
        """The type of the parameters of a model with these arrays."""
        double = any(place.dtype == "F64" for place in self.places.values())
        return np.float64 if double else np.float32


def _files(folder: Path) -> list[Path]:
    """The files with the arrays of a folder: a single one, or all files that its index names."""
    rule = f"a published model's arrays are in {WEIGHTS}, {PICKLED}, or the files of an index"
    for single in (WEIGHTS, PICKLED):
        index = folder / f"{single}.index.json"
        if (folder / single).is_file():
            return [folder / single]
        if index.is_file():
            files = read_json(index).get("weight_map")
            if not isinstance(files, dict):
                raise InputError(rule, f"{index} without a weight_map", "Download it again.")
            names = sorted({str(name) for name in files.values()})
            for name in names:
                if Path(name).name != name or Path(name).suffix != Path(single).suffix:
                    fix = "Do not use this folder: the files must be in the folder of the index."
                    raise InputError(rule, f"{name!r} in {index}", fix)
                if not (folder / name).is_file():
                    raise InputError(rule, f"no {folder / name}", "Download the whole folder.")
            return [folder / name for name in names]
    fix = advice(folder) or "Download the whole folder."
    raise InputError(rule, f"{folder}, which has none", fix)


def _pickled_places(path: Path) -> dict[str, Place]:
    """Where each array of a file of torch.save is. Raises InputError for one that is refused."""
    try:
        return tensor_places(path)
    except ValueError as problem:
        names = read_json(path.parent / CONFIG).get("architectures") or ["AutoModel"]
        raise InputError(
            f"{PICKLED} describes arrays and does nothing else",
            f"{path} ({problem})",
            "Download it again; if you trust it, convert it with transformers: "
            f"{names[0]}.from_pretrained(FOLDER).save_pretrained(OTHER).",
        ) from None


def _places(path: Path) -> dict[str, Place]:
    """Where each array of a safetensors file is. Raises InputError for a damaged file."""
    rule = "a published model's arrays are in undamaged safetensors files"
    try:
        with safetensors.safe_open(path, framework="np") as file:  # checks shapes and sizes
            names = [*file.keys()]
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header, start = json.loads(file.read(size)), 8 + size
        places = {}
        for name in names:
            entry = header[name]
            begin, _ = entry["data_offsets"]
            places[name] = Place(path, entry["dtype"], entry["shape"], start + begin)
        return places
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, OSError) as problem:
        raise InputError(rule, f"{path} ({problem})", "Download it again.") from None
