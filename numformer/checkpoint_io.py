"""Save and load: safetensors files with JSON metadata, written so that none is ever half there."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from numformer.config import Config
from numformer.errors import InputError
from numformer.model import Transformer


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that at every moment is either the old one or the new one, whole.

    To a temporary file beside it, synced to disk, then renamed. Raises OSError.
    """
    temporary = path.with_name(path.name + ".partial")
    try:
        with open(temporary, "wb") as file:
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


def save_checkpoint(path: Path, tensors: dict[str, np.ndarray], metadata: dict) -> None:
    """Write host arrays and JSON metadata to one safetensors file, atomically."""
    content = safetensors.numpy.save(tensors, metadata={"numformer": json.dumps(metadata)})
    write_atomically(path, content)


def load_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays and metadata of a checkpoint. Raises InputError for anything else."""
    rule = "a checkpoint is a complete safetensors file that numformer wrote"
    fix = "Name the run folder of a training run, or train again."
    if not path.is_file():
        raise InputError(rule, f"no file {path}", fix)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = json.loads((file.metadata() or {})["numformer"])
            return {name: file.get_tensor(name) for name in file.keys()}, metadata
    except (safetensors.SafetensorError, KeyError, ValueError) as problem:
        raise InputError(rule, f"{path} ({problem})", fix) from None


def save_model(path: Path, model: Transformer, **metadata) -> None:
    """The model's parameters, with its Config and further JSON `metadata`."""
    save_checkpoint(path, model.state_dict(), {"config": asdict(model.config), **metadata})


def load_model(path: Path) -> tuple[Transformer, dict]:
    """The model that `save_model` wrote, on the host in float32, and the metadata beside it."""
    tensors, metadata = load_checkpoint(path)
    try:
        model = Transformer(Config(**metadata["config"]))
    except (KeyError, TypeError) as problem:
        raise InputError(
            "a saved model names its Config", f"{path} ({problem})", "Train it again."
        ) from None
    model.load_state_dict(tensors)
    return model, metadata
