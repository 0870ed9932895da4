"""Learn to go on with a text, character by character: a decoder-only language model."""

import sys
import unicodedata
import zlib
from dataclasses import dataclass

import numpy as np

from numformer.backend import find_backend, seed_sequence
from numformer.data import Batch, Vocabulary
from numformer.errors import InputError
from numformer.generation import greedy
from numformer.layer import inference, pack
from numformer.models.language_model import LanguageModel
from numformer.training import load_model
from toy_tasks import script
from toy_tasks.datasets import read_text

DESCRIPTION = """\
Learn to go on with any text, character by character, and print the loss on its last tenth, on which
it does not train: nats per character, the smaller the better. The same loss chooses the checkpoint.

  python -m toy_tasks.write --data FILE.txt
  python -m toy_tasks.write --run runs/write --prompt "To be"
"""

DEFAULTS = dict(
    steps=1000, batch_size=32, d_model=128, d_ff=512, heads=4, layers=3, norm="pre", p_drop=0.0,
    label_smoothing=0.0, warmup=100, factor=0.7, decay="linear",
)  # fmt: skip
RUN = "write"
MOST_WINDOWS = 4096  # that an evaluation takes: enough for three digits of the loss


@dataclass(frozen=True)
class Windows(Batch):
    """Stretches of a text: ids (B, T) and those that follow them (B, T)."""

    ids: np.ndarray
    following: np.ndarray


class WritingTask:
    """Batches and evaluation of a text, for `numformer.training.train`."""

    metric, higher_is_better = "held_out_loss", False

    def __init__(self, text: str, context: int, batch_size: int, seed: int):
        if len(text) < 20 * (context + 1):
            raise InputError(
                f"a text has at least 20 times the {context + 1} characters of a window",
                f"{len(text)} characters",
                "Give a longer text, or a smaller --context.",
            )
        self.vocabulary = Vocabulary.of([text])
        self.longest, self.batch_size, self.seed = context, batch_size, seed
        self.data, ids = zlib.crc32(text.encode()), np.array(self.vocabulary.encode(text))
        self.training, self.held_out = np.split(ids, [len(ids) * 9 // 10])

    def windows(self, ids: np.ndarray, starts: np.ndarray) -> Windows:
        places = starts[:, None] + np.arange(self.longest)
        return Windows(ids[places], ids[places + 1])

    def batch(self, step: int) -> Windows:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        starts = rng.integers(len(self.training) - self.longest, size=self.batch_size)
        return self.windows(self.training, starts)

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        """On up to MOST_WINDOWS windows, evenly spread over the held-out part."""
        starts = np.arange(0, len(self.held_out) - self.longest, self.longest)
        starts = starts[:: -(-len(starts) // MOST_WINDOWS)]
        batches = [
            self.windows(self.held_out, part)
            for part in np.split(starts, range(64, len(starts), 64))
        ]
        losses = [float(model.objective().forward(*batch.inputs)) for batch in batches]
        return {self.metric: float(np.average(losses, weights=[b.weight for b in batches]))}

    def description(self) -> dict:
        symbols = self.vocabulary.symbols
        return {"name": RUN, "symbols": symbols, "context": self.longest, "data": self.data}


def go_on(model: LanguageModel, symbols: list[str], context: int, prompt: str, length: int) -> str:
    """`prompt` and the `length` characters that the model writes after it.

    It was trained on `context` characters at a time. So it writes until there are as many, and
    then begins again with the latest half of them.
    """
    vocabulary, text, end = Vocabulary(symbols), prompt, len(prompt) + length
    while len(text) < end:
        known = text[-max(1, context // 2) :]
        room = min(max(1, context - len(known)), end - len(text))
        (ids,) = greedy(model, np.array([vocabulary.encode(known)]), room)
        if not ids:
            break
        text += "".join(vocabulary.decode(ids))
    return text


def use(options) -> int:
    """Go on from a prompt with the best model of a run folder."""
    model, metadata = load_model(options.run / "best.safetensors")
    pack(model, xp=find_backend(options.backend))
    try:
        name, symbols, context = (metadata["task"][key] for key in ("name", "symbols", "context"))
        sizes = len(Vocabulary(symbols)), type(context)
        fits = name == RUN and sizes == (model.config.vocabulary, int) and context >= 1
    except (KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise InputError("--run names a run of write", options.run, "Train one: --data FILE.txt")
    if not options.prompt or options.length < 1:
        raise InputError(
            "--run goes on from a --prompt, by a --length of at least 1 character",
            f"--prompt {options.prompt!r}, --length {options.length}",
            'For example --prompt "To be" --length 200',
        )
    prompt = unicodedata.normalize("NFC", options.prompt)  # as the text was
    if unknown := sorted({*prompt} - {*symbols}):
        print(f"note: training never saw {' '.join(map(repr, unknown))}", file=sys.stderr)
    print(go_on(model, symbols, context, prompt, options.length))
    return 0


def learn(options) -> int:
    """Train on a text, then show how it goes on from a place that training never saw."""
    text = read_text(options.data, "Name a text file: --data FILE.txt")
    task = WritingTask(text, options.context, options.batch_size, options.seed)
    config = script.chosen(options, LanguageModel.Config, vocabulary=len(task.vocabulary))
    model, _ = script.train_task(RUN, task, LanguageModel, config, options)
    unseen = "".join(task.vocabulary.decode(task.held_out[:200]))
    beginning = (unseen.partition("\n")[2] or unseen)[:20]
    print(f"what it writes after {beginning!r}, which training never saw:")
    print(go_on(model, task.vocabulary.symbols, task.longest, beginning, options.length))
    with inference():
        loss = task.evaluate(model)[task.metric]
    if options.quick:
        print(f"--quick only shows that everything runs: {options.steps} steps teach nothing yet")
    print(f"{len(task.held_out):,} characters that training never saw, nats per character:")
    print(f"held-out loss {loss:.4f}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Train, or with --run go on from a prompt; returns the exit code."""
    flags = script.parser(RUN, DESCRIPTION, LanguageModel, **DEFAULTS)
    flags.add_argument("--data", type=script.path, metavar="FILE.txt", help="a text to learn from")
    flags.add_argument("--context", type=script.integer, default=64, help="characters in a window")
    flags.add_argument("--run", type=script.path, metavar="DIR", help="use this run, do not train")
    flags.add_argument("--prompt", default="", help="with --run: the beginning to go on from")
    flags.add_argument("--length", type=script.integer, default=200, help="characters to write")
    options = script.parse(flags, RUN, arguments)
    if bool(options.run) == bool(options.data) or options.context < 1:
        raise InputError(
            "write takes a text to learn from, or a run to use, and a --context of at least 1",
            f"--data {options.data}, --run {options.run}, --context {options.context}",
            'For example --data FILE.txt, or --run runs/write --prompt "To be"',
        )
    return use(options) if options.run else learn(options)


if __name__ == "__main__":
    sys.exit(script.exit_code(main))
