"""Whether a saved run may go on: its files must be its own, whole, and of a state that can be."""

import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from numformer.errors import InputError
from numformer.models import Model
from numformer.optimization.loss_scale import LossScale
from numformer.optimization.optimizers import OPTIMIZERS, vectors_of
from numformer.optimization.recipe import Recipe
from numformer.runs.checkpoints import config_of, load_checkpoint


@dataclass(frozen=True)
class State:
    """Where a run stands, as its last.safetensors says. The optimizer's vectors are (N,)."""

    weights: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    recent: Any  # the weights (N,) at the latest evaluations, to be averaged
    loss_scale: Any  # what LossScale gave, (2,); None where there is none
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
    _require_same_settings(last, metadata, type(model), settings)
    vectors = vectors_of(OPTIMIZERS[settings["recipe"]["optimizer"]])
    averages = settings["recipe"]["average"] > 1 and metadata.get("best")  # after an evaluation
    most = settings["recipe"]["average"] if averages else 0
    scaled = settings["recipe"]["precision"] == "mixed"
    state = State(
        optimizer={name: tensors.pop(f"optimizer.{name}", None) for name in vectors},
        recent=tensors.pop("recent", np.zeros(0)) if most else (),
        loss_scale=tensors.pop("loss_scale", np.zeros(0)) if scaled else None,
        weights=tensors,
        threads=metadata.get("threads", 0),
        step=metadata["step"],
        seconds=metadata.get("seconds", 0.0),
        losses=metadata.get("losses"),
        best=metadata.get("best"),
        written=_length(metrics, metadata.get("metrics")),
    )
    if wrong := _impossible(state, metadata.get("steps"), metric, most):
        raise InputError(
            "a checkpoint says where its run stands",
            f"{last} with {wrong} that cannot be",
            "Start a new run.",
        )
    _require_same_end(settings, state.step, metadata["steps"])
    return state


def _require_same_settings(last: Path, metadata: dict, model: type[Model], settings: dict) -> None:
    """Raise InputError unless the metadata are of a run of these settings, its end apart."""
    if "step" not in metadata:
        raise InputError(
            "a run is resumed from the last.safetensors that it saved",
            f"{last}, which holds a model but no run",
            "Start a new run.",
        )
    if metadata.get("task") != settings["task"]:
        raise InputError(
            "a run is resumed on the task and the data that it was started with",
            "another task, or data with other symbols",
            "Name the folder of a run of this task, or start a new run.",
        )
    asked, started = _one_by_one(settings), _one_by_one(_completed(last, metadata, model))
    differing = [name for name in asked | started if asked.get(name) != started.get(name)]
    if differing:
        name = differing[0]
        raise InputError(
            "a run is resumed with the settings, seed and parts that it was started with",
            f"{name} {asked.get(name)!r} instead of {started.get(name)!r}",
            "Give it the same again, or start a new run.",
        )


def _impossible(state: State, steps, metric: str, most: int) -> str | None:
    """What of its state no run of `steps` can have come to, by its name; None where all can be.

    `most` is how many weights may be kept to be averaged, 0 where none are.
    """
    step, losses, best, recent = state.step, state.losses, state.best, state.recent
    size = sum(array.size for array in state.weights.values())
    can_be: dict[str, Callable[..., Any]] = {
        "a step": lambda: type(step) is type(steps) is int and 1 <= step <= steps,
        "losses": lambda: type(losses) is list and len(losses) <= step and _are_numbers(losses),
        "a best evaluation": lambda: type(best) is dict and _can_be_best(best, step, steps, metric),
        "seconds": lambda: _are_numbers([state.seconds]) and state.seconds >= 0,
        "threads": lambda: (
            state.threads is None or (type(state.threads) is int and 1 <= state.threads <= 1024)
        ),
        "weights to average": lambda: (
            not most or (recent.shape[1:] == (size,) and 1 <= len(recent) <= most)
        ),
        "a loss scale": lambda: state.loss_scale is None or LossScale.can_be(state.loss_scale),
    }
    for name, vector in state.optimizer.items():
        can_be[f"optimizer.{name}"] = lambda name=name, vector=vector: (
            vector is not None
            and vector.shape == (size,)
            and not (name == "square" and (vector < 0).any())
        )
    return next((name for name, holds in can_be.items() if not holds()), None)


def _can_be_best(best: dict, step: int, steps: int, metric: str) -> bool:
    if not best:
        return step < steps  # a run that has ended was evaluated
    measured_at = best.get("step")
    known = _are_numbers(best.values()) and metric in best
    return known and type(measured_at) is int and 1 <= measured_at <= step


def _length(metrics: Path, written) -> int:
    """How many bytes of metrics.jsonl its summary tells. Raises InputError where it differs."""
    length = written.get("bytes") if isinstance(written, dict) else None
    content = metrics.read_bytes() if metrics.is_file() else b""
    if type(length) is not int or summary(content[:length]) != written:
        raise InputError(
            "a run is resumed with the metrics.jsonl that it wrote",
            f"{metrics}, which is damaged or missing",
            "Put it back as it was, or start a new run.",
        )
    return length


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
    of_model = {"model": model.kind(), "config": asdict(config)}
    return metadata | of_model | {"recipe": asdict(recipe)}


def _are_numbers(values) -> bool:
    largest = sys.float_info.max
    return all(type(v) in (int, float) and -largest <= v <= largest for v in values)
