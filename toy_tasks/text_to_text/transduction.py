"""Tasks that turn one text into another: how they are measured, and the script around them."""

import argparse
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from numformer.data import Batch, PairBatch
from numformer.errors import InputError
from numformer.generation import Transduction
from numformer.models import Config, Transformer
from toy_tasks.command_line import finish, settings_from, train_task
from toy_tasks.data.datasets import Pair
from toy_tasks.reports.charts import draw_attention

Example = tuple[str, tuple[str, ...]]
"""A source and all its right targets."""


def edit_distance(a: Sequence, b: Sequence) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b (Levenshtein)."""
    distances = list(range(len(b) + 1))
    for i, symbol in enumerate(a, start=1):
        diagonal, distances[0] = distances[0], i
        for j, other in enumerate(b, start=1):
            substituted = diagonal + (symbol != other)
            diagonal = distances[j]
            distances[j] = min(substituted, distances[j] + 1, distances[j - 1] + 1)
    return distances[-1]


class TransductionTask:
    """What such tasks share; a kind of task adds `batch` and `description`."""

    metric, higher_is_better = "exact_match", True
    figures: ClassVar = {"exact_match": ".4f"}
    """The measures of the test and how they are written, the one that counts last."""
    tested = "that training never saw"

    def __init__(self, text: Transduction, development: list[Example], test: list[Example]):
        self.text, self.development, self.test = text, development, test

    def encode(self, pairs: Iterable[Pair]) -> list[tuple[list[int], list[int]]]:
        """(source, target) pairs of ids."""
        source, target = self.text.source, self.text.target
        return [(source.encode(source.split(s)), target.encode(target.split(t))) for s, t in pairs]

    @property
    def held_out(self) -> list[Batch]:
        """The development examples, for their loss."""
        pairs = self.encode((source, right[0]) for source, right in self.development)
        return [PairBatch.of(pairs[i : i + 256]) for i in range(0, len(pairs), 256)]

    def written(self, model: Transformer, sources: Iterable[str], **how) -> list[str]:
        """What the model writes for each source."""
        asked = [self.text.source.split(source) for source in sources]
        return [self.text.join(symbols) for symbols in self.text.write(model, asked, **how)]

    def errors(self, written: str, right: tuple[str, ...]) -> int:
        """The edits in symbols from what was written to the nearest right target."""
        split = self.text.target.split
        return min(edit_distance(split(written), split(target)) for target in right)

    def measure(self, written: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        """The measures by name."""
        answers = zip(written, examples, strict=True)
        return {"exact_match": float(np.mean([answer in right for answer, (_, right) in answers]))}

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """On the development examples, greedily."""
        sources = [source for source, _ in self.development]
        return self.measure(self.written(model, sources, beam=1), self.development)


def show(task: TransductionTask, written: Sequence[str]) -> None:
    """Print the worst of what was written for the test's sources, and some that is right."""
    answers = enumerate(zip(written, task.test, strict=True))
    edits = {i: task.errors(w, right) for i, (w, (_, right)) in answers if w not in right}
    worst = sorted(edits, key=lambda i: -edits[i] / (1 + len(task.text.target.split(written[i]))))
    fine = [i for i in range(len(written)) if i not in edits]
    print(f"{len(fine):,} of {len(written):,} are right", end=", for example\n" if fine else "\n")
    for i in fine[:3]:
        print(f"  {task.test[i][0]:>20} -> {written[i]}")
    if worst:
        print("the worst of the others")
    for i in worst[:6]:
        source, right = task.test[i]
        print(f"  {source:>20} -> {written[i]}   WRONG, it is {' or '.join(right)}")


def draw(task: TransductionTask, model: Transformer, path: Path, title: str) -> None:
    """Draw where the decoder looks as it writes a long target that training never saw."""
    sources = [(task.text.source.split(source), right[0]) for source, right in task.test[:50]]
    asked, right = max(sources, key=lambda pair: len(pair[0]) if len(pair[0]) <= 20 else 0)
    *_, maps = task.text.maps(model, asked, task.text.target.split(right))
    cross = [kind for kind in maps if kind.kind == "decoder cross_attention"]
    draw_attention(path, cross, f"{title}: where the decoder looks as it writes {right} (⊣: end)")


def learn(task: TransductionTask, options: argparse.Namespace, target: float | None) -> int:
    """Train, test and show; the exit code. `target` is what the figure that counts is to reach."""
    sizes = dict(source_vocabulary=len(task.text.source), target_vocabulary=len(task.text.target))
    config = settings_from(options, Config, **sizes)
    if config.tying == "all" and task.text.source.symbols != task.text.target.symbols:
        raise InputError(
            "tying all needs one vocabulary for source and target",
            f"{len(task.text.source.symbols)} and {len(task.text.target.symbols)} symbols, not "
            "all of them the same",
            "Use --tying target or --tying none.",
        )
    model, folder = train_task(task, Transformer, config, options)
    written = task.written(model, [source for source, _ in task.test])
    measured = task.measure(written, task.test)
    show(task, written)
    if not options.no_plots:
        draw(task, model, folder / "attention.png", folder.name)
    (*_, counts) = task.figures
    figures = {name.replace("_", " "): f"{measured[name]:{f}}" for name, f in task.figures.items()}
    reached = None
    if target is not None:
        as_good = operator.ge if task.higher_is_better else operator.le
        reached = f"{counts.replace('_', ' ')} {target}", as_good(measured[counts], target)
    what = f"{len(task.test):,} sources {task.tested}"
    return finish(options, folder, what, figures, task.test[0][0], reached)
