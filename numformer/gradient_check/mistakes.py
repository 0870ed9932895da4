"""Common mistakes in the derivative of one operation.

A mistake is a message and a function of two moves (see operations.py): the move of an operand and
the right move of the result. The function returns the move that the wrong backward implies.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numformer.gradient_check.trace import Operation

Wrong = Callable[[Any, Any], Any]
Mistakes = Iterator[tuple[str, Wrong]]
BILINEAR = ("matmul", "dot", "einsum", "multiply")


@dataclass(frozen=True, eq=False)
class Edge:
    """The derivative of a result with respect to an operand, an earlier operand, or itself."""

    operation: Operation
    number: int  # of the operation in forward
    start: tuple[int, int]  # (number of an operation, index of its operand, or -1 for its result)
    right: Callable  # maps the operand's move to the result's
    value: Any  # of the operand
    function: str = ""  # sigmoid, softmax, ..., if the edge spans all operations of that function

    @property
    def is_result(self) -> bool:
        return self.start[1] < 0

    @property
    def name(self) -> str:
        if self.is_result or self.function:
            return f"`{self.operation.expression}`"
        return self.operation.operand_name(self.start[1])

    def branch(self, words: str, place: str = "") -> str:
        """Return a sentence about the gradient through this edge."""
        if self.is_result:
            return f"the gradient {place}at `{self.operation.expression}` {words}."
        through = self.function or self.operation.expression
        return f"a branch {words}: {place}the one through {self.name} in `{through}`."


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))


# Elementwise functions, with their derivative as text (z is the input, s the output) and code.
ACTIVATIONS: dict[str, tuple[Callable, str, Callable]] = {
    "sigmoid": (_sigmoid, "s * (1 - s)", lambda z: _sigmoid(z) * (1 - _sigmoid(z))),
    "tanh": (np.tanh, "1 - s * s", lambda z: 1 - np.tanh(z) ** 2),
    "swish": (
        lambda z: z * _sigmoid(z),
        "sigmoid(z) * (1 + z - s)",
        lambda z: _sigmoid(z) * (1 + z - z * _sigmoid(z)),
    ),
}
FORMS: dict[str, Callable] = {
    "{0}": lambda v: v,
    "1 - {0}": lambda v: 1 - v,
    "{0} * {0}": lambda v: v * v,
    "{0} * (1 - {0})": lambda v: v * (1 - v),
    "{0} * (1 + {0})": lambda v: v * (1 + v),
    "1 - {0} * {0}": lambda v: 1 - v * v,
    "(1 - {0}) * (1 - {0})": lambda v: (1 - v) ** 2,
}


def function_edges(number: int, operations: list[Operation]) -> Iterator[Edge]:
    """Yield an edge from z if the operation's result is sigmoid(z), ... or softmax(z)."""
    op = operations[number]
    s = op.result
    operands = [
        (k, i, earlier.operands[i])
        for k, earlier in enumerate(operations[: number + 1])
        for i in earlier.floats
        if np.shape(earlier.operands[i]) == s.shape
    ]

    for name, (function, _, derivative) in ACTIVATIONS.items():
        for k, i, z in operands:
            if np.allclose(function(z), s, rtol=1e-12, atol=0):
                right = functools.partial(np.multiply, derivative(z))
                yield Edge(op, number, (k, i), right, z, name)
                break
    if op.name == "divide":
        yield from _softmax_edges(number, operations)


def _softmax_edges(number: int, operations: list[Operation]) -> Iterator[Edge]:
    """Yield the edge from scores to softmax if the operation divides by a sum of exponentials."""
    op = operations[number]
    s, e = op.result, op.operands[0]
    place: Any = None
    for k, earlier in enumerate(operations[:number]):
        if np.shape(earlier.result) != s.shape or np.shape(e) != s.shape:
            continue
        if earlier.name == "subtract":  # scores minus their maximum
            place, offsets = (k, 0), earlier.result
        if earlier.name == "exp" and not (place and np.array_equal(earlier.operands[0], offsets)):
            place = k, 0

    def right(move, axis):
        return s * (move - (s * move).sum(axis=axis, keepdims=True))

    for axis in range(s.ndim) if place else ():
        if np.allclose(s * e.sum(axis=axis, keepdims=True), e, rtol=1e-12, atol=0):
            z, right_move = operations[place[0]].operands[0], functools.partial(right, axis=axis)
            yield Edge(op, number, place, right_move, z, f"softmax over axis {axis}")


