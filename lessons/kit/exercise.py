"""Exercises: a function to write or to mend, its gradient check, and words for what is wrong."""

import contextlib
import dis
import functools
import inspect
import io
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType

import numpy as np

from lessons.kit.explanations import CALLED, EQUAL, LINEAR, Case, Property, Sizes, listed, symptoms
from lessons.kit.lesson import Piece
from lessons.kit.reader_file import IMPORTS, TooLong, Trouble, a_thing, place, results_of
from lessons.kit.solution import Known, Mistake, Solution
from numformer.errors import InputError
from numformer.gradient_check.gradients import TOLERANCE, GradientCheck
from numformer.layer import Layer

NOT_BEGUN = "Not begun yet."


@dataclass(frozen=True, repr=False)
class Verdict:
    """What the check says about one function; a notebook shows its words."""

    right: bool
    words: str
    known: bool = False  # whether a known mistake explains it
    results: Mapping[str, bool] = field(default_factory=dict)  # which results are right

    def __repr__(self):
        return wrapped(self.words)


def wrapped(words: str) -> str:
    """Wrap paragraphs to the terminal, at most 84 columns; indented ones stay as they are."""
    width = min(88, shutil.get_terminal_size().columns) - 4
    return "\n\n".join(
        block if block.startswith("    ") else textwrap.fill(block, width)
        for block in words.split("\n\n")
    )


