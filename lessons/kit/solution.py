"""The solution of an exercise, line by line, and what it gives if lines are wrong.

A solution is a short function whose lines carry notes. The first sentence of a note says what the
line computes, in words that fit into a sentence. The rest is a hint: it is true whatever is wrong
with the line, and does not give the solution away.

    # dvalue. Value s was used by every query that took some of it, and collects from all of them.
    dvalue = weights.swapaxes(-1, -2) @ doutput

A solution ends with `return` and names. It may call another solution of its file, with the names
that this one uses itself, as in `dscores = softmax_backward(dweights, weights)`: the call is
replaced by the lines of the other solution. Operators (`mistakes.py`) make wrong versions of the
lines; a mistake that no operator makes is a `Mistake`, written by hand.
"""

import ast
import copy
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lessons.kit.explanations import listed
from lessons.kit.mistakes import OPERATORS, forms, names, parsed, sources


@dataclass(frozen=True)
class Mistake:
    """A mistake written by hand: `wrong` replaces the line that makes `name`.

    The parameters of `wrong` are names of the solution. If `name` is an argument, it is replaced
    before the first line. `why` says what can be seen, why it is wrong and where to look.
    """

    name: str
    wrong: Callable
    why: str


@dataclass(frozen=True)
class Variation:
    """A solution with one mistake: `step` is run instead of the step `index`."""

    index: int
    step: Callable[[dict], None]
    sentence: str  # {it} in it is what the line computes
    it: str = ""
    hint: str = ""
    operator: str = ""
    text: str = ""  # of the statement

    def has(self, text: str) -> bool:
        """Whether `text` is this statement or, if that is a loop, a line of it."""
        return text in (self.text, *map(str.strip, self.text.splitlines()))


class Solution:
    """A solution as steps, with empty ones before the first and after the last, for mistakes.

    `called` has words for the sizes of the `arguments`: "the number of keys", or "d_k".
    """

    def __init__(self, function: Callable, arguments: Sequence, called: Mapping, mistakes=()):
        self.globals, self.called, self.mistakes = function.__globals__, called, mistakes
        self.parameters = [*inspect.signature(function).parameters]
        *self.statements, last = statements(function)
        self.results = re.findall(r"\w+", ast.unparse(last))[1:]
        lines = map(compiled, map(ast.unparse, self.statements))
        self.steps = [renamed({}), *lines, renamed({})]
        self.values = self.run(arguments)
        self.lines: list[tuple[int, ast.Assign]] = []
        what, earlier = {name: name for name in self.parameters}, {}
        for index, statement in enumerate(self.statements, 1):
            for line in (node for node in ast.walk(statement) if isinstance(node, ast.Assign)):
                line.what, line.earlier = dict(what), dict(earlier)  # before it
                what[line.name], earlier[line.name] = line.it, line
                self.lines.append((index, line))

    def run(self, arguments: Sequence, *changes: Variation) -> dict:
        """All names with their values at the end; `changes` replace steps."""
        names = dict(self.globals)
        names |= zip(self.parameters, map(copy.copy, arguments), strict=True)
        steps = dict(enumerate(self.steps)) | {change.index: change.step for change in changes}
        for step in steps.values():
            step(names)
        return names

    @functools.cached_property
    def variations(self) -> list[Variation]:
        """Every wrong version; if several give the same numbers, the first one is reported."""
        return [*self._by_hand(), *self._by_operators(), *self._late(), *self._confused()]

    def _by_hand(self) -> Iterator[Variation]:
        steps = {line.name: index for index, line in self.lines}
        for mistake in self.mistakes:

            def step(names, mistake=mistake):
                needed = inspect.signature(mistake.wrong).parameters
                names[mistake.name] = mistake.wrong(*(names[name] for name in needed))

            yield Variation(steps.get(mistake.name, 0), step, mistake.why)

    def _by_operators(self) -> Iterator[Variation]:
        for operator, (index, line) in itertools.product(OPERATORS, self.lines):
            for form in forms(line.value):
                for node in ast.walk(form):
                    for new, sentence, *hint in operator(node, line, self, node is form):
                        value = replaced(form, node, parsed(new))
                        whole = replaced(self.statements[index - 1], line.value, value)
                        words = sentence, line.it, *(hint or [line.hint])
                        text = ast.unparse(whole)
                        yield Variation(index, compiled(text), *words, operator.__name__, text)

    def _late(self) -> Iterator[Variation]:
        """With a factor left out of a line, and multiplied into a result at the end instead."""
        targets = [*self.parameters, *(line.name for _, line in self.lines)]
        once = all(isinstance(statement, ast.Assign) for statement in self.statements)
        if not once or len({*targets}) < len(targets):
            return  # a name may have another value at the end than a line has read
        lines = {line.name: line for _, line in self.lines}
        for index, line in self.lines:
            factors = factors_of(line.value)
            for factor, result in itertools.product(factors, self.results):
                name = ast.unparse(factor)
                rest = [f"({ast.unparse(other)})" for other in factors if other is not factor]
                if not (rest and name in line.what and line.name in sources(lines.get(result))):
                    continue

                def step(names, index=index, line=line, rest=rest, name=name, result=result):
                    others = names | {line.name: eval(" * ".join(rest), names)}
                    for later in self.steps[index + 1 : -1]:
                        later(others)
                    names[result] = others[result] * names[name]

                words = (
                    f"In {lines[result].it}, the factor {line.what[name]} comes too late: it "
                    f"belongs in {line.it}, before {line.it} is added to anything."
                )
                yield Variation(len(self.statements) + 1, step, words)

    def _confused(self) -> Iterator[Variation]:
        """With two arguments swapped, and with the results in every other order."""
        for parameter, other in itertools.combinations(self.parameters, 2):
            if self.shape(parameter) != self.shape(other):
                continue
            words = f"The arguments {parameter} and {other} are swapped."
            yield Variation(0, renamed({parameter: other, other: parameter}), words)
        words = f"The results are returned in another order than {', '.join(self.results)}."
        for order in [*itertools.permutations(self.results)][1:]:
            new = renamed(dict(zip(self.results, order, strict=True)))
            yield Variation(len(self.statements) + 1, new, words)

    def with_mistake(self, text: str) -> str:
        """The body with one statement replaced by `text`, which an operator makes."""
        variation = next(made for made in self._by_operators() if made.has(text))
        lines = [*map(ast.unparse, self.statements), f"return {', '.join(self.results)}"]
        whole = variation.text
        return "\n".join([*lines[: variation.index - 1], whole, *lines[variation.index :]])

    # Used by the operators

    def shape(self, expression: str) -> tuple[int, ...]:
        return np.shape(eval(expression, dict(self.values)))

    def sizes(self) -> dict[str, str]:
        """Words for each size of the arguments -> an expression of it, such as x.shape[0]."""
        return {
            self.called[size]: f"{name}.shape[{axis}]"
            for name in self.parameters[::-1]
            for axis, size in enumerate(self.shape(name))
            if size in self.called
        }

    def over(self, axes: Sequence[int], shape: tuple[int, ...]) -> str:
        """Axes in words."""
        if len(axes) == len(shape) > 1:
            return "the whole array"
        return listed(self.called.get(shape[axis], "others") for axis in axes).replace(
            "the number of", "the"
        )


