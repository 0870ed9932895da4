"""Models that take minutes to train, for lessons that show what they do.

`python -m lessons.train` trains them once, into the user's cache. A lesson shows only a few numbers
about them: the lesson's `measured.py` measures these, `measured.json` beside it keeps them, and the
pages are built from that file, without training.
"""

import functools
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import lessons
from numformer import Trained, load
from numformer.errors import InputError
from numformer.runs.files import cache_folder

CACHE = cache_folder() / "lessons"


@dataclass(frozen=True)
class TaskRun:
    """A run of a toy task, `python -m toy_tasks.TASK FLAGS`; `minutes` on two cores."""

    task: str
    flags: str
    minutes: float
    needs_data: bool = False  # which the task downloads, or --data names

    def arguments(self, out: Path, data: Path | None) -> list[str]:
        given = ["--data", str(data)] if data and self.needs_data else []
        again = ["--resume"] if (out / "config.json").is_file() else []
        return [*self.flags.split(), *given, *again, "--out", str(out)]


MODELS = {
    "translator": TaskRun("translate", "--preset minutes --seed 1", 8, needs_data=True),
    "small_translator": TaskRun(
        "translate",
        "--vocabulary 2000 --d-model 80 --d-ff 160 --layers 3 --positions sinusoidal "
        "--steps 5000 --evaluate-every 1000 --seed 1",
        5,
        needs_data=True,
    ),
    "averaged": TaskRun(
        "translate",
        "--seed 2 --steps 1600 --warmup 500 --factor 1 --decay inverse_sqrt --evaluate-every 100 "
        "--average 5",
        3,
        needs_data=True,
    ),
}


def folder(name: str) -> Path:
    """Where the run of a model is kept."""
    return CACHE / name


def missing(names: list[str]) -> list[str]:
    """The names of those models that are not trained to the end."""
    return [name for name in names if not (folder(name) / DONE).is_file()]


DONE = "trained"
"""The name of the file that marks a finished run."""


@functools.cache
def model(name: str) -> Trained:
    """A trained model. Raises InputError where there is none yet."""
    if missing([name]):
        rule = f"the model {name} is trained once, by python -m lessons.train"
        raise InputError(rule, f"no finished run in {folder(name)}", "Train it.")
    return load(folder(name))


def measuring() -> list[ModuleType]:
    """The module `measured` of each lesson that has one; it has MODELS and `measure()`."""
    files = sorted(lessons.FOLDER.glob("lesson_*/measured.py"))
    return [importlib.import_module(f"lessons.{path.parent.name}.measured") for path in files]


def stored(module: ModuleType) -> Path:
    """The file that keeps what a module measured."""
    return Path(str(module.__file__)).with_suffix(".json")


@functools.cache
def measured(lesson: int) -> dict[str, Any]:
    """The stored measurements of a lesson."""
    path = lessons.FOLDER / f"lesson_{lesson:02d}" / "measured.json"
    return json.loads(path.read_text(encoding="utf-8"))["measured"]
