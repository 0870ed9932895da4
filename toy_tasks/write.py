# PYTHON_ARGCOMPLETE_OK
"""Learn to continue a text, character by character: a decoder-only language model."""

import argparse
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from numformer.data import Subwords, Vocabulary
from numformer.errors import InputError
from numformer.generation import Continuation
from numformer.generation.evaluation import Evaluation
from numformer.generation.evaluation import evaluate as evaluate_symbols
from numformer.generation.text_pipeline import OneVocabulary
from numformer.layer import inference
from numformer.models.language_model import LanguageModel
from numformer.plots import attention_maps
from numformer.randomness import seed_sequence
from numformer.trained import Trained
from toy_tasks.command_line import (
    Parser,
    answer_inputs,
    any_path,
    build_parser,
    evaluate_run,
    exit_code,
    finish,
    integer,
    name_with_data,
    note,
    parse_options,
    settings_from,
    start_vocabularies,
    train_task,
)
from toy_tasks.data.subwords import HELP, save_subwords, subwords_for_run
from toy_tasks.data.text_files import read_text
from toy_tasks.data.windows import Windows
from toy_tasks.measures.loss import mean_loss

DESCRIPTION = """\
Learn to continue any text, character by character, and print the loss on its last tenth, which is
not trained on, in nats per character. The checkpoint with the smallest loss is kept.

  python -m toy_tasks.write --data FILE.txt
  python -m toy_tasks.write --run runs/write-FILE --input "To be"
  python -m toy_tasks.write --run runs/write-FILE --data OTHER.txt
"""

DEFAULTS = dict(
    steps=1000,
    batch_size=32,
    d_model=128,
    d_ff=512,
    heads=4,
    layers=3,
    norm="pre",
    p_drop=0.0,
    label_smoothing=0.0,
    warmup=100,
    factor=0.7,
    decay="linear",
    temperature=0.8,
)
MAX_WINDOWS = 4096
"""The most windows of an evaluation: enough for three digits of the loss."""


