"""One shape for every complaint about input: the rule, what was received, and the fix."""

import sys


class InputError(ValueError):
    """Input that breaks a rule. Scripts print it without a traceback and exit with code 2.

    `rule` says what must hold, `received` what came instead, `fix` what to do about it.
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
            f"Build the {name} for the width that it is given, or give it an array of its own.",
        )


class BrokenNumbers(ArithmeticError):
    """The loss, the gradient, a weight, a logit or a measure is not a finite number any more."""


def complain(problem: Exception | str) -> None:
    """Print what went wrong on standard error: one line, whatever it names."""
    print("error:", " ".join(str(problem).split()), file=sys.stderr)