@dataclass(frozen=True, eq=False)
class Exercise(Piece):
    """A function that the reader completes, or one with a mistake to find.

    `solution` is the right function, with notes on its lines (`solution.py`); the reader gets its
    first line and its docstring. With a `forward` the function is a backward: `forward(**inputs)`,
    written with numformer's formulas, returns an array and a dictionary of other arrays. The
    function takes the gradient of that array first; its other parameters name inputs or other
    arrays. It returns gradients of inputs, `dx` for `x`, in the order in which the solution returns
    them, and these are compared with numerical gradients. Without a `forward` the function takes
    the inputs, and its results are compared with the solution's.

    `inputs(sizes)` returns the inputs by name; a tuple stands for random numbers of this shape.
    `called` has words for sizes where those of CALLED do not fit. `mistakes` are mistakes that no
    operator makes; `properties` are tested if no mistake is recognised. `to_find` is a statement of
    the solution with a mistake that an operator makes: the reader gets the solution with this
    statement. `done` tells a reader who has it right what it shows or what comes next.
    """

    lesson: int
    title: str
    task: str  # markdown
    solution: Callable
    inputs: Callable[[Sizes], dict]
    done: str
    forward: Callable | None = None
    mistakes: Sequence[Mistake] = ()
    properties: Sequence[Property] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    to_find: str = ""

    @property
    def name(self) -> str:
        return f"mended_{self.solution.__name__}" if self.to_find else self.solution.__name__

    @functools.cached_property
    def code(self) -> str:
        """The code that the reader begins with."""
        head = re.match(r'(?s).*?""".*?"""\n', inspect.getsource(self.solution))[0]
        head = head.replace(self.solution.__name__, self.name, 1)
        body = "raise NotImplementedError"
        if self.to_find:
            body = self._lines.with_mistake(self.to_find)
        return head + textwrap.indent(body, "    ") + "\n"

    @property
    def solved(self) -> str:
        """The solution, with its notes."""
        return inspect.getsource(self.solution).replace(self.solution.__name__, self.name, 1)

    @functools.cached_property
    def start(self) -> Callable:
        names = {}
        exec(f"{IMPORTS}\n{self.code}", names)
        return names[self.name]

    @functools.cached_property
    def _parameters(self) -> list[str]:
        return [*inspect.signature(self.solution).parameters]

    @property
    def command(self) -> str:
        return f"python -m lessons check {self.lesson} FILE"

    def markdown(self) -> str:
        code = textwrap.indent(self.code, "    ")
        return f"**Exercise: {self.title}**\n\n{self.task}\n\n{code}\nCheck it: `{self.command}`"

    def html(self, page) -> str:
        """The exercise with the code to begin with, which exercise.js makes an editor of."""
        page.script("exercise")
        return (
            f'<section class="exercise" id="exercise-{self.name}" data-name="{self.name}">'
            f"<h3>Exercise: {page.inline(self.title)}</h3>\n"
            f"{page.markdown(self.task)}{page.code(self.code)}"
            '<p class="how">To check your code on this page, open the course with '
            "<code>python -m lessons serve</code>. In a shell, "
            f"<code>python -m lessons start {self.lesson} FILE</code> writes the exercises into a "
            f"file, and <code>{self.command}</code> says which of them are right, and why the "
            "others are not.</p></section>\n"
        )

    def check(self, function: Callable) -> Verdict:
        """Compare the results of the reader's function with the right ones."""
        if not callable(function):
            return Verdict(False, f"It is {a_thing(function)} and not a function.")
        if _same_code(function, self.start):
            return Verdict(False, NOT_BEGUN)
        code = getattr(function, "__code__", None)
        names = [*code.co_varnames[: code.co_argcount]] if code else []
        if names != self._parameters and {*names} == {*self._parameters}:
            order = f"{listed(names)}. It is called with {listed(self._parameters)}"
            return Verdict(False, f"Its arguments are in the order {order}.")
        try:
            return self._checked(function)
        except TooLong as problem:
            words = f"It was {problem}: a loop in it does not end, or takes too long."
            return Verdict(False, words + place(function, problem))

    def _checked(self, function: Callable) -> Verdict:
        again = Verdict(False, "")
        try:
            verdict = self._compare(function, Sizes())
            if not verdict.right:
                return verdict
        except Trouble as trouble:
            verdict = Verdict(False, str(trouble))
        # With equal sizes every product can be formed: a known mistake may show there.
        with contextlib.suppress(Trouble), contextlib.redirect_stdout(io.StringIO()):
            again = self._compare(function, EQUAL, explain=not verdict.right)
        if verdict.right and not again.right:
            words = (
                "Right with the arrays of the first check, wrong with arrays of other sizes. Look "
                "for a number that stands for a size, and for a value kept from call to call."
            )
            return Verdict(False, words)
        if again.known:
            also = f"Where all sizes are equal, the results can be compared. {again.words}"
            return replace(verdict, words=f"{verdict.words}\n\n{also}")
        return verdict

    def _compare(self, function: Callable, sizes: Sizes, explain: bool = True) -> Verdict:
        """The verdict on arrays of these sizes. Raises Trouble where nothing can be compared."""
        known = self.known[sizes]
        call = functools.partial(results_of, function, self.start, known.right)
        with np.errstate(all="ignore"):
            given = call(known.arguments)
            with contextlib.redirect_stdout(io.StringIO()):  # what it prints was printed above
                wrong = self._wrong(call, given, sizes)
                if not wrong:
                    words = f"Right: {', '.join(given)}. {self.done}"
                    return Verdict(True, words, results=dict.fromkeys(given, True))
                if not explain:
                    return Verdict(False, "")
                causes = known.causes(given, wrong)
                left = [name for name in wrong if not any(name in names for names in causes)]
                named = dict(zip(self._parameters, known.arguments, strict=True))
                words = [] if causes else self._lacking(Case(call, named, given), left)
        table = "\n".join(
            f"    {name:<8} {x.shape!s:<14} {'wrong' if name in wrong else 'right'}"
            for name, x in given.items()
        )
        for names, why in causes.items():
            words.append((f"{listed(names)}: " if {*wrong} - {*names} else "") + why)
        if left and causes:
            words.append(f"Then look again at {listed(left)}.")
        elif left:
            words += symptoms(given, known.right, left, known.solution.called)
        if left and len(wrong) == 1 < len(given):
            words.append(
                f"{left[0]} alone is wrong, so look at the line that makes {left[0]} and nothing "
                "else: does it begin from the wrong array, or have the wrong sign or factor?"
            )
        words = "\n\n".join(["Not right yet:", table, *words])
        return Verdict(False, words, bool(causes), {name: name not in wrong for name in given})

    def _lacking(self, case: Case, wrong: list[str]) -> list[str]:
        """The sentence on the first property that some of the finite wrong results lack."""
        wrong = [name for name in wrong if np.isfinite(case.given[name]).all()]
        for wanted in ((LINEAR,) if self.forward else ()) + tuple(self.properties):
            with contextlib.suppress(Trouble):
                if names := [name for name in wrong if wanted.lacks(case, name)]:
                    return [f"{listed(names)}: {wanted.words}"]
        return []

    def _wrong(self, call: Callable, given: dict, sizes: Sizes) -> list[str]:
        """The names of the wrong results."""
        if not self.forward:
            right = self.known[sizes].right
            return [name for name in given if not np.allclose(given[name], right[name])]
        inputs = self._inputs(sizes, 3)
        varied = [inputs[name[1:]] for name in given]
        try:
            checked = GradientCheck(Asked(self, call, inputs, [*given]), varied)
        except InputError:
            raise Trouble(
                "Called again with the same arguments, it gives other results. It must not keep "
                "anything from call to call, nor draw anything at random."
            ) from None
        wrong, rng = [], np.random.default_rng(2)
        for name, tensor in zip(given, checked.input_names, strict=True):
            direction = rng.standard_normal(checked.tensors[tensor].shape)
            numerical, rounding = checked.numerical(tensor, direction)
            explicit = (checked.gradients[tensor] * direction).sum()
            if not np.isclose(explicit, numerical, rtol=TOLERANCE, atol=10 * rounding):
                wrong.append(name)
        return wrong

    def arguments(self, upstream: np.ndarray, arrays: Mapping) -> list:
        """The arguments of a backward: `upstream`, and the `arrays` that its parameters name."""
        return [upstream, *(arrays[name] for name in self._parameters[1:])]

    @functools.cached_property
    def known(self) -> dict[Sizes, Known]:
        """What wrong versions of the solution give, for each of the two choices of sizes."""
        return {
            sizes: Known(self._lines, self._call(sizes), self.to_find) for sizes in (Sizes(), EQUAL)
        }

    @functools.cached_property
    def _lines(self) -> Solution:
        arguments = self._call(Sizes())
        there = {size for x in arguments for size in np.shape(x)}
        words = ((vars(Sizes())[letter], word) for letter, word in (CALLED | self.called).items())
        called = {size: word for size, word in words if size in there}
        return Solution(self.solution, arguments, called, self.mistakes)

    def _inputs(self, sizes: Sizes, seed: int) -> dict:
        rng, inputs = np.random.default_rng(seed), self.inputs(sizes)
        return {n: rng.standard_normal(x) if isinstance(x, tuple) else x for n, x in inputs.items()}

    def _call(self, sizes: Sizes) -> list:
        """Arguments of the function."""
        # The gradient check has other numbers, so that a result kept from here is wrong there.
        inputs = self._inputs(sizes, 4)
        if not self.forward:
            return [*inputs.values()]
        output, others = self.forward(**inputs)
        upstream = np.random.default_rng(1).standard_normal(output.shape)
        return self.arguments(upstream, inputs | others)


