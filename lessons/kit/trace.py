"""Run a function of the library and write down what each of its lines does.

Simulations show the library's own lines with the numbers that these lines made, so what a page
says and what the library computes cannot drift apart.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lessons.kit import recorded
from numformer.errors import InputError


@dataclass
class Line:
    """A source line as it ran: the local arrays after it, and the value if it returned one."""

    function: str
    text: str
    comment: str
    after: dict[str, np.ndarray] = field(default_factory=dict)
    value: Any = None


def trace(function: Callable, *arguments, into: Iterable[Callable] = ()) -> list[Line]:
    """function(*arguments) -> the lines that it ran, in order, with those of functions in `into`.

    The first line of each function is its `def`, after which it has its arguments. Arrays are
    copies, made as the line ends. Whatever traced this thread before (coverage, a debugger) goes
    on after.
    """
    functions = map(inspect.unwrap, (function, *into))
    sources = {traced.__code__: source_lines(traced) for traced in functions}
    lines: list[Line] = []

    def enter(frame, event, argument):
        if frame.f_code not in sources:
            return None
        texts = sources[frame.f_code]
        name = frame.f_code.co_name
        current = Line(name, *texts[min(texts)])
        lines.append(current)

        def step(frame, event, argument):
            nonlocal current
            current.after = arrays(frame.f_locals)
            if event == "return":
                current.value = argument
            elif event == "line":
                current = Line(name, *texts[frame.f_lineno])
                lines.append(current)
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return lines


@functools.cache
def source_lines(function: Callable) -> dict[int, tuple[str, str]]:
    """The lines of a function from its `def` on, by number: code and comment, not indented."""
    source, first = inspect.getsourcelines(function)
    parts = [[part.strip() for part in line.partition("  # ")] for line in source]
    head = next(n for n, (code, _, _) in enumerate(parts) if not code.startswith("@"))
    return {first + n: (code, note) for n, (code, _, note) in enumerate(parts) if n >= head}


def arrays(variables: dict[str, Any]) -> dict[str, np.ndarray]:
    """Copies of the arrays among variables."""
    kinds = np.ndarray, recorded.ndarray
    return {name: x.copy() for name, x in variables.items() if isinstance(x, kinds)}


def find(lines: Iterable[Line], function: str, begins: str) -> Line:
    """The line of `function` whose text begins with `begins`.

    Raises InputError if it did not run or is no longer there: a page that shows it would lie.
    """
    for line in lines:
        if line.function == function and line.text.startswith(begins):
            return line
    raise InputError(
        f"a line that a simulation shows is one that {function} runs",
        f"{begins!r}, which is none of them",
        "Name the line as it stands in the library now.",
    )
