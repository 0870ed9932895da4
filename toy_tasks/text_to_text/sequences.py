"""Tasks that turn one made-up sequence into another: data, evaluation and the script around them.

Sequences are drawn fresh for every batch. A hash of the source decides whether training may see
it: one source in eight is held out, so no sequence that is tested was ever trained on.
"""

import argparse
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from numformer.data import PairBatch, Vocabulary
from numformer.errors import InputError
from numformer.generation import Transduction
from numformer.models import Transformer
from numformer.randomness import seed_sequence
from toy_tasks.command_line import answer_inputs, build_parser, exit_code, parse_options
from toy_tasks.text_to_text.transduction import TransductionTask, learn

DEFAULTS = dict(
    steps=1600,
    evaluate_every=200,
    d_model=64,
    d_ff=128,
    heads=4,
    layers=2,
    p_drop=0.0,
    label_smoothing=0.0,
    warmup=100,
    factor=0.15,
    decay="linear",
    clip_norm=1.0,
)


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


class SequenceTask(TransductionTask):
    """Batches and evaluation of a Rule, for `numformer.training.train`."""

    def __init__(self, rule: Rule, batch_size: int, seed: int):
        self.rule, self.batch_size, self.seed = rule, batch_size, seed
        rng = np.random.default_rng(seed_sequence(seed, "held out"))
        distinct = list(dict.fromkeys(islice(self._sources(rng, wanted=True), 6000)))
        if len(distinct) < 2 or next(self._sources(rng, wanted=False), None) is None:
            raise InputError(
                "a task has sources to train on, and two more that a hash of them holds out",
                f"{len(distinct)} held out among those that the rule {rule.name!r} draws",
                "Let the rule draw from more sources.",
            )
        examples = [(source, (rule.target(source),)) for source in distinct]
        half = min(512, len(examples) // 2)
        vocabulary, longest = Vocabulary(rule.symbols), max(map(len, distinct))
        self.longest_target = max(len(target) for _, (target,) in examples)
        self.longest = 1 + max(longest, self.longest_target)
        text = Transduction(vocabulary, vocabulary, 2 * self.longest_target, longest)
        super().__init__(text, examples[:half], examples[half : half + 2048])

    def _sources(self, rng: np.random.Generator, wanted: bool) -> Iterator[str]:
        """Random sources, all held out or (wanted=False) none; without end where there are any."""
        others = 0
        while others < 1000:
            source = self.rule.source(rng)
            others += 1
            if held_out(source) is wanted:
                others = 0
                yield source

    def batch(self, step: int) -> PairBatch:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        sources = islice(self._sources(rng, wanted=False), self.batch_size)
        return PairBatch.of(self.encode((source, self.rule.target(source)) for source in sources))

    def written(self, model: Transformer, sources: Iterable[str], **how) -> list[str]:
        """Up to one symbol more than any target has: it is wrong then."""
        return super().written(model, sources, max_length=1 + self.longest_target, **how)

    def description(self) -> dict:
        return {"name": self.rule.name, "symbols": self.rule.symbols}


def read_options(rule: Rule, arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the rule's program."""
    parser = build_parser(rule.name, rule.description, Transformer, **(DEFAULTS | rule.defaults))
    return parse_options(parser, lambda options: rule.name, arguments)


def make_task(rule: Rule, options: argparse.Namespace) -> SequenceTask:
    """The task that the options describe."""
    return SequenceTask(rule, options.batch_size, options.seed)


def main(rule: Rule, arguments: list[str] | None = None) -> int:
    """Train, or with --run use a trained model; returns the exit code."""
    options = read_options(rule, arguments)
    if options.run:
        return answer_inputs(options)
    return learn(make_task(rule, options), options, rule.reached)


def start(rule: Rule) -> None:
    """Run the task as a program."""
    sys.exit(exit_code(lambda: main(rule)))
