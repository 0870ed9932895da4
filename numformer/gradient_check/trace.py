"""Records forward as a list of NumPy operations, with operands, results and source lines."""

import contextlib
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np

from numformer.backend import dtype_kind

# Functions that choose by value, and the comparison that returns their choice.
CHOICES = {name: getattr(np, name) for name in ("less", "less_equal", "greater", "greater_equal")}
CHOICES |= dict(equal=np.equal, not_equal=np.not_equal, maximum=np.greater, minimum=np.less)


@dataclass(frozen=True)
class Operation:
    """One operation with copies of its operands and its result."""

    name: str
    function: Callable
    operands: list
    keywords: dict
    result: Any
    calls: tuple  # (file, line, instruction) of each active function, innermost first

    @property
    def floats(self) -> list[int]:
        """The indices of the floating-point operands."""
        return [i for i, operand in enumerate(self.operands) if dtype_kind(operand) == "f"]

    def with_operand(self, index: int, value):
        """Return the result with `value` in place of the operand at `index`."""
        operands = [*self.operands[:index], value, *self.operands[index + 1 :]]
        return self.function(*operands, **self.keywords)

    @property
    def line(self) -> str:
        """A sentence that quotes the source line and names its place."""
        file, number, _ = self.calls[0]
        text = linecache.getline(file, number).strip()
        return f"Forward's line: `{text}` ({os.path.basename(file)}, {number})." if text else ""


@dataclass
class Trace:
    """The operations of one forward in order; `changes` may replace their results.

    `changes[number](now, before)` returns the new result of an operation: `now` is the operation
    itself, `before` is the list of the earlier operations.
    """

    changes: dict[int, Callable] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    # By (file, line, instruction) of each choice by value, its outcomes: True, False or both.
    choices: dict[tuple, set[bool]] = field(default_factory=dict)

    def add(self, operation: Operation):
        """Add the next operation, and return its result, or the replacement from `changes`."""
        change = self.changes.get(len(self.operations))
        result = change(operation, self.operations) if change else operation.result
        self.operations.append(replace(operation, result=np.copy(result)))
        return result


class TracedArray(np.ndarray):
    """An array whose operations are added to the trace of the forward that runs."""

    trace: Trace | None = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc, method, *operands, **keywords):
        name = ufunc.__name__ if method == "__call__" else method
        return _run_operation(name, getattr(ufunc, method), operands, keywords)

    def __array_function__(self, function, types, operands, keywords):
        return _run_operation(function.__name__, function, operands, keywords)


def _map_arrays(change: Callable, value: Any) -> Any:
    """Return `value` with `change` applied to each array, also inside tuples, lists and dicts."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_map_arrays(change, item) for item in value)
    if isinstance(value, dict):
        return {key: _map_arrays(change, item) for key, item in value.items()}
    return value


def _run_operation(name: str, function: Callable, operands: tuple, keywords: dict):
    arguments, keywords = _map_arrays(lambda x: x.view(np.ndarray), ([*operands], keywords))
    copies = _map_arrays(np.copy, arguments)  # the operation may write into its operands
    result = function(*arguments, **keywords)
    trace = TracedArray.trace
    if trace is None:
        return result
    if name in CHOICES:
        outcomes = np.unique(CHOICES[name](*copies[:2])).tolist()
        trace.choices.setdefault(_active_calls()[0], set()).update(outcomes)
    if dtype_kind(result) == "f":
        in_place = keywords.pop("out", None) is not None
        new = trace.add(Operation(name, function, copies, keywords, result, _active_calls()))
        if in_place:
            result[...] = new
        else:
            result = new
    return _map_arrays(lambda x: x.view(TracedArray), result)


def _active_calls() -> tuple:
    """Return the active lines, from the operation's own line out to the layer's forward."""
    here, numpy = os.path.dirname(__file__), os.path.dirname(np.__file__)
    frame: FrameType | None = sys._getframe(3)  # the frame of the line with the operation
    calls: list[tuple] = []
    while frame and os.path.dirname(frame.f_code.co_filename) != here:
        file = frame.f_code.co_filename
        if calls or not file.startswith(numpy):
            calls.append((file, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(calls)


@contextlib.contextmanager
def trace_operations(check, trace: Trace):
    """Within the block, forwards of a GradientCheck add their operations to `trace`."""
    inputs = check.inputs
    check.inputs = [x.view(TracedArray) if dtype_kind(x) == "f" else x for x in inputs]
    TracedArray.trace = trace
    try:
        yield
    finally:
        check.inputs, TracedArray.trace = inputs, None
