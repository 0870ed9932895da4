"""Learn which characters of a text are hidden, from both sides of them and from one.

The first is encoder-only and trained as BERT is (Devlin et al. 2019), the second a language model
of the same size, trained for the same steps on as many windows of the same text.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numformer.data import PADDING, Batch, Vocabulary
from numformer.data.vocabulary import SPECIAL
from numformer.errors import InputError
from numformer.generation import Infilling
from numformer.layer import inference
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from numformer.paper import CrossEntropy
from numformer.randomness import seed_sequence
from numformer.training.loop import Interrupted
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
from toy_tasks.command_line.training import resume_command
from toy_tasks.data.datasets import read_text, shakespeare
from toy_tasks.reports.charts import draw_attention
from toy_tasks.write import Windows, WritingTask

DESCRIPTION = """\
Learn to fill holes in any text: 15 % of its characters are hidden, and the model, which sees what
stands on both sides of them, learns which they are. Beside it a language model of the same size
learns to go on with the text; of the same hidden characters it sees the left side. The last line
has the losses of both on the last tenth of the text, on which neither trains: nats per hidden
character, the smaller the better.

  python -m toy_tasks.masked
  python -m toy_tasks.masked --data FILE.txt
  python -m toy_tasks.masked --run runs/masked --input "to b_ or n_t to be"
"""

DEFAULTS = dict(
    steps=1200,
    batch_size=24,
    evaluate_every=400,
    d_model=128,
    d_ff=344,
    heads=4,
    layers=4,
    norm="pre",
    normalization="rms",
    positions="rotary",
    activation="swiglu",
    feed_forward_bias=False,
    p_drop=0.0,
    label_smoothing=0.0,
    optimizer="adamw",
    weight_decay=0.1,
    warmup=100,
    factor=0.34,
    decay="cosine",
    clip_norm=1.0,
)
HIDDEN = 0.15
"""The share of the characters that is asked for (BERT's)."""
AHEAD = 0.1
"""By how much the loss on Shakespeare's hidden characters is to be below that from one side."""
ONE_SIDE = "one-side"
"""The folder of the language model, in that of the run."""


@dataclass(frozen=True)
class Holes(Batch):
    """ids (B, T) as they are shown, and targets (B, T): what is hidden, PADDING elsewhere."""

    ids: np.ndarray
    targets: np.ndarray

    @property
    def weight(self) -> int:
        """The number of hidden places."""
        return np.count_nonzero(self.targets)


class MaskedTask(WritingTask):
    """Batches and evaluation of a text with holes; its windows are those of the WritingTask.

    Of the vocabulary `hole` is the last symbol, so all others have the ids that they have there.
    """

    def __init__(
        self,
        text: str,
        hole: str,
        context: int,
        batch_size: int,
        seed: int,
        known: Vocabulary | None = None,
    ):
        super().__init__(text, context, batch_size, seed, known=known)
        symbols = [*self.text.vocabulary.symbols, hole]
        self.text = Infilling(Vocabulary(symbols), hole, context)

    def batch(self, step: int) -> Holes:
        """In the place of ten hidden characters stand eight holes, a random one, and itself.

        So the model has to think about every place, not about holes alone (Devlin et al. 2019).
        """
        ids = super().batch(step).following
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step, 1))
        hole = len(self.text.vocabulary) - 1
        shown = rng.choice(3, p=[0.8, 0.1, 0.1], size=ids.shape)
        others = rng.integers(len(SPECIAL), hole, size=ids.shape)
        return self._holes(ids, np.choose(shown, [np.full_like(ids, hole), others, ids]), rng)

    def unseen_holes(self) -> list[tuple[Windows, Holes]]:
        """Windows of the unseen part and what follows in them with holes, the same each time."""
        rng = np.random.default_rng(seed_sequence(self.seed, "held out"))
        hole = len(self.text.vocabulary) - 1
        windows = self.unseen_windows()
        return [(w, self._holes(w.following, np.full_like(w.ids, hole), rng)) for w in windows]

    def _holes(self, ids: np.ndarray, shown: np.ndarray, rng: np.random.Generator) -> Holes:
        """`shown` at random places of `ids`, which are asked for; one of them in every batch."""
        hidden = rng.random(ids.shape) < HIDDEN
        hidden[0, rng.integers(ids.shape[1])] = True
        return Holes(np.where(hidden, shown, ids), np.where(hidden, ids, PADDING))

    @property
    def held_out(self) -> list[Holes]:  # type: ignore[override]
        return [batch for _, batch in self.unseen_holes()]

    def from_one_side(self, model: LanguageModel) -> float:
        """The loss of a language model on the same hidden characters, given all left of them."""
        losses, weights = [], []
        for windows, batch in self.unseen_holes():
            logits, hidden = model.forward(windows.ids), batch.targets != PADDING
            losses.append(float(CrossEntropy(0.0).forward(logits, windows.following, hidden)))
            weights.append(batch.weight)
        return float(np.average(losses, weights=weights))

    def description(self) -> dict:
        return super().description() | {"name": "masked"}


