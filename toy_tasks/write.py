"""Learn to go on with a text, character by character: a decoder-only language model."""

import argparse
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numformer.data import Batch, Subwords, Vocabulary
from numformer.errors import InputError
from numformer.generation import Continuation
from numformer.layer import inference
from numformer.models.language_model import LanguageModel
from numformer.randomness import seed_sequence
from toy_tasks.command_line import (
    answer_inputs,
    any_path,
    build_parser,
    exit_code,
    finish,
    integer,
    parse_options,
    settings_from,
    start_vocabularies,
    train_task,
)
from toy_tasks.data import subwords as own
from toy_tasks.data.datasets import read_text
from toy_tasks.reports.charts import draw_attention

DESCRIPTION = """\
Learn to go on with any text, character by character, and print the loss on its last tenth, on which
it does not train: nats per character, the smaller the better. The same loss chooses the checkpoint.

  python -m toy_tasks.write --data FILE.txt
  python -m toy_tasks.write --run runs/write --input "To be"
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
MOST_WINDOWS = 4096  # that an evaluation takes: enough for three digits of the loss


def split(text: str) -> tuple[str, str]:
    """What is trained on, and the last tenth, which is not."""
    return text[: (end := len(text) * 9 // 10)], text[end:]


@dataclass(frozen=True)
class Windows(Batch):
    """Stretches of a text: ids (B, T) and those that follow them (B, T)."""

    ids: np.ndarray
    following: np.ndarray


@dataclass(frozen=True)
class Answers(Windows):
    """Windows of which only what follows `valid` (B, T) is to be predicted, not what is given."""

    valid: np.ndarray

    @property
    def weight(self) -> int:
        return np.count_nonzero(self.valid)


class WritingTask:
    """Batches and evaluation of a text, for `numformer.training.train`.

    Its symbols are those of `known`, or the characters of the text.
    """

    metric, higher_is_better = "held_out_loss", False

    def __init__(
        self,
        text: str,
        context: int,
        batch_size: int,
        seed: int,
        name: str = "write",
        known: Vocabulary | None = None,
    ):
        symbols = known or Vocabulary.of([text])
        self.subwords = symbols if isinstance(symbols, Subwords) else None
        self.unit = "characters" if type(symbols) is Vocabulary else "subwords"
        self.text = Continuation(symbols, context)
        self.longest, self.batch_size, self.seed, self.name = context, batch_size, seed, name
        self.data = zlib.crc32(text.encode())
        self.training, self.unseen = (
            np.array(symbols.encode(symbols.split(part)), int) for part in split(text)
        )
        count = len(self.training) + len(self.unseen)
        if min(count // 20, len(self.unseen)) <= context:
            raise InputError(
                f"a text has at least 20 times the {context + 1} {self.unit} of a window",
                f"{count} {self.unit}",
                "Give a longer text, or a smaller --context.",
            )

    def windows(self, ids: np.ndarray, starts: np.ndarray) -> Windows:
        places = starts[:, None] + np.arange(self.longest)
        return Windows(ids[places], ids[places + 1])

    def batch(self, step: int) -> Windows:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        starts = rng.integers(len(self.training) - self.longest, size=self.batch_size)
        return self.windows(self.training, starts)

    def unseen_windows(self) -> list[Windows]:
        """Up to MOST_WINDOWS windows, evenly spread over the unseen part."""
        starts = np.arange(0, len(self.unseen) - self.longest, self.longest)
        starts = starts[:: -(-len(starts) // MOST_WINDOWS)]
        parts = np.split(starts, range(64, len(starts), 64))
        return [self.windows(self.unseen, part) for part in parts]

    @property
    def held_out(self) -> list[Windows]:
        return self.unseen_windows()

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        batches = self.held_out
        losses = [float(model.objective().prediction_loss(*batch.inputs)) for batch in batches]
        return {self.metric: float(np.average(losses, weights=[b.weight for b in batches]))}

    def begin(self, folder: Path) -> None:
        """Keep the subwords in the folder of a run."""
        if self.subwords:
            own.keep(self.subwords, folder)

    def description(self) -> dict:
        cut = {"subwords": zlib.crc32(self.subwords.model)} if self.subwords else {}
        return {"name": self.name, "context": self.longest, "data": self.data, **cut}


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The flags of a script that goes on with texts."""
    add = flags.add_argument
    add("--data", type=any_path, metavar="FILE.txt", help="a text to learn from")
    add("--subwords", type=integer, metavar="N", help=own.HELP)
    add("--context", type=integer, default=64, help="symbols in a window")


