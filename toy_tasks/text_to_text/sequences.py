"""Tasks that transform sequences by a rule: the rule, its task, and the program around it.

Sources are drawn at random for every batch. One source in eight, chosen by a hash, is held out for
evaluation, so the model is never tested on a source that it was trained on.
"""

import argparse
import sys
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
from toy_tasks.data.splits import is_held_out
from toy_tasks.text_to_text.transduction import TransductionTask, train_and_test

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


DEVELOPMENT, TEST = 512, 2048  # distinct sources that are held out
HELD_OUT_SOURCES = 6000  # a task draws at most this many to find them


@dataclass(frozen=True, eq=False)
class Rule:
    """A task: its symbols, and how to draw a source and make the target of a source."""

    name: str
    description: str
    symbols: str
    draw_source: Callable[[np.random.Generator], str]
    make_target: Callable[[str], str]
    required: float  # exact match
    defaults: dict  # values of flags that differ from DEFAULTS


def digits(longest: int) -> Callable[[np.random.Generator], str]:
    """A function that draws 1 to `longest` random digits."""

    def draw(rng: np.random.Generator) -> str:
        return "".join(map(str, rng.integers(10, size=rng.integers(1, longest + 1)).tolist()))

    return draw


class SequenceTask(TransductionTask):
    """Batches and evaluation of a Rule, for `numformer.training.train`."""

    def __init__(self, rule: Rule, batch_size: int, seed: int):
        self.rule, self.batch_size, self.seed = rule, batch_size, seed
        rng = np.random.default_rng(seed_sequence(seed, "held out"))
        sources = islice(self._sources(rng, held_out=True), HELD_OUT_SOURCES)
        distinct: dict[str, None] = {}
        while len(distinct) < DEVELOPMENT + TEST and (source := next(sources, None)) is not None:
            distinct[source] = None
        if len(distinct) < 2 or next(self._sources(rng, held_out=False), None) is None:
            raise InputError(
                "a task has sources to train on, and at least two that are held out",
                f"{len(distinct)} held out among those that the rule {rule.name!r} draws",
                "Let the rule draw from more sources.",
            )
        examples = [(source, (rule.make_target(source),)) for source in distinct]
        half = min(DEVELOPMENT, len(examples) // 2)
        vocabulary, longest = Vocabulary(rule.symbols), max(map(len, distinct))
        self.longest_target = max(len(target) for _, (target,) in examples)
        self.longest = 1 + max(longest, self.longest_target)
        text = Transduction(vocabulary, vocabulary, 2 * self.longest_target, longest)
        super().__init__(text, examples[:half], examples[half:])

    def _sources(self, rng: np.random.Generator, held_out: bool) -> Iterator[str]:
        """Random sources, all held out or all for training; ends after 1,000 misses in a row."""
        rejected = 0
        while rejected < 1000:
            source = self.rule.draw_source(rng)
            rejected += 1
            if is_held_out(source) is held_out:
                rejected = 0
                yield source

    def batch(self, step: int) -> PairBatch:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        sources = islice(self._sources(rng, held_out=False), self.batch_size)
        pairs = ((source, self.rule.make_target(source)) for source in sources)
        return PairBatch.of(self.encode(pairs))

    def write(self, model: Transformer, sources: Iterable[str], **settings) -> list[str]:
        """Write at most one symbol more than the longest target: a longer answer is wrong."""
        return super().write(model, sources, max_length=1 + self.longest_target, **settings)

    def description(self) -> dict:
        return {"name": self.rule.name, "symbols": self.rule.symbols}


def read_options(rule: Rule, arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the rule's program."""
    parser = build_parser(rule.name, rule.description, Transformer, **(DEFAULTS | rule.defaults))
    return parse_options(parser, lambda options: rule.name, arguments)


def make_task(rule: Rule, options: argparse.Namespace) -> SequenceTask:
    """The rule's task, as the options describe it."""
    return SequenceTask(rule, options.batch_size, options.seed)


def main(rule: Rule, arguments: list[str] | None = None) -> int:
    """Train a model, or with --run use a trained one; returns the exit code."""
    options = read_options(rule, arguments)
    if options.run:
        return answer_inputs(options, kind=Transduction)
    return train_and_test(make_task(rule, options), options, rule.required)


def run_program(rule: Rule) -> None:
    """Run the task as a program."""
    sys.exit(exit_code(lambda: main(rule)))
