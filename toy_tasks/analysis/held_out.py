"""Data that a trained model never saw: the held-out data of its own run, or the data of a file."""

import argparse
import contextlib
import importlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from numformer.data import Batch, PairBatch, Vocabulary
from numformer.data.moses import tokenize
from numformer.errors import InputError
from numformer.generation import Infilling, Transduction, Translation
from numformer.generation.evaluation import warn_of_unseen
from numformer.layer import inference
from numformer.models import Model
from numformer.published import is_published
from numformer.trained import Trained
from toy_tasks import TASKS
from toy_tasks.command_line import run_folders
from toy_tasks.data.text_files import read_pairs, read_text
from toy_tasks.data.windows import Windows
from toy_tasks.text_to_text import sequences
from toy_tasks.text_to_text.transduction import TransductionTask

WINDOW, LONGEST = 128, 512
"""The length of a file's windows, and of the longest example: maps grow with length squared."""
HIDDEN = 0.15
"""The share of a file's symbols that are hidden from a masked language model (as in BERT)."""
GIVE_A_FILE = "Give a file with --data FILE: TAB-separated pairs, or a text."


@dataclass(frozen=True)
class HeldOut:
    """Held-out `batches` for a model's `predictions`, and `pairs()` to learn a lexicon from.

    `name` is the metric by which the task is judged, and `figure(model)` computes it; `figure` is
    None if the metric is the loss. A task that turns text into text is measured on its test set,
    any other task in the same way as when training chose the checkpoint.
    """

    origin: str
    batches: list[Any]
    pairs: Callable[[], Iterator[PairBatch]]
    name: str = ""
    figure: Callable[[Model], float] | None = None

    def halves(self, count: int) -> tuple[list[Batch], list[Batch]]:
        """Two sets of about `count` examples from all batches: to rank heads, and to measure.

        Each is a list of batches of up to 16 examples; if there is only one batch, it is in both.
        """
        total = sum(len(batch.inputs[0]) for batch in self.batches)
        size = max(1, min(16, count, total // 8))
        parts = [part for b in self.batches for part in b.split(-(-len(b.inputs[0]) // size))]
        parts = [part for part in parts if part.inputs[0].shape[1] <= LONGEST]
        if not parts:
            fix = "Give shorter ones with --data FILE."
            raise InputError(f"examples have at most {LONGEST} symbols", "only longer ones", fix)
        number = min(len(parts), 2 * -(-count // size))
        spread = [parts[n] for n in np.linspace(0, len(parts) - 1, number).astype(int)]
        return spread[::2], spread[1::2] or spread


def held_out(trained: Trained, run: Path, data: Path | None, max_sources: int = 1000) -> HeldOut:
    """The content of the file `data`; if `data` is not a file, what the task of the run holds out.

    If `data` is a folder, it is where the run's own data are now. A figure on a test set is
    measured on up to `max_sources` sources. Raises InputError if the data cannot be determined, or
    if their symbols are not the model's.
    """
    if data and not data.is_dir():
        return _held_out_file(trained, data)
    if is_published(run) or not (run / "config.json").is_file():
        rule = "only a run of a task in toy_tasks has its own data"
        raise InputError(rule, f"{run}, which names no such task", GIVE_A_FILE)
    task = task_of(run, data)
    if difference := _difference(_vocabularies(task.text), _vocabularies(trained.text)):
        rule = "the data have the symbols that the run was trained on"
        raise InputError(rule, difference, "Name the run's own data with --data, or a file.")
    batches = getattr(task, "held_out", None)
    if not batches:  # every step draws a new batch: take those after the last step
        steps = run_folders.read_config(run)["options"]["steps"]
        batches = [task.batch(steps + number) for number in range(1, 33)]
    name, figure = _task_figure(task, trained.model, batches, max_sources)
    return HeldOut(f"held out by {run}", batches, lambda: _training_batches(task), name, figure)


def _task_figure(task: Any, model: Model, batches: Sequence[Batch], max_sources: int) -> tuple:
    """The metric that judges a task, and a function to compute it; "", None if it is the loss."""
    if task.metric == "held_out_loss":
        return "", None
    if not isinstance(task, TransductionTask):
        with inference():
            (*_, name) = task.evaluate(model)  # the last figure decides
        return name, lambda model: task.evaluate(model)[name]
    # Without some heads a model may never write the end: allow 1.5 times the longest target.
    most = 3 * max(batch.inputs[-1].shape[1] for batch in batches) // 2
    task.text = replace(task.text, max_length=min(most, task.text.max_length))
    (*_, name), test = task.figures, task.test[:max_sources]

    def figure(model: Model) -> float:
        written = task.write(model, [source for source, _ in test], beam=1)
        return task.measure(written, test)[name]

    return name, figure


def task_of(run: Path, data: Path | None = None) -> Any:
    """Make the task of a run, with its data, as the run's own program does to resume the run.

    `data`, if given, is the folder of the data; what the program prints about them is not shown.
    """
    saved = run_folders.read_config(run)
    if (name := saved.get("task")) not in TASKS:
        rule, fix = f"a run is of one of the tasks {', '.join(TASKS)}", GIVE_A_FILE
        raise InputError(rule, f"{run}, a run of {name}", fix)
    page: Any = importlib.import_module(f"toy_tasks.{name}")
    if study := getattr(page, "STUDY", None):
        options = argparse.Namespace(**saved["options"])
        if where := data or getattr(options, "data", None):
            options.data = Path(where)
        return study.make_task_and_config(options)[0]
    arguments = ["--resume", "--out", str(run), *(["--data", str(data)] if data else [])]
    with contextlib.redirect_stdout(io.StringIO()):
        if rule := getattr(page, "RULE", None):
            return sequences.make_task(rule, sequences.read_options(rule, arguments))
        return page.make_task(page.read_options(arguments))


def _vocabularies(text) -> dict[str, Vocabulary]:
    return {name: value for name, value in vars(text).items() if isinstance(value, Vocabulary)}


def _difference(data: dict[str, Vocabulary], run: dict[str, Vocabulary]) -> str:
    """How an error describes data whose symbols differ from a run's; "" if they are the same."""
    descriptions = [{name: v.description() for name, v in side.items()} for side in (data, run)]
    if descriptions[0] == descriptions[1]:
        return ""
    # Each symbol with its vocabulary's name: a source symbol may be unknown as a target.
    ours, known = ({(n, s): s for n, v in side.items() for s in v.symbols} for side in (data, run))
    if unknown := [symbol for key, symbol in ours.items() if key not in known]:
        return f"{unknown[0]!r}, which the run's vocabulary lacks"
    if missing := [symbol for key, symbol in known.items() if key not in ours]:
        return f"data without {missing[0]!r}"
    return "the same symbols, divided or ordered differently"


def _training_batches(task) -> Iterator[PairBatch]:
    """The batches that a task trains on."""
    for step in itertools.count(1):
        batch = task.batch(step)
        yield from batch if isinstance(batch, list) else [batch]


def _held_out_file(trained: Trained, file: Path) -> HeldOut:
    """Read the pairs of a file, or windows of its text, whichever the model's pipeline takes."""
    text: Any = trained.text
    if not isinstance(text, Transduction):
        return HeldOut(f"of {file}", [_windows(trained, file)], lambda: iter(()))
    pairs = read_pairs(file, "both", GIVE_A_FILE)
    if isinstance(text, Translation):
        pairs = [(tokenize(a, text.from_), tokenize(b, text.to)) for a, b in pairs]
    source, target = text.source, text.target
    symbols = [(source.split(a), target.split(b)) for a, b in pairs]
    warn_of_unseen(text, [a for a, _ in symbols], [[b] for _, b in symbols], stacklevel=2)
    encoded = [(source.encode(a), target.encode(b)) for a, b in symbols]
    most = min(LONGEST, trained.model.config.longest or LONGEST) - 1  # less one for the end id
    short_pairs = sorted((pair for pair in encoded if max(map(len, pair)) <= most), key=_length)
    parts = [short_pairs[first : first + 256] for first in range(0, len(short_pairs), 256)]
    batches = [PairBatch.of(part, trained.model.config.special) for part in parts]
    return HeldOut(f"of {file}", batches, lambda: iter(batches))


def _length(pair: tuple[list[int], list[int]]) -> int:
    return max(map(len, pair))


def _windows(trained: Trained, file: Path) -> Windows:
    """Windows of a text, each with its next symbols, or with holes and the symbols they hide."""
    text: Any = trained.text
    vocabulary, special = text.vocabulary, trained.model.config.special
    symbols = vocabulary.split(read_text(file, GIVE_A_FILE))
    warn_of_unseen(text, [symbols], [[]], stacklevel=2)
    ids = np.array(vocabulary.encode(symbols), int)
    width = min(text.context, WINDOW)
    rows = (len(ids) - 1) // width
    if rows < 2:
        rule = f"a text has at least {2 * width + 1} symbols, two windows and one more"
        raise InputError(rule, f"{len(ids)} in {file}", "Give a longer text.")
    windows, follows = (ids[i : i + rows * width].reshape(rows, width) for i in (0, 1))
    if not isinstance(text, Infilling):
        return Windows(windows, follows)
    hidden = np.random.default_rng(0).random(windows.shape) < HIDDEN
    hidden[:, width // 2] |= ~hidden.any(axis=1)
    (hole,) = vocabulary.encode([text.hole])
    return Windows(np.where(hidden, hole, windows), np.where(hidden, windows, special.padding))
