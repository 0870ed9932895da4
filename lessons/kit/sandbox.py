"""A process that checks one exercise, with limits of time and memory.

The limits end accidents: an endless loop, an endless list, a fork in a loop. They do not hold back
a program that means harm, because a reader's code may do all that the reader may do.
"""

import ast
import contextlib
import io
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import lessons
from lessons.kit.exercise import called_names, verdicts
from lessons.kit.reader_file import solutions
from numformer.errors import InputError

TIME = 30  # seconds that a check may take
MEMORY = 2 << 30  # bytes that the code may use beyond those of an idle process
PRINTED = 10_000  # characters of output that are kept
SIZE = 10 << 20  # bytes of the largest file that the code may write
PROCESSES = "os.exec os.fork os.forkpty os.posix_spawn os.spawn os.startfile os.system".split()
PROCESSES += ["pty.spawn", "subprocess.Popen", "_winapi.CreateProcess"]  # events of Python's audit

# Where processes are forked, from one that has imported all this, a check begins at once.
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT = multiprocessing.get_context(METHOD)
CONTEXT.set_forkserver_preload(
    [__name__, *(f"lessons.{entry.path.stem}" for entry in lessons.COURSE if entry.path)]
)


def prepare() -> None:
    """Start the process that forks now, so that the first check need not wait for it."""
    if METHOD == "forkserver":
        import multiprocessing.forkserver

        multiprocessing.forkserver.ensure_running()


def check(file: Path, text: str, lesson: int, name: str) -> dict:
    """Check an exercise in the `text` of a file, in a process of its own that ends within TIME.

    Returns `right`; `words`, the checker's message; `marks`, whether lines of the file are right;
    and `printed`, what the code printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        reply, last_words = Path(folder, "reply"), Path(folder, "last_words")
        arguments = file, text, lesson, name, reply, last_words
        process = CONTEXT.Process(target=_answer, args=arguments, daemon=True)
        process.start()
        process.join(TIME)
        in_time = process.exitcode is not None
        if hasattr(os, "killpg"):  # also what the process has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        with contextlib.suppress(OSError, ValueError):
            return json.loads(reply.read_text(encoding="utf-8"))
        words = f"It was stopped after {TIME} seconds."
        if in_time:
            words = f"Python ended while it ran your code, with exit code {process.exitcode}."
        with contextlib.suppress(OSError):
            words = last_words.read_text(encoding="utf-8").removeprefix("error: ") or words
    return {"right": False, "words": words, "marks": _marked(words), "printed": ""}


def verdict(file: Path, text: str, lesson: int, name: str) -> dict:
    """Check an exercise in this process, without limits -> `check`'s reply without `printed`."""
    exercises, text = lessons.load(lesson).EXERCISES, _without_broken_cells(text, name)
    try:
        functions = solutions(file, exercises, text)
    except InputError as problem:
        return {"right": False, "words": str(problem), "marks": _marked(str(problem))}
    if name not in functions:
        return {"right": False, "words": f"It defines no function {name}.", "marks": {}}
    wanted = {name, *called_names(functions[name])}
    needed = [exercise for exercise in exercises if exercise.name in wanted]
    answer = {exercise.name: verdict for exercise, verdict in verdicts(needed, functions)}[name]
    marks = _results(text, name, answer.results) or _marked(answer.words)
    return {"right": answer.right, "words": answer.words, "marks": marks}


def _without_broken_cells(text: str, name: str) -> str:
    """Replace cells that are not valid Python by empty lines, except the cell of this exercise."""

    def whole(cell: str) -> str:
        if not cell.startswith(f"# %% {name}\n"):
            try:
                compile(cell, "", "exec")
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return "\n" * cell.count("\n")
        return cell

    return "".join(map(whole, re.split(r"(?m)^(?=# %% )", text)))


def _marked(words: str) -> dict[int, list]:
    """A mark for the line that the words name, if they name one."""
    line = re.search(r"\bline (\d+)", words)
    return {int(line[1]): [False, ""]} if line else {}


def _results(text: str, name: str, results: Mapping[str, bool]) -> dict[int, list]:
    """The lines that compute the results of a function -> whether the result is right, its name."""
    found: dict[int, list] = {}
    functions = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    nodes = [*ast.walk(functions[-1])] if functions and results else []
    returns = [node.value for node in nodes if isinstance(node, ast.Return)]
    for value in returns[-1:]:
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
        for (result, right), node in zip(results.items(), values, strict=False):
            line = node.lineno
            if isinstance(node, ast.Name):
                stored = (n for n in nodes if isinstance(n, ast.Name) and n.id == node.id)
                lines = [n.lineno for n in stored if isinstance(n.ctx, ast.Store)]
                line = max(lines, default=line)
            all_right, names = found.get(line, (True, ""))
            found[line] = [all_right and right, f"{names} {result}".strip()]
    return found


class _Printed(io.StringIO):
    """Standard output that keeps its first PRINTED characters."""

    def write(self, text: str) -> int:
        super().write(text[: max(0, PRINTED - self.tell())])
        return len(text)


def _answer(file: Path, text: str, lesson: int, name: str, reply: Path, last_words: Path) -> None:
    """Run in the new process: set the limits, check the exercise, write the reply."""
    _limit()
    # `limited` writes there before it ends the process.
    sys.__stderr__ = last_words.open("w", encoding="utf-8", newline="\n")  # type: ignore[misc]
    sys.stdout = sys.stderr = printed = _Printed()
    answer = verdict(file, text, lesson, name) | {"printed": printed.getvalue()}
    whole = reply.with_name("whole")
    whole.write_text(json.dumps(answer), encoding="utf-8", newline="\n")
    whole.rename(reply)
    os._exit(0)  # threads that still run are not waited for


def _limit() -> None:
    """Put this process into a group of its own, with limits, and let it start no other."""
    if sys.platform != "win32":
        import resource

        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (TIME, TIME))
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, SIZE))
        with contextlib.suppress(OSError):  # no /proc: not Linux
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            most = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def refuse(event: str, _: object) -> None:
        if event in PROCESSES:
            raise PermissionError("an exercise starts no other process.")

    sys.addaudithook(refuse)
