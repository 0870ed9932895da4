# PYTHON_ARGCOMPLETE_OK
"""Predict hidden characters of a text, from both sides and from the left side alone.

The model that sees both sides is an encoder, trained as BERT is (Devlin et al. 2019). The other is
a language model of the same size, trained for the same number of steps on the same text.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import partial
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
from numformer.plots import attention_maps
from numformer.randomness import seed_sequence
from numformer.training.loop import Interrupted
from toy_tasks.command_line import (
    add_evaluation_flag,
    answer_inputs,
    any_path,
    build_parser,
    exit_code,
    finish,
    integer,
    name_with_data,
    parse_options,
    settings_from,
    start_vocabularies,
    train_task,
)
from toy_tasks.command_line.training import resume_command
from toy_tasks.data.datasets import shakespeare
from toy_tasks.data.text_files import read_text
from toy_tasks.write import Windows, WritingTask, evaluate_text

DESCRIPTION = """\
Learn to fill in hidden characters of any text. 15 % of the characters are hidden, and the model
predicts them from the characters on both sides. For comparison, a language model of the same size
learns to continue the text; it predicts the same characters from the left side alone. The last line
has the losses of both models on the last tenth of the text, which neither is trained on, in nats
per hidden character.

  python -m toy_tasks.masked
  python -m toy_tasks.masked --data FILE.txt
  python -m toy_tasks.masked --run runs/masked --input "to b_ or n_t to be"
  python -m toy_tasks.masked --run runs/masked --data TEST.txt --predictions OUT.tsv
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
"""The share of characters that are hidden, as in BERT."""
MARGIN = 0.1
"""On Shakespeare, the loss must be this much lower than the language model's."""
ONE_SIDE = "one-side"
"""The folder of the language model, inside the folder of the run."""


@dataclass(frozen=True)
class MaskedWindows(Batch):
    """ids (B, T) as the model sees them; targets (B, T): the hidden ids, and PADDING elsewhere."""

    ids: np.ndarray
    targets: np.ndarray

    @property
    def weight(self) -> int:
        """The number of hidden characters."""
        return np.count_nonzero(self.targets)


class MaskedTask(WritingTask):
    """Batches and evaluation of a text with holes: the windows of WritingTask, partly hidden.

    `hole` is the last symbol of the vocabulary, so all others have the same ids as in WritingTask.
    """

    def __init__(
        self,
        text: str,
        hole: str,
        context: int,
        batch_size: int,
        seed: int,
        vocabulary: Vocabulary | None = None,
    ):
        super().__init__(text, context, batch_size, seed, vocabulary=vocabulary)
        symbols = [*self.text.vocabulary.symbols, hole]
        self.text = Infilling(Vocabulary(symbols), hole, context)

    def batch(self, step: int) -> MaskedWindows:
        """Of hidden characters, 80 % become holes, 10 % random characters, and 10 % are unchanged.

        So the model must predict at every position, not only at holes (Devlin et al. 2019).
        """
        ids = super().batch(step).following
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step, 1))
        hole = len(self.text.vocabulary) - 1
        kinds = rng.choice(3, p=[0.8, 0.1, 0.1], size=ids.shape)
        others = rng.integers(len(SPECIAL), hole, size=ids.shape)
        return self._hide(ids, np.choose(kinds, [np.full_like(ids, hole), others, ids]), rng)

    def unseen_pairs(self) -> list[tuple[Windows, MaskedWindows]]:
        """Windows of the unseen part for the language model, and the same characters with holes.

        The holes are the same ones each time.
        """
        rng = np.random.default_rng(seed_sequence(self.seed, "held out"))
        hole = len(self.text.vocabulary) - 1
        windows = self.unseen_windows()
        return [(w, self._hide(w.following, np.full_like(w.ids, hole), rng)) for w in windows]

    def _hide(
        self, ids: np.ndarray, replacements: np.ndarray, rng: np.random.Generator
    ) -> MaskedWindows:
        """Replace `ids` at random places, at least one in the batch, by `replacements`."""
        hidden = rng.random(ids.shape) < HIDDEN
        hidden[0, rng.integers(ids.shape[1])] = True
        return MaskedWindows(np.where(hidden, replacements, ids), np.where(hidden, ids, PADDING))

    @property
    def held_out(self) -> list[MaskedWindows]:  # type: ignore[override]
        return [batch for _, batch in self.unseen_pairs()]

    def left_side_loss(self, model: LanguageModel) -> float:
        """The loss of a language model on the same characters, given everything to their left."""
        losses, weights = [], []
        for windows, batch in self.unseen_pairs():
            logits, hidden = model.forward(windows.ids), batch.targets != PADDING
            losses.append(float(CrossEntropy(0.0).forward(logits, windows.following, hidden)))
            weights.append(batch.weight)
        return float(np.average(losses, weights=weights))

    def description(self) -> dict:
        return super().description() | {"name": "masked"}


