"""A reader's file or notebook: how it begins, and its functions, run within a time limit."""

import contextlib
import copy
import ctypes
import inspect
import json
import linecache
import os
import re
import sys
import textwrap
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lessons.kit.lesson import plain
from numformer.backend import dtype_kind
from numformer.errors import InputError

IMPORTS = "import math\n\nimport numpy as np\n"  # how it begins
LIBRARY = "numformer", "toy_tasks", "lessons"  # packages
LIMIT = 10  # seconds, for the file and for each call of its functions
DEBUGGERS = "bdb", "_pydevd"  # how the names of their modules begin


class TooLong(BaseException):
    """Code goes on after LIMIT. Not an Exception: a reader's `except Exception` lets it pass."""

    def __str__(self):
        return f"stopped after {LIMIT} seconds"


class Trouble(Exception):
    """A function gives no results that can be compared."""


@contextlib.contextmanager
def limited(file: str):
    """Raise TooLong if the code of a file runs for more than LIMIT seconds.

    If it goes on all the same, as after a bare `except:` or in input(), no exception can end it:
    then the program names the line and ends. In a debugger there is no limit.
    """
    thread, end, errors = threading.get_ident(), threading.Event(), []
    caller = sys._getframe(2)  # past the frame of contextlib

    def watch():
        while not end.wait(LIMIT):
            frames = [frame for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]
            modules = [str(frame.f_globals.get("__name__")) for frame in frames]
            if caller not in frames:
                return
            if any(module.startswith(DEBUGGERS) for module in modules):
                continue
            if errors:
                _end(file, frames)
            errors.append(TooLong())
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(TooLong)
            )

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        for _ in range(2):  # a second time, if TooLong is raised only in here
            with contextlib.suppress(TooLong):
                end.set()
                watcher.join()
    if errors:  # the code caught TooLong, and then ended
        raise errors[0]


def _end(file: str, frames: list) -> None:
    """Name the line at which a file goes on after TooLong, and end the program."""
    own = [frame for frame in frames if frame.f_code.co_filename == file]
    place = f"{file}, line {own[0].f_lineno} in {own[0].f_code.co_name}" if own else file
    complaint = InputError(
        "a function ends",
        f"{place}: {TooLong()}, and it goes on",
        "Look for a loop, for a call that waits, and for a bare `except:`; name the error, as in "
        "`except ValueError:`.",
    )
    try:
        sys.__stdout__.flush()
        print(f"error: {complaint}", file=sys.__stderr__, flush=True)
    finally:
        os._exit(2)


def starter(title: str, exercises: Sequence, solved: bool = False) -> str:
    """The file that a reader begins with; if `solved`, the solutions with notes, for teachers."""
    parts = [f'"""Exercises: {title}\n\nCheck them: {exercises[0].command}\n"""\n']
    parts.append(IMPORTS)
    for number, exercise in enumerate(exercises, 1):
        task = f"%% {exercise.name}\n{number}. {exercise.title}\n\n{plain(exercise.task)}"
        parts.append("\n" + textwrap.indent(task, "# ", lambda _: True).replace("# \n", "#\n"))
        parts.append(f"\n\n{exercise.solved if solved else exercise.code}")
    return "\n".join(parts)


def solutions(path: Path, exercises: Sequence, text: str | None = None) -> dict[str, object]:
    """A reader's solutions and other functions by name, from a file or a `text` instead of it.

    A file that neither contains these names nor imports `*` is not run. The library's own functions
    do not count, though a lesson's notebook imports some of them. Raises InputError if a file
    cannot be read or run.
    """
    rule = "FILE is a Python file or a notebook with functions of the exercises"
    fix = f"`python -m lessons start {exercises[0].lesson} FILE` writes one to begin with."
    try:
        content = path.read_bytes() if text is None else text
        if path.suffix == ".ipynb":
            content = cells(content)
        if isinstance(content, str):  # messages look up here the lines that they quote
            linecache.cache[str(path)] = len(content), None, content.splitlines(True), str(path)
        code = compile(content, str(path), "exec")
    except OSError as problem:
        raise InputError(rule, f"{path} ({problem.strerror})", fix) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        line = getattr(problem, "lineno", None)
        place = f"{path}, line {line}" if line else path
        what = getattr(problem, "msg", problem)
        raise InputError(
            "FILE is a Python file or a notebook",
            f"{place}: {what}",
            "Mend that line first." if line else fix,
        ) from None
    wanted = {exercise.name for exercise in exercises}
    imports_all = ("*",) in code.co_consts  # a constant of `from x import *`
    if not imports_all and not wanted & {*code.co_names}:
        return {}
    # As with `python FILE`, modules beside the file can be imported.
    paths = sys.path[:]
    sys.path.insert(0, str(path.resolve().parent))
    # Parts of the standard library look up a class's module by its name.
    module = types.ModuleType("a_readers_solutions")
    module.__file__ = str(path)
    names = vars(module)
    sys.modules[module.__name__] = module
    try:
        with limited(str(path)):
            exec(code, names)
    except KeyboardInterrupt:
        raise
    except TooLong as problem:
        raise InputError(
            "FILE runs to its end",
            f"{path}, {problem}",
            "Look outside of its functions for a loop that does not end.",
        ) from None
    except BaseException as problem:  # whatever a file does as it is run
        lines = [
            line
            for frame, line in traceback.walk_tb(problem.__traceback__)
            if frame.f_code.co_filename == str(path)
        ]
        place = f"{path}, line {lines[-1]}" if lines else path
        raise InputError(
            "FILE runs without an error",
            f"{place}: {type(problem).__name__}: {message(problem)}",
            "Mend that line first.",
        ) from None
    finally:
        sys.path[:] = paths
    found = {n: value for n, value in names.items() if n in wanted or inspect.isfunction(value)}
    modules = {name: str(getattr(value, "__module__", "")) for name, value in found.items()}
    return {n: value for n, value in found.items() if modules[n].partition(".")[0] not in LIBRARY}


