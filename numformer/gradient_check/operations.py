"""Searches forward for the operation whose derivative is wrong in backward.

Forward runs operation by operation, with each inner layer as one operation. The move (or tangent)
of an array is its rate of change as a tensor changes along a direction. If backward differentiates
one operation wrongly, it returns the gradients of a forward in which the result of that operation
has another move. The search gives one result after another the move that a common mistake would
give it, until the gradients of this changed forward equal the explicit gradients. This works for
any layer that computes with NumPy.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from numformer.backend import to_host
from numformer.gradient_check.factors import known_factors
from numformer.gradient_check.mistakes import Edge, Wrong, function_edges, mistakes
from numformer.gradient_check.trace import Trace, trace_operations

LARGEST_ADJOINT = 400  # most entries that a result may have for its adjoint to be computed
MOST_RUNS = 4000  # maximum runs of forward for one check
STEP = 1e-5
DIRECTIONS = 3  # random directions per tensor


@dataclass
class Probe:
    """A direction of a tensor, both slopes along it, and the move of each operand and result."""

    tensor: str
    direction: Any
    explicit: float
    numerical: float
    moves: dict[tuple[int, int], Any]  # by operation number and operand index (-1: the result)
    right: dict[Edge, Any] = field(default_factory=dict)  # the result's right move, by edge

    def passes(self, edge: Edge) -> bool:
        return bool(self.moves[edge.start].any())


class Forward:
    """The forward of a GradientCheck, run operation by operation."""

    def __init__(self, check):
        self.check, self.runs = check, 0
        self.adjoints: dict[int, Any] = {}
        self.operations = self.run()[1]
        self.tensors = [(f"`{name}`", to_host(array)) for name, array in check.tensors.items()]
        self.results = self._results()
        self.lines = self._lines()
        self.in_loops = {edge.number for line in self.lines if len(line) > 1 for edge in line}

    def run(self, change: Callable | None = None, tensor: str = "", shift: Any = 0) -> tuple:
        """Run forward with `change` (see Trace), and with `shift` added to `tensor`."""
        self.runs += 1
        trace = Trace(change)
        with trace_operations(self.check, trace):
            run = functools.partial(self.check.run_shifted, tensor, shift)
            output, _ = run() if tensor else self.check.run()
        return output, trace.operations

    def _slope(self, ahead, back) -> float:
        return float((self.check.upstream * (ahead - back)).sum()) / (2 * STEP)

    def probe(self, tensor: str, direction) -> Probe:
        (output_ahead, ahead), (output_back, back) = (
            self.run(None, tensor, step * direction) for step in (STEP, -STEP)
        )
        moves = {}
        for number, (a, b) in enumerate(zip(ahead, back, strict=True)):
            moves[number, -1] = (a.result - b.result) / (2 * STEP)
            for index in a.floats:
                move = (a.operands[index] - b.operands[index]) / (2 * STEP)
                moves[number, index] = np.nan_to_num(move)  # masked scores: -inf - -inf is NaN
        explicit = float((to_host(self.check.gradients[tensor]) * direction).sum())
        return Probe(tensor, direction, explicit, self._slope(output_ahead, output_back), moves)

    def adjoint(self, number: int):
        """Return the objective's gradient with respect to the result of operation `number`."""
        if number in self.adjoints:
            return self.adjoints[number]
        result = self.operations[number].result
        gradient, move = np.zeros(result.shape), np.zeros(result.shape)
        for index in np.ndindex(result.shape):
            move[index] = 1
            gradient[index] = self._slope_along(number, move)
            move[index] = 0
        self.adjoints[number] = gradient
        return gradient

    def _slope_along(self, place: int, move) -> float:
        """Return the objective's derivative if the result of operation `place` moves by `move`."""

        def run(step: float):
            def change(number, operands, result):
                return result + step * move if number == place else result

            return self.run(change)[0]

        return self._slope(run(STEP), run(-STEP))

    def effect(self, probe: Probe, edges: list[Edge], wrong: list[Wrong]) -> float:
        """Return how much `wrong` moves at `edges` change the derivative along a probe."""
        if len({edge.start for edge in edges}) > 1:
            return self._slope_with(probe, edges, wrong) - probe.numerical
        move, total = probe.moves[edges[0].start], 0.0
        for edge, change in zip(edges, wrong, strict=True) if move.any() else ():
            if edge not in probe.right:
                probe.right[edge] = edge.right(move)
            extra = change(move, probe.right[edge]) - probe.right[edge]
            if edge.number in self.in_loops or extra.size > LARGEST_ADJOINT:
                total += self._slope_along(edge.number, extra)
            else:
                total += float((self.adjoint(edge.number) * extra).sum())
        return total

    def _slope_with(self, probe: Probe, edges: list[Edge], wrong: list[Wrong]) -> float:
        """Return the derivative along a probe if each edge has its `wrong` move.

        A wrong move at one edge also changes the moves at later edges.
        """
        starts: dict[int, list[Edge]] = {}
        ends: dict[int, list[tuple]] = {}
        for edge, change in zip(edges, wrong, strict=True):
            starts.setdefault(edge.start[0], []).append(edge)
            ends.setdefault(edge.number, []).append((edge, change))

        def run(step: float):
            moves: dict[Edge, Any] = {}

            def change(number, operands, result):
                for edge in starts.get(number, ()):
                    value = (*operands, result)[edge.start[1]]
                    moves[edge] = (value - edge.value) / step
                for edge, mistake in ends.get(number, ()):
                    right = edge.right(moves[edge])
                    result = result + step * (mistake(moves[edge], right) - right)
                return result

            return self.run(change, probe.tensor, step * probe.direction)[0]

        return self._slope(run(STEP), run(-STEP))

    def arrays(self, edge: Edge, line: list[Edge]) -> list[tuple[str, Any]]:
        """Return names and arrays of forward; in a loop, only those near this run of the line."""
        place, numbers = line.index(edge), [other.number for other in line]
        if len(line) == 1:
            return self.tensors + self.results
        start = numbers[place - 1] + 1 if place else 0
        return self.results[start : numbers[place + 1] if place + 1 < len(line) else None]

    def _results(self) -> list[tuple[str, Any]]:
        """Return each operation's result with its name: a variable or an expression."""
        results = []
        for op, following in itertools.zip_longest(self.operations, self.operations[1:]):
            variable = re.match(r"(\w+) [-+*/@]?= ", op.text)
            last = following is None or following.text != op.text
            results.append((f"`{variable[1] if variable and last else op.expression}`", op.result))
        return results

    def _lines(self) -> list[list[Edge]]:
        """Return lists of edges that one mistake changes together, forward's last lines first.

        A source line may run several times, as in a loop; the mistake is the same each time.
        """
        lines: dict[tuple, list[Edge]] = {}
        for number, op in enumerate(self.operations):
            edges = [Edge(op, number, (number, -1), lambda move: move, op.result)]
            edges += [
                Edge(op, number, (number, i), functools.partial(op.slope, i), op.operands[i])
                for i in op.floats
            ]
            edges += function_edges(number, self.operations)
            for edge in edges:
                key = op.calls, op.name, edge.start[1], edge.function
                lines.setdefault(key, []).append(edge)
        return [*reversed(lines.values())]