def factors_of(value: ast.expr) -> list[ast.expr]:
    """The factors of a product: a, b and c of a * b * c."""
    match value:
        case ast.BinOp(a, ast.Mult(), b):
            return [*factors_of(a), *factors_of(b)]
    return [value]


def replaced(tree, node: ast.AST, new: ast.AST):
    """A copy of a tree, a list of trees or what else a tree holds, with `new` for a node."""
    if isinstance(tree, list):
        return [replaced(part, node, new) for part in tree]
    if tree is node or not isinstance(tree, ast.AST):
        return new if tree is node else tree
    parts = {name: replaced(part, node, new) for name, part in ast.iter_fields(tree)}
    return ast.copy_location(type(tree)(**parts), tree)


def compiled(statement: str) -> Callable[[dict], None]:
    return functools.partial(exec, compile(statement, "<a line of a solution>", "exec"))


def renamed(new: dict[str, str]) -> Callable[[dict], None]:
    return lambda names: names.update({name: names[other] for name, other in new.items()})


def statements(function: Callable) -> list[ast.stmt]:
    """The statements of a solution; an assignment has its name and the note above it."""
    source = textwrap.dedent(inspect.getsource(function))
    lines, found = source.splitlines(), []

    class Noted(ast.NodeTransformer):
        def visit_Assign(self, node):
            above = map(str.strip, lines[node.lineno - 2 :: -1])
            comments = [*itertools.takewhile(lambda line: line.startswith("#"), above)]
            note = " ".join(line.strip("# ") for line in comments[::-1])
            subject, _, node.hint = note.partition(". ")
            node.it = subject[:1].lower() + subject[1:].removesuffix(".")
            node.name = names(node.targets[0])[0]  # dx in `dx[t] = ...`
            node.operands = {*names(node.value)}
            return node

        def visit_AugAssign(self, node):  # a += b as a = a + b
            both = ast.BinOp(parsed(ast.unparse(node.target)), node.op, node.value)
            return self.visit_Assign(ast.copy_location(ast.Assign([node.target], both), node))

    for statement in map(Noted().visit, ast.parse(source).body[0].body[1:]):
        value = getattr(statement, "value", None)
        called = isinstance(value, ast.Call) and function.__globals__.get(ast.unparse(value.func))
        own = getattr(called, "__module__", None) == function.__module__
        found += statements(called)[:-1] if called and own else [statement]
    return found


