"""Exercises: a function to write or to mend, its gradient check, and words for what is wrong."""

import contextlib
import copy
import inspect
import io
import itertools
import linecache
import re
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.lesson import Piece, plain
from numformer.backend import kind
from numformer.errors import InputError
from numformer.gradient_check import TOLERANCE, GradientCheck
from numformer.layer import Layer


@dataclass(frozen=True)
class Sizes:
    """The sizes of a case, different primes, so that nothing wrong can fit by chance.

    No product or quotient of some of them or of their roots equals another.
    """

    B: int = 3
    H: int = 2
    T: int = 5
    S: int = 7
    K: int = 11
    K_v: int = 13


# Where all sizes are equal every product can be formed, so that it can be compared with others.
EQUAL = Sizes(3, 3, 3, 3, 3, 3)

# Seconds of computation that a reader's file and each of its functions may take.
LIMIT = 60

SMALLER = "Take a small example, one sequence with two tokens, and compare line by line."


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


class TooLong(BaseException):
    """It computes for longer than LIMIT. No Exception, so that a reader's `except` lets it pass."""


@contextlib.contextmanager
def _limited():
    """Raise TooLong after LIMIT seconds of computation, where the system can do that.

    Waiting does not count, so that there is time in a debugger.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "SIGVTALRM")):
        yield
        return

    def stop(*_):
        raise TooLong

    handler = signal.signal(signal.SIGVTALRM, stop)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler or signal.SIG_DFL)


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
            return Verdict(False, f"It is no function but {_a(function)}.")
        try:
            with _limited():
                return self._checked(function)
        except TooLong as problem:
            words = f"It was stopped after {LIMIT} seconds: a loop in it does not end."
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
            words += _symptoms(checked, left, sizes)
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
        inputs = [x[::-1].copy() if kind(x) else x for x in inputs]
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
        if isinstance(returned, list) and not any(kind(result) for result in results):
            raise Trouble("It returns a list of numbers and not an array: use np.array(...).")
        if len(results) != len(shapes):
            raise Trouble(
                f"It returns {len(results)} result{'s' * (len(results) != 1)} and not "
                f"{len(shapes)}: its last line has to be `return {wanted}`."
            )
        named = dict(zip(shapes, results, strict=True))
        for name, result in named.items():
            if not isinstance(result, np.ndarray | np.generic):
                raise Trouble(f"Its {name} is {_a(result)} and not an array.")
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
        said = str(problem)
        if "gufunc" in said:
            said = "the shapes of a matrix product do not fit."
        words = f"It raises {type(problem).__name__}: {said}"
        place = self._place(function, problem)
        if not place:
            return f"{words}\n\nIt is called as {self.name}{inspect.signature(self.start)}."
        return "\n\n".join([words + place, *_advice(problem, function)])

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


def _a(thing: object) -> str:
    """The type of a thing with its article."""
    name = type(thing).__name__
    return f"a{'n' * (name[0] in 'aeio')} {name}"


def _advice(problem: BaseException, function: Callable) -> list[str]:
    """How to go on after an exception, where that can be said."""
    said = str(problem)
    if isinstance(problem, NameError):
        names = ", ".join(inspect.signature(function).parameters)
        return [
            "A name is misspelt, not imported, or has no value at this line yet. The function's "
            f"arguments are {names}."
        ]
    if "axes don't match" in said:
        return ["transpose(...) wants a number for each axis; swapaxes(-1, -2) exchanges two."]
    if not re.search("not be broadcast|core dimension|not aligned", said):
        return []
    advice = []
    if sizes := re.search(r"core dimension 0.*size (\d+) is different from (\d+)", said):
        advice.append(
            f"In `a @ b` the last axis of a, here {sizes[2]}, has to equal the last but one of b, "
            f"here {sizes[1]}."
        )
    elif "newaxis" in said:
        advice.append("In `a @ b` the axes before the last two, batch and heads, have to be equal.")
    advice.append(
        "A gradient has the shape of what it belongs to: say for each axis on that line whether "
        "the result keeps it or adds up over it."
    )
    return advice


def _of_other_shape(name: str, shape: tuple, shapes: dict) -> str:
    words = f"Its {name} has the shape {shape}, but a gradient has the shape of what it belongs to"
    words += f", and {name[1:]} is {shapes[name]}."
    if sorted(shape) == sorted(shapes[name]):
        return f"{words} Its axes stand in another order: a transpose is missing, or one too many."
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


def _symptoms(checked: GradientCheck, wrong: list[str], sizes: Sizes) -> list[str]:
    """How gradients differ, in numbers, where no known mistake explains it."""
    words, patterns = [], {}
    for name in wrong:
        explicit = checked.gradients[name[1:]]
        odd = np.argwhere(~np.isfinite(explicit))
        if len(odd):
            words.append(
                f"{name}: it holds NaN or infinity, first at {tuple(map(int, odd[0]))}. Look for a "
                "division by what can be 0, or an exponential that is too large."
            )
            continue
        _, numerical = checked.elementwise(name[1:], explicit.size)
        difference = abs(explicit - numerical)
        count = int((difference > 1e-6 * abs(numerical).max()).sum())
        if not count:
            words.append(
                f"{name}: it is right to a few digits only. Something is rounded on the way, as by "
                "float32."
            )
            continue
        worst = tuple(map(int, np.unravel_index(difference.argmax(), difference.shape)))
        words.append(
            f"{name}: {count} of {explicit.size} entries are wrong. The worst, at {worst}, is "
            f"{explicit[worst] + 0:.6g} and should be {numerical[worst] + 0:.6g}."
        )
        patterns.setdefault(_pattern(explicit, numerical, sizes), []).append(name)
    for pattern, names in patterns.items():
        words.append(f"{' and '.join(names)}: {pattern}" if len(wrong) > 1 else pattern)
    return words


def _pattern(explicit: np.ndarray, numerical: np.ndarray, sizes: Sizes) -> str:
    """What the numbers show without knowledge of the exercise, and how to go on."""

    def same(a, b):
        return np.isclose(a, b, rtol=1e-5, atol=1e-7 * abs(numerical).max())

    ratio = float((explicit * numerical).sum() / (numerical * numerical).sum())
    if same(explicit, 0).all():
        return "Every entry is 0: what was computed does not get into the result."
    if same(explicit, -numerical).all():
        return "Every entry has the wrong sign."
    if same(explicit, ratio * numerical).all():
        return (
            f"Every entry is {ratio:.6g} times what it should be{_of_size(ratio, sizes)}: a factor "
            "is missing, or one too many."
        )
    right = same(explicit, numerical)
    if same(numerical, 0)[~right].all():
        return f"Wrong are only entries that should be 0. {SMALLER}"
    for axis in range(explicit.ndim):
        sound = right.all(axis=tuple({*range(explicit.ndim)} - {axis}))
        if sound.any():
            places = ", ".join(map(str, np.flatnonzero(sound)))
            return f"All is right where the index of axis {axis} is {places}. {SMALLER}"
    return f"It is no pattern that the check knows. {SMALLER}"


def _of_size(ratio: float, sizes: Sizes) -> str:
    """A ratio as a power of a size; 2 is too often meant as 2."""
    called = {
        "B": "the number of sequences",
        "H": "the number of heads",
        "T": "the number of queries",
        "S": "the number of keys",
        "K": "d_k",
        "K_v": "d_v",
    }
    unsaid = np.isclose(abs(ratio), (2, 0.5), rtol=1e-6)
    forms = {"{}": 1, "1/{}": -1, "sqrt({})": 0.5, "1/sqrt({})": -0.5}
    for (name, words), (form, power) in itertools.product(called.items(), forms.items()):
        size = getattr(sizes, name)
        if not unsaid.any() and np.isclose(abs(ratio), size**power, rtol=1e-6):
            return f", which is {'-' * (ratio < 0)}{form.format(size)}, and {size} is {words} here"
    return ""


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
        with _limited():
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
    except TooLong:
        raise InputError(
            "FILE runs to its end",
            f"{path}, stopped after {LIMIT} seconds",
            "Look for a loop outside of its functions that does not end.",
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
