"""Save and load: safetensors files with JSON metadata, written so that none is ever half there.

What is loaded is checked first, since a file may be cut short, damaged, or made by someone else:
whatever is wrong with it is an InputError, before anything is built from it.
"""

import json
import reprlib
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from numformer.errors import InputError
from numformer.layer import pack
from numformer.models import Model, model_of
from numformer.runs.files import write_atomically
from numformer.runs.migrations import FORMAT, migrated
from numformer.settings import Settings
from numformer.version import __version__

SAVED = np.float32, np.float64
"""What the weights of a saved model may be."""

OF_DAMAGE = LookupError, TypeError, ValueError, AttributeError, RecursionError
"""What reading what somebody else wrote may raise."""

BUILT_AT_ONCE = 16
"""Layers of a saved model that are built before its file is known to have any."""


def checksum(tensors: dict[str, np.ndarray], metadata: dict) -> int:
    """CRC-32 of all content: of the metadata, and of every tensor's name, kind and bytes."""
    crc = zlib.crc32(json.dumps(metadata).encode())
    for name in sorted(tensors):
        array = tensors[name]
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.data, crc)
    return crc


def as_json(name: str, value):
    """A value that a checkpoint is to hold, as JSON gives it back: with lists for tuples.

    Raises InputError, which names the entry, for what JSON does not have, and for NaN, which equals
    nothing and so would not be found again.
    """
    if not _is_json(value):
        place, entry = _foreign(name, value)
        raise InputError(
            "what a run is known by is str, int, float, bool, None, lists of these, and dicts of "
            "them by strings",
            f"{reprlib.repr(entry)} ({type(entry).__name__}) as {place}",
            "Write for example int(n), array.tolist(), str(path), or None for NaN.",
        )
    return json.loads(json.dumps(value))


def _is_json(value) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _foreign(place: str, value) -> tuple[str, object]:
    """Where in a value the first thing is that JSON does not have, up to ten levels deep."""
    for _ in range(10):
        listed = enumerate(value) if isinstance(value, list | tuple) else ()
        for key, entry in value.items() if isinstance(value, dict) else listed:
            if not _is_json({key: None}):
                return f"a key of {place}", key
            if not _is_json(entry):
                place, value = f"{place}[{key!r}]", entry
                break
    return place, value


def save_checkpoint(path: Path, tensors: dict[str, np.ndarray], metadata: dict) -> None:
    """Write host arrays and JSON metadata to one safetensors file, atomically.

    The format's number, the versions of numformer and NumPy and a checksum are added.
    """
    tensors = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    versions = {"numformer": __version__, "numpy": np.__version__}
    metadata = {"format": FORMAT, "versions": versions} | metadata
    metadata["crc32"] = checksum(tensors, metadata)
    content = safetensors.numpy.save(tensors, metadata={"numformer": json.dumps(metadata)})
    write_atomically(path, content)


def load_checkpoint(path: Path, *dtypes: type[np.floating]) -> tuple[dict[str, Any], Any]:
    """The arrays and metadata of a checkpoint, as the newest format has them.

    All arrays are of one of the `dtypes`, float32 unless others are given. Raises InputError for a
    file that is no whole checkpoint, or of a later numformer.
    """
    rule = "a checkpoint is a complete safetensors file that numformer wrote"
    fix = "Name the best.safetensors of a training run (--run takes its folder), or train again."
    path = Path(path)
    if not path.is_file():
        raise InputError(rule, f"no file {path}", fix)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = json.loads((file.metadata() or {})["numformer"])
            _check_format(path, metadata)
            _check_dtypes(
                {name: file.get_slice(name).get_dtype() for name in file.keys()},
                [np.dtype(dtype) for dtype in dtypes or [np.float32]],
            )
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if metadata.pop("crc32") != checksum(tensors, metadata):
            raise ValueError("its checksum says that it was damaged")
        for name, array in tensors.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name!r} holds numbers that are not finite")
        return migrated(tensors, metadata)
    except InputError:
        raise
    except (safetensors.SafetensorError, *OF_DAMAGE) as problem:
        raise InputError(rule, f"{path} ({problem})", fix) from None


def _check_dtypes(codes: dict[str, str], dtypes: list[np.dtype]) -> None:
    """Raise ValueError unless all tensors, by their names, are of the same one of the dtypes."""
    first = next(iter(codes.values()), None)
    dtype = next((d for d in dtypes if f"F{8 * d.itemsize}" == first), dtypes[0])
    for name, code in codes.items():
        if code != f"F{8 * dtype.itemsize}":
            raise ValueError(f"{name!r} is not {dtype}")


