"""The operation of a forward whose derivative backward gets wrong, found by trying.

Forward runs operation by operation, one line of it with the derivative of a common mistake, its
value unchanged. Where the numerical gradient of that forward is the explicit one, the mistake is
found. No name of this library is needed: any layer will do that computes with NumPy.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from numformer.backend import on_host
from numformer.gradient_check.trace import Operation, Trace, traced

MOST_OPERATIONS = 100

# A mistake is its message and the change that an operation's result then makes as one of its
# operands moves: with dr = da @ W.T, a backward that is right for that forward has dz @ W.
Mistake = tuple[str, Callable]


def transposed(operation: Operation, index: int, called: list[str]) -> Iterator[Mistake]:
    """dz @ W for dz @ W.T, where W is square."""
    other = operation.operands[1 - index]
    if operation.name not in ("matmul", "dot") or other.ndim < 2 or len({*other.shape[-2:]}) > 1:
        return
    turned = other.swapaxes(-1, -2)
    yield (
        f"exactly the gradient for {called[1 - index]} transposed: where forward has W, use W.T.",
        lambda move: turned @ move if index else move @ turned,
    )


def other_axes(operation: Operation, index: int, called: list[str]) -> Iterator[Mistake]:
    """The gradient of what is added to each position, or multiplies it, summed over wrong axes."""
    other = operation.operands[1 - index]
    local = {"add": 1, "multiply": other}.get(operation.name)
    shape, whole = operation.operands[index].shape, operation.result.shape
    if local is None or len(shape) >= len(whole):
        return
    axes = range(len(whole))
    right = tuple(axes[: len(whole) - len(shape)])
    for kept in [(), *itertools.combinations(axes, len(shape))]:
        summed = tuple(axis for axis in axes if axis not in kept)
        if summed == right or (kept and tuple(whole[axis] for axis in kept) != shape):
            continue
        expanded = [size if axis in kept else 1 for axis, size in enumerate(whole)]

        def change(move, kept=kept, expanded=expanded):
            return local * (move.reshape(expanded) if kept else move.sum())

        yield (
            f"the gradient of {called[index]} is summed over the wrong axes, {summed} instead of "
            f"{right} of {whole}.",
            change,
        )


def branches(operation: Operation, index: int, called: list[str]) -> Iterator[Mistake]:
    """Both operands have a gradient; that of a factor is dy times the other factor."""
    start = operation.operands[index]
    for said, times in (("is left out", 0), ("has the wrong sign", -1), ("is counted twice", 2)):

        def change(move, times=times):
            return times * (operation.with_operand(index, start + move) - operation.result)

        yield f"a branch {said}: that through {called[index]} of `{operation.name}`.", change
    if operation.name == "multiply":
        factor = called[1 - index]
        yield f"the derivative of a product by {called[index]} lacks {factor}.", lambda move: move


def left_out(operation: Operation, index: int, called: list[str]) -> Iterator[Mistake]:
    if operation.operands[index].shape == operation.result.shape:
        yield f"the derivative of `{operation.name}` is left out.", lambda move: move


# Functions whose derivative is written with their output s, and what is written instead.
ACTIVATIONS: dict[str, tuple[Callable, str, Callable]] = {
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), "s * (1 - s)", lambda s: s * (1 - s)),
    "tanh": (np.tanh, "1 - s * s", lambda s: 1 - s * s),
}
WRITTEN = {
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


def activation(number: int, operations: list[Operation]) -> Iterator[Mistake]:
    """Where the result s of operations on z is sigmoid(z) or tanh(z): other derivatives of it."""
    s = operations[number].result
    for name, (function, right, derivative) in ACTIVATIONS.items():
        earlier = ((k, i) for k in range(number + 1) for i in operations[k].floats)
        for k, i in earlier:
            z = operations[k].operands[i]
            if z.shape != s.shape or not np.allclose(function(z), s, rtol=1e-12, atol=0):
                continue
            again = {f"{right} with {name}(s) for s": derivative(function(s))}
            for wrong, slope in ({w: f(z, s) for w, f in WRITTEN.items()} | again).items():

                def result(now, before, k=k, i=i, z=z, slope=slope):
                    return s + slope * ([*before, now][k].operands[i] - z)

                yield f"the derivative of {name} is {right}, s its output: not {wrong}.", result
            return


def with_change(operation: Operation, index: int, change: Callable) -> Callable:
    """The operation's result in a forward where its operand `index` makes this change."""

    def result(now, before):
        total = operation.result + change(now.operands[index] - operation.operands[index])
        for other in operation.floats:
            if other != index:
                total = total + operation.with_operand(other, now.operands[other])
                total = total - operation.result
        return total

    return result


def mistakes(number: int, operations: list[Operation], tensors: dict) -> dict[str, Callable]:
    """The results of one operation with wrong derivatives, by what is said of the mistake."""
    operation = operations[number]
    called = [_called(i, x, tensors) for i, x in enumerate(operation.operands)]
    results = dict(activation(number, operations))
    if len(operation.floats) == 2 == len(operation.operands):
        sorts = [transposed, other_axes, branches]
    else:
        sorts = [left_out] if len(operation.floats) == 1 else []
    for sort, index in itertools.product(sorts, operation.floats):
        for message, change in sort(operation, index, called):
            results[message] = with_change(operation, index, change)
    return results


def _called(index: int, operand, tensors: dict) -> str:
    """An operand in words: the name of the tensor that it is, or its position."""
    for name, tensor in tensors.items():
        if np.size(operand) == tensor.size and np.array_equal(np.ravel(operand), tensor.ravel()):
            return f"`{name}`"
    return f"the {('first', 'second', 'third', 'last')[min(index, 3)]} operand"


def wrong_operation(subject) -> str | None:
    """The mistake for which a forward has the explicit gradient of `subject`, and its line."""
    checked = subject.checked
    if not on_host(checked.output):
        return None

    def forward(shift, changes=None):
        trace = Trace(changes or {})
        with traced(checked, trace):
            return *subject.shifted(shift), trace.operations

    *_, operations = forward(0)
    if len(operations) > MOST_OPERATIONS:
        return None
    # A line may run several times, in a loop or a function: then its mistake is in each of them.
    lines: dict[tuple, list[int]] = {}
    for number, operation in enumerate(operations):
        lines.setdefault((operation.calls, operation.name), []).append(number)
    for numbers in reversed(lines.values()):
        tried = {n: mistakes(n, operations, checked.tensors) for n in numbers}
        for message in tried[numbers[0]]:
            if not all(message in results for results in tried.values()):
                continue
            changes = {n: results[message] for n, results in tried.items()}

            def mistaken(shift, changes=changes):
                return forward(shift, changes)[:2]

            if all(subject.equal(subject.slopes(mistaken, first=n)) for n in (1, None)):
                return f"{message} {operations[numbers[0]].line}".strip()
    return None