def mistakes(edge: Edge, line: list[Edge], arrays: list[tuple[str, Any]]) -> Mistakes:
    """Yield the common mistakes at `edge`.

    `line` holds this edge for each run of its source line: several in a loop. A mistake may use any
    of the named `arrays` in place of the right array.
    """
    if edge.is_result:
        yield from _extra_factors(edge, arrays)
    elif edge.function.startswith("softmax"):
        yield from _wrong_softmax(edge)
    elif edge.function:
        yield from _wrong_activation(edge, arrays)
    else:
        yield from _wrong_derivative(edge, arrays)
        yield from _wrong_factors(edge, line, arrays)
        yield from _wrong_axes(edge)
        yield from _wrong_choice(edge)
        if len(line) == 1:
            yield from _moved(edge, "operand", np.shape(edge.value))
    if len(line) == 1:
        yield from _moved(edge, "result", edge.operation.result.shape)
    if len(line) == 1 or not edge.is_result:
        yield from _missing_parts(edge)


def _constant(factor) -> Wrong:
    return lambda move, right: factor * move


def _wrong_slopes(start: str, shape: tuple, arrays: list[tuple[str, Any]]) -> Mistakes:
    """Yield wrong derivatives of an elementwise function, computed from each of `arrays`."""
    for name, array in arrays:
        if np.shape(array) == shape:
            for form, values in FORMS.items():
                yield f"{start} is not {form.format(name)}.", _constant(values(array))


def _wrong_derivative(edge: Edge, arrays: list[tuple[str, Any]]) -> Mistakes:
    op, shape = edge.operation, edge.operation.result.shape
    if np.shape(edge.value) != shape:
        return
    start = f"the derivative of `{op.expression}` with respect to {edge.name}"
    if op.name == "multiply":
        (other,) = {0, 1} - {edge.start[1]}
        yield f"{start} lacks {op.operand_name(other)}.", _constant(1)
    else:
        yield f"the derivative of `{op.expression}` is left out.", _constant(1)
    if isinstance(getattr(np, op.name, None), np.ufunc) and op.name != "matmul":
        slope = edge.right(np.ones(shape))
        yield f"{start} is applied twice.", _constant(slope * slope)
        yield from _wrong_slopes(start, shape, arrays)


def _wrong_activation(edge: Edge, arrays: list[tuple[str, Any]]) -> Mistakes:
    _, right, derivative = ACTIVATIONS[edge.function]
    z, s = edge.value, edge.operation.result
    start = f"the derivative of {edge.function} is {right} (s is its output), not "
    yield f"{start}1 (left out).", _constant(1)
    for form, values in FORMS.items():
        yield f"{start}{form.format('s')}.", _constant(values(s))
        yield f"{start}{form.format('z')} (z is its input).", _constant(values(z))
    yield f"{start}{right} with {edge.function}(s) for s.", _constant(derivative(s))
    for name, array in arrays:
        if np.shape(array) == s.shape:
            for form, values in FORMS.items():
                yield f"{start}{form.format(name)}.", _constant(values(array))


def _wrong_softmax(edge: Edge) -> Mistakes:
    s, axis = edge.operation.result, int(edge.function.split()[-1])
    start = "softmax's derivative is weights * (dweights - sum(dweights * weights)):"
    yield f"{start} the sum is missing.", _constant(s)
    yield f"{start} the weights are missing.", lambda move, right: right / s
    yield f"{start} weights * (1 - weights) is its diagonal alone.", _constant(s * (1 - s))
    yield f"{start} all of it is left out.", _constant(1)
    for other in range(s.ndim):
        if other != axis:

            def wrong_sum(move, right, other=other):
                # The transpose of the wrong dz = s * (ds - sum(s * ds) over the other axis).
                total = (s * move).sum(axis=other, keepdims=True)
                return s * (move - total)

            yield f"{start} the sum runs over axis {other} instead of {axis}.", wrong_sum


def _extra_factors(edge: Edge, arrays: list[tuple[str, Any]]) -> Mistakes:
    result = edge.operation.result
    start = f"the gradient at `{edge.operation.expression}`"
    for name, array in arrays:
        shape = np.shape(array)
        if len(shape) == result.ndim and all(
            a in (1, b) for a, b in zip(shape, result.shape, strict=True)
        ):
            yield f"{start} lacks the factor {name}, or has 1 / {name} too often.", _divided(array)
            yield f"{start} has the factor {name} too often.", _constant(array)


def _divided(array) -> Wrong:
    return lambda move, right: move / array


