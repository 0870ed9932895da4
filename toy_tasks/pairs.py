# PYTHON_ARGCOMPLETE_OK
"""Learn from pairs of texts: a file with a source and its target on each line."""

import argparse
import json
import sys
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from numformer.counts import counted
from numformer.data import EpochBatches, Subwords, Vocabulary
from numformer.errors import InputError
from numformer.generation import Transduction
from numformer.generation.evaluation import Evaluation
from numformer.models import Transformer
from numformer.trained import Trained
from toy_tasks.command_line import (
    add_evaluation_flag,
    answer_inputs,
    beam_settings,
    build_parser,
    evaluate_run,
    exit_code,
    integer,
    name_with_data,
    parse_options,
    start_vocabularies,
)
from toy_tasks.data.dates import dates
from toy_tasks.data.splits import split_pairs
from toy_tasks.data.subwords import HELP, save_subwords, subwords_for_run
from toy_tasks.data.text_files import MAX_BYTES, MAX_SYMBOLS, Pair, read_pairs
from toy_tasks.text_to_text.transduction import Example, TransductionTask, train_and_test

DESCRIPTION = """\
Learn to turn texts into other texts from your own pairs: a file with a source, one TAB and its
target on each line. A hash of the source splits the pairs: eight in ten are for training, one is
for choosing the checkpoint and one for the test. Or give three files, one for each part. The last
line is the share of test sources whose whole target is right.

  python -m toy_tasks.pairs --demo dates
  python -m toy_tasks.pairs --data FILE.tsv
  python -m toy_tasks.pairs --data TRAIN.tsv DEVELOPMENT.tsv TEST.tsv --words
  python -m toy_tasks.pairs --run runs/pairs-dates --input "21 nov 2026"
  python -m toy_tasks.pairs --run runs/pairs-dates --data TEST.tsv --predictions OUT.tsv
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
"""Functions that make example pairs, and the exact match that a model must reach on them."""


def sides(data: dict[str, list[Pair]]) -> dict[str, Sequence[str]]:
    """The sources and the targets that are trained on."""
    return dict(zip(("source", "target"), zip(*data["train"], strict=True), strict=True))


def group_by_source(pairs: Sequence[Pair]) -> list[Example]:
    """Each source once, with all its targets."""
    targets: dict[str, list[str]] = {}
    for source, target in pairs:
        targets.setdefault(source, []).append(target)
    return [(source, tuple(dict.fromkeys(right))) for source, right in targets.items()]


class PairsTask(TransductionTask):
    """Batches and evaluation of pairs of texts, for `numformer.training.train`.

    `data` has the pairs of "train", "dev" and "test". `words` says which sides are split into
    words: "source", "target", "both", or "" for none. `vocabularies` are the vocabularies of source
    and target, if they exist already. `search` has the settings of beam search for the test:
    `beam`, `length_penalty`, `penalty`.
    """

    figures: ClassVar = {"symbol_error_rate": ".2f", "exact_match": ".4f"}
    name = "pairs"

    def __init__(
        self,
        data: dict[str, list[Pair]],
        batch_size: int,
        seed: int,
        words: str = "",
        vocabularies: Sequence[Vocabulary] = (),
        **search,
    ):
        sources, targets = sides(data).values()
        separators = [" " * (words in (side, "both")) for side in ("source", "target")]
        source, target = vocabularies or map(Vocabulary.of, (sources, targets), separators)
        symbols = {
            name: [(source.split(s), target.split(t)) for s, t in pairs]
            for name, pairs in data.items()
        }
        sequences = [side for pairs in symbols.values() for pair in pairs for side in pair]
        # read_pairs checks the number of characters and words; subwords can be counted only here.
        if (length := max(map(len, sequences))) > MAX_SYMBOLS:
            rule, fix = f"a side has at most {MAX_SYMBOLS} subwords", "Cut it, or raise --subwords."
            excerpt = f"{source.join(max(sequences, key=len))!r:.80}"
            raise InputError(rule, f"{length} in {excerpt}", fix)
        self.subwords = source if isinstance(source, Subwords) else None
        self.data = zlib.crc32(json.dumps(symbols).encode())
        if shared := len({source for source, _ in data["test"]} & {*sources}):
            self.unseen = f"of the test set, {shared:,} of which are trained on, too"
        longest = [max(map(len, side)) for side in zip(*symbols["train"], strict=True)]
        text = Transduction(source, target, 2 * longest[1], longest[0], **search)
        super().__init__(text, self.examples(data["dev"]), self.examples(data["test"]))
        self.longest = max(text.max_length, 1 + length)
        self.batch = EpochBatches(self.encode(data["train"]), batch_size, seed)

    def examples(self, pairs: Sequence[Pair]) -> list[Example]:
        """The examples to measure. If a source has several targets, each of them is right."""
        return group_by_source(pairs)

    def begin(self, folder: Path) -> None:
        """Save the subwords in the folder of a run."""
        if self.subwords:
            save_subwords(self.subwords, folder)

    def description(self) -> dict:
        return {"name": self.name, "data": self.data}


def read_data(options: argparse.Namespace) -> dict[str, list[Pair]]:
    """The pairs of the demo or of the files, by split. Prints counts, and remarks on them."""
    if options.demo:
        files = {"all": DEMOS[options.demo][0]()}
    else:
        names = ["all"] if len(options.data) == 1 else SPLITS
        fix = "Name a file of pairs: --data FILE.tsv"
        settings = options.words, fix, MAX_SYMBOLS if options.subwords is None else MAX_BYTES
        paths = zip(names, options.data, strict=True)
        files = {name: read_pairs(Path(path), *settings) for name, path in paths}
    total = sum(map(len, files.values()))
    first = next(iter(files.values()))[0]
    print(f"{counted(total, 'pair')}, for example {first[0]!r} -> {first[1]!r}")
    distinct = {name: [*dict.fromkeys(pairs)] for name, pairs in files.items()}
    if repeated := total - sum(map(len, distinct.values())):
        print(f"{counted(repeated, 'repeated pair')} left out")
    examples = [example for pairs in distinct.values() for example in group_by_source(pairs)]
    if multiple := [example for example in examples if len(example[1]) > 1]:
        source, (target, other, *_) = multiple[0]
        print(
            f"{counted(len(multiple), 'source')} with several targets, each of them right, "
            f"for example {source!r} -> {target!r} or {other!r}"
        )
    data = split_pairs(distinct["all"], *SPLITS) if "all" in distinct else distinct
    trained = {source for source, _ in data["train"]}
    if shared := {s for name in ("dev", "test") for s, _ in data[name]} & trained:
        print(
            f"training also has {counted(len(shared), 'source')} of the development or test file, "
            f"for example {min(shared)!r}: the figures will be too good"
        )
    print(", ".join(f"{name} {len(data[name]):,}" for name in SPLITS))
    if empty := [name for name in SPLITS if not data[name]]:
        raise InputError(
            "there are pairs for training, for development and for the test",
            f"none for {empty[0]}",
            "Give more pairs, or three files.",
        )
    for name, most in zip(SPLITS[1:], (options.dev_size, options.test_size), strict=True):
        if len(data[name]) > most:
            print(f"only the first {most:,} pairs of {name} are used")
        data[name] = data[name][:most]
    return data


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program. Raises InputError if they contradict each other."""
    parser = build_parser("pairs", DESCRIPTION, Transformer, has_epochs=True, **DEFAULTS)
    add = parser.add_argument
    add(
        "--data",
        nargs="+",
        metavar="FILE.tsv",
        help="one file of pairs; or three: for training, development and the test; with --run, "
        "one file to evaluate the model on",
    )
    add("--demo", choices=DEMOS, help="example pairs: dates in words and as 2026-11-21")
    add(
        "--words",
        nargs="?",
        const="both",
        default="",
        choices=["source", "target", "both", ""],
        metavar="SIDE",
        help="the side whose symbols are words instead of characters: source, target or both; "
        "without a value: both (default: neither)",
    )
    add("--subwords", type=integer, metavar="N", help=HELP)
    for name, split, most in (("dev", "development", 500), ("test", "test", 2000)):
        add(f"--{name}-size", type=integer, default=most, help=f"at most this many {split} pairs")
    add_evaluation_flag(parser)
    options = parse_options(parser, partial(name_with_data, "pairs"), arguments)
    if options.run:
        return options
    if bool(options.demo) == bool(options.data) or len(options.data or [0]) not in (1, 3):
        raise InputError(
            "pairs takes --data with one file or three, or a --demo, or a --run to use",
            f"{counted(len(options.data or ()), 'file')} and {'a' if options.demo else 'no'} demo",
            "For example --data FILE.tsv, or --demo dates",
        )
    if min(options.dev_size, options.test_size) < 1:
        sizes = f"{options.dev_size} and {options.test_size}"
        raise InputError("--dev-size and --test-size are at least 1", sizes, "Change them.")
    if options.words and options.subwords is not None:
        rule, fix = "the symbols are words or subwords", "Leave out --words or --subwords."
        raise InputError(rule, "both", fix)
    return options


