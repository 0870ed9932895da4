"""What a lesson shows: tables, pictures, the library's own lines, simulations.

Every piece can show itself in three places: `text()` in a terminal, `html(page)` on a page, and
in a notebook, which asks for `_repr_html_`.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PICTURES = Path("runs/lessons")  # where there is no window


class Piece:
    """Something that a lesson shows."""

    def text(self) -> str:
        raise NotImplementedError

    def html(self, page) -> str:
        """For a page: `page.markdown(text)` and `page.code(python)` give HTML."""
        raise NotImplementedError


def show(function: Callable[[], Piece | Iterable[Piece]]) -> Callable:
    """Mark a function of a lesson: what it returns is shown where it is defined.

    An import only defines it. In a script or a notebook, where the lesson is `__main__`, it runs
    at once.
    """
    function.shown = True
    if function.__module__ == "__main__":
        for piece in pieces(function):
            if "get_ipython" in function.__globals__:
                function.__globals__["display"](piece)
            else:
                print(piece.text(), end="\n\n")
    return function
