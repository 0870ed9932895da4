"""Evaluate a model of texts: compare its answers with right ones, and score the right ones."""

import csv
import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from numformer.counts import counted
from numformer.errors import InputError
from numformer.generation.ensemble import Ensemble
from numformer.generation.measures import Measure, nearest
from numformer.generation.text_pipeline import Symbols, TextPipeline
from numformer.progress import progress
from numformer.runs.files import write_atomically

Measures = Callable[[Sequence[Symbols], Sequence[Symbols], Sequence[Symbols]], dict[str, Measure]]
"""A function of the symbols of N texts, of a model's N answers, and of the N right answers."""


@dataclass(frozen=True)
class Prediction:
    """The model's `answer` to a source, beside the right target that is nearest to it.

    `log_p` is the log probability that the model gives to this target, in nats.
    """

    source: str
    target: str
    answer: str
    log_p: float


@dataclass(frozen=True)
class Evaluation:
    """What a test set shows about a model: measures by name, and a Prediction for each example.

    `evaluation["exact_match"]` is a number. A language model has no predictions.
    """

    measures: dict[str, Measure]
    predictions: list[Prediction]

    def __getitem__(self, name: str) -> float:
        if name not in self.measures:
            fix = f"Name one of {', '.join(self.measures)}."
            raise InputError("an evaluation is indexed by the name of a measure", repr(name), fix)
        return self.measures[name].value

    def __repr__(self) -> str:
        return f"Evaluation({', '.join(self.lines())})"

    def lines(self) -> list[str]:
        """Each measure with its 95 % interval, such as "exact match 0.9950 (0.9915 to 0.9980)"."""
        return [f"{name.replace('_', ' ')} {measure}" for name, measure in self.measures.items()]

    def save(self, path: str | Path) -> None:
        """Write the predictions to a file: TABs between columns, and the columns' names on top.

        A text with a TAB, a quotation mark or a line break is put in quotation marks. Raises
        InputError if there are no predictions, or if `path` is something other than a file.
        """
        if not self.predictions:
            rule, fix = "predictions are answers to sources", "Evaluate a model that answers."
            raise InputError(rule, "none", fix)
        path, file = require_output(path), io.StringIO()
        columns = vars(self.predictions[0])
        table = csv.DictWriter(file, columns, dialect="excel-tab", lineterminator="\n")
        table.writeheader()
        table.writerows(vars(prediction) for prediction in self.predictions)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.getvalue().encode())


def require_output(path: str | Path) -> Path:
    """The path of a file to write, links resolved. Raises InputError for anything but a file."""
    is_standard_output, path = str(path) == "-", Path(path).resolve()
    folder = next(parent for parent in path.parents if parent.exists())
    writable = folder.is_dir() and os.access(folder, os.W_OK)
    if is_standard_output or (path.exists() and not path.is_file()) or not writable:
        rule, fix = "predictions can be written to a file in a folder", "Name another path."
        raise InputError(rule, "-" if is_standard_output else path, fix)
    return path


def evaluate(
    pipeline: TextPipeline,
    model: Any,
    texts: Sequence[Symbols],
    choices: Sequence[Sequence[Symbols]],
    measures: Measures | None = None,
    **settings,
) -> Evaluation:
    """Measure a model on N texts, each with one right answer or several.

    The model's answer, written with these settings of the pipeline's `write`, is compared with the
    nearest right one by `measures`, by default the pipeline's. A language model writes no answers.
    Warns about symbols that training never saw.
    """
    require_examples(pipeline, choices)
    if not pipeline.has_right_answers and (settings or measures):
        rule, fix = "a language model scores texts and writes no answers", "Leave it out."
        raise InputError(rule, next(iter(settings), "measures"), fix)
    warn_of_unseen(pipeline, texts, choices, stacklevel=4)
    right, found, predictions = [first for first, *_ in choices], {}, []
    with progress(len(texts) * (1 + pipeline.has_right_answers), "evaluation"):
        if pipeline.has_right_answers:
            answers = pipeline.write(model, texts, **settings)
            right = [*map(nearest, answers, choices)]
            found = (measures or pipeline.measures)(texts, answers, right)
        log_p, counts = score(pipeline, model, texts, right)
    found["loss"] = Measure.ratio(-log_p, counts)
    targets = [*map(pipeline.join, right)]
    if pipeline.has_right_answers:
        columns = map(pipeline.join_source, texts), targets, map(pipeline.join, answers)
        predictions = [Prediction(*row) for row in zip(*columns, log_p.tolist(), strict=True)]
    else:
        bits = -log_p / math.log(2)
        found["bits_per_character"] = Measure.ratio(bits, [*map(len, targets)])
    return Evaluation(found, predictions)


def score(
    pipeline: TextPipeline, model: Any, texts: Sequence[Symbols], written: Sequence[Symbols]
) -> tuple[np.ndarray, np.ndarray]:
    """Return log p (N,) of N answers to texts, and the number (N,) of symbols in each."""
    if isinstance(model, Ensemble) and not pipeline.has_right_answers:
        rule, fix = "texts are scored by a single language model", "Load one run."
        raise InputError(rule, f"{len(model.models)} models", fix)
    return pipeline.score(cast(Any, model), texts, written)


def require_examples(pipeline: TextPipeline, choices: Sequence[Sequence[Symbols]]) -> None:
    """Raise InputError unless there are examples, and every right answer has symbols."""
    if not choices:
        raise InputError("a test set has at least one example", "none", "Pass more.")
    for number, answers in enumerate(choices, 1):
        if not answers or not all(answers):
            rule, fix = "a right answer has at least one symbol", "Leave the example out."
            raise InputError(rule, f"example {number} without any", fix)
        if len(answers) > 1 and not pipeline.has_right_answers:
            rule, fix = "a text is scored with one continuation", "Pass a pair for each."
            raise InputError(rule, f"example {number} with {len(answers)}", fix)


def warn_of_unseen(
    pipeline: TextPipeline,
    texts: Sequence[Symbols],
    choices: Sequence[Sequence[Symbols]],
    stacklevel: int,
) -> None:
    """Warn how many examples have symbols that training never saw, and name some symbols."""
    unknown, unseen, count = pipeline.input_vocabulary.unknown, Counter[str](), 0
    for text, answers in zip(texts, choices, strict=True):
        here = {*pipeline.unseen_symbols(text)}
        for answer in answers:
            pairs = zip(answer, pipeline.encode(answer), strict=True)
            here.update(symbol for symbol, number in pairs if number == unknown)
        unseen.update(here)
        count += bool(here)
    if count:
        some = " ".join(repr(symbol) for symbol, _ in unseen.most_common(10))
        warnings.warn(
            f"{counted(count, 'example')} of {len(texts):,} with symbols that training never saw, "
            f"such as {some}; the model reads and scores them as its unknown symbol",
            stacklevel=stacklevel,
        )