def require_lengths(*lengths: int) -> None:
    """Raise InputError unless windows and what is written have symbols."""
    if min(lengths) < 1:
        raise InputError("--context and --length are at least 1", min(lengths), "Ask for more.")


def writing_task(options: argparse.Namespace, text: str) -> WritingTask:
    """The task of going on with a text, as the options describe it."""
    name = options.program.rpartition(".")[2]
    known = start_vocabularies(options, vocabulary=[text])
    if options.subwords is not None and not known:
        lines = split(text)[0].split("\n")
        known = (own.subwords_of(options, lines, options.subwords, "--subwords", exact=True),)
    return WritingTask(text, options.context, options.batch_size, options.seed, name, *known)


def learn(
    options: argparse.Namespace,
    text: str,
    measure: str = "held-out loss",
    target: float | None = None,
) -> int:
    """Train on a text, then show how it goes on from a place that training never saw.

    `measure` is what the last line calls the loss, `target` what it is to reach.
    """
    task = writing_task(options, text)
    symbols = task.text.vocabulary
    config = settings_from(options, LanguageModel.Config, vocabulary=len(symbols))
    model, folder = train_task(task, LanguageModel, config, options)
    unseen = split(text)[1][:200]
    beginning = (unseen.partition("\n")[2] or unseen)[:20]
    print(f"what it writes after {beginning!r}, which training never saw:")
    how = dict(length=options.length, temperature=options.temperature, seed=options.seed)
    (written,) = task.text.write(model, [symbols.split(beginning)], **how)
    print(task.text.join(written))
    if not options.no_plots:
        *_, maps = task.text.maps(model, symbols.split(unseen)[:20])
        draw_attention(folder / "attention.png", maps, f"{folder.name}: where the decoder looks")
    with inference():
        loss = task.evaluate(model)[task.metric]
    figures, characters = {}, len(split(text)[1])
    if task.unit == "subwords":
        figures["loss of a subword"] = f"{loss:.4f}"
        loss *= len(task.unseen) / characters
    figures[measure] = f"{loss:.4f}"
    example = beginning.strip().split("\n")[-1]
    what = f"{characters:,} characters that training never saw, nats per character"
    reached = None if target is None else (f"{measure} {target}", loss <= target)
    return finish(options, folder, what, figures, example, reached)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program. Raises InputError where they contradict each other."""
    flags = build_parser("write", DESCRIPTION, LanguageModel, "--prompt", **DEFAULTS)
    add_flags(flags)
    options = parse_options(flags, lambda options: "write", arguments)
    require_lengths(options.context, options.length)
    if bool(options.run) == bool(options.data):
        raise InputError(
            "write takes a text to learn from, or a run to use",
            f"--data {options.data}, --run {options.run}",
            'For example --data FILE.txt, or --run runs/write --input "To be"',
        )
    return options


def source_text(options: argparse.Namespace) -> str:
    """The text of --data."""
    return read_text(options.data, "Name a text file: --data FILE.txt")


def make_task(options: argparse.Namespace) -> WritingTask:
    """The task that the options describe."""
    return writing_task(options, source_text(options))


def main(arguments: list[str] | None = None) -> int:
    """Train, or with --run go on from texts; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return answer_inputs(options, kind=Continuation)
    return learn(options, source_text(options))


if __name__ == "__main__":
    sys.exit(exit_code(main))
