"""Whether a saved run may go on: its files must be its own, whole, and of a state that can be."""

import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from numformer.errors import InputError
from numformer.models import Model
from numformer.training.checkpoints import config_of, load_checkpoint
from numformer.training.optimizers import OPTIMIZERS, vectors_of
from numformer.training.recipe import Recipe


@dataclass(frozen=True)
class State:
    """Where a run stands, as its last.safetensors says. The optimizer's vectors are (N,)."""

    weights: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    recent: Sequence[np.ndarray]  # the weights (N,) at the latest evaluations, to be averaged
    threads: int | None  # of BLAS; unknown in files of format 1
    step: int
    seconds: float  # of training so far; 0 in files that do not tell
    losses: list[float]  # since the last line of metrics.jsonl
    best: dict  # the best evaluation so far
    written: int  # how many bytes of metrics.jsonl belong to it


def summary(metrics: bytes) -> dict:
    """What tells whether a metrics.jsonl begins with these bytes."""
    return {"bytes": len(metrics), "crc32": zlib.crc32(metrics)}


def saved_state(
    last: Path, metrics: Path, model: Model, settings: dict, metric: str, dtype
) -> State:
    """What `last` holds, if a run of `model` can go on from it and from `metrics`.

    `settings` are those of RunFolder; `metric` is what the task is measured by; `dtype` is that of
    the weights. Raises InputError, which says what does not fit.
    """
    tensors, metadata = load_checkpoint(last, dtype)
    if "step" not in metadata:
        raise InputError(
            "a run is resumed from the last.safetensors that it saved",
            f"{last}, which holds a model but no run",
            "Start a new run.",
        )
    optimizer = {
        name: tensors.pop(f"optimizer.{name}", None)
        for name in vectors_of(OPTIMIZERS[settings["recipe"]["optimizer"]])
    }
    most = settings["recipe"]["average"]
    averaged = most > 1 and bool(metadata.get("best"))  # nothing is kept before an evaluation
    recent = tensors.pop("recent", np.zeros(0)) if averaged else ()
    if metadata.get("task") != settings["task"]:
        raise InputError(
            "a run is resumed on the task and the data that it was started with",
            "another task, or data with other symbols",
            "Name the folder of a run of this task, or start a new run.",
        )
    asked, started = _one_by_one(settings), _one_by_one(_completed(last, metadata, type(model)))
    if differing := [n for n in asked | started if asked.get(n) != started.get(n)]:
        name = differing[0]
        raise InputError(
            "a run is resumed with the settings, seed and parts that it was started with",
            f"{name} {asked.get(name)!r} instead of {started.get(name)!r}",
            "Give it the same again, or start a new run.",
        )
    step, steps, losses, best = (metadata.get(n) for n in ("step", "steps", "losses", "best"))
    seconds = metadata.get("seconds", 0.0)
    size = sum(array.size for array in tensors.values())
    whole = all(v is not None and v.shape == (size,) for v in optimizer.values())
    whole = whole and not (optimizer.get("square", np.zeros(1)) < 0).any()
    threads = metadata.get("threads", 0)
    whole &= threads is None or (type(threads) is int and 1 <= threads <= 1024)
    whole &= _are_numbers([seconds]) and seconds >= 0
    if averaged:
        whole &= recent.shape[1:] == (size,) and 1 <= len(recent) <= most
    if not whole or not _can_be(step, steps, losses, best, metric):
        raise InputError(
            "a checkpoint says where its run stands",
            f"{last} with a step, losses, best or state of its optimizer that cannot be",
            "Start a new run.",
        )
    _require_same_end(settings, step, steps)
    written = metadata.get("metrics")
    length = written.get("bytes") if isinstance(written, dict) else None
    content = metrics.read_bytes() if metrics.is_file() else b""
    if type(length) is not int or summary(content[:length]) != written:
        raise InputError(
            "a run is resumed with the metrics.jsonl that it wrote",
            f"{metrics}, which is damaged or missing",
            "Put it back as it was, or start a new run.",
        )
    return State(tensors, optimizer, recent, threads, step, seconds, losses, best, length)


def _require_same_end(settings: dict, step: int, steps: int) -> None:
    """Raise InputError unless a run of `steps` that has taken `step` can be one of settings' steps.

    Where no rate depends on the end of the run, each step is the same in a longer or shorter one.
    """
    asked, recipe = settings["steps"], Recipe(**settings["recipe"])
    if asked != steps and recipe.knows_the_end:
        raise InputError(
            f"with decay {recipe.decay!r} a run keeps its number of steps, because the rate falls "
            "to 0 at its last one: a longer run is another run from its beginning",
            f"steps {asked} instead of {steps}",
            f"Ask for {steps} steps, or start a new run.",
        )
    if asked < step:
        raise InputError(
            "a run is resumed for at least the steps that it has taken",
            f"steps {asked} for a run that has taken {step}",
            "Ask for as many or more, or start a new run.",
        )


def _one_by_one(settings: dict) -> dict:
    """Kind of model, seed, parts and every field of config and recipe by name."""
    others = {name: settings.get(name) for name in ("model", "seed", "parts")}
    return others | settings["config"] | settings["recipe"]


def _completed(last: Path, metadata: dict, model: type[Model]) -> dict:
    """The metadata with the defaults of those fields that were not there when it was written."""
    config = config_of(last, metadata, model)
    try:
        recipe = Recipe(**metadata["recipe"])
    except (KeyError, TypeError, InputError) as problem:
        raise InputError(
            "a run says how it is trained", f"{last} ({problem})", "Start a new run."
        ) from None
    return metadata | {"config": asdict(config), "recipe": asdict(recipe)}


def _are_numbers(values) -> bool:
    largest = sys.float_info.max
    return all(type(v) in (int, float) and -largest <= v <= largest for v in values)


def _can_be(step, steps, losses, best, metric: str) -> bool:
    """Whether a run of `steps` can have come to this `step` with these numbers."""
    if type(step) is not int or type(steps) is not int or not 1 <= step <= steps:
        return False
    if not isinstance(losses, list) or len(losses) > step or not _are_numbers(losses):
        return False
    if not isinstance(best, dict) or not _are_numbers(best.values()):
        return False
    if not best:
        return step < steps  # a run that has ended was evaluated
    return type(best.get("step")) is int and 1 <= best["step"] <= step and metric in best
