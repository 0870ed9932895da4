"""Checks whether a saved run can be resumed: its files must be complete, valid and its own."""

import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from numformer.errors import InputError
from numformer.models import Model
from numformer.models.fields import saved_values
from numformer.models.kinds import model_kind
from numformer.optimization.loss_scale import LossScale
from numformer.optimization.optimizers import OPTIMIZERS, vectors_of
from numformer.optimization.recipe import Recipe
from numformer.paper.adam import warmup_rate
from numformer.runs.checkpoints import load_checkpoint, read_config


@dataclass(frozen=True)
class State:
    """The state of a run, from its last.safetensors. The optimizer's vectors are (N,)."""

    weights: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    recent: Any  # the weights (N,) at the latest evaluations, to be averaged
    loss_scale: Any  # the state of the LossScale (2,), or None
    threads: int | None  # of BLAS; None if unknown, in files of format 1
    step: int
    seconds: float  # of training so far; 0 if the file does not say
    losses: list[float]  # since the last line of metrics.jsonl
    best: dict  # the best evaluation so far
    metrics_bytes: int  # the length of metrics.jsonl


def summary(metrics: bytes) -> dict:
    """Return the length and checksum, which later show whether a file begins with these bytes."""
    return {"bytes": len(metrics), "crc32": zlib.crc32(metrics)}


def load_state(
    last: Path, metrics: Path, model: Model, settings: dict, metric: str, dtype
) -> State:
    """Return the state in the file `last`, to resume a run of `model` with `settings` from it.

    `metrics` is the path of metrics.jsonl, `metric` the task's metric, `dtype` the weights' dtype.
    Raises InputError, which names the mismatch, if the run cannot be resumed.
    """
    tensors, metadata = load_checkpoint(last, dtype)
    _require_same_settings(last, metadata, type(model), settings)
    recipe = Recipe(**settings["recipe"])
    averages = recipe.average > 1 and metadata.get("best")  # from the first evaluation on
    most_recent = recipe.average if averages else 0
    mixed = recipe.precision == "mixed"
    vectors = vectors_of(OPTIMIZERS[recipe.optimizer])
    state = State(
        optimizer={name: tensors.pop(f"optimizer.{name}", None) for name in vectors},
        recent=tensors.pop("recent", np.zeros(0)) if averages else (),
        loss_scale=tensors.pop("loss_scale", np.zeros(0)) if mixed else None,
        weights=tensors,
        threads=metadata.get("threads", 0),
        step=metadata["step"],
        seconds=metadata.get("seconds", 0.0),
        losses=metadata.get("losses"),
        best=metadata.get("best"),
        metrics_bytes=_metrics_bytes(metrics, metadata.get("metrics")),
    )
    if invalid := _invalid_entry(state, metadata.get("steps"), metric, most_recent):
        raise InputError(
            "the state of a run has only entries that the run can have saved",
            f"{last} with an impossible entry, {invalid}",
            "Start a new run.",
        )
    require_same_end(recipe, settings["steps"], state.step, metadata["steps"])
    return state


def _require_same_settings(last: Path, metadata: dict, model: type[Model], settings: dict) -> None:
    """Raise InputError unless the run in the file has these settings, except for `steps`."""
    if "step" not in metadata:
        raise InputError(
            "a run is resumed from the last.safetensors that it saved",
            f"{last}, which holds a model but not the state of a run",
            "Start a new run.",
        )
    if (saved := metadata.get("task")) != (task := settings["task"]):
        saved = saved if isinstance(saved, dict) else {}
        others = [name for name in saved | task if saved.get(name) != task.get(name)]
        raise InputError(
            "a run is resumed on the task and the data that it was started with",
            f"a task whose {', '.join(others)} differ from those of {last.parent}",
            "Restore them, name the folder of a run of this task, or start a new run.",
        )
    config = read_config(last, metadata, model)
    try:
        recipe = Recipe(**metadata["recipe"])
    except (KeyError, TypeError, InputError) as problem:
        raise InputError(
            "the state of a run holds its recipe", f"{last} ({problem})", "Start a new run."
        ) from None
    # Fields that the file lacks because they were added later get their defaults.
    saved = metadata | {
        "model": model_kind(model),
        "config": saved_values(config),
        "recipe": asdict(recipe),
    }
    received, saved = _by_name(settings), _by_name(saved)
    for name in received | saved:
        if received.get(name) != saved.get(name):
            setting = "rate or factor" if name == "factor" else name  # a rate becomes a factor
            raise InputError(
                "a run is resumed with the settings, seed and parts that it was started with",
                f"{name} {_with_rate(name, received)} instead of {_with_rate(name, saved)}",
                f"Set {setting} as it was, or start a new run.",
            )


