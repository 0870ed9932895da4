"""What tests of tasks share: every task by its name, one that is learned in no time, programs."""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

from numformer.layer import pack
from numformer.models import Model
from toy_tasks import TASKS, copy_task
from toy_tasks.data.trees import Tree, read_trees
from toy_tasks.text_to_text import sequences
from toy_tasks.text_to_text.sequences import SequenceTask

ROOT = str(Path(__file__).parents[2])
ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ROOT}
PAGES = {name: importlib.import_module(f"toy_tasks.{name}") for name in TASKS}
SHORT = dataclasses.replace(copy_task.RULE, draw_source=lambda rng: str(rng.integers(400)))
TINY = "--d-model 8 --d-ff 8 --heads 1 --layers 1 --batch-size 4 --no-plots"
RUN = f"{TINY} --steps 6 --evaluate-every 4 --log-every 2 --p-drop 0.1"


def main_of(name: str) -> Callable[[list[str]], int]:
    """The program of a task."""
    page = PAGES[name]
    return getattr(page, "main", None) or functools.partial(sequences.main, page.RULE)


PREPARE = SequenceTask.__init__


@functools.cache
def prepared(rule) -> dict:
    """The attributes of a task, whose sequences take long to draw."""
    with mock.patch.object(sequences, "HELD_OUT_SOURCES", 200):
        PREPARE(task := SequenceTask.__new__(SequenceTask), rule, 1, 1)
    return vars(task) | dict(development=task.development[:4], test=task.test[:4])


def prepare(task, rule, batch_size, seed):
    vars(task).update(prepared(rule) | dict(batch_size=batch_size, seed=seed))


def few_held_out():
    return mock.patch.object(SequenceTask, "__init__", prepare)


@contextlib.contextmanager
def interrupted_at(step: int, kind=SequenceTask):
    """Ctrl-C as a task of this kind draws the batch of a step."""

    def draw(task, at):
        if at == step:
            signal.raise_signal(signal.SIGINT)
        return batch(task, at)

    batch = kind.batch
    with mock.patch.object(kind, "batch", draw):
        yield


def copying(arguments: list[str]) -> int:
    """The copy task on short sequences, of which few are held out."""
    with few_held_out():
        return sequences.main(SHORT, arguments)


def program(name: str, *arguments, **options) -> subprocess.Popen:
    """Start `python -m toy_tasks.NAME` (or another module) on one core, with this folder's code."""
    module = name if "." in name else f"toy_tasks.{name}"
    command = [sys.executable, "-m", module, *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    return subprocess.Popen(command, env=ENVIRONMENT, **pipes | options)


def files_of(folder: str) -> dict[Path, bytes | bool]:
    """The content of each file, and False for each folder."""
    return {path: path.is_file() and path.read_bytes() for path in Path(folder).rglob("*")}


def assert_refused(result: tuple[int, list[str], list[str]], *words: str) -> None:
    """Exit code 2, and one line on standard error that holds `words`."""
    code, out, err = result
    assert (code, out, len(err)) == (2, [], 1)
    assert re.fullmatch(r"error: .+(; received .*\. .+\.?|--help lists the flags\))", err[0])
    for some in words:
        assert some in err[0]


def shaken(kind: type[Model], symbols: int, **form) -> Model:
    """A small model of texts in float64, its parameters shaken."""
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0, vocabulary=symbols)
    flat = pack(model := kind(kind.Config(**sizes, **form)), np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


def tree_of(text: str) -> Tree:
    """The only tree of a text."""
    Path("tree.mrg").write_text(text)
    (tree,) = read_trees(Path("tree.mrg"))
    return tree
