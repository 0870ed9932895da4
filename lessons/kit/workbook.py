"""A reader's folder: for each lesson the file that `python -m lessons start` writes.

Each exercise has a cell in its file, from the line `# %% NAME` to the next such line. The editor on
a page shows the cell without the task. `check` and `progress` read what the editor writes.
"""

import contextlib
import functools
import hashlib
import json
import re
import threading
from pathlib import Path

from lessons import COURSE, load
from lessons.kit.exercise import Exercise
from lessons.kit.reader_file import starter
from numformer.errors import InputError
from numformer.runs.checkpoints import write_atomically

CHECKED = ".checked.json"  # the file with the verdicts of the last checks


class Workbook:
    """A folder of files whose cells the pages read and write, with the latest verdict on each."""

    def __init__(self, folder: Path):
        self.folder, self._lock = folder, threading.Lock()
        self.lessons = {
            entry.number: load(entry.number).EXERCISES for entry in COURSE if entry.path
        }
        self.exercises = {e.name: e for exercises in self.lessons.values() for e in exercises}

    def file(self, lesson: int) -> Path:
        return self.folder / f"lesson_{lesson:02d}.py"

    def text(self, lesson: int) -> str:
        """The text of a lesson's file, or of a new one; cells that it lacks are added.

        Raises InputError if it cannot be read.
        """
        file, exercises = self.file(lesson), self.lessons[lesson]
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            text = _beginning(lesson)
        except (OSError, ValueError) as problem:
            rule, fix = f"{file} is a text in UTF-8", "Save it as one, or move it elsewhere."
            raise InputError(rule, getattr(problem, "strerror", None) or "another", fix) from None
        for exercise in exercises:
            if not re.search(rf"(?m)^# %% {exercise.name}$", text):
                text = f"{text.rstrip()}\n\n\n# %% {exercise.name}\n\n\n{exercise.code}"
        return f"{text.rstrip()}\n"

    def span(self, exercise: Exercise, text: str) -> tuple[int, int]:
        """Where the code of an exercise begins and ends in the text of its file."""
        names = "|".join(other.name for other in self.lessons[exercise.lesson])
        head = rf"^# %% {exercise.name}\n(?:#(?! %%)[^\n]*\n)*\n*"  # with the task
        return re.search(rf"(?ms){head}(.*?)\s*(?=^# %% (?:{names})$|\Z)", text).span(1)

    def save(self, name: str, before: str, code: str) -> str:
        """Replace the code of an exercise -> the text of its file.

        Raises InputError if the file does not hold the code `before`, or cannot be written.
        """
        exercise = self.exercises[name]
        with self._lock:
            file, text = self.file(exercise.lesson), self.text(exercise.lesson)
            begin, end = self.span(exercise, text)
            if text[begin:end] != _trimmed(before):
                raise InputError(
                    "only one page or program changes a file at a time",
                    f"{name}, which has changed in {file} since this page read it",
                    "Copy what you need from here, and load the page again.",
                )
            parts = text[:begin].rstrip("\n"), _trimmed(code), text[end:].strip("\n")
            text = "\n\n\n".join(filter(None, parts)) + "\n"
            self._write(file, text)
            return text

    def note(self, name: str, code: str, right: bool) -> None:
        """Keep the verdict on the code of an exercise."""
        with self._lock:
            verdicts = self._verdicts() | {name: [_digest(code), right]}
            self._write(self.folder / CHECKED, json.dumps(verdicts, indent=0, sort_keys=True))

    def lines(self, lesson: int) -> dict[str, int]:
        """The line at which the code of each exercise begins in the file of a lesson."""
        text = self.text(lesson)
        exercises = self.lessons[lesson]
        return {e.name: text.count("\n", 0, self.span(e, text)[0]) + 1 for e in exercises}

    def contents(self) -> dict[str, dict]:
        """The code of each exercise, its page, file and first line, and whether it is solved.

        An exercise whose code has changed since it was checked is neither solved nor wrong: None.
        """
        found, verdicts = {}, self._verdicts()
        for number, exercises in self.lessons.items():
            text, lines = self.text(number), self.lines(number)
            for exercise in exercises:
                code = text[slice(*self.span(exercise, text))]
                digest, right = verdicts.get(exercise.name, ("", None))
                found[exercise.name] = {
                    "page": COURSE[number - 1].page,
                    "file": str(self.file(number)),
                    "code": code,
                    "line": lines[exercise.name],
                    "right": right if digest == _digest(code) else None,
                }
        return found

    def _verdicts(self) -> dict[str, list]:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / CHECKED).read_text(encoding="utf-8"))
        return {}

    def _write(self, file: Path, text: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())
        except OSError as problem:
            rule = "--exercises is a folder to write in"
            raise InputError(rule, f"{file} ({problem.strerror})", "Choose another.") from None


@functools.cache
def _beginning(lesson: int) -> str:
    return starter(f"lesson {lesson}, {COURSE[lesson - 1].title}", load(lesson).EXERCISES)


def _trimmed(code: str) -> str:
    return code.strip("\n").rstrip()


def _digest(code: str) -> str:
    return hashlib.sha256(_trimmed(code).encode()).hexdigest()