def make_task(options: argparse.Namespace) -> PairsTask:
    """The task that the options describe."""
    data = read_data(options)
    vocabularies = start_vocabularies(options, **sides(data))
    if options.subwords is not None and not vocabularies:
        lines = [line for side in sides(data).values() for line in side]
        size = options.subwords
        vocabularies = 2 * (subwords_for_run(options, lines, size, "--subwords", exact=True),)
    settings = options.batch_size, options.seed, options.words, vocabularies
    return PairsTask(data, *settings, **beam_settings(options))


def use(options: argparse.Namespace) -> int:
    """Answer texts with the model of --run, or evaluate it on --data; returns the exit code."""
    if not options.data:
        return answer_inputs(options, kind=Transduction)
    return evaluate_run(options, Transduction, evaluate)


def evaluate(options: argparse.Namespace, trained: Trained, **settings) -> Evaluation:
    """Compare the answers to the sources in the file of --data with its targets."""
    vocabularies = trained.text.vocabularies
    with_words = [name for name in ("source", "target") if vocabularies[name].separator]
    words = "both" if len(with_words) == 2 else "".join(with_words)
    has_subwords = any(type(vocabulary) is not Vocabulary for vocabulary in vocabularies.values())
    fix = "Name one file of pairs: --data TEST.tsv"
    if len(options.data) != 1:
        raise InputError("--run evaluates on one file", f"{len(options.data)} files", fix)
    longest = MAX_BYTES if has_subwords else MAX_SYMBOLS
    pairs = read_pairs(Path(options.data[0]), words, fix, longest)
    return trained.evaluate(group_by_source(pairs), **settings)


def main(arguments: list[str] | None = None) -> int:
    """Train a model, or with --run use a trained one; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return use(options)
    required = DEMOS[options.demo][1] if options.demo else None
    return train_and_test(make_task(options), options, required)


if __name__ == "__main__":
    sys.exit(exit_code(main))
