"""Errors about input: each names the rule, what was received and the fix."""

import math
import sys

import numpy as np


class InputError(ValueError):
    """Raised for input that breaks a rule. Scripts print only its message and exit with code 2.

    `rule` says what must hold, `received` what was passed instead, and `fix` what to do.
    """

    def __init__(self, rule: str, received: object, fix: str):
        super().__init__(rule, received, fix)

    def __str__(self) -> str:
        rule, received, fix = self.args
        return f"{rule}; received {received}. {fix}"


def require_width(layer: object, x, width: int) -> None:
    """Raise InputError unless x is an array (..., width)."""
    shape = getattr(x, "shape", ())
    if shape[-1:] != (width,):
        name = type(layer).__name__
        raise InputError(
            f"this {name} takes an array (..., {width})",
            f"shape {shape}" if shape else type(x).__name__,
            f"Build the {name} for this array's width, or give it an array of width {width}.",
        )


def require_positive(name: str, value: int, most: float = math.inf) -> None:
    """Raise InputError unless `value` is an integer from 1 to `most`."""
    is_integer = isinstance(value, int | np.integer) and type(value) is not bool
    if not is_integer or not 1 <= value <= most:
        limits = "of at least 1" if most == math.inf else f"from 1 to {most}"
        raise InputError(f"{name} is an integer {limits}", repr(value), f"Choose another {name}.")


class BrokenNumbers(ArithmeticError):
    """The loss, the gradient, a weight, a logit or a measure is no longer a finite number."""


def require_no_nan(logits: np.ndarray) -> None:
    """Raise BrokenNumbers if a logit, or a number computed from the logits, is NaN."""
    if np.isnan(logits).any():
        raise BrokenNumbers("logits are NaN: weights are not finite or so large that they overflow")


def complain(problem: Exception | str) -> None:
    """Print an error on standard error, as one line."""
    print("error:", " ".join(str(problem).split()), file=sys.stderr)
