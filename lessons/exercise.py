"""Exercises: a function to write or to mend, its gradient check, and words for what is wrong."""

import contextlib
import copy
import inspect
import io
import linecache
import re
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lessons.explanations import EQUAL, Sizes, a_thing, advice, of_other_shape, symptoms, told
from lessons.lesson import Piece
from lessons.reader_file import TooLong, limited
from numformer.backend import dtype_kind
from numformer.errors import InputError
from numformer.gradient_check.gradients import TOLERANCE, GradientCheck
from numformer.layer import Layer


@dataclass(frozen=True)
class Mistake:
    """A known wrong version of an exercise's function, and what to say to those who wrote it.

    `why` says what is seen, why it is wrong and which line of the derivation to look at: no
    solution.
    """

    wrong: Callable
    why: str


@dataclass(frozen=True)
class Verdict:
    """What the check says of one function."""

    right: bool
    words: str
    known: bool = False  # whether the words are those of a Mistake


class Trouble(Exception):
    """The function does not give gradients that could be compared."""


@dataclass(frozen=True)
class Exercise(Piece):
    """A function that the reader completes or mends.

    `start` is where the reader begins: its source is shown and written into the starter file, its
    name is looked for in the reader's file. `case(function, sizes)` gives a Layer, whose forward is
    the library's and whose backward returns function(...), and the inputs of its forward. The
    results of the function are the gradients of those that are floating-point arrays. `done` says
    to those who have it right what it shows or what comes next.
    """

    lesson: int
    title: str
    task: str  # markdown
    start: Callable
    case: Callable[[Callable, Sizes], tuple[Layer, list]]
    mistakes: Sequence[Mistake]
    done: str

    @property
    def name(self) -> str:
        return self.start.__name__

    @property
    def code(self) -> str:
        return inspect.getsource(self.start)

    @property
    def command(self) -> str:
        return f"python -m lessons check {self.lesson} FILE"

    def markdown(self) -> str:
        code = textwrap.indent(self.code, "    ")
        return f"**Exercise: {self.title}**\n\n{self.task}\n\n{code}\nCheck it: `{self.command}`"

    def html(self, page) -> str:
        return (
            f'<section class="exercise"><h3>Exercise: {page.inline(self.title)}</h3>\n'
            f"{page.markdown(self.task)}{page.code(self.code)}"
            f"<p><code>python -m lessons start {self.lesson} FILE</code> writes this into a file "
            f"of yours, and <code>{self.command}</code> tells what is right in it and what is not."
            "</p></section>\n"
        )

    def check(self, function: Callable) -> Verdict:
        """Compare what the reader's function returns with numerical gradients."""
        if not callable(function):
            return Verdict(False, f"It is no function but {a_thing(function)}.")
        if _same_code(function, self.start):
            return Verdict(False, "Not begun yet.")
        try:
            with limited():
                return self._checked(function)
        except TooLong as problem:
            words = f"It was {problem}: a loop in it does not end."
            return Verdict(False, words + self._place(function, problem))

    def _checked(self, function: Callable) -> Verdict:
        try:
            verdict = self._compare(function, Sizes())
            if verdict.right and not self._right_elsewhere(function):
                words = (
                    "Right with the arrays of the first check, wrong with others of other sizes. "
                    "Look for a number that stands for a size, and for what is kept from call to "
                    "call."
                )
                return Verdict(False, words)
            return verdict
        except Trouble as trouble:
            words = str(trouble)
        # Whether it is a mistake with a name shows where every product can be formed.
        with contextlib.suppress(Trouble), contextlib.redirect_stdout(io.StringIO()):
            again = self._compare(function, EQUAL)
            if again.known:
                words += f"\n\nWhere all sizes are equal it can be compared. {again.words}"
        return Verdict(False, words)

    def _right_elsewhere(self, function: Callable) -> bool:
        with contextlib.suppress(Trouble), contextlib.redirect_stdout(io.StringIO()):
            return self._compare(function, EQUAL).right
        return False

    def _compare(self, function: Callable, sizes: Sizes) -> Verdict:
        """The verdict on a case of these sizes. Raises Trouble where nothing can be compared."""
        arguments, shapes = self._call(sizes)
        with np.errstate(all="ignore"):
            given = self._results(function, arguments, shapes)
            with contextlib.redirect_stdout(io.StringIO()):  # it has printed once already
                checked = self._gradient_check(function, sizes, shapes)
            wrong = [name for name in shapes if not _right(checked, name[1:])]
            if not wrong:
                return Verdict(True, f"Right: {', '.join(shapes)}. {self.done}")
            causes = self._causes(given, wrong, arguments, shapes)
        lines = [
            f"    {name:<8} {shape!s:<14} {'wrong' if name in wrong else 'right'}"
            for name, shape in shapes.items()
        ]
        words = ["Not right yet:\n\n" + "\n".join(lines)]
        words += [
            (f"{' and '.join(names)}: " if {*wrong} - {*names} else "") + why
            for names, why in causes.items()
        ]
        left = [name for name in wrong if not any(name in names for names in causes)]
        if left and causes:
            words.append(f"Then look again at {' and '.join(left)}.")
        elif left:
            words += symptoms(checked, left, sizes)
            if len(left) == 1 < len(shapes):
                words.append(
                    f"{left[0]} alone is wrong, so look at the line that only it comes from: that "
                    "begins from the wrong array, or has the wrong sign or factor."
                )
        return Verdict(False, "\n\n".join(words), known=bool(causes))

    def _call(self, sizes: Sizes) -> tuple[list, dict[str, tuple]]:
        """What the function is called with, and the name and shape of each of its results."""
        seen = []
        layer, inputs = self.case(lambda *arguments: seen.extend(arguments), sizes)
        # Not the numbers of the gradient check, so that nothing kept from here is right there.
        inputs = [x[::-1].copy() if dtype_kind(x) else x for x in inputs]
        output = layer.forward(*inputs)
        layer.backward(np.random.default_rng(1).standard_normal(output.shape))
        pairs = zip(inspect.signature(layer.forward).parameters, inputs, strict=False)
        return seen, {f"d{name}": x.shape for name, x in pairs if dtype_kind(x) == "f"}

    def _results(self, function: Callable, arguments: list, shapes: dict) -> dict[str, np.ndarray]:
        """The results by name, as arrays of their own. Raises Trouble where they are no such."""
        copies = copy.deepcopy(arguments)
        try:
            returned = function(*copies)
        except (KeyboardInterrupt, TooLong):
            raise
        except BaseException as problem:  # whatever a reader's function does
            raise Trouble(self._raised(function, problem)) from None
        wanted = ", ".join(shapes)
        if returned is None:
            raise Trouble(f"It returns None. Its last line has to be `return {wanted}`.")
        results = returned if isinstance(returned, tuple | list) else (returned,)
        if isinstance(returned, list) and not any(dtype_kind(result) for result in results):
            raise Trouble("It returns a list of numbers and not an array: use np.array(...).")
        if len(results) != len(shapes):
            raise Trouble(
                f"It returns {len(results)} result{'s' * (len(results) != 1)} and not "
                f"{len(shapes)}: its last line has to be `return {wanted}`."
            )
        named = dict(zip(shapes, results, strict=True))
        for name, result in named.items():
            if not isinstance(result, np.ndarray | np.generic):
                raise Trouble(f"Its {name} is {a_thing(result)} and not an array.")
            if result.shape != shapes[name]:
                raise Trouble(of_other_shape(name, result.shape, shapes))
            if result.dtype != np.float64:
                raise Trouble(
                    f"Its {name} is of {result.dtype}, where it was given float64: a formula keeps "
                    "the type of its arguments."
                )
        names = inspect.signature(self.start).parameters
        for name, before, after in zip(names, arguments, copies, strict=True):
            if not np.array_equal(before, after):
                raise Trouble(
                    f"It writes into its argument {name}, which others still need: forward's "
                    "arrays belong to the caller. Look for `+=`, `-=`, `*=`, `/=`, `out=` and "
                    "`[...] =` and compute into a new array."
                )
        return {name: np.array(result) for name, result in named.items()}

    def _raised(self, function: Callable, problem: BaseException) -> str:
        """What was raised, and on which line of the reader's with which arrays."""
        frames = [*traceback.walk_tb(problem.__traceback__)]
        if isinstance(problem, NotImplementedError):
            name = frames[-1][0].f_code.co_name
            also = "" if name == self.name else f"It calls {name}, which is n"
            return f"{also or 'N'}ot written yet."
        said = told(problem)
        if "gufunc" in said:
            said = "the shapes of a matrix product do not fit."
        words = f"It raises {type(problem).__name__}: {said}"
        place = self._place(function, problem)
        if not place:
            return f"{words}\n\nIt is called as {self.name}{inspect.signature(self.start)}."
        return "\n\n".join([words + place, *advice(problem, function)])

    def _place(self, function: Callable, problem: BaseException) -> str:
        """The line of the reader's on which something was raised, and with which arrays."""
        file = getattr(getattr(function, "__code__", None), "co_filename", None)
        frames = traceback.walk_tb(problem.__traceback__)
        own = [(frame, line) for frame, line in frames if frame.f_code.co_filename == file]
        if not own:
            return ""
        frame, number = own[-1]
        line = linecache.getline(file, number).strip()
        words = f"\n\n    line {number}: {line}"
        arrays = {
            name: value.shape
            for name in dict.fromkeys(re.findall(r"\w+", line))
            if isinstance(value := frame.f_locals.get(name), np.ndarray)
        }
        if arrays:
            words += "\n    with " + ", ".join(f"{name} {shape}" for name, shape in arrays.items())
        return words

    def _gradient_check(self, function: Callable, sizes: Sizes, shapes: dict) -> GradientCheck:
        def gradients(*arguments):
            return tuple(self._results(function, arguments, shapes).values())

        try:
            return GradientCheck(*self.case(gradients, sizes))
        except InputError:
            raise Trouble(
                "Called again with the same arguments it gives other results. It may keep nothing "
                "from call to call and draw nothing at random."
            ) from None

    def _causes(self, given, wrong, arguments, shapes) -> dict[tuple[str, ...], str]:
        """For results that a known mistake gives too: what to say to it.

        A mistake that would make wrong what is right here is none of the causes.
        """
        right, outcomes = shapes.keys() - {*wrong}, []
        for mistake in self.mistakes:
            with contextlib.suppress(Trouble):  # some cannot be formed where sizes differ
                results = self._results(mistake.wrong, arguments, shapes)
                same = {n for n in shapes if np.allclose(given[n], results[n], 1e-9, 1e-12, True)}
                if right <= same:
                    outcomes.append((same, mistake.why))
                if same == shapes.keys():
                    break
        causes, left = {}, set(wrong)
        while outcomes:
            # The mistake that explains most of what is wrong.
            same, why = max(outcomes, key=lambda outcome: len(outcome[0] & left))
            if not same & left:
                break
            causes[why] = causes.get(why, set()) | (same & left)
            left -= same
        return {tuple(n for n in shapes if n in names): why for why, names in causes.items()}


def _same_code(a: Callable, b: Callable) -> bool:
    """Whether two functions are written the same, comments and line numbers apart."""
    a, b = (getattr(function, "__code__", None) for function in (a, b))
    what = ("co_code", "co_consts", "co_names", "co_varnames")
    return all(getattr(a, name, None) == getattr(b, name) for name in what)


def _right(checked: GradientCheck, name: str) -> bool:
    """Whether the gradient of `name` is the numerical one, along a random direction."""
    direction = np.random.default_rng(2).standard_normal(checked.tensors[name].shape)
    numerical, rounding = checked.numerical(name, direction)
    explicit = (checked.gradients[name] * direction).sum()
    return bool(np.isclose(explicit, numerical, rtol=TOLERANCE, atol=10 * rounding))