def _wrong_factors(edge: Edge, line: list[Edge], arrays: list[tuple[str, Any]]) -> Mistakes:
    """Yield derivatives of a product with the other factor transposed, reversed or replaced."""
    op, index = edge.operation, edge.start[1]
    for other in op.floats if op.name in BILINEAR else ():
        if other == index:
            continue
        factor, name = op.operands[other], op.operand_name(other)

        def with_factor(value, other=other) -> Wrong:
            operands = [value if i == other else x for i, x in enumerate(op.operands)]
            return lambda move, right: replace(op, operands=operands).slope(index, move)

        for a, b in itertools.combinations(range(factor.ndim), 2):
            is_matrix = op.name == "einsum" or a == factor.ndim - 2
            if factor.shape[a] == factor.shape[b] > 1 and is_matrix and op.name != "multiply":
                text = f"exactly the gradient for {name} transposed: where forward has W, use W.T."
                yield text, with_factor(factor.swapaxes(a, b))
        for axis in range(factor.ndim):
            if factor.shape[axis] > 1:
                text = (
                    f"{name} is reversed along axis {axis} in the derivative with respect to "
                    f"{edge.name}."
                )
                yield text, with_factor(np.flip(factor, axis))
        opposite = line[-1 - line.index(edge)].operation.operands[other]
        if len(line) > 1 and opposite.shape == factor.shape:
            text = f"{name} comes from the loop's iterations in reverse order"
            yield f"{text} in the derivative with respect to {edge.name}.", with_factor(opposite)
        for array_name, array in arrays:
            if array.shape == factor.shape:
                text = f"the derivative with respect to {edge.name} takes {array_name} for {name}."
                yield text, with_factor(array)


def _wrong_axes(edge: Edge) -> Mistakes:
    """Yield gradients of a broadcast operand that are summed over the wrong axes."""
    op, index = edge.operation, edge.start[1]
    shape, full = np.shape(edge.value), op.result.shape
    if op.name not in ("add", "multiply") or len(shape) >= len(full):
        return
    derivative = 1 if op.name == "add" else op.operands[1 - index]
    axes = range(len(full))
    right_axes = tuple(axes[: len(full) - len(shape)])
    for kept_axes in [(), *itertools.combinations(axes, len(shape))]:
        wrong_axes = tuple(axis for axis in axes if axis not in kept_axes)
        kept_shape = tuple(full[axis] for axis in kept_axes)
        if wrong_axes == right_axes or (kept_axes and kept_shape != shape):
            continue
        move_shape = [size if axis in kept_axes else 1 for axis, size in enumerate(full)]

        def change(move, right, kept_axes=kept_axes, move_shape=move_shape):
            return derivative * (move.reshape(move_shape) if kept_axes else move.sum())

        yield (
            f"the gradient of {edge.name} is summed over the wrong axes, {wrong_axes} instead of "
            f"{right_axes} of shape {full}.",
            change,
        )


def _wrong_choice(edge: Edge) -> Mistakes:
    """Yield gradients of a maximum that go to every entry instead of the largest alone."""
    op = edge.operation
    if op.name in ("max", "min", "amax", "amin"):
        total = replace(op, function=np.sum)
    elif op.name in ("maximum.reduce", "minimum.reduce"):
        total = replace(op, function=np.add.reduce)
    else:
        return
    start = f"the gradient of `{op.expression}` goes to every entry, as the gradient of a"
    size = np.size(edge.value) / op.result.size
    yield f"{start} sum does.", lambda move, right: total.slope(edge.start[1], move)
    yield f"{start} mean does.", lambda move, right: total.slope(edge.start[1], move) / size


def _moved(edge: Edge, side: str, shape: tuple[int, ...]) -> Mistakes:
    """Yield gradients that are transposed or reversed at an edge's operand or result (`side`)."""

    def change(rearrange: Callable) -> Wrong:
        if side == "result":
            return lambda move, right: rearrange(right)
        return lambda move, right: edge.right(rearrange(move))

    at = f"at `{edge.operation.expression}` on the way to {edge.name}"
    start = f"the gradient of {edge.name}" if side == "operand" else f"the gradient {at}"
    for a, b in itertools.combinations(range(len(shape)), 2):
        if shape[a] == shape[b] > 1:
            text = f"{start} is transposed: axes {a} and {b} are swapped."
            yield text, change(lambda x, a=a, b=b: x.swapaxes(a, b))
    for axis, size in enumerate(shape):
        if size > 1:
            text = f"{start} is reversed along axis {axis}."
            yield text, change(lambda x, axis=axis: np.flip(x, axis))


def _missing_parts(edge: Edge) -> Mistakes:
    """Yield gradients that sum only the first or last part along an axis, or all but that part."""
    shape = edge.operation.result.shape
    for axis, size in enumerate(shape):
        place = np.arange(size).reshape(-1, *[1] * (len(shape) - axis - 1))
        parts = {
            "only the first": place == 0,
            "only the last": place == size - 1,
            "all but the first": place > 0,
            "all but the last": place < size - 1,
        }
        for words, part in parts.items() if size > 1 else ():
            if size > 2 or words.startswith("only"):
                text = f"the gradient of {edge.name} sums {words} of {size} along axis {axis} of"
                yield f"{text} `{edge.operation.expression}`.", _only(part)


def _only(part) -> Wrong:
    return lambda move, right: part * right
