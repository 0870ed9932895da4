"""Exercises: a function to write or to mend, its gradient check, and words for what is wrong."""

import contextlib
import copy
import inspect
import io
import linecache
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.lesson import Piece, plain
from numformer.backend import kind
from numformer.diagnosis import UNKNOWN
from numformer.errors import InputError
from numformer.gradient_check import TOLERANCE, GradientCheck
from numformer.layer import Layer


@dataclass(frozen=True)
class Sizes:
    """The sizes of a case, all different, so that nothing wrong can fit by chance."""

    B: int = 2
    H: int = 3
    T: int = 4
    S: int = 5
    K: int = 6
    K_v: int = 7


# Where all sizes are equal every product can be formed, so that it can be compared with others.
EQUAL = Sizes(3, 3, 3, 3, 3, 3)


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
    results of the function are the gradients of those that are floating-point arrays.
    """

    lesson: int
    title: str
    task: str  # markdown
    start: Callable
    case: Callable[[Callable, Sizes], tuple[Layer, list]]
    mistakes: Sequence[Mistake]

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
            return Verdict(False, f"It is no function but a {type(function).__name__}.")
        try:
            return self._compare(function, Sizes())
        except Trouble as trouble:
            words = str(trouble)
        # Whether it is a mistake with a name shows where every product can be formed.
        with contextlib.suppress(Trouble), contextlib.redirect_stdout(io.StringIO()):
            again = self._compare(function, EQUAL)
            if again.known:
                words += f"\n\nWhere all sizes are equal it can be compared. {again.words}"
        return Verdict(False, words)

    def _compare(self, function: Callable, sizes: Sizes) -> Verdict:
        """The verdict on a case of these sizes. Raises Trouble where nothing can be compared."""
        arguments, shapes = self._call(sizes)
        with np.errstate(all="ignore"):
            given = self._results(function, arguments, shapes)
            with contextlib.redirect_stdout(io.StringIO()):  # it has printed once already
                checked = self._gradient_check(function, sizes, shapes)
            wrong = [name for name in shapes if not _right(checked, name[1:])]
            if not wrong:
                return Verdict(True, f"Right: {', '.join(shapes)}.")
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
        else:
            words += [f"{name}: {_symptom(checked, name[1:])}" for name in left]
        return Verdict(False, "\n\n".join(words), known=bool(causes))

    def _call(self, sizes: Sizes) -> tuple[list, dict[str, tuple]]:
        """What the function is called with, and the name and shape of each of its results."""
        seen = []
        layer, inputs = self.case(lambda *arguments: seen.extend(arguments), sizes)
        output = layer.forward(*inputs)
        layer.backward(np.random.default_rng(1).standard_normal(output.shape))
        pairs = zip(inspect.signature(layer.forward).parameters, inputs, strict=False)
        return seen, {f"d{name}": x.shape for name, x in pairs if kind(x) == "f"}

    def _results(self, function: Callable, arguments: list, shapes: dict) -> dict[str, np.ndarray]:
        """The results by name, as arrays of their own. Raises Trouble where they are no such."""
        copies = copy.deepcopy(arguments)
        try:
            returned = function(*copies)
        except (Exception, SystemExit) as problem:  # whatever a reader's function does
            raise Trouble(self._raised(function, problem)) from None
        wanted = ", ".join(shapes)
        if returned is None:
            raise Trouble(f"It returns None. Its last line has to be `return {wanted}`.")
        results = returned if isinstance(returned, tuple | list) else (returned,)
        if len(results) != len(shapes):
            raise Trouble(
                f"It returns {len(results)} result{'s' * (len(results) != 1)} and not "
                f"{len(shapes)}: its last line has to be `return {wanted}`."
            )
        named = dict(zip(shapes, results, strict=True))
        for name, result in named.items():
            if not isinstance(result, np.ndarray | np.generic):
                raise Trouble(f"Its {name} is a {type(result).__name__} and not an array.")
            if result.shape != shapes[name]:
                raise Trouble(_of_other_shape(name, result.shape, shapes))
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
        words = f"It raises {type(problem).__name__}: {problem}"
        file = getattr(getattr(function, "__code__", None), "co_filename", None)
        own = [(frame, line) for frame, line in frames if frame.f_code.co_filename == file]
        if not own:
            return f"{words}\n\nIt is called as {self.name}{inspect.signature(self.start)}."
        frame, number = own[-1]
        line = linecache.getline(file, number).strip()
        words += f"\n\n    line {number}: {line}"
        arrays = {
            name: value.shape
            for name in dict.fromkeys(re.findall(r"\w+", line))
            if isinstance(value := frame.f_locals.get(name), np.ndarray)
        }
        if arrays:
            words += "\n    with " + ", ".join(f"{name} {shape}" for name, shape in arrays.items())
            words += (
                "\n\nA gradient has the shape of what it belongs to: say for each axis on that "
            )
            words += "line whether the result keeps it or adds up over it."
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
        """For results that a known mistake gives too: what to say to it."""
        outcomes = []
        for mistake in self.mistakes:
            with contextlib.suppress(Trouble):  # some cannot be formed where sizes differ
                results = self._results(mistake.wrong, arguments, shapes)
                same = {n for n in shapes if np.allclose(given[n], results[n], 1e-9, 1e-12, True)}
                outcomes.append((same, mistake.why))
        causes, left = {}, set(wrong)
        while outcomes:
            # The mistake that explains most of what is wrong, and is right where this is.
            same, why = max(outcomes, key=lambda outcome: (len(outcome[0] & left), len(outcome[0])))
            if not same & left:
                break
            causes[tuple(name for name in shapes if name in same & left)] = why
            left -= same
        return causes


def _of_other_shape(name: str, shape: tuple, shapes: dict) -> str:
    words = f"Its {name} has the shape {shape}, but a gradient has the shape of what it belongs to"
    words += f", and {name[1:]} is {shapes[name]}."
    owners = [other for other, of_other in shapes.items() if of_other == shape]
    if owners:
        words += (
            f" That is the shape of {owners[0]}: are the results in the order {', '.join(shapes)}?"
        )
    return words


def _right(checked: GradientCheck, name: str) -> bool:
    """Whether the gradient of `name` is the numerical one, along a random direction."""
    direction = np.random.default_rng(2).standard_normal(checked.tensors[name].shape)
    numerical, rounding = checked.numerical(name, direction)
    explicit = (checked.gradients[name] * direction).sum()
    return bool(np.isclose(explicit, numerical, rtol=TOLERANCE, atol=10 * rounding))


def _symptom(checked: GradientCheck, name: str) -> str:
    """How a gradient differs, in words, where no known mistake explains it."""
    explicit, numerical = checked.elementwise(name)
    odd = np.argwhere(~np.isfinite(explicit))
    if len(odd):
        return (
            f"it holds NaN or infinity, first at {tuple(map(int, odd[0]))}. Look for a division by "
            "what can be 0, or an exponential that is too large."
        )
    difference = abs(explicit - numerical)
    worst = tuple(map(int, np.unravel_index(np.nanargmax(difference), difference.shape)))
    count = int((difference > 1e-6 * np.nanmax(abs(numerical))).sum())
    if not count:
        return "it is right to a few digits only. Something is rounded on the way, as by float32."
    with contextlib.redirect_stdout(io.StringIO()):
        meaning = checked.row(name).meaning
    if meaning.startswith(UNKNOWN[:16]):
        meaning = "No pattern that the check knows: take a small example and go line by line."
    return (
        f"{count} of {explicit.size} entries are wrong. The worst, at {worst}, is "
        f"{explicit[worst]:.6g} and should be {numerical[worst]:.6g}. "
        f"{meaning[:1].upper()}{meaning[1:]}"
    )


def starter(title: str, exercises: Sequence[Exercise]) -> str:
    """The file that a reader begins with."""
    parts = [f'"""Exercises: {title}\n\nCheck them: {exercises[0].command}\n"""\n']
    parts.append("import math\n\nimport numpy as np\n")
    for number, exercise in enumerate(exercises, 1):
        told = f"{number}. {exercise.title}\n\n{plain(exercise.task)}"
        parts.append("\n" + textwrap.indent(told, "# ", lambda _: True).replace("# \n", "#\n"))
        parts.append(f"\n\n{exercise.code}")
    return "\n".join(parts)


def solutions(path: Path, exercises: Sequence[Exercise]) -> dict[str, object]:
    """What a reader's file defines under the names of the exercises.

    Raises InputError where the file cannot be read or run, or defines none of them.
    """
    rule = "FILE is a Python file with functions of the exercises"
    fix = f"`python -m lessons start {exercises[0].lesson} FILE` writes one to begin with."
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except OSError as problem:
        raise InputError(rule, f"{path} ({problem.strerror})", fix) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        line = getattr(problem, "lineno", None)
        place = f"{path}, line {line}" if line else path
        what = getattr(problem, "msg", problem)
        raise InputError(
            "FILE is a Python file", f"{place}: {what}", "Mend that line first." if line else fix
        ) from None
    # As `python FILE` would: what lies beside the file can be imported.
    paths = sys.path[:]
    sys.path.insert(0, str(path.resolve().parent))
    names = {"__name__": path.stem, "__file__": str(path)}
    try:
        exec(code, names)
    except (Exception, SystemExit) as problem:  # whatever a file does as it is run
        lines = [
            line
            for frame, line in traceback.walk_tb(problem.__traceback__)
            if frame.f_code.co_filename == str(path)
        ]
        place = f"{path}, line {lines[-1]}" if lines else path
        raise InputError(
            "FILE runs without an error",
            f"{place}: {type(problem).__name__}: {problem}",
            "Mend that line first.",
        ) from None
    finally:
        sys.path[:] = paths
    found = {
        exercise.name: names[exercise.name] for exercise in exercises if exercise.name in names
    }
    if not found:
        wanted = ", ".join(exercise.name for exercise in exercises)
        raise InputError(f"FILE defines one of {wanted}", f"none of them in {path}", fix)
    return found
