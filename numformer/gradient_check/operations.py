"""Searches forward for the operation whose derivative is wrong in backward.

Forward runs operation by operation; an inner layer is one operation. As a tensor moves, so does the
result of each operation that depends on it. A backward with a wrong derivative of one operation
returns the gradient that belongs to another move of its result. The mistake is found if that move
turns the numerical gradients into the explicit ones. This works for any layer that computes with
NumPy.
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

LARGEST_ADJOINT = 400  # entries of a result
MOST_RUNS = 4000  # of forward, in one search
STEP = 1e-5
DIRECTIONS = 3


@dataclass
class Probe:
    """A direction of a tensor, its slopes, and the moves of all operands and results along it."""

    tensor: str
    direction: Any
    explicit: float
    numerical: float
    moves: dict[tuple[int, int], Any]  # by number of the operation, and index; -1 for the result
    right: dict[Edge, Any] = field(default_factory=dict)  # moves of results through edges

    def passes(self, edge: Edge) -> bool:
        return bool(self.moves[edge.start].any())


class Forward:
    """Forward of a GradientCheck, operation by operation."""

    def __init__(self, check):
        self.check, self.runs = check, 0
        self.adjoints: dict[int, Any] = {}
        self.operations = self.run()[1]
        self.tensors = [(f"`{name}`", to_host(array)) for name, array in check.tensors.items()]
        self.results = self._results()
        self.lines = self._lines()
        self.in_loops = {edge.number for line in self.lines if len(line) > 1 for edge in line}

    def run(self, change: Callable | None = None, tensor: str = "", shift: Any = 0) -> tuple:
        """Run forward with `shift` added to a tensor, and results changed; see Trace."""
        self.runs += 1
        trace = Trace(change)
        with trace_operations(self.check, trace):
            run = functools.partial(self.check.run_shifted, tensor, shift)
            output, _ = run() if tensor else self.check.run()
        return output, trace.operations

    def _slope(self, ahead, back) -> float:
        return float((self.check.upstream * (ahead - back)).sum()) / (2 * STEP)

    def probe(self, tensor: str, direction) -> Probe:
        (output, ahead), (output_back, back) = (
            self.run(None, tensor, step * direction) for step in (STEP, -STEP)
        )
        moves = {}
        for number, (a, b) in enumerate(zip(ahead, back, strict=True)):
            moves[number, -1] = (a.result - b.result) / (2 * STEP)
            for index in a.floats:
                move = (a.operands[index] - b.operands[index]) / (2 * STEP)
                moves[number, index] = np.nan_to_num(move)  # of masked scores, -inf
        explicit = float((to_host(self.check.gradients[tensor]) * direction).sum())
        return Probe(tensor, direction, explicit, self._slope(output, output_back), moves)

    def adjoint(self, number: int):
        """Return the gradient of the objective by the result of an operation."""
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
        """Return the objective's derivative as the result of one operation moves."""

        def run(step: float):
            def change(number, operands, result):
                return result + step * move if number == place else result

            return self.run(change)[0]

        return self._slope(run(STEP), run(-STEP))

    def effect(self, probe: Probe, edges: list[Edge], wrong: list[Wrong]) -> float:
        """Return how the derivative along a probe differs if results move in `wrong` ways."""
        if len({edge.start for edge in edges}) > 1:
            return self._slope_with(probe, edges, wrong) - probe.numerical
        move, total = probe.moves[edges[0].start], 0.0
        for edge, change in zip(edges, wrong, strict=True) if move.any() else ():
            if edge not in probe.right:
                probe.right[edge] = edge.right(move)
            more = change(move, probe.right[edge]) - probe.right[edge]
            if edge.number in self.in_loops or more.size > LARGEST_ADJOINT:
                total += self._slope_along(edge.number, more)
            else:
                total += float((self.adjoint(edge.number) * more).sum())
        return total

    def _slope_with(self, probe: Probe, edges: list[Edge], wrong: list[Wrong]) -> float:
        """Return the derivative of a forward in which one wrong move may cause the next."""
        starts: dict[int, list[Edge]] = {}
        ends: dict[int, list[tuple]] = {}
        for edge, change in zip(edges, wrong, strict=True):
            starts.setdefault(edge.start[0], []).append(edge)
            ends.setdefault(edge.number, []).append((edge, change))

        def run(step: float):
            moved: dict[Edge, Any] = {}

            def change(number, operands, result):
                for edge in starts.get(number, ()):
                    now = (*operands, result)[edge.start[1]]
                    moved[edge] = (now - edge.value) / step
                for edge, change in ends.get(number, ()):
                    right = edge.right(moved[edge])
                    result = result + step * (change(moved[edge], right) - right)
                return result

            return self.run(change, probe.tensor, step * probe.direction)[0]

        return self._slope(run(STEP), run(-STEP))

    def arrays(self, edge: Edge, line: list[Edge]) -> list[tuple[str, Any]]:
        """Return arrays of forward with their names; in a loop, those of the edge's own run."""
        place, numbers = line.index(edge), [other.number for other in line]
        if len(line) == 1:
            return self.tensors + self.results
        start = numbers[place - 1] + 1 if place else 0
        return self.results[start : numbers[place + 1] if place + 1 < len(line) else None]

    def _results(self) -> list[tuple[str, Any]]:
        """Return the results of operations, named by variables or expressions."""
        named = []
        for op, following in itertools.zip_longest(self.operations, self.operations[1:]):
            variable = re.match(r"(\w+) [-+*/@]?= ", op.text)
            last = following is None or following.text != op.text
            named.append((f"`{variable[1] if variable and last else op.expression}`", op.result))
        return named

    def _lines(self) -> list[list[Edge]]:
        """Return the edges that a mistake changes together, those of forward's last lines first.

        A line in a loop or a function runs several times, and has the same mistake each time.
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
    """The search for wrong operations of a GradientCheck, for all of its tensors."""

    @np.errstate(all="ignore")
    def __init__(self, check):
        self.check, self.forward = check, Forward(check)
        self.searched: set[str] = set()
        self.causes: dict[str, str] = {}  # that explain all wrong tensors
        self.partial_causes: dict[str, str] = {}  # that explain one
        random = np.random.default_rng(0)
        self.probes: dict[str, list[Probe]] = {}
        for name, tensor in check.tensors.items():
            directions = random.standard_normal((DIRECTIONS, *tensor.shape))
            self.probes[name] = [
                self.forward.probe(name, u / np.sum(u * u) ** 0.5) for u in directions
            ]
        self.wrong = [name for name in self.probes if not self._fits(name, [0] * DIRECTIONS)]

    def _fits(self, tensor: str, effects: list[float]) -> bool:
        """Whether the numerical slopes with `effects` added are the explicit ones."""
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
        """Search for a mistake that explains this tensor, and if possible all others."""
        for message, edges, wrong in self._candidates(tensor):
            if self.forward.runs > MOST_RUNS:
                break
            if not self._explains(tensor, edges, wrong):
                continue
            explained = [name for name in self.probes if self._explains(name, edges, wrong)]
            text = f"{message} {edges[-1].operation.line}".strip()
            if len(explained) == len(self.probes):
                self.causes |= dict.fromkeys(explained, text)
                break
            if {*self.wrong} | {*explained} == {*self.probes}:  # no right gradient becomes wrong
                self.partial_causes.setdefault(tensor, text)
        self.searched.add(tensor)

    def cause(self, tensor: str, whole: bool) -> str | None:
        """Return the mistake that explains this tensor, and with `whole` all others, too."""
        if not {tensor} & (self.causes.keys() | self.searched):
            self.search(tensor)
        return self.causes.get(tensor) if whole else self.partial_causes.get(tensor)

    def _candidates(self, tensor: str) -> Iterator[tuple[str, list[Edge], list[Wrong]]]:
        """Yield mistakes that may explain a tensor: message, edges, wrong moves through them.

        First come lines that all wrong tensors pass and no right one.
        """
        first = {name: probes[0] for name, probes in self.probes.items()}

        def passing(line: list[Edge]) -> int:
            names = [name for name, probe in first.items() if any(map(probe.passes, line))]
            return sum(1 if name in self.wrong else -len(first) for name in names)

        lines = [line for line in self.forward.lines if any(map(first[tensor].passes, line))]
        for line in sorted(lines, key=passing, reverse=True):
            yield from self._scaled(tensor, "", line)
            if len(line) > 1:
                yield from self._scaled(tensor, "in the loop's first run ", line[:1])
                yield from self._scaled(tensor, "in the loop's last run ", line[-1:])
            else:
                yield from self._skipped(*line)
            kinds = [dict(mistakes(edge, line, self.forward.arrays(edge, line))) for edge in line]
            for message in kinds[0]:
                if all(message in kind for kind in kinds):
                    yield message, line, [kind[message] for kind in kinds]
        yield from self._uses(lines)

    def _scaled(self, tensor: str, place: str, edges: list[Edge]):
        """Yield constant factors on a branch: usual ones, or the one that explains the tensor."""
        counts = {0: "is left out", -1: "has the wrong sign", 2: "is counted twice"}
        chained = len(edges) > 1
        for count, words in counts.items() if chained else ():
            yield edges[0].branch(words, place), edges, [_times(count)] * len(edges)
        probes = self.probes[tensor][:2]
        shares = np.array([self.forward.effect(p, edges, [_times(2)] * len(edges)) for p in probes])
        missing = np.array([probe.explicit - probe.numerical for probe in probes])
        size = np.abs([[probe.explicit, probe.numerical] for probe in probes]).max()
        if np.abs(shares).max() < 1e-6 * size:
            return
        factor = 1 + float(missing @ shares / (shares @ shares))
        known = known_factors(self.check).items()
        causes = ", or ".join(c for c, value in known if abs(factor / value - 1) < 1e-4)
        text = f"counts {factor:.6g} times" + f" ({causes})" * bool(causes)
        text = next((words for c, words in counts.items() if abs(factor - c) < 1e-5), text)
        yield edges[0].branch(text, place), edges, [_times(factor)] * len(edges)

    def _skipped(self, edge: Edge) -> Iterator[tuple[str, list[Edge], list[Wrong]]]:
        """Yield the mistakes that backward takes the gradient at a later result for the edge's."""
        for number, op in enumerate(self.forward.operations):
            if number > edge.number and op.result.shape == edge.operation.result.shape:
                text = (
                    f"the gradient at `{op.expression}` is taken for that at "
                    f"`{edge.operation.expression}`, on its way to {edge.name}."
                )
                later = replace(edge, operation=op, number=number)
                yield text, [later, edge], [_times(2), _times(0)]

    def _uses(self, lines: list[list[Edge]]) -> Iterator[tuple[str, list[Edge], list[Wrong]]]:
        """Yield wrong counts of the gradients through two uses of a variable or more."""
        uses: dict[str, list[list[Edge]]] = {}
        for line in lines:
            if not (line[0].is_result or line[0].function):
                uses.setdefault(line[0].name, []).append(line)
        words = {0: "is missing", -1: "has the wrong sign", 2: "is counted twice"}
        for name, places in uses.items():
            several = 2 <= len(places) <= 4
            for counts in itertools.product((1, *words), repeat=len(places)) if several else ():
                chosen = [(line, c) for line, c in zip(places, counts, strict=True) if c != 1]
                if len(chosen) > 1:
                    parts = [f"that of `{x[0].operation.expression}` {words[c]}" for x, c in chosen]
                    text = f"the gradients of all uses of {name} add: {', '.join(parts)}."
                    edges = [edge for line, _ in chosen for edge in line]
                    yield text, edges, [_times(c) for line, c in chosen for _ in line]


def _times(factor: float) -> Wrong:
    return lambda move, right: factor * right