def train_both(
    task: MaskedTask, beside: WritingTask, options: argparse.Namespace
) -> tuple[MaskedLanguageModel, LanguageModel, Path]:
    """Train one model after the other -> both, and the run's folder, which has ONE_SIDE in it."""
    config = settings_from(
        options, MaskedLanguageModel.Config, vocabulary=len(task.text.vocabulary)
    )
    model, folder = train_task(task, MaskedLanguageModel, config, options, exit_other_ranks=False)
    config = settings_from(options, LanguageModel.Config, vocabulary=len(beside.text.vocabulary))
    how = argparse.Namespace(**vars(options) | dict(name=ONE_SIDE, out=folder / ONE_SIDE))
    how.resume, how.start = (how.out / "config.json").is_file(), how.start and how.start / ONE_SIDE
    try:
        one_sided, _ = train_task(beside, LanguageModel, config, how)
    except Interrupted as stopped:
        said = str(stopped).partition(";")[0]
        command = resume_command(options, folder)
        raise Interrupted(f"{said}; go on with: {command}") from None
    return model, one_sided, folder


def make_tasks(options: argparse.Namespace) -> tuple[MaskedTask, WritingTask]:
    """The task that the options describe, and the same text's for a language model beside it."""
    if options.data:
        text = read_text(options.data, "Name a text file: --data FILE.txt")
    else:
        text = shakespeare()
    if options.hole in text:
        raise InputError(
            "the sign of a hole does not stand in the text",
            f"{options.hole!r}, which does",
            "Choose another one, for example --hole ~",
        )
    how = options.context, options.batch_size, options.seed
    started = start_vocabularies(options, vocabulary=[text])
    known = Vocabulary(started[0].symbols[:-1]) if started else None  # without the hole
    return MaskedTask(text, options.hole, *how, known), WritingTask(text, *how, known=known)


def make_task(options: argparse.Namespace) -> MaskedTask:
    """The task that the options describe."""
    return make_tasks(options)[0]


def learn(options: argparse.Namespace) -> int:
    """Train on a text, fill holes in a part that training never saw, and compare."""
    task, beside = make_tasks(options)
    model, one_sided, folder = train_both(task, beside, options)
    vocabulary = task.text.vocabulary
    shown = vocabulary.decode(task.unseen_holes()[0][1].ids[:4].ravel())
    (filled,) = task.text.write(model, [shown])
    print(f"a text that training never saw, with holes:\n{vocabulary.join(shown)}")
    print(f"filled:\n{vocabulary.join(filled)}")
    with inference():
        loss, from_one_side = task.evaluate(model)[task.metric], task.from_one_side(one_sided)
    example = max(vocabulary.join(shown).split("\n"), key=len)[:40]
    if not options.no_plots:
        *_, maps = task.text.maps(model, shown[:24])
        draw_attention(folder / "attention.png", maps, f"{folder.name}: where the model looks")
    reached = f"a loss {AHEAD} below that from one side", loss <= from_one_side - AHEAD
    what = f"{len(task.unseen):,} characters that training never saw, nats per hidden character"
    figures = {"hidden characters: loss": f"{loss:.4f}, from one side {from_one_side:.4f}"}
    reached = None if options.data else reached
    return finish(options, folder, what, figures, example, reached)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program. Raises InputError for a --context or --hole that cannot be."""
    flags = build_parser("masked", DESCRIPTION, MaskedLanguageModel, **DEFAULTS)
    add = flags.add_argument
    add(
        "--data",
        type=any_path,
        metavar="FILE.txt",
        help="a text to learn from; without, Shakespeare's plays",
    )
    add("--context", type=integer, default=64, help="characters in a window")
    add("--hole", default="_", help="the character that stands for a hidden one")
    options = parse_options(flags, lambda options: "masked", arguments)
    if options.run:
        return options
    hole = options.hole
    is_sign = hole.isprintable() and hole != " " and Vocabulary([]).split(hole) == [hole]
    if options.context < 1 or not is_sign:
        raise InputError(
            "a --context is at least 1, and a --hole one visible character",
            f"--context {options.context}, --hole {hole!r}",
            "Change it.",
        )
    return options


def main(arguments: list[str] | None = None) -> int:
    """Train, or with --run fill the holes of texts; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return answer_inputs(options, kind=Infilling)
    return learn(options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
