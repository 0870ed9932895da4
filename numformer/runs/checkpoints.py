"""Checkpoints: safetensors files with JSON metadata, saved atomically and checked when loaded.

A file may be cut short, damaged, or made by someone else. Any fault in a file raises InputError
before anything is built from the file.
"""

import json
import reprlib
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from numformer.errors import InputError
from numformer.layer import pack
from numformer.models import MODELS, Model
from numformer.models.fields import saved_values
from numformer.models.kinds import model_class, model_kind
from numformer.runs.files import write_atomically
from numformer.runs.migrations import FORMAT, migrate
from numformer.settings import Settings
from numformer.version import __version__

MODEL_DTYPES = np.float32, np.float64
READ_ERRORS = LookupError, TypeError, ValueError, AttributeError, RecursionError
"""The errors that reading a damaged file may raise."""
LAYERS_AT_FIRST = 16
"""How many layers are built before it is known that the file has their parameters."""


def checksum(tensors: dict[str, np.ndarray], metadata: dict) -> int:
    """Return the CRC-32 of the metadata and of every tensor's name, dtype, shape and bytes."""
    crc = zlib.crc32(json.dumps(metadata).encode())
    for name in sorted(tensors):
        array = tensors[name]
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.data, crc)
    return crc


def as_json(name: str, value):
    """Return `value` as it will be read from a checkpoint: JSON turns tuples into lists.

    Raises InputError, which names the entry, for a value that JSON cannot express, and for NaN,
    which does not equal itself and so could not be compared. Infinities are refused, too.
    """
    if not _is_json(value):
        place, entry = _find_foreign(name, value)
        raise InputError(
            "a run is described by str, int, float, bool, None, lists of these, and dicts of "
            "them with string keys",
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


def _find_foreign(place: str, value) -> tuple[str, object]:
    """Return place and value of the first entry that JSON cannot express, up to ten levels deep."""
    for _ in range(10):
        entries = enumerate(value) if isinstance(value, list | tuple) else ()
        for key, entry in value.items() if isinstance(value, dict) else entries:
            if not _is_json({key: None}):
                return f"a key of {place}", key
            if not _is_json(entry):
                place, value = f"{place}[{key!r}]", entry
                break
    return place, value


def save_checkpoint(path: Path, tensors: dict[str, np.ndarray], metadata: dict) -> None:
    """Write host arrays and JSON metadata to one safetensors file, atomically.

    Adds to the metadata the format, the versions of numformer and NumPy, and a checksum.
    """
    tensors = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    versions = {"numformer": __version__, "numpy": np.__version__}
    metadata = {"format": FORMAT, "versions": versions} | metadata
    metadata["crc32"] = checksum(tensors, metadata)
    content = safetensors.numpy.save(tensors, metadata={"numformer": json.dumps(metadata)})
    write_atomically(path, content)


def load_checkpoint(path: Path, *dtypes: type[np.floating]) -> tuple[dict[str, Any], Any]:
    """Return the arrays and metadata of a checkpoint, in the newest format.

    All arrays must have one dtype, one of `dtypes` (by default float32). Raises InputError if the
    file is not a complete checkpoint, or has a format of a later numformer.
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
        return migrate(tensors, metadata)
    except InputError:
        raise
    except (safetensors.SafetensorError, *READ_ERRORS) as problem:
        raise InputError(rule, f"{path} ({problem})", fix) from None


def _check_dtypes(codes: dict[str, str], dtypes: list[np.dtype]) -> None:
    """Raise ValueError unless all tensors have one dtype, which is one of `dtypes`."""
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


def read_config(path: Path, metadata: dict, model: type[Model]) -> Settings:
    """Return the config in a checkpoint's metadata. Raises InputError for another kind of model.

    A field that the file lacks gets its default: models behaved that way before the field was
    added.
    """
    if not _is_kind(metadata.get("model"), model):
        raise InputError(
            f"the checkpoint must hold the model {model_kind(model)!r}",
            f"{path}, which holds {metadata.get('model')!r}",
            "Name a checkpoint of that kind, or pass the class of its model.",
        )
    try:
        return model.Config(**metadata["config"])
    except (KeyError, TypeError, InputError) as problem:
        raise InputError(
            "a saved model has a valid Config",
            f"{path} ({problem})",
            "If it names choices of your own, register them first; if not, train it again.",
        ) from None


def _is_kind(kind: object, model: type[Model]) -> bool:
    """Whether `kind` in a file names this class of models.

    Earlier versions named a class outside `numformer.models` by its module.
    """
    modules = ("__main__", model.__module__.rpartition(".")[2])
    return kind == model_kind(model) or (model not in MODELS.values() and kind in modules)


def save_model(path: Path, model: Model, **metadata) -> None:
    """Save a model's parameters, kind, config and further JSON `metadata`.

    Raises InputError unless `model` is a Model whose parameters are all float32, or all float64.
    """
    if not isinstance(model, Model):
        fix = "Write save_model(path, model)."
        raise InputError("save_model takes a path and then a model", type(model).__name__, fix)
    weights = model.state_dict()
    dtypes = sorted({str(array.dtype) for array in weights.values()})
    if len(dtypes) > 1 or not {*dtypes} <= {np.dtype(dtype).name for dtype in MODEL_DTYPES}:
        raise InputError(
            "the parameters of a saved model are all float32, or all float64",
            " and ".join(dtypes),
            "Cast them by pack(model).",
        )
    save_checkpoint(Path(path), weights, description(model) | metadata)


def description(model: Model) -> dict:
    """Return a model's kind and config, as JSON values."""
    return {"model": model_kind(type(model)), "config": saved_values(model.config)}


def load_model(path: Path, kind: type[Model] | None = None) -> tuple[Model, dict]:
    """Return the model that `save_model` wrote, on the host in its dtype, and its metadata.

    If the model's class is not in `numformer.models`, pass the class as `kind`; its name must be
    the same as when the model was saved. Raises InputError as `load_checkpoint` does, and for a
    folder or the state of a run.
    """
    rule, path = "load_model takes the file of a saved model", Path(path)
    if path.is_dir():
        raise InputError(
            rule,
            f"the folder {path}",
            f"Name {path / 'best.safetensors'}, or load the run by numformer.load.",
        )
    tensors, metadata = load_checkpoint(path, *MODEL_DTYPES)
    if any(name.startswith("optimizer.") for name in tensors):
        raise InputError(
            rule,
            f"{path}, the state of a run, for resuming it",
            f"Name {path.with_name('best.safetensors')}, the best model of that run.",
        )
    if kind is not None and not (isinstance(kind, type) and issubclass(kind, Model)):
        fix = "Pass the class itself: kind=MyModel."
        raise InputError("kind is a class of models", repr(kind), fix)
    kind = kind or model_class(metadata.get("model"))
    config = read_config(path, metadata, kind)
    require_size(path, sum(array.size for array in tensors.values()), config)
    model = _build(path, kind, config, tensors)
    if any(array.dtype != np.float32 for array in tensors.values()):
        pack(model, np.float64)
    model.load_state_dict(tensors)
    return model, metadata


def _build(path: Path, kind: type[Model], config: Any, tensors: dict) -> Model:
    """Return a new model of this kind and config. Raises InputError if the file lacks parameters.

    Even small layers cost time and memory. So if the config has many layers, a small model is built
    first, and a larger one only if the file has all parameters of the smaller one.
    """
    layers = LAYERS_AT_FIRST
    while layers < getattr(config, "layers", 0):
        names = kind(replace(config, layers=layers)).named_parameters().keys()
        if lacking := names - tensors.keys():
            raise InputError(
                "a saved model holds the parameters that its Config needs",
                f"{path} with {config.layers} layers, but no {min(lacking)}",
                "Train it again.",
            )
        layers *= 4
    return kind(config)


def require_size(path: Path, size: int, config: Settings) -> None:
    """Raise InputError if a file of `size` numbers has too few for a model of this config.

    Call this before building the model, which a damaged config could make enormous.
    """
    if getattr(config, "least_parameters", 0) > size:
        raise InputError(
            "a saved model holds as many numbers as its Config needs",
            f"{path} with {size:,}, which is fewer",
            "Train it again.",
        )