def train_both(
    task: MaskedTask, left_task: WritingTask, options: argparse.Namespace
) -> tuple[MaskedLanguageModel, LanguageModel, Path]:
    """Train one model, then the other -> both models, and the folder of the run."""
    config = settings_from(
        options, MaskedLanguageModel.Config, vocabulary=len(task.text.vocabulary)
    )
    model, folder = train_task(task, MaskedLanguageModel, config, options, exit_other_ranks=False)
    config = settings_from(options, LanguageModel.Config, vocabulary=len(left_task.text.vocabulary))
    left = argparse.Namespace(**vars(options) | dict(name=ONE_SIDE, out=folder / ONE_SIDE))
    left.resume = (left.out / "config.json").is_file()
    left.start = left.start and left.start / ONE_SIDE
    try:
        left_model, _ = train_task(left_task, LanguageModel, config, left)
    except Interrupted as interrupted:
        message = str(interrupted).partition(";")[0]
        command = resume_command(options, folder)
        raise Interrupted(f"{message}; go on with: {command}") from None
    return model, left_model, folder


def make_tasks(options: argparse.Namespace) -> tuple[MaskedTask, WritingTask]:
    """The task that the options describe, and the language model's task on the same text."""
    if options.data:
        text = read_text(options.data, "Name a text file: --data FILE.txt")
    else:
        text = shakespeare()
    if options.hole in text:
        free = next((symbol for symbol in "_%@=+" if symbol not in text), "□")
        raise InputError(
            "the character for a hole does not occur in the text",
            f"{options.hole!r}, which does",
            f"Choose another one, for example --hole {free}",
        )
    settings = options.context, options.batch_size, options.seed
    start = start_vocabularies(options, vocabulary=[text])
    without_hole = Vocabulary(start[0].symbols[:-1]) if start else None
    task = MaskedTask(text, options.hole, *settings, without_hole)
    return task, WritingTask(text, *settings, vocabulary=without_hole)


def make_task(options: argparse.Namespace) -> MaskedTask:
    """The task that the options describe."""
    return make_tasks(options)[0]


def train_and_compare(options: argparse.Namespace) -> int:
    """Train both models on a text, and compare them on its unseen part; returns the exit code."""
    task, left_task = make_tasks(options)
    model, left_model, folder = train_both(task, left_task, options)
    vocabulary = task.text.vocabulary
    symbols = vocabulary.decode(task.unseen_pairs()[0][1].ids[:4].ravel())
    (answer,) = task.text.write(model, [symbols])
    print(f"a text that training never saw, with holes:\n{vocabulary.join(symbols)}")
    print(f"filled:\n{vocabulary.join(answer)}")
    with inference():
        loss, left_loss = task.evaluate(model)[task.metric], task.left_side_loss(left_model)
    example = max(vocabulary.join(symbols).split("\n"), key=len)[:40]
    if not options.no_plots:
        *_, maps = task.text.maps(model, symbols[:24])
        attention_maps(folder / "attention.png", maps, f"{folder.name}: where the model looks")
    goal = f"a loss {MARGIN} below that from one side", loss <= left_loss - MARGIN
    test_set = f"{len(task.unseen):,} characters that training never saw, nats per hidden character"
    figures = {"hidden characters: loss": f"{loss:.4f}, from one side {left_loss:.4f}"}
    goal, measures = None if options.data else goal, {"loss": loss, "loss from one side": left_loss}
    return finish(options, folder, test_set, figures, example, goal, measures=measures)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program. Raises InputError for an invalid --context or --hole."""
    parser = build_parser("masked", DESCRIPTION, MaskedLanguageModel, **DEFAULTS)
    add = parser.add_argument
    data = "a text to learn from (default: Shakespeare's plays); with --run, one to evaluate on"
    add("--data", type=any_path, metavar="FILE.txt", help=data)
    add("--context", type=integer, default=64, help="characters in a window")
    add_evaluation_flag(parser)
    add("--hole", default="_", help="the character that stands for a hidden one")
    options = parse_options(parser, partial(name_with_data, "masked"), arguments)
    if options.run:
        return options
    hole = options.hole
    visible = hole.isprintable() and hole != " " and Vocabulary([]).split(hole) == [hole]
    if options.context < 1 or not visible:
        raise InputError(
            "--context is at least 1, and --hole is one visible character",
            f"--context {options.context}, --hole {hole!r}",
            "Change it.",
        )
    return options


def hidden(pipeline: Infilling, windows: list[list[str]]) -> tuple[list, list]:
    """The windows with holes at random places, the same each time, and the windows themselves."""
    if any(pipeline.hole in window for window in windows):
        rule, fix = "a text to evaluate on has no holes", "Replace that character in the text."
        raise InputError(rule, f"the character {pipeline.hole!r}", fix)
    rng = np.random.default_rng(seed_sequence(1, "held out"))
    texts = []
    for window in windows:
        holes = rng.random(len(window)) < HIDDEN
        holes[rng.integers(len(window))] = True
        pairs = zip(window, holes, strict=True)
        texts.append([pipeline.hole if is_hole else symbol for symbol, is_hole in pairs])
    return texts, windows


def use(options: argparse.Namespace) -> int:
    """Fill the holes of texts with the model of --run, or measure it on --data.

    Returns the exit code.
    """
    if options.data:
        return evaluate_text(options, Infilling, 0, hidden)
    return answer_inputs(options, kind=Infilling)


def main(arguments: list[str] | None = None) -> int:
    """Train both models, or with --run fill the holes of texts; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return use(options)
    return train_and_compare(options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