class WrongOperations:
    """The search for operations that explain the wrong gradients of a GradientCheck."""

    @np.errstate(all="ignore")
    def __init__(self, check):
        self.check, self.forward = check, Forward(check)
        self.searched: set[str] = set()
        self.causes: dict[str, str] = {}  # by tensor: a mistake that explains all tensors
        self.partial_causes: dict[str, str] = {}  # by tensor: a mistake that explains only some
        random = np.random.default_rng(0)
        self.probes: dict[str, list[Probe]] = {}
        for name, tensor in check.tensors.items():
            directions = random.standard_normal((DIRECTIONS, *tensor.shape))
            self.probes[name] = [
                self.forward.probe(name, u / np.sum(u * u) ** 0.5) for u in directions
            ]
        self.wrong = [name for name in self.probes if not self._fits(name, [0] * DIRECTIONS)]

    def _fits(self, tensor: str, effects: list[float]) -> bool:
        """Whether the numerical slopes plus `effects` equal the explicit slopes."""
        probes = self.probes[tensor]
        size = max(max(abs(probe.numerical), abs(probe.explicit)) for probe in probes)
        return all(
            abs(probe.numerical + effect - probe.explicit) <= 1e-5 * size + 1e-9
            for probe, effect in zip(probes, effects, strict=False)
        )

    def _explains(self, tensor: str, edges: list[Edge], wrong: list[Wrong]) -> bool:
        effects = []
        for probe in self.probes[tensor]:
            effects.append(self.forward.effect(probe, edges, wrong))
            if not self._fits(tensor, effects):
                return False
        return True

    @np.errstate(all="ignore")
    def search(self, tensor: str) -> None:
        """Search for a mistake that explains `tensor` and, if possible, all other tensors."""
        for message, edges, wrong in self._candidates(tensor):
            if self.forward.runs > MOST_RUNS:
                break
            if not self._explains(tensor, edges, wrong):
                continue
            names = [name for name in self.probes if self._explains(name, edges, wrong)]
            text = f"{message} {edges[-1].operation.line}".strip()
            if len(names) == len(self.probes):
                self.causes |= dict.fromkeys(names, text)
                break
            if {*self.wrong} | {*names} == {*self.probes}:  # no right gradient becomes wrong
                self.partial_causes.setdefault(tensor, text)
        self.searched.add(tensor)

    def cause(self, tensor: str, whole: bool) -> str | None:
        """Return the mistake that explains `tensor` or, with `whole`, all tensors."""
        if not {tensor} & (self.causes.keys() | self.searched):
            self.search(tensor)
        return self.causes.get(tensor) if whole else self.partial_causes.get(tensor)

    def _candidates(self, tensor: str) -> Iterator[tuple[str, list[Edge], list[Wrong]]]:
        """Yield mistakes that may explain `tensor`: message, edges, and a wrong move at each edge.

        Lines that depend on all wrong tensors, and on no right tensor, come first.
        """
        first_probes = {name: probes[0] for name, probes in self.probes.items()}

        def score(line: list[Edge]) -> int:
            names = [name for name, probe in first_probes.items() if any(map(probe.passes, line))]
            return sum(1 if name in self.wrong else -len(first_probes) for name in names)

        passes = first_probes[tensor].passes
        lines = [line for line in self.forward.lines if any(map(passes, line))]
        for line in sorted(lines, key=score, reverse=True):
            yield from self._scaled(tensor, "", line)
            if len(line) > 1:
                yield from self._scaled(tensor, "in the loop's first iteration ", line[:1])
                yield from self._scaled(tensor, "in the loop's last iteration ", line[-1:])
            else:
                yield from self._skipped(*line)
            options = [dict(mistakes(edge, line, self.forward.arrays(edge, line))) for edge in line]
            for message in options[0]:
                if all(message in by_message for by_message in options):
                    yield message, line, [by_message[message] for by_message in options]
        yield from self._uses(lines)

    def _scaled(self, tensor: str, place: str, edges: list[Edge]):
        """Yield factors at `edges`: the one that fits `tensor` and, in a loop, also 0, -1 and 2."""
        counts = {0: "is left out", -1: "has the wrong sign", 2: "is counted twice"}
        in_loop = len(edges) > 1
        for count, words in counts.items() if in_loop else ():
            yield edges[0].branch(words, place), edges, [_times(count)] * len(edges)
        probes = self.probes[tensor][:2]
        shares = np.array([self.forward.effect(p, edges, [_times(2)] * len(edges)) for p in probes])
        differences = np.array([probe.explicit - probe.numerical for probe in probes])
        size = np.abs([[probe.explicit, probe.numerical] for probe in probes]).max()
        if np.abs(shares).max() < 1e-6 * size:
            return
        factor = 1 + float(differences @ shares / (shares @ shares))
        known = known_factors(self.check).items()
        causes = ", or ".join(c for c, value in known if abs(factor / value - 1) < 1e-4)
        text = f"counts {factor:.6g} times" + f" ({causes})" * bool(causes)
        text = next((words for c, words in counts.items() if abs(factor - c) < 1e-5), text)
        yield edges[0].branch(text, place), edges, [_times(factor)] * len(edges)

    def _skipped(self, edge: Edge) -> Iterator[tuple[str, list[Edge], list[Wrong]]]:
        """Yield mistakes that use the gradient at a later result as the gradient at `edge`."""
        for number, op in enumerate(self.forward.operations):
            if number > edge.number and op.result.shape == edge.operation.result.shape:
                text = (
                    f"the gradient at `{op.expression}` is used in place of the gradient at "
                    f"`{edge.operation.expression}`, on the way to {edge.name}."
                )
                later = replace(edge, operation=op, number=number)
                yield text, [later, edge], [_times(2), _times(0)]

    def _uses(self, lines: list[list[Edge]]) -> Iterator[tuple[str, list[Edge], list[Wrong]]]:
        """Yield mistakes that miscount a variable's gradient in two or more of its uses."""
        uses: dict[str, list[list[Edge]]] = {}
        for line in lines:
            if not (line[0].is_result or line[0].function):
                uses.setdefault(line[0].name, []).append(line)
        words = {0: "is missing", -1: "has the wrong sign", 2: "is counted twice"}
        for name, places in uses.items():
            several = 2 <= len(places) <= 4
            for counts in itertools.product((1, *words), repeat=len(places)) if several else ():
                errors = [(line, c) for line, c in zip(places, counts, strict=True) if c != 1]
                if len(errors) > 1:
                    parts = [f"that of `{x[0].operation.expression}` {words[c]}" for x, c in errors]
                    text = f"the gradients of all uses of {name} add up: {', '.join(parts)}."
                    edges = [edge for line, _ in errors for edge in line]
                    yield text, edges, [_times(c) for line, c in errors for _ in line]


def _times(factor: float) -> Wrong:
    return lambda move, right: factor * right
