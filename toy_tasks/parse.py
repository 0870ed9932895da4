# PYTHON_ARGCOMPLETE_OK
"""Learn to parse: read a sentence, write its syntax tree (section 6.3 of the paper)."""

import argparse
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numformer.data import PairBatch, TokenBatches, Vocabulary
from numformer.errors import InputError
from numformer.generation import Parsing
from numformer.generation.evaluation import Evaluation
from numformer.generation.evaluation import evaluate as evaluate_symbols
from numformer.generation.parsing import WORD
from numformer.models import Model, RecurrentEncoderDecoder, Transformer
from numformer.randomness import seed_sequence
from numformer.trained import Trained, load
from toy_tasks.command_line import (
    Parser,
    add_evaluation_flag,
    answer_inputs,
    any_path,
    beam_settings,
    evaluate_run,
    exit_code,
    generation_settings,
    picture_path,
    settings_from,
    study,
)
from toy_tasks.data.grammar import Grammar
from toy_tasks.data.splits import is_held_out
from toy_tasks.data.trees import Tree, read_trees, tree_from_symbols
from toy_tasks.measures.evalb import evalb
from toy_tasks.reports import charts
from toy_tasks.reports.tables import mean_and_range
from toy_tasks.reports.tree_pictures import draw_tree

DESCRIPTION = """\
Learn to parse sentences, as section 6.3 of the paper does: the words go in, the brackets of the
tree come out (Vinyals et al. 2015). A Transformer and a recurrent encoder-decoder with attention
learn from 500 to 32,000 sentences of a grammar (toy_tasks/data/grammar.py), in which words decide
what a phrase attaches to. Some sentences are ambiguous, so no parser is always right: the ceiling
is the F1 of the most probable tree under the grammar itself. Target: the Transformer with 32,000
sentences within 1.0 of that F1, and 99 % of its trees well formed.

  python -m toy_tasks.parse
  python -m toy_tasks.parse --run runs/parse/Transformer-32000-1 --input "the dog saw a cat"
  python -m toy_tasks.parse --run runs/parse/Transformer-32000-1 --data TREES.mrg
  python -m toy_tasks.parse --data DIR        the Penn Treebank: its sections 02 to 21, 22 and 23
"""
DEFAULTS = dict(
    batch_size=512,
    d_model=128,
    d_ff=256,
    heads=4,
    layers=2,
    norm="pre",
    positions="sinusoidal_rotary",
    tying="none",
    label_smoothing=0.0,
    warmup=300,
    rate=0.0015,
    decay="linear",
    clip_norm=1.0,
    seeds=[1],
    beam=21,
    length_penalty=0.3,
    penalty="paper",
)
LONGEST, LONGER = 40, 60
"""The most words of a grammar's sentence: in training, and in the test set of longer ones."""
EXTRA_SYMBOLS = 300
"""The model writes at most this many symbols more than the sentence has words (section 6.3)."""
TRAIN_SENTENCES = 32000
"""The largest number of sentences of the grammar to train on."""
EVALUATION_SENTENCES = {"development": 200, "test": 500, "longer": 50}
"""The numbers of sentences of the grammar to measure on."""
MODELS = TRANSFORMER, RECURRENT = "Transformer", "recurrent"
STEPS = {32000: (22000, 9000), 8000: (8000, 4000), 2000: (4000, 2000), 500: (2000, 1000)}
"""Training steps of both models for each number of sentences. The longest runs come first.

A step of the recurrent model takes longer, but it needs fewer steps."""
MAX_WITH_DROPOUT = 2000
"""Dropout helps up to this number of sentences; with more, it only takes time."""
SECTIONS = {"train": range(2, 22), "development": (22,), "test": (23,)}
"""The sections of the Penn Treebank, as they are usually split."""
FIGURES = "f1", "precision", "recall", "exact", "well_formed", "longer", "longer_well_formed"
TITLES = {
    "f1": (f"up to {LONGEST} words", "all of section 23"),
    "longer": (f"{LONGEST + 1} to {LONGER} words", f"its sentences of over {LONGEST} words"),
}
"""Titles of charts: for the grammar, and for the treebank."""
MAX_GAP, WELL_FORMED = 1.0, 99
"""The target: F1 at most this far below the ceiling, and this percentage of well-formed trees."""
MIN_COUNT = 2
"""Rarer words of the training data become the unknown word, so that the model learns its use."""


