"""Lessons as files: cells of Markdown (`# %% [markdown]`) and of code (`# %%`)."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson: its lines `first` to `last`, counted from 1."""

    is_markdown: bool
    text: str
    first: int
    last: int

    def shown(self, module: ModuleType) -> list[Callable]:
        """The functions of this cell that are marked to be shown, in order."""
        marked = [value for value in vars(module).values() if getattr(value, "shown", False)]
        line = {function: function.__code__.co_firstlineno for function in marked}
        here = [function for function in marked if self.first <= line[function] <= self.last]
        return sorted(here, key=line.get)


def cells(path: Path) -> list[Cell]:
    """The cells of a lesson in percent format. Raises ValueError if a text line lacks its #."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    found = []
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        is_markdown = "[markdown]" in lines[start]
        body = lines[start + 1 : stop]
        if is_markdown:
            odd = [line for line in body if line.strip() and not re.match(r"#( |$)", line)]
            if odd:
                raise ValueError(f"{path.name}: a Markdown line begins with '# ', not {odd[0]!r}")
            body = [line[2:] for line in body]
        found.append(Cell(is_markdown, "\n".join(body).strip("\n"), start + 1, stop))
    return found


@contextlib.contextmanager
def naming(place: object) -> Iterator[None]:
    """Raise an error in the code as a RuntimeError that names the lesson or the example."""
    try:
        yield
    except Exception as problem:
        raise RuntimeError(f"{place}: {type(problem).__name__}: {problem}") from problem
