"""Whether a saved run may go on: its files must be its own, whole, and of a state that can be."""

import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numformer.errors import InputError
from numformer.training.checkpoints import load_checkpoint


@dataclass(frozen=True)
class State:
    """Where a run stands, as its last.safetensors says. Adam's mean and square are (N,)."""

    weights: dict[str, np.ndarray]
    mean: np.ndarray
    square: np.ndarray
    step: int
    losses: list[float]  # since the last line of metrics.jsonl
    best: dict  # the best evaluation so far
    written: int  # how many bytes of metrics.jsonl belong to it


def summary(metrics: bytes) -> dict:
    """What tells whether a metrics.jsonl begins with these bytes."""
    return {"bytes": len(metrics), "crc32": zlib.crc32(metrics)}


def saved_state(last: Path, metrics: Path, settings: dict, metric: str, dtype) -> State:
    """What `last` holds, if a run with these settings can go on from it and from `metrics`.

    `settings` are config, seed, steps, parts and task; `metric` is what the task is measured by;
    `dtype` is that of the weights. Raises InputError, which says what does not fit.
    """
    tensors, metadata = load_checkpoint(last, dtype)
    mean, square = (tensors.pop(f"adam.{name}", None) for name in ("mean", "square"))
    if mean is None or square is None:
        raise InputError(
            "a run is resumed from the last.safetensors that it saved",
            f"{last}, which holds no state of Adam",
            "Start a new run.",
        )
    if metadata.get("task") != settings["task"]:
        raise InputError(
            "a run is resumed on the task and the data that it was started with",
            "another task, or data with other symbols",
            "Name the folder of a run of this task, or start a new run.",
        )
    asked, started = _one_by_one(settings), _one_by_one(metadata)
    if differing := [n for n in asked | started if asked.get(n) != started.get(n)]:
        name = differing[0]
        raise InputError(
            "a run is resumed with the Config, seed, steps and parts that it was started with",
            f"{name} {asked.get(name)!r} instead of {started.get(name)!r}",
            "Leave out what differs, or start a new run.",
        )
    step, losses, best = (metadata.get(name) for name in ("step", "losses", "best"))
    size = sum(array.size for array in tensors.values())
    whole = mean.shape == square.shape == (size,) and not (square < 0).any()
    if not whole or not _can_be(step, losses, best, settings["steps"], metric):
        raise InputError(
            "a checkpoint says where its run stands",
            f"{last} with a step, losses, best or state of Adam that cannot be",
            "Start a new run.",
        )
    written = metadata.get("metrics")
    length = written.get("bytes") if isinstance(written, dict) else None
    content = metrics.read_bytes() if metrics.is_file() else b""
    if type(length) is not int or summary(content[:length]) != written:
        raise InputError(
            "a run is resumed with the metrics.jsonl that it wrote",
            f"{metrics}, which is damaged or missing",
            "Put it back as it was, or start a new run.",
        )
    return State(tensors, mean, square, step, losses, best, length)


def _one_by_one(settings: dict) -> dict:
    """Seed, steps, parts and every field of the Config by name."""
    config = settings.get("config")
    others = {name: settings.get(name) for name in ("seed", "steps", "parts")}
    return others | (config if isinstance(config, dict) else {})


def _can_be(step, losses, best, steps: int, metric: str) -> bool:
    """Whether a run of `steps` can have come to this `step` with these numbers."""

    def numbers(values) -> bool:
        largest = sys.float_info.max
        return all(type(v) in (int, float) and -largest <= v <= largest for v in values)

    if type(step) is not int or not 1 <= step <= steps:
        return False
    if not isinstance(losses, list) or len(losses) > step or not numbers(losses):
        return False
    if not isinstance(best, dict) or not numbers(best.values()):
        return False
    if not best:
        return step < steps  # a run that has ended was evaluated
    return type(best.get("step")) is int and 1 <= best["step"] <= step and metric in best