def verdicts(exercises: Sequence[Exercise], functions: Mapping) -> Iterator[tuple]:
    """Each exercise with the verdict on its function, or with None where there is no function."""
    wrong = set()
    for exercise in exercises:
        function, verdict = functions.get(exercise.name), None
        if exercise.name in functions:
            verdict = exercise.check(function)
            if not verdict.right:
                if begin := [name for name in called_names(function) if name in wrong]:
                    words = f"It calls {begin[0]}: mend that first.\n\n{verdict.words}"
                    verdict = replace(verdict, words=words)
                wrong.add(exercise.name)
        yield exercise, verdict


def called_names(function: object) -> Sequence[str]:
    """The names that a function takes from its file, or nothing if it is not written in Python."""
    code = getattr(function, "__code__", None)
    return code.co_names if code else ()


class Asked(Layer):
    """A layer: the forward of an exercise with the reader's backward."""

    def __init__(self, exercise: Exercise, call: Callable, inputs: Mapping, names: Sequence[str]):
        self.exercise, self.call, self._inputs, self._names = exercise, call, inputs, names

    def __deepcopy__(self, memo):
        """A copy without saved values; it shares the rest, which leads to whole modules."""
        return Asked(self.exercise, self.call, self._inputs, self._names)

    def forward(self, *arrays):
        inputs = self._inputs | {n[1:]: x for n, x in zip(self._names, arrays, strict=True)}
        output, others = self.exercise.forward(**inputs)
        self.save(**inputs, **others)
        return output

    def backward(self, dy):
        return tuple(self.call(self.exercise.arguments(dy, self.pop_saved())).values())


def _same_code(a: Callable, b: Callable) -> bool:
    """Whether two functions have the same instructions, whatever their comments and docstrings."""
    a, b = (getattr(function, "__code__", None) for function in (a, b))
    return bool(a and b) and _instructions(a) == _instructions(b)


@functools.lru_cache
def _instructions(code: CodeType) -> list[tuple]:
    """The names and arguments of a function's instructions.

    How a call finds its function is left out, and with it the targets of jumps: it depends on
    whether the imports are compiled together with the function, as in a file, or in another cell of
    a notebook.
    """
    jumps = {*dis.hasjrel, *dis.hasjabs}
    return [
        (
            instruction.opname.replace("METHOD", "ATTR"),
            _instructions(instruction.argval)
            if isinstance(instruction.argval, CodeType)
            else None
            if instruction.opcode in jumps
            else instruction.argval,
        )
        for instruction in dis.get_instructions(code)
        if instruction.opname != "PUSH_NULL"
    ]
