"""Searches forward for the operation whose derivative is wrong in backward.

Forward runs operation by operation. One line of forward gets the derivative of a common mistake,
while its value stays the same. If the numerical gradient of this forward equals the explicit one,
the mistake is found. This works for any layer that computes with NumPy.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from numformer.backend import on_host
from numformer.gradient_check.trace import Operation, Trace, trace_operations

MOST_OPERATIONS = 100

# A message, and a function: a change of one operand -> the change of the operation's result that
# would make the wrong backward right. For dz @ W in place of dz @ W.T, it multiplies by W.T.
Mistake = tuple[str, Callable]


def matrix_not_transposed(op: Operation, index: int, names: list[str]) -> Iterator[Mistake]:
    """Yield the mistake dz @ W in place of dz @ W.T, for a square W."""
    other = op.operands[1 - index]
    if op.name not in ("matmul", "dot") or other.ndim < 2 or len({*other.shape[-2:]}) > 1:
        return
    transpose = other.swapaxes(-1, -2)
    yield (
        f"exactly the gradient for {names[1 - index]} transposed: where forward has W, use W.T.",
        lambda move: transpose @ move if index else move @ transpose,
    )


def sum_over_wrong_axes(op: Operation, index: int, names: list[str]) -> Iterator[Mistake]:
    """Yield sums over wrong axes, for the gradient of an operand that forward broadcasts."""
    derivative = {"add": 1, "multiply": op.operands[1 - index]}.get(op.name)
    shape, full = op.operands[index].shape, op.result.shape
    if derivative is None or len(shape) >= len(full):
        return
    axes = range(len(full))
    right = tuple(axes[: len(full) - len(shape)])
    for remaining in [(), *itertools.combinations(axes, len(shape))]:
        wrong = tuple(axis for axis in axes if axis not in remaining)
        if wrong == right or (remaining and tuple(full[axis] for axis in remaining) != shape):
            continue
        expanded = [size if axis in remaining else 1 for axis, size in enumerate(full)]

        def change(move, remaining=remaining, expanded=expanded):
            return derivative * (move.reshape(expanded) if remaining else move.sum())

        yield (
            f"the gradient of {names[index]} is summed over the wrong axes, {wrong} instead of "
            f"{right} of {full}.",
            change,
        )


def wrong_branch(op: Operation, index: int, names: list[str]) -> Iterator[Mistake]:
    """Yield wrong gradients of one of two operands; a factor's is dy times the other factor."""
    operand = op.operands[index]
    for words, factor in (("is left out", 0), ("has the wrong sign", -1), ("is counted twice", 2)):

        def change(move, factor=factor):
            return factor * (op.with_operand(index, operand + move) - op.result)

        yield f"a branch {words}: that through {names[index]} of `{op.name}`.", change
    if op.name == "multiply":
        factor_name = names[1 - index]
        yield (
            f"the derivative of a product by {names[index]} lacks {factor_name}.",
            lambda move: move,
        )


def no_derivative(op: Operation, index: int, names: list[str]) -> Iterator[Mistake]:
    if op.operands[index].shape == op.result.shape:
        yield f"the derivative of `{op.name}` is left out.", lambda move: move


# Functions whose derivative is written with their output s, and wrong forms of the derivative.
ACTIVATIONS: dict[str, tuple[Callable, str, Callable]] = {
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), "s * (1 - s)", lambda s: s * (1 - s)),
    "tanh": (np.tanh, "1 - s * s", lambda s: 1 - s * s),
}
WRONG_SLOPES = {
    "1 (left out)": lambda z, s: 1,
    "s": lambda z, s: s,
    "1 - s": lambda z, s: 1 - s,
    "s * s": lambda z, s: s * s,
    "s * (1 - s)": lambda z, s: s * (1 - s),
    "s * (1 + s)": lambda z, s: s * (1 + s),
    "1 - s * s": lambda z, s: 1 - s * s,
    "z * (1 - z), z its input": lambda z, s: z * (1 - z),
    "1 - z * z, z its input": lambda z, s: 1 - z * z,
}


def wrong_slope(number: int, operations: list[Operation]) -> Iterator[Mistake]:
    """Yield wrong derivatives of sigmoid or tanh, if s is sigmoid(z) or tanh(z) of an operand z."""
    s = operations[number].result
    for name, (function, right, derivative) in ACTIVATIONS.items():
        for k, op in enumerate(operations[: number + 1]):
            for i in op.floats:
                z = op.operands[i]
                if z.shape != s.shape or not np.allclose(function(z), s, rtol=1e-12, atol=0):
                    continue
                slopes = {words: slope(z, s) for words, slope in WRONG_SLOPES.items()}
                slopes[f"{right} with {name}(s) for s"] = derivative(function(s))
                for words, slope in slopes.items():

                    def result(now, before, k=k, i=i, z=z, slope=slope):
                        return s + slope * ([*before, now][k].operands[i] - z)

                    message = f"the derivative of {name} is {right}, s its output: not {words}."
                    yield message, result
                return


def with_change(op: Operation, index: int, change: Callable) -> Callable:
    """Return a function that computes op's result, but with `change` for moves of one operand."""

    def result(now, before):
        total = op.result + change(now.operands[index] - op.operands[index])
        for other in op.floats:
            if other != index:
                total = total + op.with_operand(other, now.operands[other])
                total = total - op.result
        return total

    return result


def mistakes(number: int, operations: list[Operation], tensors: dict) -> dict[str, Callable]:
    """Return functions by message: each computes an operation's result with a wrong derivative."""
    op = operations[number]
    names = [_operand_name(i, x, tensors) for i, x in enumerate(op.operands)]
    results = dict(wrong_slope(number, operations))
    if len(op.floats) == 2 == len(op.operands):
        kinds = [matrix_not_transposed, sum_over_wrong_axes, wrong_branch]
    else:
        kinds = [no_derivative] if len(op.floats) == 1 else []
    for kind, index in itertools.product(kinds, op.floats):
        for message, change in kind(op, index, names):
            results[message] = with_change(op, index, change)
    return results


def _operand_name(index: int, operand, tensors: dict) -> str:
    """Return the name of the tensor that equals an operand, or the operand's position in words."""
    for name, tensor in tensors.items():
        if np.size(operand) == tensor.size and np.array_equal(np.ravel(operand), tensor.ravel()):
            return f"`{name}`"
    return f"the {('first', 'second', 'third', 'last')[min(index, 3)]} operand"


def wrong_operation(failure) -> str | None:
    """Return the mistake, and its line, that gives forward the explicit gradient; None if none."""
    check = failure.check
    if not on_host(check.output):
        return None

    def run_shifted(shift, changes=None):
        trace = Trace(changes or {})
        with trace_operations(check, trace):
            return *failure.run_shifted(shift), trace.operations

    *_, operations = run_shifted(0)
    if len(operations) > MOST_OPERATIONS:
        return None
    # A line in a loop or a function runs several times, and has the same mistake each time.
    lines: dict[tuple, list[int]] = {}
    for number, op in enumerate(operations):
        lines.setdefault((op.calls, op.name), []).append(number)
    for numbers in reversed(lines.values()):
        results = {n: mistakes(n, operations, check.tensors) for n in numbers}
        for message in results[numbers[0]]:
            if not all(message in result for result in results.values()):
                continue
            changes = {n: result[message] for n, result in results.items()}

            def with_mistake(shift, changes=changes):
                return run_shifted(shift, changes)[:2]

            if all(failure.has_slopes(failure.slopes(with_mistake, first=n)) for n in (1, None)):
                return f"{message} {operations[numbers[0]].line}".strip()
    return None
