"""Records forward as a list of NumPy operations, with operands, results and source lines."""

import ast
import contextlib
import functools
import linecache
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from numformer import arithmetic, interception
from numformer.backend import dtype_kind
from numformer.layer import Layer
from numformer.randomness import dropout_stream

HERE, NUMPY = (os.path.dirname(file) + os.sep for file in (__file__, np.__file__))
# Lines of these files are not part of a layer's forward.
MACHINERY = HERE, NUMPY, interception.__file__, arithmetic.__file__

# Functions that choose by value, each with the comparison that returns its choice.
CHOICES = {name: getattr(np, name) for name in ("less", "less_equal", "greater", "greater_equal")}
CHOICES |= dict(equal=np.equal, not_equal=np.not_equal, maximum=np.greater, minimum=np.less)


@dataclass(frozen=True)
class Operation:
    """One operation, or the forward of an inner layer, with copies of its operands and result."""

    name: str
    function: Callable
    operands: list
    keywords: dict
    result: Any
    calls: tuple  # (code, line, instruction) of each active function, innermost first
    is_layer: bool = False

    @property
    def floats(self) -> list[int]:
        """The indices of the floating-point operands."""
        return [i for i, operand in enumerate(self.operands) if dtype_kind(operand) == "f"]

    def with_operand(self, index: int, value):
        """Return the result with `value` in place of the operand at `index`."""
        operands = [*self.operands[:index], value, *self.operands[index + 1 :]]
        return self.function(*operands, **self.keywords)

    def slope(self, index: int, move, step: float = 1e-5):
        """Return the derivative of the result as the operand at `index` moves along `move`."""
        ahead, back = (
            np.copy(self.with_operand(index, self.operands[index] + sign * step * move))
            for sign in (1, -1)
        )
        return (ahead - back) / (2 * step)

    @property
    def text(self) -> str:
        """The source line of the operation."""
        code, number, _ = self.calls[0]
        return linecache.getline(code.co_filename, number).strip()

    @property
    def line(self) -> str:
        """A sentence that quotes the source line and gives its file and number."""
        if not self.calls or not self.text:
            return ""
        code, number, _ = self.calls[0]
        return f"Forward's line: `{self.text}` ({os.path.basename(code.co_filename)}, {number})."

    @functools.cached_property
    def expression(self) -> str:
        """The part of the source that computes the result, or the name of the operation."""
        source = self._source
        if self.is_layer and not re.search(rf"\b{self.name.rpartition('.')[2]}\b", source):
            return f"{self.name}.forward"  # in a loop over layers, the source does not name it
        return source

    @functools.cached_property
    def _source(self) -> str:
        if not self.calls:
            return self.name
        code, _, instruction = self.calls[0]
        first, last, start, end = [*code.co_positions()][instruction // 2]
        source = linecache.getlines(code.co_filename)[first - 1 : last]
        lines = [line.encode() for line in source]  # positions count bytes
        if not lines:
            return self.name
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][start:]
        return " ".join(line.decode().strip() for line in lines)

    def operand_name(self, index: int) -> str:
        """Return the source of an operand, or its position in words."""
        texts = self._operand_texts
        return texts[index] if index < len(texts) else f"operand {index + 1}"

    @functools.cached_property
    def _operand_texts(self) -> list[str]:
        """The source of each operand, or its position in words."""
        places = [f"the {place} operand" for place in ("first", "second", "third", "last")]
        try:
            (statement,) = ast.parse(self._source).body
        except (SyntaxError, ValueError):
            return places
        match getattr(statement, "value", statement), statement:
            case ast.BinOp(left, _, right), _:
                parts = [left, right]
            case _, ast.AugAssign(target, _, value):
                parts = [target, value]
            case ast.UnaryOp(_, operand), _:
                parts = [operand]
            case ast.Call(_, [ast.List(parts), *_], _), _:
                pass
            case ast.Call(ast.Name(), parts, _), _:
                pass
            case ast.Call(ast.Attribute(array, name), arguments, _), _:
                module = isinstance(array, ast.Name) and array.id in ("np", "numpy", "xp")
                parts = arguments if module or name == "forward" else [array, *arguments]
            case _:
                return places
        return [f"`{ast.unparse(part)}`" for part in parts] if parts else places


class Trace:
    """Records one forward's operations in order, or changes their results.

    If given, `change(number, operands, result)` returns the new result of an operation, and nothing
    is recorded.
    """

    def __init__(self, change: Callable | None = None):
        self.change, self.count = change, 0
        self.operations: list[Operation] = []
        # Choices by value: (code, line, instruction) -> their outcomes, True, False or both.
        self.choices: dict[tuple, set[bool]] = {}

    def add(self, result, name: str, function: Callable, operands: list, *details):
        """Record the next operation and return its result, or return its changed result.

        `details` are the operation's keyword arguments and, for a layer, True.
        """
        number, self.count = self.count, self.count + 1
        if self.change:
            return self.change(number, operands, result)
        keywords, *is_layer = details
        calls = _active_calls()
        self.operations.append(
            Operation(name, function, operands, keywords, np.copy(result), calls, *is_layer)
        )
        return result


