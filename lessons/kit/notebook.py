"""Notebooks: a lesson as cells that can be run, and its exercises with a cell that checks each."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from lessons.kit.percent import cells
from lessons.kit.reader_file import IMPORTS

Cell = tuple[str, str, dict]
"""The kind of a cell ("markdown" or "code"), its text and its metadata."""
FOLDED = {"jupyter": {"source_hidden": True}}
"""The metadata of a cell whose code is hidden until a reader unfolds it."""


def notebook(contents: Iterable[Cell]) -> str:
    """The JSON text of a notebook with these cells."""
    outputs: dict[str, dict] = {"code": {"execution_count": None, "outputs": []}, "markdown": {}}
    return json.dumps(
        {
            "cells": [
                {"cell_type": kind, "id": f"cell-{n}", "metadata": metadata, "source": text}
                | outputs[kind]
                for n, (kind, text, metadata) in enumerate(contents)
            ],
            "metadata": {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        indent=1,
        ensure_ascii=False,
    )


def exercise_cells(exercises: Sequence, solved: bool = False) -> list[Cell]:
    """For each exercise its task, the code to fill in, and a cell that checks it."""
    contents: list[Cell] = []
    for number, exercise in enumerate(exercises, 1):
        code = exercise.solved if solved else exercise.code
        contents += [
            ("markdown", f"## {number}. {exercise.title}\n\n{exercise.task}", {}),
            ("code", code.rstrip(), {}),
            ("code", f"lessons.check({exercise.lesson}, {exercise.name})", {}),
        ]
    return contents


def exercise_notebook(title: str, exercises: Sequence, solved: bool = False) -> str:
    """The notebook of a lesson's exercises; one that is `solved` is for teachers."""
    head: list[Cell] = [
        ("markdown", f"# Exercises: {title}", {}),
        ("code", f"{IMPORTS}\nimport lessons", {}),
    ]
    return notebook([*head, *exercise_cells(exercises, solved)])


def lesson_notebook(module: ModuleType) -> str:
    """A lesson as a notebook: its text, its code and its exercises.

    The code of a cell that shows something is folded, as on the lesson's page. The exercises come
    last, because one of their functions may have the same name as one that the lesson uses.
    """
    contents: list[Cell] = []
    for cell in cells(Path(str(module.__file__))):
        shown = [function.__name__ for function in cell.shown(module)]
        if cell.text.startswith("## Exercises"):
            contents.append(
                ("markdown", "## Exercises\n\nThey are at the end of this notebook.", {})
            )
        elif cell.is_markdown:
            contents.append(("markdown", linked(cell.text), {}))
        elif shown != ["exercises"]:
            contents.append(("code", cell.text, FOLDED if shown else {}))
    words = "# Your turn\n\nFill in a function, run its cell, and check it with the cell below."
    contents += [("markdown", words, {}), ("code", f"{IMPORTS}\nimport lessons", {})]
    return notebook([*contents, *exercise_cells(module.EXERCISES)])


def linked(markdown: str) -> str:
    """Text whose links to lessons lead to notebooks, without links to the course's other pages."""
    markdown = re.sub(r"\((lesson_\w+)\.html(#[^)]*)?\)", r"(\1.ipynb)", markdown)
    return re.sub(r"\[([^]]*)\]\((#|\w+\.html)[^)]*\)", r"\1", markdown)
