"""The diagnosis of a failed check: why a gradient is wrong.

`diagnose` tries the CLUES in turn. Is an inner layer wrong by itself? Is one operation's derivative
wrong (operations.py)? Which inner layer receives a wrong gradient? Is the gradient right for
another forward, such as one with gamma = 1? Do the numbers show a pattern?
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numformer.backend import dtype_kind, on_host, to_host
from numformer.gradient_check.factors import known_factors
from numformer.gradient_check.inner_layers import inner_layers
from numformer.gradient_check.symptoms import (
    PATTERNS,
    SIMPLE,
    UNKNOWN,
    Evidence,
    constant_ratio,
    explain,
)


class Failure:
    """A tensor with a wrong gradient: the evidence, and both slopes along random directions."""

    def __init__(self, check, name: str, directions: int = 3):
        self.check, self.name = check, name
        self.tensor = check.tensors[name]
        random = np.random.default_rng(0).standard_normal((directions, *self.tensor.shape))
        self.directions = [u / np.linalg.norm(u) for u in random]

    @functools.cached_property
    def evidence(self) -> Evidence:
        check, name = self.check, self.name
        check.run(keep=True)
        saved = {
            key: to_host(value).copy()
            for layer in check.layer.layers_within()
            for record in layer.saved
            for key, value in record.items()
            if dtype_kind(value) in ("b", "f")
        }
        check.layer.clear_saved()
        explicit, numerical = check.elementwise(name)
        pairs = {
            other: Evidence(*check.elementwise(other)).measured_part()
            for other, tensor in check.tensors.items()
            if other != name and "." not in other and tensor.shape == explicit.shape
        }
        is_table = name in check.parameters
        return Evidence(
            explicit,
            numerical,
            saved,
            to_host(check.upstream),
            known_factors(check),
            others={other: pair.numerical for other, pair in pairs.items()},
            sound=frozenset(other for other, pair in pairs.items() if not pair.wrong.any()),
            ids=next((x for x in check.inputs if dtype_kind(x) == "i" and is_table), None),
        )

    @functools.cached_property
    def explicit(self) -> np.ndarray:
        gradient = to_host(self.check.gradients[self.name])
        return np.array([(gradient * u).sum() for u in self.directions])

    @functools.cached_property
    def numerical(self) -> np.ndarray:
        return self.slopes(self.run_shifted)

    def run_shifted(self, shift):
        return self.check.run_shifted(self.name, shift)

    def slopes(self, forward: Callable, weight: Any = 1) -> np.ndarray:
        """Return slopes of <upstream, forward(shift)> along the directions times `weight`."""
        directions = (self.check.xp.asarray(u * weight) for u in self.directions)
        return np.array([self.check.slope(forward, u)[0] for u in directions])

    def has_slopes(self, slopes) -> bool:
        """Whether `slopes` equal the explicit slopes."""
        size = np.abs([*self.numerical, *self.explicit]).max()
        return bool((np.abs(self.explicit - slopes) < 1e-5 * size).all())


def non_finite_forward(failure: Failure) -> str | None:
    if not np.isfinite(to_host(failure.check.output)).all():
        return "forward itself gives NaN or infinity: a row with every key masked, or an overflow."
    return None


def lower_precision(failure: Failure) -> str | None:
    """Test for an operation of forward that does not compute in float64."""
    for op in failure.check.wrong_operations.forward.operations:
        if op.result.dtype != np.float64:
            return (
                f"forward computes in {op.result.dtype} here, so the difference may be rounding. "
                f"Compute in the dtype of the input, which is float64 in a check. {op.line}"
            )
    return None


def state_between_forwards(failure: Failure) -> str | None:
    """Test for a weight or batch size of the first forward that the next forward still uses."""
    check = failure.check
    if check.was_right_earlier(failure.name) and check.is_right_first(failure.name):
        place, separator, _ = (faulty_layer(failure) or "").partition(" is wrong by itself")
        return (f"{place}: " if separator else "") + (
            "right in the first forward and backward, wrong in the next, with other weights and "
            "another batch. Keep no copy of a weight and no size of a batch in an attribute: read "
            "parameter.data each time, and save() what belongs to one forward."
        )
    return None


def faulty_layer(failure: Failure) -> str | None:
    """Return the report on an inner layer whose gradient of this tensor or of an input is wrong."""
    reports = failure.check.faulty_layers
    return reports.get(failure.name) or reports.get("")


def forgotten_gain(failure: Failure) -> str | None:
    """Test whether backward leaves out a parameter such as gamma, or multiplies by it too late."""
    for name, parameter in failure.check.parameters.items():
        gain = parameter.data.copy()
        if name == failure.name or failure.tensor.shape[-1:] != gain.shape:
            continue

        def run_shifted(shift, parameter=parameter, gain=gain):
            parameter.data[...] = 1
            try:
                return failure.run_shifted(shift)
            finally:
                parameter.data[...] = gain

        if failure.has_slopes(failure.slopes(run_shifted)):
            return f"exactly the gradient for {name} = 1: backward leaves out `{name}`."
        if failure.has_slopes(failure.slopes(run_shifted, to_host(gain))):
            return (
                f"exactly `{name}` times the gradient for {name} = 1: multiply dy by `{name}` "
                "first, before sums are taken."
            )
    return None


def common_symptom(failure: Failure) -> str | None:
    return explain(failure.evidence, SIMPLE)


def constant_factor(failure: Failure) -> str | None:
    """Test for a constant factor; if there are inner layers, leave this to `wrong_operation`."""
    return (
        None if inner_layers(failure.check.layer) else explain(failure.evidence, [constant_ratio])
    )


def on_the_host(failure: Failure) -> str | None:
    """Diagnose a check on a GPU by the same check with NumPy, whose operations can be recorded."""
    if on_host(failure.check.output):
        return None
    row = failure.check.on_host.row(failure.name)
    return "right with NumPy, wrong on this device." if row.passed else row.meaning


def wrong_operation(failure: Failure) -> str | None:
    """Return the mistake in one operation that explains all wrong gradients."""
    return failure.check.wrong_operations.cause(failure.name, whole=True)


def connection_with_pattern(failure: Failure) -> str | None:
    message = failure.check.faulty_connection
    return None if message and UNKNOWN in message else message


CLUES: list[Callable[[Failure], str | None]] = [
    non_finite_forward,
    on_the_host,
    lower_precision,
    state_between_forwards,
    faulty_layer,
    common_symptom,
    constant_factor,
    wrong_operation,
    connection_with_pattern,
    lambda failure: failure.check.wrong_operations.cause(failure.name, whole=False),
    forgotten_gain,
    lambda failure: explain(failure.evidence, PATTERNS),
    lambda failure: failure.check.faulty_connection,
]


def diagnose(check, name: str) -> str:
    """Return, in words, the probable reason why the explicit gradient of `name` is wrong.

    A clue may run the layer in a way that the layer refuses, so a clue that raises is skipped. No
    error in the diagnosis may hide the failed check.
    """
    failure = Failure(check, name)
    for clue in CLUES:
        with contextlib.suppress(Exception):
            if message := clue(failure):
                return message
    with contextlib.suppress(Exception):
        wrong = failure.evidence.measured_part().wrong
        count = f"{np.count_nonzero(wrong)} of {wrong.size} entries are wrong"
        return UNKNOWN.replace(".", f". {count}.", 1)
    return UNKNOWN