HIDDEN = (
    "The mistake that you have to find is still there. Look for one line: all wrong results depend "
    "on it, and no right result does."
)


class Known:
    """What the wrong versions of a solution give for some arguments.

    Versions that cannot be computed with these, or that are right, are left out. The version whose
    statement is `hidden` is not explained: to find its mistake is the exercise.
    """

    def __init__(self, solution: Solution, arguments: Sequence, hidden: str = ""):
        self.solution, self.arguments, self.hidden = solution, arguments, hidden
        self.right, rng = self._results(), np.random.default_rng(4)
        self.along = {
            name: rng.standard_normal(x.shape) / np.linalg.norm(x) for name, x in self.right.items()
        }
        self.right_marks = self.marks(self.right)

    def _results(self, *changes: Variation) -> dict:
        values = self.solution.run(self.arguments, *changes)
        return {name: values[name] for name in self.solution.results}

    def marks(self, results: dict) -> dict[str, float]:
        """A number for each result; equal numbers mean equal results, but for rounding."""
        return {name: round(float(np.vdot(x, results[name])), 8) for name, x in self.along.items()}

    def _wrong(self, *changes: Variation) -> dict | None:
        """The marks of a wrong version; None where it is right or cannot be compared."""
        try:
            with np.errstate(all="ignore"):
                results = self._results(*changes)
                if any(np.shape(results[name]) != x.shape for name, x in self.right.items()):
                    return None
                marks = self.marks(results)
        except Exception:  # whatever is raised by arrays that do not fit
            return None
        # Zeros or NaN can come from any mistake, so they do not tell which one.
        telling = all(mark and np.isfinite(mark) for mark in marks.values())
        return marks if telling and marks != self.right_marks else None

    @functools.cached_property
    def single(self) -> list[tuple[dict, str, Variation]]:
        """The marks and the words of each wrong version."""
        met, single = {}, []
        # If all sizes are equal, it cannot be told which of them is meant.
        alike = len({size for x in self.arguments for size in np.shape(x)}) == 1
        for variation in self.solution.variations:
            unsure = alike and variation.operator == "other_size"
            if not unsure and (marks := self._wrong(variation)):
                met.setdefault(tuple(marks.items()), []).append(variation)
        for marks, (best, *others) in met.items():
            # The same mistake in several lines may give the same numbers: name them all.
            also = [best.it, *(other.it for other in others if other.sentence == best.sentence)]
            places = [*dict.fromkeys(also)]
            words = best.sentence.replace("{it}", listed(places, "or"))
            words = f"{words} {best.hint}".strip() if len(places) == 1 else words
            if self.hidden and any(variation.has(self.hidden) for variation in (best, *others)):
                words = HIDDEN if best.text else f"{HIDDEN} {words}"
            single.append((dict(marks), words, best))
        return single

    def causes(self, given: dict, wrong: list[str]) -> dict[tuple[str, ...], str]:
        """What to say about the results that one known mistake, or two, explain.

        A mistake that would also make a right result wrong is not a cause.
        """
        marks = self.marks(given)
        causes = _fewest(marks, wrong, self.single)
        if left := {*wrong} - {name for names in causes for name in names}:
            pairs = self._pairs(wrong, left)
            causes = _fewest(marks, wrong, itertools.chain(self.single, pairs))
        return causes

    def _pairs(self, wrong: list[str], left: set[str]) -> Iterator[tuple[dict, str, None]]:
        """Two mistakes at once; each changes some of what is `left`, and only wrong results."""
        changing = []
        for marks, words, variation in self.single:
            changed = {name for name in marks if marks[name] != self.right_marks[name]}
            if changed & left and changed <= {*wrong}:
                changing.append((variation, words))
        for (first, why), (second, also) in itertools.combinations(changing, 2):
            if first.index != second.index and (marks := self._wrong(first, second)):
                yield marks, f"{why}\n\n{also}", None


def _fewest(given: dict, wrong: list[str], outcomes: Iterable) -> dict[tuple[str, ...], str]:
    """The fewest mistakes that explain most of the wrong results; among equals the first."""
    fits, causes, left = [], {}, {*wrong}
    right = {(name, mark) for name, mark in given.items() if name not in left}
    for marks, words, _ in outcomes:
        same = given.items() & marks.items()
        if right <= same:
            fits.append(({name for name, _ in same - right}, words))
        if len(same) == len(given):
            break
    while fits and (best := max(fits, key=lambda fit: len(fit[0] & left)))[0] & left:
        causes.setdefault(best[1], set()).update(best[0] & left)
        left -= best[0]
    return {tuple(name for name in wrong if name in names): why for why, names in causes.items()}