def split(text: str) -> tuple[str, str]:
    """The part of a text to train on, and its last tenth, for evaluation."""
    return text[: (end := len(text) * 9 // 10)], text[end:]


class WritingTask:
    """Batches and evaluation of a text, for `numformer.training.train`.

    The task uses the symbols of `vocabulary`, by default the characters of the text.
    """

    metric, higher_is_better = "held_out_loss", False

    def __init__(
        self,
        text: str,
        context: int,
        batch_size: int,
        seed: int,
        name: str = "write",
        vocabulary: Vocabulary | None = None,
        temperature: float | None = None,
    ):
        symbols = vocabulary or Vocabulary.of([text])
        self.subwords = symbols if isinstance(symbols, Subwords) else None
        self.unit = "characters" if type(symbols) is Vocabulary else "subwords"
        self.text = Continuation(symbols, context, temperature)
        self.longest, self.batch_size, self.seed, self.name = context, batch_size, seed, name
        self.data = zlib.crc32(text.encode())
        training_text, self.unseen_text = split(text)
        self.training, self.unseen = (
            np.array(symbols.encode(symbols.split(part)), int)
            for part in (training_text, self.unseen_text)
        )
        count = len(self.training) + len(self.unseen)
        if min(count // 20, len(self.unseen)) <= context:
            raise InputError(
                f"a text has at least 20 times the {context + 1} {self.unit} of a window",
                f"{count} {self.unit}",
                "Give a longer text, or a smaller --context.",
            )

    def windows(self, ids: np.ndarray, starts: np.ndarray) -> Windows:
        """The windows of ids that begin at `starts` (B,)."""
        places = starts[:, None] + np.arange(self.longest)
        return Windows(ids[places], ids[places + 1])

    def batch(self, step: int) -> Windows:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        starts = rng.integers(len(self.training) - self.longest, size=self.batch_size)
        return self.windows(self.training, starts)

    def unseen_windows(self) -> list[Windows]:
        """Up to MAX_WINDOWS windows, evenly spread over the unseen part."""
        starts = np.arange(0, len(self.unseen) - self.longest, self.longest)
        starts = starts[:: -(-len(starts) // MAX_WINDOWS)]
        parts = np.split(starts, range(64, len(starts), 64))
        return [self.windows(self.unseen, part) for part in parts]

    @property
    def held_out(self) -> list[Windows]:
        return self.unseen_windows()

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        return {self.metric: mean_loss(model, self.held_out)}

    def begin(self, folder: Path) -> None:
        """Save the subwords in the folder of a run."""
        if self.subwords:
            save_subwords(self.subwords, folder)

    def description(self) -> dict:
        subwords = {"subwords": zlib.crc32(self.subwords.model)} if self.subwords else {}
        return {"name": self.name, "context": self.longest, "data": self.data, **subwords}


def add_flags(parser: Parser) -> None:
    """Add the flags of a program that learns to continue texts."""
    add = parser.add_argument
    about = "a text to learn from; with --run, a text to evaluate on"
    add("--data", type=any_path, metavar="FILE.txt", help=about)
    add("--subwords", type=integer, metavar="N", help=HELP)
    add("--context", type=integer, default=64, help="symbols in a window")
    parser.answer_settings |= {"data"}


def evaluate_text(
    options: argparse.Namespace,
    kind: type[OneVocabulary],
    overlap: int,
    examples: Callable[[OneVocabulary, list[list[str]]], tuple[list, list]],
) -> int:
    """Measure the model of --run on the text of --data, window by window; returns the exit code.

    Windows have `overlap` symbols more than the context, and share these with the next window.
    `examples(pipeline, windows)` turns windows, lists of symbols, into texts and right answers.
    """

    def evaluate(options, trained: Trained, **settings) -> Evaluation:
        pipeline = trained.text
        symbols = pipeline.vocabulary.split(read_text(options.data, "Name a text file."))
        if len(symbols) < 2:
            rule, fix = "a text has at least two symbols", "Name another file with --data."
            raise InputError(rule, f"{len(symbols)} in {options.data}", fix)
        starts = range(0, len(symbols) - overlap, pipeline.context)
        windows = [symbols[n : n + pipeline.context + overlap] for n in starts]
        if (stride := -(-len(windows) // MAX_WINDOWS)) > 1:
            note(f"{options.data} is long: one of every {stride} windows of the text is measured")
        texts, right = examples(pipeline, windows[::stride])
        return evaluate_symbols(pipeline, trained.model, texts, [[one] for one in right])

    for name in sorted({"length", "temperature", "top_k", "top_p", "seed"} & options.explicit):
        rule = "the evaluation of a text writes nothing, so settings for writing have no effect"
        raise InputError(rule, f"one for {name}", "Leave it out.")
    return evaluate_run(options, kind, evaluate)


def continuations(pipeline: OneVocabulary, windows: list[list[str]]) -> tuple[list, list]:
    """The first symbol of each window, and the symbols that follow it."""
    return [window[:1] for window in windows], [window[1:] for window in windows]


def use(options: argparse.Namespace) -> int:
    """Continue texts with the model of --run, or measure it on --data; returns the exit code."""
    if options.data:
        return evaluate_text(options, Continuation, 1, continuations)
    return answer_inputs(options, kind=Continuation)


def require_lengths(*lengths: int) -> None:
    """Raise InputError unless the lengths of windows and of answers are at least 1."""
    if min(lengths) < 1:
        raise InputError("--context and --length are at least 1", min(lengths), "Raise it.")


def make_writing_task(options: argparse.Namespace, text: str) -> WritingTask:
    """The task to continue a text, as the options describe it."""
    name = options.program.rpartition(".")[2]
    vocabularies = start_vocabularies(options, vocabulary=[text])
    if options.subwords is not None and not vocabularies:
        lines, size = split(text)[0].split("\n"), options.subwords
        vocabularies = (subwords_for_run(options, lines, size, "--subwords", exact=True),)
    settings = options.context, options.batch_size, options.seed, name
    vocabulary = vocabularies[0] if vocabularies else None
    return WritingTask(text, *settings, vocabulary, options.temperature)


def train_and_write(
    task: WritingTask,
    options: argparse.Namespace,
    measure: str = "held-out loss",
    required: float | None = None,
) -> int:
    """Train on a text, then print how the model continues the part that it never saw.

    `measure` is the name of the loss in the last line, `required` the value that it must reach.
    Returns the exit code.
    """
    symbols = task.text.vocabulary
    config = settings_from(options, LanguageModel.Config, vocabulary=len(symbols))
    model, folder = train_task(task, LanguageModel, config, options)
    beginning = task.unseen_text[:200]
    prompt = (beginning.partition("\n")[2] or beginning)[:20]
    print(f"what the model writes after {prompt!r}, which training never saw:")
    sampling = dict(length=options.length, temperature=options.temperature, seed=options.seed)
    (written,) = task.text.write(model, [symbols.split(prompt)], **sampling)
    print(task.text.join(written))
    if not options.no_plots:
        *_, maps = task.text.maps(model, symbols.split(beginning)[:20])
        attention_maps(folder / "attention.png", maps, f"{folder.name}: where the decoder looks")
    with inference():
        loss = task.evaluate(model)[task.metric]
    measures, characters = {}, len(task.unseen_text)
    if task.unit == "subwords":
        measures["loss of a subword"] = loss
        loss *= len(task.unseen) / characters
    measures[measure] = loss
    figures = {name: f"{loss:.4f}" for name, loss in measures.items()}
    example = prompt.strip().split("\n")[-1]
    test_set = f"{characters:,} characters that training never saw, nats per character"
    goal = None if required is None else (f"{measure} {required}", loss <= required)
    return finish(options, folder, test_set, figures, example, goal, measures=measures)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program. Raises InputError if they contradict each other."""
    parser = build_parser("write", DESCRIPTION, LanguageModel, "--prompt", **DEFAULTS)
    add_flags(parser)
    options = parse_options(parser, partial(name_with_data, "write"), arguments)
    require_lengths(options.context, options.length)
    if not options.run and not options.data:
        raise InputError(
            "write takes a text to learn from, or a run to use",
            f"--data {options.data}, --run {options.run}",
            'For example --data FILE.txt, or --run runs/write-FILE --input "To be"',
        )
    return options


def make_task(options: argparse.Namespace) -> WritingTask:
    """The task that the options describe."""
    text = read_text(options.data, "Name a text file: --data FILE.txt")
    return make_writing_task(options, text)


def main(arguments: list[str] | None = None) -> int:
    """Train a model, or with --run continue texts; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return use(options)
    return train_and_write(make_task(options), options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
