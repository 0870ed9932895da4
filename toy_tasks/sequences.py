"""Tasks that turn one made-up sequence into another: data, evaluation and the script around them.

Sequences are drawn fresh for every batch. A hash of the source decides whether training may see
it: one source in eight is held out, so no sequence that is tested was ever trained on.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from numformer.backend import seed_sequence
from numformer.data import PairBatch, Vocabulary, pad_sources
from numformer.errors import InputError
from numformer.generation import greedy
from numformer.models import Config, Transformer
from numformer.plots import attention_maps, cross_attention_weights
from toy_tasks import script

DEFAULTS = dict(
    steps=1600, evaluate_every=200, d_model=64, d_ff=128, heads=4, layers=2, p_drop=0.0,
    label_smoothing=0.0, warmup=200, factor=0.5, decay="linear",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Rule:
    """What a task is: how a source is drawn, from which symbols, and the target it becomes."""

    name: str
    description: str
    symbols: str
    source: Callable[[np.random.Generator], str]
    target: Callable[[str], str]
    reached: float  # the exact match that the task is to reach
    defaults: dict  # of flags, where they differ from those of all such tasks


def digits(longest: int) -> Callable[[np.random.Generator], str]:
    """Draws 1 to `longest` random digits."""

    def draw(rng: np.random.Generator) -> str:
        return "".join(map(str, rng.integers(10, size=rng.integers(1, longest + 1))))

    return draw


def held_out(source: str) -> bool:
    """Whether this source belongs to evaluation, never to training."""
    return zlib.crc32(source.encode()) % 8 == 0


class SequenceTask:
    """Batches and evaluation of a Rule, for `numformer.training.train`."""

    metric, higher_is_better = "exact_match", True

    def __init__(self, rule: Rule, batch_size: int, seed: int):
        self.rule, self.batch_size, self.seed = rule, batch_size, seed
        self.vocabulary = Vocabulary(rule.symbols)
        rng = np.random.default_rng(seed_sequence(seed, "held out"))
        distinct = list(dict.fromkeys(islice(self._sources(rng, wanted=True), 6000)))
        if len(distinct) < 2 or next(self._sources(rng, wanted=False), None) is None:
            raise InputError(
                "a task has sources to train on, and two more that a hash of them holds out",
                f"{len(distinct)} held out among those that the rule {rule.name!r} draws",
                "Let the rule draw from more sources.",
            )
        half = min(512, len(distinct) // 2)
        self.development, self.test = distinct[:half], distinct[half : half + 2048]
        self.longest = 1 + max(len(s) for source in distinct for s in (source, rule.target(source)))

    def _sources(self, rng: np.random.Generator, wanted: bool) -> Iterator[str]:
        """Random sources, all held out or (wanted=False) none; without end where there are any."""
        others = 0
        while others < 1000:
            source = self.rule.source(rng)
            others += 1
            if held_out(source) is wanted:
                others = 0
                yield source

    def encode(self, sources: list[str]) -> list[tuple[list[int], list[int]]]:
        """(source, target) pairs of ids."""
        encode = self.vocabulary.encode
        return [(encode(source), encode(self.rule.target(source))) for source in sources]

    def batch(self, step: int) -> PairBatch:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        sources = self._sources(rng, wanted=False)
        return PairBatch.of(self.encode([*islice(sources, self.batch_size)]))

    @property
    def held_out(self) -> list[PairBatch]:
        """The development sources and their targets."""
        pairs = self.encode(self.development)
        return [PairBatch.of(pairs[start : start + 256]) for start in range(0, len(pairs), 256)]

    def predict(self, model: Transformer, sources: list[str]) -> list[str]:
        """What the model writes for each source, by greedy decoding."""
        predicted = []
        for start in range(0, len(sources), 256):
            part = sources[start : start + 256]
            ids = pad_sources([self.vocabulary.encode(source) for source in part])
            longest = max(len(self.rule.target(source)) for source in part)
            predicted += greedy(model, ids, longest + 1)
        return ["".join(self.vocabulary.decode(ids)) for ids in predicted]

    def exact_match(self, model: Transformer, sources: list[str]) -> float:
        """The share of sources whose whole target is right."""
        predicted = self.predict(model, sources)
        right = [p == self.rule.target(s) for p, s in zip(predicted, sources, strict=True)]
        return float(np.mean(right))

    def evaluate(self, model: Transformer) -> dict[str, float]:
        return {"exact_match": self.exact_match(model, self.development)}

    def description(self) -> dict:
        return {"name": self.rule.name, "symbols": self.rule.symbols}


def show(task: SequenceTask, model: Transformer, folder: Path, plots: bool) -> None:
    """Print a few test sources with what the model writes, and draw one's attention maps."""
    examples = sorted(task.test[:6], key=len)
    for source, predicted in zip(examples, task.predict(model, examples), strict=True):
        target = task.rule.target(source)
        note = "right" if predicted == target else f"WRONG, it is {target}"
        print(f"  {source:>20} -> {predicted}  {note}")
    if not plots:
        return
    source = max(task.test[:50], key=len)
    target = task.rule.target(source)
    batch = PairBatch.of(task.encode([source]))
    weights = cross_attention_weights(model, batch.source, batch.target_in)[:, 0]
    title = f"{task.rule.name}: where the decoder looks when {target}⊣ is right (⊣ is the end id)"
    attention_maps(folder / "attention.png", weights, [*source, "⊣"], [*target, "⊣"], title)


def main(rule: Rule, arguments: list[str] | None = None) -> int:
    """Train, test and show; returns the exit code."""
    flags = script.parser(rule.name, rule.description, Transformer, **(DEFAULTS | rule.defaults))
    options = script.parse(flags, rule.name, arguments)
    task = SequenceTask(rule, options.batch_size, options.seed)
    symbols = len(task.vocabulary)
    sizes = dict(source_vocabulary=symbols, target_vocabulary=symbols)
    config = script.chosen(options, Config, **sizes)
    model, folder = script.train_task(rule.name, task, Transformer, config, options)
    show(task, model, folder, plots=not options.no_plots)
    matched = task.exact_match(model, task.test)
    if options.quick:
        print(f"--quick only shows that everything runs: {options.steps} steps teach nothing yet")
    print(f"{len(task.test)} sequences that training never saw, target {rule.reached}:")
    print(f"exact match {matched:.4f}")
    return 0 if options.quick or matched >= rule.reached else 1


def start(rule: Rule) -> None:
    """Run the task as a program."""
    sys.exit(script.exit_code(lambda: main(rule)))