def _check_format(path: Path, metadata) -> None:
    number = metadata.get("format") if isinstance(metadata, dict) else None
    if type(number) is int and number > FORMAT:
        raise InputError(
            f"this numformer reads checkpoints of format {FORMAT}",
            f"{path} of format {number}, which a later numformer wrote",
            "Install that version.",
        )
    if type(number) is not int or number < 1:
        raise ValueError("its metadata is not numformer's")


def config_of(path: Path, metadata: dict, model: type[Model]) -> Settings:
    """The config in a checkpoint's metadata, which must be that of this kind of model.

    A field that is absent has its default, which is what it was before there was such a field.
    Raises InputError where there is none.
    """
    if not _is_of(metadata.get("model"), model):
        raise InputError(
            f"a checkpoint of the model {model.kind()!r} is asked for",
            f"{path}, which holds {metadata.get('model')!r}",
            "Name the checkpoint of such a model, or ask for the class that it holds.",
        )
    try:
        return model.Config(**metadata["config"])
    except (KeyError, TypeError, InputError) as problem:
        raise InputError(
            "a saved model names its Config",
            f"{path} ({problem})",
            "Register the choices of your own that it names first; else train it again.",
        ) from None


def _is_of(kind: object, model: type[Model]) -> bool:
    """Whether a file that names this kind holds such a model.

    Earlier versions named a model that is none of `numformer.models` by its module.
    """
    of_module = ("__main__", model.__module__.rpartition(".")[2])
    return kind == model.kind() or (not model.is_ours() and kind in of_module)


def save_model(path: Path, model: Model, **metadata) -> None:
    """The model's parameters, with its kind, its config and further JSON `metadata`.

    Raises InputError where they are of a dtype that `load_model` does not open.
    """
    weights = model.state_dict()
    dtypes = sorted({str(array.dtype) for array in weights.values()})
    if len(dtypes) > 1 or not {*dtypes} <= {np.dtype(dtype).name for dtype in SAVED}:
        raise InputError(
            "a model is saved whose parameters are all float32, or all float64",
            " and ".join(dtypes),
            "Cast them by pack(model).",
        )
    save_checkpoint(Path(path), weights, description(model) | metadata)


def description(model: Model) -> dict:
    """What tells a model from others: its kind and its config, as JSON."""
    return {"model": model.kind(), "config": asdict(model.config)}


def load_model(path: Path, kind: type[Model] | None = None) -> tuple[Model, dict]:
    """The model that `save_model` wrote, on the host in its dtype, and the metadata beside it.

    A model that is none of `numformer.models` needs its class, `kind`: one of the name that it was
    saved with, in whichever module. Raises InputError as `load_checkpoint` does, and for a
    folder or the state of a run.
    """
    rule, path = "load_model takes the file of a saved model", Path(path)
    if path.is_dir():
        raise InputError(
            rule,
            f"the folder {path}",
            f"Name {path / 'best.safetensors'}, or take the whole run by numformer.load.",
        )
    tensors, metadata = load_checkpoint(path, *SAVED)
    if any(name.startswith("optimizer.") for name in tensors):
        raise InputError(
            rule,
            f"{path}, the state of a run that may go on",
            f"Name {path.with_name('best.safetensors')}, the best model of that run.",
        )
    if kind is not None and not (isinstance(kind, type) and issubclass(kind, Model)):
        fix = "Pass the class itself: kind=MyModel."
        raise InputError("kind is a class of models", repr(kind), fix)
    kind = kind or model_of(metadata.get("model"))
    config = config_of(path, metadata, kind)
    require_numbers(path, sum(array.size for array in tensors.values()), config)
    model = _built(path, kind, config, tensors)
    if any(array.dtype != np.float32 for array in tensors.values()):
        pack(model, np.float64)
    model.load_state_dict(tensors)
    return model, metadata


def _built(path: Path, kind: type[Model], config: Any, tensors: dict) -> Model:
    """A new model of this kind and config.

    Layers cost time and memory however small they are. So of many only a part is built at first,
    and more only while the file has the parameters of these. Otherwise it raises InputError.
    """
    layers = BUILT_AT_ONCE
    while layers < getattr(config, "layers", 0):
        needed = kind(replace(config, layers=layers)).named_parameters()
        if lacking := needed.keys() - tensors.keys():
            raise InputError(
                "a saved model holds the parameters that its Config asks for",
                f"{path} with {config.layers} layers, but no {min(lacking)}",
                "Train it again.",
            )
        layers *= 4
    return kind(config)


def require_numbers(path: Path, held: int, config: Settings) -> None:
    """Raise InputError where a file of `held` numbers has too few for a model of this config.

    To be asked before the model is built, which might be a giant.
    """
    if getattr(config, "least_parameters", 0) > held:
        raise InputError(
            "a saved model holds as many numbers as its Config asks for",
            f"{path} with {held:,}, which is fewer",
            "Train it again.",
        )
