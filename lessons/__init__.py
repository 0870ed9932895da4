"""The course: fourteen lessons on the Transformer, forward and backward.

`python -m lessons` lists them; `lessons/README.md` says how one is written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import toy_tasks  # noqa: F401  # lets Ctrl-C end the program during the imports
from numformer.errors import InputError

if TYPE_CHECKING:
    from lessons.kit.exercise import Verdict

FOLDER = Path(__file__).resolve().parent  # scripts are looked up relative to it


@dataclass(frozen=True)
class Entry:
    """A lesson in the table of contents; `path` is None while it is to come."""

    number: int
    title: str
    question: str  # what it answers, in markdown

    @property
    def path(self) -> Path | None:
        return next(FOLDER.glob(f"lesson_{self.number:02d}_*.py"), None)

    @property
    def page(self) -> str:
        """The name of its page, "" while it is to come."""
        return f"{self.path.stem}.html" if self.path else ""

    @property
    def slides(self) -> str:
        """The name of the page with its slides."""
        return f"slides_{self.number:02d}.html"


COURSE = [
    Entry(1, "The recurrence bottleneck", "Why do recurrent networks forget?"),
    Entry(2, "Attention as a soft lookup", "What does it mean to look something up softly?"),
    Entry(3, "Scaled dot-product attention", r"Why divide by $\sqrt{d_k}$, and what flows back?"),
    Entry(4, "Multi-head attention", "Why look several times at once?"),
    Entry(5, "Position", "How does a model know what comes first?"),
    Entry(6, "The encoder block", "What stands around attention, and what is it for?"),
    Entry(7, "The decoder block", "How can a model learn to write without seeing the answer?"),
    Entry(8, "Training", "What do warm-up, Adam, smoothing and dropout do?"),
    Entry(9, "Backpropagation by hand", "How does the loss reach the first weight?"),
    Entry(10, "Generation", "How does a model choose its words?"),
    Entry(11, "Attention explorer", "What has a trained model learned to look at?"),
    Entry(12, "Connections", "What became of the Transformer?"),
    Entry(13, "Long sequences", "Must every word meet every other, and what does it cost?"),
    Entry(14, "Many machines", "How do many machines train one model, and what do they wait for?"),
]


def commands() -> dict[str, str]:
    """The command of each lesson, with its title, and those for all lessons."""
    lessons = {f"python -m lessons {entry.number}": entry.title for entry in COURSE if entry.path}
    return lessons | {
        "python -m lessons serve": "all of them as pages for a browser",
        "python -m lessons": "exercises, questions, progress, notebooks",
    }


def load(number: int) -> ModuleType:
    """The module of a lesson. Raises InputError if there is none, or none yet."""
    written = {entry.number: entry for entry in COURSE if entry.path}
    if number not in written:
        planned = type(number) is int and 1 <= number <= len(COURSE)
        raise InputError(
            "a lesson is named by its number, here " + ", ".join(map(str, written)),
            f"{number}, which is still to come" if planned else repr(number),
            "`python -m lessons` lists them.",
        )
    return importlib.import_module(f"lessons.{written[number].path.stem}")


def check(number: int, function: Callable) -> Verdict:
    """Check a function that you wrote for an exercise, in a notebook for example:

        lessons.check(3, softmax_backward)

    The result says whether it is `right`, and in `words` why it is not. Raises InputError if the
    lesson has no exercise of this name.
    """
    exercises = {exercise.name: exercise for exercise in load(number).EXERCISES}
    name = getattr(function, "__name__", function)
    if name not in exercises:
        raise InputError(
            f"the functions of lesson {number}'s exercises are {', '.join(exercises)}",
            name,
            "Give yours one of these names.",
        )
    return exercises[name].check(function)