def _with_rate(name: str, settings: dict) -> str:
    """Return a setting's value as text; a factor with its rate, which the user may have set."""
    if name != "factor":
        return repr(settings.get(name))
    d_model, warmup, factor = (settings[name] for name in ("d_model", "warmup", "factor"))
    return f"{factor:.4g} (rate {warmup_rate(warmup, d_model, warmup, factor):.4g})"


def _by_name(settings: dict) -> dict:
    """Return the kind of model, the seed, parts and all fields of config and recipe in one dict."""
    single = {name: settings.get(name) for name in ("model", "seed", "parts")}
    return single | settings["config"] | settings["recipe"]


def require_same_end(recipe: Recipe, steps: int, step: int, saved_steps: int) -> None:
    """Raise InputError unless a run of `saved_steps`, now at `step`, can go on to `steps`.

    If no rate depends on the end of the run, each step is the same in a longer or shorter run.
    """
    if steps != saved_steps and recipe.depends_on_steps:
        raise InputError(
            f"with decay {recipe.decay!r} a run keeps its number of steps, because its learning "
            "rates depend on that number",
            f"steps {steps} instead of {saved_steps}",
            f"Set steps to {saved_steps}, or start a new run.",
        )
    if steps < step:
        raise InputError(
            "a resumed run needs at least as many steps as it has taken",
            f"steps {steps} for a run that has taken {step}",
            "Set at least that many steps, or start a new run.",
        )


def _invalid_entry(state: State, steps, metric: str, most_recent: int) -> str | None:
    """Return the name of an entry that no run of `steps` steps can have saved, or None.

    At most `most_recent` vectors of weights may have been kept for averaging.
    """
    step, losses, best, recent = state.step, state.losses, state.best, state.recent
    size = sum(array.size for array in state.weights.values())
    valid: dict[str, Callable[..., Any]] = {
        "a step": lambda: type(step) is type(steps) is int and 1 <= step <= steps,
        "losses": lambda: type(losses) is list and len(losses) <= step and _are_numbers(losses),
        "a best evaluation": lambda: type(best) is dict and _can_be_best(best, step, steps, metric),
        "seconds": lambda: _are_numbers([state.seconds]) and state.seconds >= 0,
        "threads": lambda: (
            state.threads is None or (type(state.threads) is int and 1 <= state.threads <= 1024)
        ),
        "weights to average": lambda: (
            not most_recent or (recent.shape[1:] == (size,) and 1 <= len(recent) <= most_recent)
        ),
        "a loss scale": lambda: state.loss_scale is None or LossScale.is_valid(state.loss_scale),
    }
    for name, vector in state.optimizer.items():
        valid[f"optimizer.{name}"] = lambda name=name, vector=vector: (
            vector is not None
            and vector.shape == (size,)
            and not (name == "square" and (vector < 0).any())
        )
    return next((name for name, is_valid in valid.items() if not is_valid()), None)


def _can_be_best(best: dict, step: int, steps: int, metric: str) -> bool:
    if not best:
        return step < steps  # a run is evaluated at its end, so it then has a best evaluation
    at, numbers = best.get("step"), _are_numbers(best.values())
    return numbers and metric in best and type(at) is int and 1 <= at <= step


def _are_numbers(values) -> bool:
    largest = sys.float_info.max
    return all(type(v) in (int, float) and -largest <= v <= largest for v in values)


def _metrics_bytes(metrics: Path, saved) -> int:
    """Return the saved length of metrics.jsonl. Raises InputError if its beginning has changed."""
    length = saved.get("bytes") if isinstance(saved, dict) else None
    content = metrics.read_bytes() if metrics.is_file() else b""
    if type(length) is not int or summary(content[:length]) != saved:
        raise InputError(
            "a run is resumed with the metrics.jsonl that it wrote",
            f"{metrics}, which is damaged or missing",
            "Put it back as it was, or start a new run.",
        )
    return length
