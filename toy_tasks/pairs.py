"""Learn from any two columns of text: a source and its target on each line."""

import argparse
import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from numformer.data import EpochBatches, Subwords, Vocabulary
from numformer.errors import InputError
from numformer.generation import Transduction
from numformer.models import Transformer
from toy_tasks.command_line import (
    answer_inputs,
    beam_settings,
    build_parser,
    exit_code,
    integer,
    parse_options,
    start_vocabularies,
)
from toy_tasks.data import subwords as own
from toy_tasks.data.datasets import LONGEST, MAX_BYTES, Pair, read_pairs
from toy_tasks.data.dates import dates
from toy_tasks.text_to_text.transduction import Example, TransductionTask, learn

DESCRIPTION = """\
Learn to turn texts into others from your own pairs: a file with a source, one TAB and its target on
each line. A hash of the source decides which are trained on (eight in ten), which choose the
checkpoint (one) and which test it (one); or give three files for these three. The last line is the
share of test sources whose whole target is right.

  python -m toy_tasks.pairs --demo dates
  python -m toy_tasks.pairs --data FILE.tsv
  python -m toy_tasks.pairs --data TRAIN.tsv DEVELOPMENT.tsv TEST.tsv --words
  python -m toy_tasks.pairs --run runs/pairs-dates --input "21 nov 2026"
"""

DEFAULTS = dict(
    steps=1600,
    batch_size=64,
    evaluate_every=400,
    d_model=96,
    d_ff=384,
    heads=4,
    layers=2,
    tying="target",
    warmup=200,
    factor=0.4,
    decay="linear",
    label_smoothing=0.0,
    beam=1,
    length_penalty=1.0,
    penalty="paper",
)
SPLITS = "train", "dev", "test"
DEMOS = {"dates": (dates, 0.99)}
"""Pairs to try, and the exact match that they are to reach."""
MOST_EXAMPLES = 500, 2000
"""How many development and test sources are measured on."""