class TracedArray(np.ndarray):
    """An array that adds its operations to the trace of the running forward."""

    trace: Trace | None = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc, method, *operands, **keywords):
        if self.trace is None:
            return getattr(ufunc, method)(*_plain(operands), **_plain(keywords))
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return _run_operation(name, getattr(ufunc, method), operands, keywords)

    def __array_function__(self, function, types, operands, keywords):
        return _run_operation(function.__name__, function, operands, keywords)


def _map_arrays(change: Callable, value: Any) -> Any:
    """Return `value` with `change` applied to each array, also inside tuples, lists and dicts."""
    if isinstance(value, np.ndarray):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([_map_arrays(change, item) for item in value])
    if type(value) is dict:
        return {key: _map_arrays(change, item) for key, item in value.items()}
    return value


def _plain(value: Any) -> Any:
    return _map_arrays(lambda x: x.view(np.ndarray) if type(x) is TracedArray else x, value)


def _traced(value: Any) -> Any:
    return _map_arrays(lambda x: x.view(TracedArray), value)


def _with_list(function: Callable, count: int) -> Callable:
    """Return `function`, but with the `count` items of its first argument as separate arguments."""
    return lambda *operands, **keywords: function(
        [*operands[:count]], *operands[count:], **keywords
    )


def _run_operation(name: str, function: Callable, operands: tuple, keywords: dict):
    arguments, keywords = [*map(_plain, operands)], _plain(keywords)
    trace = TracedArray.trace
    if trace is None:
        return function(*arguments, **keywords)
    if arguments and isinstance(arguments[0], list | tuple):  # np.concatenate, np.stack
        function = _with_list(function, len(arguments[0]))
        arguments = [*arguments[0], *arguments[1:]]
    # The operation may write into its operands.
    copies = _map_arrays(np.copy, arguments) if not trace.change or "out" in keywords else arguments
    result = function(*arguments, **keywords)
    if name in CHOICES and not trace.change:
        outcomes = np.unique(CHOICES[name](*copies[:2])).tolist()
        trace.choices.setdefault(_active_calls()[0], set()).update(outcomes)
    if dtype_kind(result) == "f":
        in_place = keywords.pop("out", None) is not None
        new = trace.add(result, name, function, copies, keywords)
        if in_place:
            result[...] = new
        else:
            result = new
    return _traced(result)


def _active_calls() -> tuple:
    """Return the active calls, from the operation's own line out to the layer's forward."""
    frame: FrameType | None = sys._getframe(1)
    calls: list[tuple] = []
    while frame and not (calls and frame.f_code.co_filename.startswith(HERE)):
        file = frame.f_code.co_filename
        if calls or not file.startswith(MACHINERY):
            calls.append((frame.f_code, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(calls)


def _run_layer(name: str, layer: Layer, forward: Callable, *inputs):
    """Run an inner layer's forward as one operation."""

    def repeat(*inputs):
        """Run forward again with the same dropout masks, and delete what forward saves."""
        counts = [(inner.saved, len(inner.saved)) for inner in layer.layers_within()]
        state, dropout_stream.state = dropout_stream.state, first_state
        trace, TracedArray.trace = TracedArray.trace, None
        try:
            return forward(*inputs)
        finally:
            TracedArray.trace, dropout_stream.state = trace, state
            for saved, count in counts:
                del saved[count:]

    trace, first_state, inputs = TracedArray.trace, dropout_stream.state, _plain(inputs)
    TracedArray.trace = None
    try:
        result = forward(*inputs)
    finally:
        TracedArray.trace = trace
    if trace is None or dtype_kind(result) != "f":
        return result
    operands = _map_arrays(np.copy, [*inputs])
    return _traced(trace.add(result, name, repeat, operands, {}, True))


@contextlib.contextmanager
def trace_operations(check, trace: Trace, whole_layers: bool = True):
    """Within the block, forwards of a GradientCheck add their operations to `trace`.

    With `whole_layers`, the forward of an inner layer is one operation.
    """
    inputs, layers = check.inputs, check.outermost if whole_layers else {}
    own = [
        p for n, p in check.parameters.items() if not n.startswith(tuple(f"{x}." for x in layers))
    ]
    data = [parameter._data for parameter in own]
    check.inputs = [_traced(x) if dtype_kind(x) == "f" else x for x in inputs]
    for parameter in own:
        parameter._data = _traced(parameter._data)
    TracedArray.trace = trace
    try:
        with interception.intercept(
            layers, "forward", lambda name, *call: _run_layer(name, layers[name], *call)
        ):
            yield
    finally:
        check.inputs, TracedArray.trace = inputs, None
        for parameter, array in zip(own, data, strict=True):
            parameter._data = array
