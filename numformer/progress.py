"""Bars on standard error that show the progress of a long computation."""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TextIO

from tqdm import tqdm

_BAR: ContextVar[tqdm | None] = ContextVar("bar", default=None)


def shows_bars(stream: TextIO | None) -> bool:
    """Whether a stream, None if closed, can show a moving bar: a terminal or a notebook can."""
    in_notebook = type(stream).__module__.startswith("ipykernel")
    return in_notebook or (stream is not None and stream.isatty())


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[None]:
    """Within the block, a bar counts what `advance` reports; it appears after a second."""
    disable = not shows_bars(sys.stderr)
    with tqdm(total=total, desc=what, delay=1, leave=False, disable=disable) as bar:
        token = _BAR.set(bar)
        try:
            yield
        finally:
            _BAR.reset(token)


def advance(count: int = 1) -> None:
    """Move the bar of the innermost `progress`, if there is one."""
    if (bar := _BAR.get()) is not None:
        bar.update(count)
