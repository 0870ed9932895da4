"""The measures of an evaluation: the task's own, and the loss on held-out batches."""

import math
from typing import Any

import numpy as np

from numformer.data import Batch
from numformer.errors import BrokenNumbers, InputError
from numformer.layer import Layer
from numformer.models import Model

RESERVED = {"step", "seconds", "loss", "rate", "gradient_norm", "loss_scale"}
"""Names that metrics.jsonl uses for other numbers."""


def measures(task: Any, model: Model, objective: Layer) -> dict[str, float]:
    """Return the measures of evaluate(), and the loss on held-out batches if it is not one of them.

    Raises InputError unless evaluate() returns a dict of numbers with the task's metric as a key,
    and BrokenNumbers for NaN and infinities.
    """
    result, metric = task.evaluate(model), task.metric
    numbers = _numbers(result)
    if numbers is not None and "held_out_loss" not in numbers:
        numbers |= _held_out_loss(task, objective)
    if numbers is None or metric not in numbers or numbers.keys() & RESERVED:
        raise InputError(
            f"evaluate() returns a dict of numbers with the key {metric!r}, and without the keys "
            f"{', '.join(map(repr, sorted(RESERVED)))}",
            repr(result)[:200],
            f"Return for example {{{metric!r}: 0.5}}.",
        )
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise BrokenNumbers(f"{name} is {number}")
    return numbers


def _numbers(result) -> dict[str, float] | None:
    """Return the result of evaluate() with float values, or None if it is no dict of numbers."""
    try:
        numbers = {name: float(value) for name, value in result.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    return numbers if all(type(name) is str for name in numbers) else None


def _held_out_loss(task: Any, objective: Layer) -> dict[str, float]:
    """Return the objective's mean loss, with auxiliary losses, on the held-out batches, if any."""
    batches = getattr(task, "held_out", [])
    is_list = isinstance(batches, list | tuple)
    if not is_list or not all(isinstance(batch, Batch) for batch in batches):
        raise InputError(
            "a task's held_out is a list of batches, such as batch(step) returns",
            repr(batches)[:200],
            "Make batches from it, for example PairBatch.of(pairs).",
        )
    if not batches:
        return {}
    losses = [float(objective.forward(*batch.inputs)) for batch in batches]
    return {"held_out_loss": np.average(losses, weights=[b.weight for b in batches]).item()}
