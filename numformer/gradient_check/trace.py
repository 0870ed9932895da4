"""A forward operation by operation: each NumPy operation, its operands and result, and its line."""

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

# What chooses by value, and the comparison that tells which it chose.
CHOICES = {name: getattr(np, name) for name in ("less", "less_equal", "greater", "greater_equal")}
CHOICES |= dict(equal=np.equal, not_equal=np.not_equal, maximum=np.greater, minimum=np.less)


@dataclass(frozen=True)
class Operation:
    """One operation with its operands and its result as they were."""

    name: str
    function: Callable
    operands: list
    named: dict
    result: Any
    calls: tuple  # (file, line, instruction) of each function that was running, innermost first

    @property
    def floats(self) -> list[int]:
        """Which of its operands are floating-point arrays."""
        return [i for i, operand in enumerate(self.operands) if dtype_kind(operand) == "f"]

    def with_operand(self, index: int, value):
        """The result for another operand at `index`."""
        operands = [*self.operands[:index], value, *self.operands[index + 1 :]]
        return self.function(*operands, **self.named)

    @property
    def line(self) -> str:
        """Where it stands, in words."""
        file, number, _ = self.calls[0]
        text = linecache.getline(file, number).strip()
        return f"Forward's line: `{text}` ({os.path.basename(file)}, {number})." if text else ""


@dataclass
class Trace:
    """The operations of one forward in order, some of them with another result, by number.

    `changes[number](now, before)` is that result: `now` is the operation, `before` are those
    that came before it.
    """

    changes: dict[int, Callable] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    # (file, line, instruction) of a choice by value -> what it was, of True and False
    choices: dict[tuple, set[bool]] = field(default_factory=dict)

    def result(self, operation: Operation):
        """The result of the next operation, its own or another."""
        change = self.changes.get(len(self.operations))
        result = change(operation, self.operations) if change else operation.result
        self.operations.append(replace(operation, result=np.copy(result)))
        return result


class Reporting(np.ndarray):
    """An array whose operations are reported to the trace of the forward that runs."""

    trace: Trace | None = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc, method, *operands, **named):
        name = ufunc.__name__ if method == "__call__" else method
        return _report(name, getattr(ufunc, method), operands, named)

    def __array_function__(self, function, types, operands, named):
        return _report(function.__name__, function, operands, named)


def _changed(value: Any, change: Callable) -> Any:
    """`value` with every array in it changed, in tuples, lists and dicts too."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_changed(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _changed(item, change) for key, item in value.items()}
    return value


def _bare(array):
    return array.view(np.ndarray)


def _report(name: str, function: Callable, operands: tuple, named: dict):
    operands, named = _changed(list(operands), _bare), _changed(named, _bare)
    copies = _changed(operands, np.copy)  # the operation may write into its operands
    result = function(*operands, **named)
    trace = Reporting.trace
    if trace is None:
        return result
    if name in CHOICES:
        chosen = CHOICES[name](*copies[:2])
        trace.choices.setdefault(_calls()[0], set()).update(np.unique(chosen).tolist())
    if dtype_kind(result) == "f":
        into_operand = named.pop("out", None) is not None
        changed = trace.result(Operation(name, function, copies, named, result, _calls()))
        if into_operand:
            result[...] = changed
        else:
            result = changed
    return _changed(result, lambda array: array.view(Reporting))


def _calls() -> tuple:
    """The lines that run, from that of the operation out to the layer's own forward."""
    here, numpy = os.path.dirname(__file__), os.path.dirname(np.__file__)
    frame: FrameType | None = sys._getframe(2)
    calls: list[tuple] = []
    while frame and not calls:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(numpy):
            calls.append((file, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    while frame and os.path.dirname(frame.f_code.co_filename) != here:
        calls.append((frame.f_code.co_filename, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(calls)


@contextlib.contextmanager
def traced(checked, trace: Trace):
    """Within the block the forwards of a GradientCheck are reported to `trace`."""
    inputs = checked.inputs
    checked.inputs = [x.view(Reporting) if dtype_kind(x) == "f" else x for x in inputs]
    Reporting.trace = trace
    try:
        yield
    finally:
        checked.inputs, Reporting.trace = inputs, None
