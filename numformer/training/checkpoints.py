"""Save and load: safetensors files with JSON metadata, written so that none is ever half there.

What is loaded is checked first, since a file may be cut short, damaged, or made by someone else:
whatever is wrong with it is an InputError, before anything is built from it.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from numformer import __version__
from numformer.errors import InputError
from numformer.models.config import Config
from numformer.models.encoder_decoder import Transformer

try:
    import fcntl
except ImportError:  # where there are no such locks, nothing is locked
    fcntl = None

FORMAT = 1  # of a checkpoint; counts up when its content changes its meaning
PARTIAL = ".partial"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within the block no other process may hold `folder`. Raises InputError if one does.

    The lock is on the folder itself, so it leaves no file, and it ends with the process that
    holds it however that dies.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "one run at a time writes to a folder",
                f"{folder}, which another process is writing to",
                "Wait for that run or stop it, or choose another folder with --out.",
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that at every moment is either the old one or the new one, whole.

    To a temporary file beside it, synced to disk, then renamed. Raises OSError.
    """
    temporary = path.with_name(path.name + PARTIAL)
    try:
        with named(path), open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself is safe once the folder is on disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Within the block an OSError without a file's name gets that of `path` (a full disk's)."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise


def _checksum(tensors: dict[str, np.ndarray], metadata: dict) -> int:
    """CRC-32 of all content: of the metadata, and of every tensor's name, kind and bytes."""
    crc = zlib.crc32(json.dumps(metadata).encode())
    for name in sorted(tensors):
        array = tensors[name]
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = zlib.crc32(array, crc)
    return crc


def save_checkpoint(path: Path, tensors: dict[str, np.ndarray], metadata: dict) -> None:
    """Write host arrays and JSON metadata to one safetensors file, atomically.

    The format's number, the versions of numformer and NumPy and a checksum are added.
    """
    tensors = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    versions = {"numformer": __version__, "numpy": np.__version__}
    metadata = {"format": FORMAT, "versions": versions} | metadata
    metadata["crc32"] = _checksum(tensors, metadata)
    content = safetensors.numpy.save(tensors, metadata={"numformer": json.dumps(metadata)})
    write_atomically(path, content)


def load_checkpoint(path: Path, dtype=np.float32) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays, all of `dtype`, and metadata of a checkpoint. InputError for anything else."""
    rule = "a checkpoint is a complete safetensors file that numformer wrote"
    fix = "Name the run folder of a training run, or train again."
    path = Path(path)
    if not path.is_file():
        raise InputError(rule, f"no file {path}", fix)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = json.loads((file.metadata() or {})["numformer"])
            _check_format(path, metadata)
            code = f"F{8 * np.dtype(dtype).itemsize}"
            others = [n for n in file.keys() if file.get_slice(n).get_dtype() != code]
            if others:
                raise ValueError(f"{others[0]!r} is not {np.dtype(dtype)}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if metadata.pop("crc32") != _checksum(tensors, metadata):
            raise ValueError("its checksum says that it was damaged")
        for name, array in tensors.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name!r} holds numbers that are not finite")
        return tensors, metadata
    except InputError:
        raise
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as problem:
        raise InputError(rule, f"{path} ({problem})", fix) from None


def _check_format(path: Path, metadata) -> None:
    number = metadata.get("format") if isinstance(metadata, dict) else None
    if type(number) is int and number > FORMAT:
        raise InputError(
            f"this numformer reads checkpoints of format {FORMAT}",
            f"{path} of format {number}, which a later numformer wrote",
            "Install that version.",
        )
    if type(number) is not int or number != FORMAT:
        raise ValueError("its metadata is not numformer's")


def config_in(path: Path, metadata: dict) -> Config:
    """The Config that a checkpoint's metadata names. Raises InputError where there is none."""
    try:
        return Config(**metadata["config"])
    except (KeyError, TypeError, InputError) as problem:
        raise InputError(
            "a saved model names its Config", f"{path} ({problem})", "Train it again."
        ) from None


def save_model(path: Path, model: Transformer, **metadata) -> None:
    """The model's parameters, with its Config and further JSON `metadata`."""
    save_checkpoint(Path(path), model.state_dict(), {"config": asdict(model.config), **metadata})


def load_model(path: Path) -> tuple[Transformer, dict]:
    """The model that `save_model` wrote, on the host in float32, and the metadata beside it."""
    tensors, metadata = load_checkpoint(path)
    config = config_in(path, metadata)
    held = sum(array.size for array in tensors.values())
    require_numbers(path, held, config)
    model = Transformer(config)
    model.load_state_dict(tensors)
    return model, metadata


def require_numbers(path: Path, held: int, config: Config) -> None:
    """Raise InputError where a file of `held` numbers has too few for a model of this Config.

    To be asked before the model is built, which might be a giant.
    """
    if config.least_parameters > held:
        raise InputError(
            "a saved model holds as many numbers as its Config asks for",
            f"{path} with {held:,}, which is fewer",
            "Train it again.",
        )