def split(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Eight in ten to train on, one for development, one for the test: the source decides."""
    of: dict[str, list[Pair]] = {name: [] for name in SPLITS}
    for pair in pairs:
        of[("test", "dev", *["train"] * 8)[zlib.crc32(pair[0].encode()) % 10]].append(pair)
    return of


def sides(data: dict[str, list[Pair]]) -> dict[str, Sequence[str]]:
    """The sources and the targets that are trained on."""
    return dict(zip(("source", "target"), zip(*data["train"], strict=True), strict=True))


def by_source(pairs: Sequence[Pair]) -> list[Example]:
    """Each source once, with all its targets."""
    targets: dict[str, list[str]] = {}
    for source, target in pairs:
        targets.setdefault(source, []).append(target)
    return [(source, tuple(dict.fromkeys(right))) for source, right in targets.items()]


class PairsTask(TransductionTask):
    """Batches and evaluation of pairs of texts, for `numformer.training.train`.

    `data` has the pairs of "train", "dev" and "test". `words` says which sides are made of words
    ("source", "target", "both" or neither), `known` are the vocabularies of the sides where there
    are such already, and `search` says how the test's sources are decoded: `beam`,
    `length_penalty`, `penalty`.
    """

    figures: ClassVar = {"symbol_error_rate": ".2f", "exact_match": ".4f"}
    name = "pairs"

    def __init__(
        self,
        data: dict[str, list[Pair]],
        batch_size: int,
        seed: int,
        words: str = "",
        known: Sequence[Vocabulary] = (),
        **search,
    ):
        sources, targets = sides(data).values()
        separators = [" " * (words in (side, "both")) for side in ("source", "target")]
        source, target = known or map(Vocabulary.of, (sources, targets), separators)
        symbols = {
            name: [(source.split(s), target.split(t)) for s, t in pairs]
            for name, pairs in data.items()
        }
        sequences = [side for pairs in symbols.values() for pair in pairs for side in pair]
        if (length := max(map(len, sequences))) > LONGEST:  # of subwords, which no file can tell
            rule, fix = f"a side has at most {LONGEST} subwords", "Shorten it, or ask for more."
            shown = f"{source.join(max(sequences, key=len))!r:.80}"
            raise InputError(rule, f"{length} in {shown}", fix)
        self.subwords = source if isinstance(source, Subwords) else None
        self.data = zlib.crc32(json.dumps(symbols).encode())
        if seen := len({source for source, _ in data["test"]} & {*sources}):
            self.tested = f"of the test, {seen:,} of which are trained on, too"
        longest = [max(map(len, side)) for side in zip(*symbols["train"], strict=True)]
        text = Transduction(source, target, 2 * longest[1], longest[0], **search)
        super().__init__(text, self.examples(data["dev"]), self.examples(data["test"]))
        self.longest = max(text.max_length, 1 + length)
        self.batch = EpochBatches(self.encode(data["train"]), batch_size, seed)

    def examples(self, pairs: Sequence[Pair]) -> list[Example]:
        """What is measured on: a source that has several targets is right with any of them."""
        return by_source(pairs)

    def measure(self, written: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        """Edits for each right symbol, in percent, and the share of targets without any."""
        answers = [*zip(written, examples, strict=True)]
        edits = sum(self.errors(answer, right) for answer, (_, right) in answers)
        symbols = sum(len(self.text.target.split(right[0])) for _, right in examples)
        exact = float(np.mean([answer in right for answer, (_, right) in answers]))
        return {"symbol_error_rate": 100 * edits / symbols, "exact_match": exact}

    def begin(self, folder: Path) -> None:
        """Keep the subwords in the folder of a run."""
        if self.subwords:
            own.keep(self.subwords, folder)

    def description(self) -> dict:
        return {"name": self.name, "data": self.data}


def read(options: argparse.Namespace) -> dict[str, list[Pair]]:
    """The pairs of the demo or of the files, as they are split; what is special in them is told."""
    if options.demo:
        pairs = {"all": DEMOS[options.demo][0]()}
    else:
        names = ["all"] if len(options.data) == 1 else SPLITS
        fix = "Name a file of pairs: --data FILE.tsv"
        how = options.words, fix, LONGEST if options.subwords is None else MAX_BYTES
        files = zip(names, options.data, strict=True)
        pairs = {name: read_pairs(Path(file), *how) for name, file in files}
    every = [pair for of in pairs.values() for pair in of]
    print(f"{len(every):,} pairs, for example {every[0][0]!r} -> {every[0][1]!r}")
    distinct = {name: [*dict.fromkeys(of)] for name, of in pairs.items()}
    if repeated := len(every) - sum(map(len, distinct.values())):
        print(f"{repeated:,} pairs stand there again and are left out")
    several = [example for of in distinct.values() for example in by_source(of) if example[1][1:]]
    if several:
        source, (target, other, *_) = several[0]
        print(
            f"{len(several):,} sources have several targets, any of which is right, for example "
            f"{source!r} -> {target!r} or {other!r}"
        )
    data = split(distinct["all"]) if "all" in distinct else distinct
    trained = {source for source, _ in data["train"]}
    if shared := {s for name in ("dev", "test") for s, _ in data[name]} & trained:
        print(
            f"{len(shared):,} sources of the development or test file are trained on, too, for "
            f"example {min(shared)!r}: the figures will flatter"
        )
    print(", ".join(f"{name} {len(data[name]):,}" for name in SPLITS))
    if empty := [name for name in SPLITS if not data[name]]:
        raise InputError(
            "there are pairs to train on, and others for development and for the test",
            f"none for {empty[0]}",
            "Give more pairs, or three files.",
        )
    for name, most in zip(SPLITS[1:], MOST_EXAMPLES, strict=True):
        if len(data[name]) > most:
            print(f"of {name} the first {most:,} are used")
        data[name] = data[name][:most]
    return data


def name_of(options: argparse.Namespace) -> str:
    """The name of the run's folder: the demo's, or that of the first file."""
    file = Path(options.data[0]).stem if options.data else ""
    return f"pairs-{options.demo or file}".rstrip("-")


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program. Raises InputError where they contradict each other."""
    flags = build_parser("pairs", DESCRIPTION, Transformer, **DEFAULTS)
    add = flags.add_argument
    add(
        "--data",
        nargs="+",
        metavar="FILE.tsv",
        help="one file of pairs, or three: to train on, for development, for the test",
    )
    add("--demo", choices=DEMOS, help="made-up pairs to try: dates in words and as 2026-11-21")
    add(
        "--words",
        nargs="?",
        const="both",
        default="",
        choices=["source", "target", "both", ""],
        help="the side that is made of words instead of characters; alone: both (default: neither)",
    )
    add("--subwords", type=integer, metavar="N", help=own.HELP)
    options = parse_options(flags, name_of, arguments)
    if options.run:
        return options
    if bool(options.demo) == bool(options.data) or len(options.data or [0]) not in (1, 3):
        raise InputError(
            "pairs takes --data with one file or three, or a --demo, or a --run to use",
            f"--data {options.data}, --demo {options.demo}",
            "For example --data FILE.tsv, or --demo dates",
        )
    if options.words and options.subwords is not None:
        rule, fix = "a side is made of words or of subwords", "Leave out --words or --subwords."
        raise InputError(rule, "both", fix)
    return options


def make_task(options: argparse.Namespace) -> PairsTask:
    """The task that the options describe."""
    data, how = read(options), (options.batch_size, options.seed, options.words)
    known = start_vocabularies(options, **sides(data))
    if options.subwords is not None and not known:
        lines = [line for side in sides(data).values() for line in side]
        known = 2 * (own.subwords_of(options, lines, options.subwords, "--subwords", exact=True),)
    return PairsTask(data, *how, known, **beam_settings(options))


def main(arguments: list[str] | None = None) -> int:
    """Train, or with --run use a trained model; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return answer_inputs(options)
    return learn(make_task(options), options, DEMOS[options.demo][1] if options.demo else None)


if __name__ == "__main__":
    sys.exit(exit_code(main))
