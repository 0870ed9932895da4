"""Tasks that turn one text into another: how they are measured, and how they train and test."""

import argparse
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from numformer.data import Batch, PairBatch
from numformer.errors import InputError
from numformer.generation import Transduction
from numformer.generation.measures import Measure, edit_distance, nearest
from numformer.models import Config, Transformer
from numformer.plots import attention_maps
from toy_tasks.command_line import finish, settings_from, train_task
from toy_tasks.data.text_files import Pair

Example = tuple[str, tuple[str, ...]]
"""A source and all its right targets."""


class TransductionTask:
    """A task with sources and targets; a subclass adds `batch` and `description`."""

    metric, higher_is_better = "exact_match", True
    figures: ClassVar = {"exact_match": ".4f"}
    """The measures on the test set and their formats. The last must reach the required value."""
    unseen = "that training never saw"
    """What the report says about the sources of the test set."""

    def __init__(self, text: Transduction, development: list[Example], test: list[Example]):
        self.text, self.development, self.test = text, development, test

    def encode(self, pairs: Iterable[Pair]) -> list[tuple[list[int], list[int]]]:
        """(source, target) pairs of ids."""
        source, target = self.text.source, self.text.target
        return [(source.encode(source.split(s)), target.encode(target.split(t))) for s, t in pairs]

    @property
    def held_out(self) -> list[Batch]:
        """Batches of the development examples, to measure their loss."""
        pairs = self.encode((source, right[0]) for source, right in self.development)
        return [PairBatch.of(pairs[i : i + 256]) for i in range(0, len(pairs), 256)]

    def write(self, model: Transformer, sources: Iterable[str], **settings) -> list[str]:
        """The target that the model writes for each source."""
        symbols = [self.text.source.split(source) for source in sources]
        return [self.text.join(target) for target in self.text.write(model, symbols, **settings)]

    def edits(self, written: str, right: tuple[str, ...]) -> int:
        """The edit distance in symbols from a written target to the nearest right target."""
        split = self.text.target.split
        return min(edit_distance(split(written), split(target)) for target in right)

    def measures(self, texts, answers, right) -> dict[str, Measure]:
        """Compare the symbols of written targets with those of the right ones."""
        return self.text.measures(texts, answers, right)

    def measure(self, written: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        """Compare each written target with the nearest right one -> the task's figures."""
        texts = [self.text.source.split(source) for source, _ in examples]
        split = self.text.target.split
        answers, choices = [*map(split, written)], (map(split, right) for _, right in examples)
        right = [*map(nearest, answers, choices)]
        found = self.measures(texts, answers, right)
        return {name: found[name].value for name in self.figures}

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """Measure greedy answers to the development examples."""
        sources = [source for source, _ in self.development]
        return self.measure(self.write(model, sources, beam=1), self.development)


def train_and_test(
    task: TransductionTask, options: argparse.Namespace, required: float | None
) -> int:
    """Train a model, measure it on the test set and print examples; returns the exit code.

    `required` is the value that the last of the task's figures must reach.
    """
    sizes = dict(source_vocabulary=len(task.text.source), target_vocabulary=len(task.text.target))
    config = settings_from(options, Config, **sizes)
    if config.tying == "all" and task.text.source.symbols != task.text.target.symbols:
        raise InputError(
            "--tying all needs the same vocabulary for source and target",
            f"{len(task.text.source.symbols)} and {len(task.text.target.symbols)} symbols, not "
            "all of them the same",
            "Use --tying target or --tying none.",
        )
    model, folder = train_task(task, Transformer, config, options)
    written = task.write(model, [source for source, _ in task.test])
    results = task.measure(written, task.test)
    print_examples(task, written)
    if not options.no_plots:
        pairs = [(task.text.source.split(source), right[0]) for source, right in task.test[:50]]
        source, target = max(pairs, key=lambda pair: len(pair[0]) if len(pair[0]) <= 20 else 0)
        title = f"{folder.name}: where the decoder looks as it writes {target} (⊣: end)"
        symbols = task.text.target.split(target)
        draw_cross_attention(folder / "attention.png", task.text, model, source, title, symbols)
    (*_, last) = task.figures
    figures = {name.replace("_", " "): f"{results[name]:{f}}" for name, f in task.figures.items()}
    goal = None
    if required is not None:
        compare = operator.ge if task.higher_is_better else operator.le
        goal = f"{last.replace('_', ' ')} {required}", compare(results[last], required)
    test_set = f"{len(task.test):,} sources {task.unseen}"
    return finish(options, folder, test_set, figures, task.test[0][0], goal, measures=results)


def print_examples(task: TransductionTask, written: Sequence[str]) -> None:
    """Print some right answers on the test set, and the wrong ones that need the most edits."""
    answers = enumerate(zip(written, task.test, strict=True))
    edits = {i: task.edits(w, right) for i, (w, (_, right)) in answers if w not in right}
    worst = sorted(edits, key=lambda i: -edits[i])
    correct = [i for i in range(len(written)) if i not in edits]
    print(
        f"{len(correct):,} of {len(written):,} are right",
        end=", for example\n" if correct else "\n",
    )
    for i in correct[:3]:
        print(f"  {task.test[i][0]:>20} -> {written[i]}")
    if worst:
        print("the wrong answers that need the most edits")
    for i in worst[:6]:
        source, right = task.test[i]
        print(f"  {source:>20} -> {written[i] or '(nothing)'}   WRONG, it is {' or '.join(right)}")


def draw_cross_attention(
    path: Path,
    text: Transduction,
    model: Transformer,
    source: Sequence[str],
    title: str,
    target: Sequence[str] | None = None,
) -> None:
    """Draw where the decoder looks in a source while it writes `target`, or its own answer."""
    *_, maps = text.maps(model, source, target)
    cross = [kind for kind in maps if kind.kind == "decoder cross_attention"]
    attention_maps(path, cross, title)