class Sentence(NamedTuple):
    """A tree, its words, which the model reads, and its symbols, which the model writes."""

    tree: Tree
    words: list[str]
    symbols: list[str]

    @classmethod
    def from_tree(cls, tree: Tree) -> "Sentence":
        return cls(tree, tree.words(), tree.to_symbols())

    def answer(self) -> list[str]:
        """The symbols, with words in place of XX as in a model's answers."""
        words = iter(self.words)
        return [next(words) if symbol == WORD else symbol for symbol in self.symbols]


Data = dict[str, list[Sentence]]
"""The sentences of "train", "development", "test", and of the test set of "longer" sentences."""


@cache
def grammar_data(train: int, divisor: int = 1) -> Data:
    """Distinct sentences of the grammar: `train` to train on, others to evaluate on.

    The evaluation sets have EVALUATION_SENTENCES / `divisor` sentences, but at least one each.
    Sentences of more than LONGEST words are "longer"; a hash of every other sentence decides
    whether it is in "train".
    """
    grammar, rng = Grammar(), np.random.default_rng(seed_sequence(1, "data"))
    counts = {name: max(1, number // divisor) for name, number in EVALUATION_SENTENCES.items()}
    counts = {"train": train} | counts
    data: dict[str, dict[str, Sentence]] = {name: {} for name in counts}
    while any(len(data[name]) < number for name, number in counts.items()):
        if (tree := grammar.draw(rng, most=LONGER)) is None:
            continue
        sentence = Sentence.from_tree(tree)
        text = " ".join(sentence.words)
        name = "longer" if len(sentence.words) > LONGEST else "train"
        if name == "train" and is_held_out(text):
            development = data["development"]
            full = len(development) == counts["development"] and text not in development
            name = "test" if full else "development"
        if len(data[name]) < counts[name]:
            data[name][text] = sentence
    return {name: [*sentences.values()] for name, sentences in data.items()}


def best_parses(sentences: Sequence[Sentence]) -> dict[str, float]:
    """The scores of the most probable trees under the grammar itself.

    No other parser is expected to get more trees entirely right. A parser that chooses each bracket
    by its own probability can reach a slightly higher F1 (Goodman 1996).
    """
    grammar = Grammar()
    trees = [(grammar.parse(sentence.words)[0], True) for sentence in sentences]
    scores = evalb(trees, [sentence.tree for sentence in sentences])
    return {name: measure.value for name, measure in scores.items()}


@cache
def treebank_data(folder: Path) -> Data:
    """The sentences of the Penn Treebank. Raises InputError if the folder lacks a section."""
    data: Data = {name: [] for name in SECTIONS}
    for path in sorted(folder.rglob("*.mrg")):
        section = re.match(r"wsj_(\d\d)", path.name)
        for name, sections in SECTIONS.items():
            if section and int(section[1]) in sections:
                data[name] += map(Sentence.from_tree, read_trees(path))
    for name, sentences in data.items():
        if not sentences:
            section = f"{min(SECTIONS[name]):02d}"
            rule = f"--data has section {section} of the Penn Treebank, for {name}"
            fix = f"Name the folder of wsj_{section}01.mrg and so on, or the folder above it."
            raise InputError(rule, f"none in {folder}", fix)
    longer = [sentence for sentence in data["test"] if len(sentence.words) > LONGEST]
    return data | {"longer": longer}


class ParseTask:
    """Batches of sentences and the symbols of their trees, for `numformer.training.train`."""

    metric, higher_is_better = "f1", True

    def __init__(
        self, data: Data, count: int, max_tokens: int, seed: int, has_grammar: bool = True, **search
    ):
        self.data, self.has_grammar = data, has_grammar
        training = data["train"][:count]
        counts = Counter(word for sentence in training for word in sentence.words)
        words = sorted(word for word, number in counts.items() if number >= MIN_COUNT)
        symbols = Vocabulary.of((sentence.symbols for sentence in training), " ")
        longest = max(len(sentence.words) for sentence in training)
        self.text = Parsing(Vocabulary(words, " "), symbols, EXTRA_SYMBOLS, longest, **search)
        pairs = self.encode(training)
        self.longest = 1 + max(
            self.text.length_limit(longest), *(len(target) for _, target in pairs)
        )
        self.batch = TokenBatches(pairs, max_tokens, seed)
        pairs = sorted(self.encode(data["development"]), key=lambda pair: len(pair[1]))
        self.held_out = [PairBatch.of(pairs[i : i + 64]) for i in range(0, len(pairs), 64)]
        lines = "\n".join(" ".join((*s.words, *s.symbols)) for s in training)
        self.checksums = {"count": len(training), "data": zlib.crc32(lines.encode())}

    def encode(self, sentences: Sequence[Sentence]) -> list[tuple[list[int], list[int]]]:
        """(source, target) pairs of ids."""
        source, target = self.text.source, self.text.target
        return [(source.encode(s.words), target.encode(s.symbols)) for s in sentences]

    def score(self, model: Model, name: str, **settings) -> dict[str, float]:
        """The scores of the trees that a model writes for a part of the data."""
        sentences = [sentence.words for sentence in self.data[name]]
        written = self.text.write(model, sentences, **settings)
        gold = [sentence.tree for sentence in self.data[name]]
        scores = evalb([*map(tree_from_symbols, written, sentences)], gold)
        return {name: measure.value for name, measure in scores.items()}

    def evaluate(self, model: Model) -> dict[str, float]:
        """The scores of greedily decoded trees for the development sentences."""
        scores = self.score(model, "development", beam=1)
        return {name: scores[name] for name in ("well_formed", "f1")}

    def description(self) -> dict:
        return {"name": "parse"} | self.checksums


def read_data(options: argparse.Namespace) -> Data:
    """The sentences of the treebank in --data, or of the grammar (fewer with --quick)."""
    divisor = 100 if options.quick else 1
    if options.data:
        return treebank_data(options.data)
    return grammar_data(TRAIN_SENTENCES // divisor, divisor)


def rows_for(total: int) -> dict[str, dict]:
    """The settings of both models for all `total` sentences, then for fewer, as in STEPS.

    All sentences stand for the next larger number in STEPS, or for the largest, and have its steps.
    """
    nearest = min((count for count in STEPS if count >= total), default=max(STEPS))
    steps_for = {total: STEPS[nearest]}
    steps_for |= {count: steps for count, steps in STEPS.items() if count < nearest}
    return {
        f"{model} {count}": dict(
            sentences=count,
            steps=steps,
            evaluate_every=steps // 8,
            p_drop=0.1 * (count <= MAX_WITH_DROPOUT),
        )
        for count, steps_of_models in steps_for.items()
        for model, steps in zip(MODELS, steps_of_models, strict=True)
    }


def choose_rows(options: argparse.Namespace) -> dict[str, dict]:
    """The rows for the sentences of the treebank or the grammar."""
    return rows_for(len(read_data(options)["train"]))


def make_task_and_config(options: argparse.Namespace):
    """The task of a run, the kind of model and its config."""
    settings = options.sentences, options.batch_size, options.seed
    search = beam_settings(options)
    task = ParseTask(read_data(options), *settings, has_grammar=not options.data, **search)
    sizes = dict(source_vocabulary=len(task.text.source), target_vocabulary=len(task.text.target))
    kind = Transformer if options.row.startswith(TRANSFORMER) else RecurrentEncoderDecoder
    return task, kind, settings_from(options, kind.Config, **sizes)


def measure(model: Model, task: ParseTask, folder: Path) -> dict:
    """The scores of the test set and longer sentences, and the ceiling if there is a grammar."""
    scores = _score_both(lambda name: task.score(model, name))
    if task.has_grammar:
        ceiling = _score_both(lambda name: best_parses(task.data[name]))
        scores["ceiling"] = [ceiling[figure] for figure in FIGURES]
    return scores


def _score_both(score: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """The scores of the test set, and two scores of longer sentences."""
    longer = score("longer")
    longer_scores = {"longer": longer["f1"], "longer_well_formed": longer["well_formed"]}
    return score("test") | longer_scores


def table(results: study.Results) -> list[list[str]]:
    """A row for each model and number of sentences, and one for the ceiling."""
    rows = [["", "sentences", *(name.replace("_", " ") for name in FIGURES), "seconds"]]
    for row, runs in results.items():
        model, count = row.split()
        figures = [mean_and_range([run[name] for run in runs], ".1f") for name in FIGURES]
        seconds = mean_and_range([run["seconds"] for run in runs], ".0f")
        rows.append([model, f"{int(count):,}", *figures, seconds])
    if ceiling := _ceiling(results):
        rows.append(["best parse", "", *(f"{figure:.1f}" for figure in ceiling.values()), ""])
    return rows


def draw(results: study.Results, folder: Path) -> None:
    """Draw F1 against the number of sentences, and the ceiling."""
    panels: charts.Panels = {}
    ceiling = _ceiling(results)
    for name, titles in TITLES.items():
        curves = panels[titles[0 if ceiling else 1]] = {}
        for model in MODELS:
            rows = {int(row.split()[1]): runs for row, runs in results.items() if model in row}
            counts = sorted(rows)
            by_seed = zip(*(rows[count] for count in counts), strict=True)
            curves[model] = [(counts, [run[name] for run in runs]) for runs in by_seed]
        if ceiling:
            curves["best parse"] = [(counts, [ceiling[name]] * len(counts))]
    axis = dict(xscale="log", xticks=counts, xticklabels=[f"{count:,}" for count in counts])
    title = "Parsing: F1 of brackets by the number of training sentences"
    charts.draw_chart(folder / "parse.png", title, panels, "sentences", "F1", **axis)


def _ceiling(results: study.Results) -> dict[str, float]:
    """The scores of the best parses; {} for the treebank, where they are unknown."""
    return dict(zip(FIGURES, next(iter(results.values()))[0].get("ceiling", []), strict=False))


def verdict(results: study.Results):
    """The mean scores of the Transformer trained on the most sentences, and the ceiling."""
    runs, ceiling = next(iter(results.values())), _ceiling(results)
    f1, well_formed = (np.mean([run[name] for run in runs]) for name in ("f1", "well_formed"))
    figures = {"well formed": f"{well_formed:.1f} %", "F1": f"{f1:.2f}"}
    test_set = "sentences that training never saw"
    if not ceiling:
        return test_set, figures, None
    figures = {"ceiling": f"{ceiling['f1']:.2f}", **figures}
    is_reached = bool(f1 >= ceiling["f1"] - MAX_GAP and well_formed >= WELL_FORMED)
    return (
        test_set,
        figures,
        (f"F1 {ceiling['f1'] - MAX_GAP:.1f}, {WELL_FORMED} % well formed", is_reached),
    )


def add_flags(parser: Parser) -> None:
    about = "the Penn Treebank's folder; with --run, a file of trees to evaluate on"
    parser.add_argument("--data", type=any_path, metavar="DIR|TREES.mrg", help=about)
    add_evaluation_flag(parser)
    parser.answer_flags.add_argument(
        "--tree", type=picture_path, metavar="FILE.png", help="draw the tree"
    )


def evaluate(options: argparse.Namespace, trained: Trained, **settings) -> Evaluation:
    """Compare the trees that a model writes with the trees in the file of --data."""
    sentences = [*map(Sentence.from_tree, read_trees(options.data))]
    if not sentences:
        fix = "Name a file of trees in brackets, such as (S (NP he) (VP slept))."
        raise InputError("a test set has at least one tree", f"none in {options.data}", fix)

    def measures(texts, answers, right):
        written = [*map(tree_from_symbols, answers, texts)]
        return evalb(written, [sentence.tree for sentence in sentences])

    texts, right = [s.words for s in sentences], [[s.answer()] for s in sentences]
    return evaluate_symbols(trained.text, trained.model, texts, right, measures, **settings)


def use(options: argparse.Namespace) -> int:
    """Parse sentences with the model of --run, and draw the tree of one; returns the exit code."""
    if options.data:
        return evaluate_run(options, Parsing, evaluate)
    if options.tree and len(options.input or []) != 1:
        received = f"{len(options.input or [])} with --input"
        raise InputError("--tree draws the tree of one sentence", received, "Give one sentence.")
    trained = load(options.run)
    code = answer_inputs(options, trained, kind=Parsing)
    if options.tree:
        words = trained.text.symbols(*options.input)
        settings = generation_settings(options, trained.text)
        (written,) = trained.text.write(trained.model, [words], **settings)
        draw_tree(options.tree, tree_from_symbols(written, words)[0])
    return code


STUDY = study.Study(
    name="parse",
    description=DESCRIPTION,
    model=Transformer,
    defaults=DEFAULTS,
    rows=rows_for(TRAIN_SENTENCES),
    choose_rows=choose_rows,
    make_task_and_config=make_task_and_config,
    measure=measure,
    figure="f1",
    table=table,
    draw=draw,
    verdict=verdict,
    example="the dog saw a cat",
    by_tokens=True,
    flags=add_flags,
    use=use,
)


def main(arguments: list[str] | None = None) -> int:
    """Train and compare, or with --run parse sentences; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
