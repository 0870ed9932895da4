"""A reader's file: what it begins with, the functions in it, and how long they may compute."""

import contextlib
import signal
import sys
import textwrap
import threading
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

from lessons.explanations import told
from lessons.lesson import plain
from numformer.errors import InputError

LIMIT = 60  # seconds of computation that a file and each of its functions may take


class TooLong(BaseException):
    """It computes for longer than LIMIT. No Exception, so that a reader's `except` lets it pass."""


@contextlib.contextmanager
def limited():
    """Raise TooLong after LIMIT seconds of computation, where the system can do that.

    Waiting does not count, so that there is time in a debugger.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "SIGVTALRM")):
        yield
        return

    def stop(*_):
        raise TooLong(f"stopped after {LIMIT} seconds")

    handler = signal.signal(signal.SIGVTALRM, stop)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler or signal.SIG_DFL)


def starter(title: str, exercises: Sequence) -> str:
    """The file that a reader begins with."""
    parts = [f'"""Exercises: {title}\n\nCheck them: {exercises[0].command}\n"""\n']
    parts.append("import math\n\nimport numpy as np\n")
    for number, exercise in enumerate(exercises, 1):
        told = f"{number}. {exercise.title}\n\n{plain(exercise.task)}"
        parts.append("\n" + textwrap.indent(told, "# ", lambda _: True).replace("# \n", "#\n"))
        parts.append(f"\n\n{exercise.code}")
    return "\n".join(parts)


def solutions(path: Path, exercises: Sequence) -> dict[str, object]:
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
    # Some of the standard library looks a class's module up by its name.
    module = types.ModuleType("a_readers_solutions")
    module.__file__ = str(path)
    names = vars(module)
    sys.modules[module.__name__] = module
    try:
        with limited():
            exec(code, names)
    except KeyboardInterrupt:
        raise
    except TooLong as problem:
        raise InputError(
            "FILE runs to its end",
            f"{path}, {problem}",
            "Look for a loop outside of its functions that does not end.",
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
            f"{place}: {type(problem).__name__}: {told(problem)}",
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