def cells(notebook: bytes) -> str:
    """The code of a notebook's cells, without IPython and shell commands and without checks.

    Raises SyntaxError for a file that is no notebook.
    """
    try:
        code = [
            "".join(cell["source"])
            for cell in json.loads(notebook)["cells"]
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError):
        raise SyntaxError("it holds no cells of a notebook") from None
    other_languages = r"%%(?!time|capture|prun)"
    python = (cell for cell in code if not re.match(other_languages, cell))
    # An indented % may continue an expression. Checks would use up the time limit of the file.
    return re.sub(r"(?m)^([%!?].*|[\w.]+\?+|lessons\.check\(.*)$", "pass", "\n".join(python))


def results_of(function: Callable, start: Callable, right: dict, arguments: Sequence) -> dict:
    """The results of a reader's function by name, copied.

    `start` has its name and parameters, `right` has results with the right names and shapes. Raises
    Trouble if the function raises something, or returns something that cannot be compared.
    """
    copies, shapes = copy.deepcopy(arguments), {name: x.shape for name, x in right.items()}
    try:
        with limited(file_of(function)):
            returned = function(*copies)
    except (KeyboardInterrupt, TooLong):
        raise
    except BaseException as problem:  # whatever a reader's function does
        raise Trouble(_raised(function, start, problem)) from None
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
                f"Its {name} is of {result.dtype}, but the arguments are of float64: a formula "
                "keeps the type of its arguments."
            )
    names = inspect.signature(start).parameters
    for name, before, after in zip(names, arguments, copies, strict=True):
        if not np.array_equal(before, after):
            raise Trouble(
                f"It writes into its argument {name}, which is still needed: forward's arrays "
                "belong to the caller. Look for `+=`, `-=`, `*=`, `/=`, `out=` and "
                "`[...] =` and compute into a new array."
            )
    return {name: np.array(result) for name, result in named.items()}


def _raised(function: Callable, start: Callable, problem: BaseException) -> str:
    """What was raised, on which of the reader's lines, and with which arrays."""
    frames = [*traceback.walk_tb(problem.__traceback__)]
    if isinstance(problem, NotImplementedError):
        name = frames[-1][0].f_code.co_name
        also = "" if name == start.__name__ else f"It calls {name}, which is n"
        return f"{also or 'N'}ot written yet."
    cause = message(problem)
    if "gufunc" in cause:
        cause = "the shapes of a matrix product do not fit."
    words = f"It raises {type(problem).__name__}: {cause}"
    line = place(function, problem)
    if not line:
        return f"{words}\n\nIt is called as {start.__name__}{inspect.signature(start)}."
    return "\n\n".join([words + line, *advice(problem, function)])


def place(function: Callable, problem: BaseException) -> str:
    """The reader's line on which something was raised, with the shapes of its arrays."""
    file = file_of(function)
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


def file_of(function: Callable) -> str:
    """The file that a function is written in; "" if it is not written in Python."""
    return getattr(getattr(function, "__code__", None), "co_filename", "")


def a_thing(thing: object) -> str:
    """The type of a thing with its article."""
    name = type(thing).__name__
    return f"a{'n' * (name[0] in 'aeio')} {name}"


def message(problem: BaseException) -> str:
    """What an exception says, in one line."""
    try:
        return " ".join(str(problem).split())[:300]
    except Exception:  # a reader's own exception may fail to give its words
        return ""


def advice(problem: BaseException, function: Callable) -> list[str]:
    """How to go on after an exception, if that can be said."""
    cause = message(problem)
    if isinstance(problem, NameError):
        names = ", ".join(inspect.signature(function).parameters)
        return [
            "A name is misspelt, not imported, or has no value at this line yet. The function's "
            f"arguments are {names}."
        ]
    if "axes don't match" in cause:
        return ["transpose(...) wants a number for each axis; swapaxes(-1, -2) exchanges two."]
    if "1- or 2-d" in cause:
        return ["That function takes one row or one matrix; here an array has more axes."]
    if "remapped" in cause and "requested shape" not in cause:  # by einsum, not by a @ b
        return ["In einsum a letter has one size: write the letters beside the axes of each shape."]
    if not re.search("not be broadcast|core dimension|not aligned", cause):
        return []
    advice = []
    if sizes := re.search(r"core dimension 0.*size (\d+) is different from (\d+)", cause):
        advice.append(
            f"In `a @ b` the last axis of a, here {sizes[2]}, has to equal the last but one of b, "
            f"here {sizes[1]}."
        )
    elif "newaxis" in cause:
        advice.append("In `a @ b` the axes before the last two have to be equal, or 1.")
    advice.append(
        "A gradient has the shape of its array: for each axis on that line, say whether "
        "the result keeps it or adds up over it."
    )
    return advice


def of_other_shape(name: str, shape: tuple, shapes: dict) -> str:
    words = f"Its {name} has the shape {shape}"
    if name.startswith("d"):
        words += ", but a gradient has the shape of its array"
        words += f", and {name[1:]} is {shapes[name]}."
    else:
        words += f" instead of {shapes[name]}."
    if sorted(shape) == sorted(shapes[name]):
        return (
            f"{words} Its axes are in another order: a transpose is missing, or there is one too "
            "many."
        )
    owners = [other for other, of_other in shapes.items() if of_other == shape]
    if owners:
        words += (
            f" That is the shape of {owners[0]}: are the results in the order {', '.join(shapes)}, "
            "and does its product add up over the right axis?"
        )
    return words
