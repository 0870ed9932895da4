"""Learn to parse: a sentence in, its constituents as brackets out (section 6.3 of the paper)."""

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
from numformer.models import Model, RecurrentEncoderDecoder, Transformer
from numformer.randomness import seed_sequence
from numformer.trained import load
from toy_tasks.command_line import (
    Parser,
    answer_inputs,
    any_path,
    beam_settings,
    exit_code,
    generation_settings,
    picture_path,
    settings_from,
    study,
)
from toy_tasks.data.grammar import Grammar
from toy_tasks.data.trees import Tree, evalb, of_symbols, read_trees
from toy_tasks.reports import charts
from toy_tasks.reports.tree_pictures import draw_tree
from toy_tasks.text_to_text.sequences import held_out

DESCRIPTION = """\
Learn to parse sentences, as section 6.3 of the paper does: the words go in, the brackets of the
tree come out (Vinyals et al. 2015). A Transformer and a recurrent encoder-decoder with attention
learn from 500 to 32,000 sentences of a grammar (toy_tasks/data/grammar.py), in which words decide
where a phrase belongs. Some sentences are ambiguous, so no parser is always right: the ceiling is
the F1 of the most probable tree under the grammar itself. Target: the Transformer with 32,000
sentences within 1.0 of that F1, and 99 % of its trees well formed.

  python -m toy_tasks.parse
  python -m toy_tasks.parse --run runs/parse/Transformer-32000-1 --input "the dog saw a cat"
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
"""Words of a sentence to learn from, and of the longest that are tested besides."""
BEYOND = 300
"""Symbols that are written at most, more than the sentence has words (section 6.3)."""
MOST = 32000
"""Sentences of the grammar to learn from; `MEASURED` says how many others are measured."""
MEASURED = {"development": 200, "test": 500, "longer": 50}
MODELS = TRANSFORMER, RECURRENT = "Transformer", "recurrent"
STEPS = {32000: (22000, 9000), 8000: (8000, 4000), 2000: (4000, 2000), 500: (2000, 1000)}
"""Of both models with each number of sentences; those with most take longest, so they come first.

A recurrent one takes more time for a step, and needs fewer."""
FEW = 2000
"""With so many sentences or fewer dropout helps, with more it only takes time."""
SECTIONS = {"train": range(2, 22), "development": (22,), "test": (23,)}
"""Of the Penn Treebank, as the paper and all others split it."""
FIGURES = "f1", "precision", "recall", "exact", "well_formed", "longer", "longer_well_formed"
TITLES = {
    "f1": (f"up to {LONGEST} words", "all of section 23"),
    "longer": (f"{LONGEST + 1} to {LONGER} words", f"its sentences of over {LONGEST} words"),
}
"""Of the pictures: of the grammar's sentences, and of the treebank's."""
NEAR, WELL_FORMED = 1.0, 99
"""How near to the ceiling's F1 the Transformer is to come, and how many of its trees are trees."""
RARE = 2
"""Words that training has less often are unknown, so that the unknown one is learned, too."""


class Sentence(NamedTuple):
    """A tree, the words that are read, and the symbols that are to be written."""

    tree: Tree
    words: list[str]
    symbols: list[str]

    @classmethod
    def of(cls, tree: Tree) -> "Sentence":
        return cls(tree, tree.words(), tree.linear())


Data = dict[str, list[Sentence]]
"""Sentences to train on ("train"), for "development", the "test", and a test of "longer" ones."""


@cache
def grammatical(train: int, few: int = 1) -> Data:
    """Sentences of the grammar: `train` to train on, and others that are measured on.

    A hash of the sentence decides. `few` divides the number of those that are measured on.
    """
    grammar, rng = Grammar(), np.random.default_rng(seed_sequence(1, "data"))
    wanted = {"train": train} | {name: number // few for name, number in MEASURED.items()}
    drawn: dict[str, dict[str, Sentence]] = {name: {} for name in wanted}
    while any(len(drawn[name]) < number for name, number in wanted.items()):
        if (tree := grammar.draw(rng, most=LONGER)) is None:
            continue
        sentence = Sentence.of(tree)
        text = " ".join(sentence.words)
        name = "longer" if len(sentence.words) > LONGEST else "train"
        if name == "train" and held_out(text):
            developed = drawn["development"]
            full = len(developed) == wanted["development"] and text not in developed
            name = "test" if full else "development"
        if len(drawn[name]) < wanted[name]:
            drawn[name][text] = sentence
    return {name: [*sentences.values()] for name, sentences in drawn.items()}


def best_parses(sentences: Sequence[Sentence]) -> dict[str, float]:
    """What the most probable trees under the grammar itself come to.

    No others are right as a whole more often, but by chance. F1 is of brackets: who chooses each by
    its own probability (Goodman 1996) has a little more.
    """
    grammar = Grammar()
    best = [(grammar.parse(sentence.words)[0], True) for sentence in sentences]
    return evalb(best, [sentence.tree for sentence in sentences])


@cache
def treebank(folder: Path) -> Data:
    """The Penn Treebank's sentences. Raises InputError for a folder without."""
    data: Data = {name: [] for name in SECTIONS}
    for path in sorted(folder.rglob("*.mrg")):
        section = re.match(r"wsj_(\d\d)", path.name)
        for name, sections in SECTIONS.items():
            if section and int(section[1]) in sections:
                data[name] += map(Sentence.of, read_trees(path))
    for name, sentences in data.items():
        if not sentences:
            section = f"{min(SECTIONS[name]):02d}"
            rule = f"--data has section {section} of the Penn Treebank, for {name}"
            fix = f"Name the folder of wsj_{section}01.mrg and so on, or that of its folders."
            raise InputError(rule, f"none in {folder}", fix)
    longer = [sentence for sentence in data["test"] if len(sentence.words) > LONGEST]
    return data | {"longer": longer}


class ParseTask:
    """Sentences and the symbols of their trees, for `numformer.training.train`."""

    metric, higher_is_better = "f1", True

    def __init__(
        self, data: Data, count: int, max_tokens: int, seed: int, by_grammar: bool = True, **search
    ):
        self.data, self.by_grammar = data, by_grammar
        trained = data["train"][:count]
        counted = Counter(word for sentence in trained for word in sentence.words)
        words = sorted(word for word, times in counted.items() if times >= RARE)
        symbols = Vocabulary.of((sentence.symbols for sentence in trained), " ")
        longest = max(len(sentence.words) for sentence in trained)
        self.text = Parsing(Vocabulary(words, " "), symbols, BEYOND, longest, **search)
        pairs = self.encode(trained)
        self.longest = 1 + max(
            self.text.length_limit(longest), *(len(target) for _, target in pairs)
        )
        self.batch = TokenBatches(pairs, max_tokens, seed)
        pairs = sorted(self.encode(data["development"]), key=lambda pair: len(pair[1]))
        self.held_out = [PairBatch.of(pairs[i : i + 64]) for i in range(0, len(pairs), 64)]
        learned = "\n".join(" ".join((*s.words, *s.symbols)) for s in trained)
        self.described = {"count": len(trained), "data": zlib.crc32(learned.encode())}

    def encode(self, sentences: Sequence[Sentence]) -> list[tuple[list[int], list[int]]]:
        """(source, target) pairs of ids."""
        source, target = self.text.source, self.text.target
        return [(source.encode(s.words), target.encode(s.symbols)) for s in sentences]

    def score(self, model: Model, name: str, **how) -> dict[str, float]:
        """How good the trees are that a model writes for a part of the data."""
        asked = [sentence.words for sentence in self.data[name]]
        written = self.text.write(model, asked, **how)
        gold = [sentence.tree for sentence in self.data[name]]
        return evalb([*map(of_symbols, written, asked)], gold)

    def evaluate(self, model: Model) -> dict[str, float]:
        """On the sentences for development, greedily."""
        scores = self.score(model, "development", beam=1)
        return {name: scores[name] for name in ("well_formed", "f1")}

    def description(self) -> dict:
        return {"name": "parse"} | self.described


def make(options: argparse.Namespace):
    """What a run trains, and on what."""
    few = 100 if options.quick else 1
    data = treebank(options.data) if options.data else grammatical(MOST // few, few)
    # The treebank has some 8,000 more, which the paper's model is trained on, too.
    count = len(data["train"]) if options.data and options.sentences == MOST else options.sentences
    how = count, options.batch_size, options.seed
    task = ParseTask(data, *how, by_grammar=not options.data, **beam_settings(options))
    sizes = dict(source_vocabulary=len(task.text.source), target_vocabulary=len(task.text.target))
    kind = Transformer if options.row.startswith(TRANSFORMER) else RecurrentEncoderDecoder
    return task, kind, settings_from(options, kind.Config, **sizes)


def measure(model: Model, task: ParseTask, folder: Path) -> dict:
    """The scores of the test and of longer sentences, and the ceilings, if known."""
    measured = _of_both(lambda name: task.score(model, name))
    if task.by_grammar:
        best = _of_both(lambda name: best_parses(task.data[name]))
        measured["ceiling"] = [best[figure] for figure in FIGURES]
    return measured


def _of_both(score: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """The scores of the test, with two of those of longer sentences."""
    longer = score("longer")
    shown = {"longer": longer["f1"], "longer_well_formed": longer["well_formed"]}
    return score("test") | shown


def table(results: study.Results) -> list[list[str]]:
    """A row for each model and number of sentences, and one for the ceiling."""
    rows = [["", "sentences", *(name.replace("_", " ") for name in FIGURES), "seconds"]]
    for row, runs in results.items():
        model, count = row.split()
        figures = [charts.spread([run[name] for run in runs], ".1f") for name in FIGURES]
        seconds = charts.spread([run["seconds"] for run in runs], ".0f")
        rows.append([model, f"{int(count):,}", *figures, seconds])
    if ceiling := _ceiling(results):
        rows.append(["best parse", "", *(f"{figure:.1f}" for figure in ceiling.values()), ""])
    return rows


def draw(results: study.Results, folder: Path) -> None:
    """F1 against the number of sentences, and the ceiling."""
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
    how = dict(xscale="log", xticks=counts, xticklabels=[f"{count:,}" for count in counts])
    title = "Parsing: F1 of brackets by the number of sentences to learn from"
    charts.chart(folder / "parse.png", title, panels, "sentences", "F1", **how)


def _ceiling(results: study.Results) -> dict[str, float]:
    """The figures of the best parses, where they are known."""
    return dict(zip(FIGURES, next(iter(results.values()))[0].get("ceiling", []), strict=False))


def verdict(results: study.Results):
    """The Transformer with most sentences, the mean of its seeds, beside the ceiling."""
    runs, ceiling = results[f"{TRANSFORMER} {max(STEPS)}"], _ceiling(results)
    f1, well_formed = (np.mean([run[name] for run in runs]) for name in ("f1", "well_formed"))
    figures = {"well formed": f"{well_formed:.1f} %", "F1": f"{f1:.2f}"}
    what = "sentences that training never saw"
    if not ceiling:
        return what, figures, None
    figures = {"ceiling": f"{ceiling['f1']:.2f}", **figures}
    reached = bool(f1 >= ceiling["f1"] - NEAR and well_formed >= WELL_FORMED)
    return what, figures, (f"F1 {ceiling['f1'] - NEAR:.1f}, {WELL_FORMED} % well formed", reached)


def flags(made: Parser) -> None:
    """The page's own."""
    made.add_argument("--data", type=any_path, metavar="DIR", help="the Penn Treebank's folder")
    made.answer_flags.add_argument(
        "--tree", type=picture_path, metavar="FILE.png", help="draw the tree"
    )


def use(options: argparse.Namespace) -> int:
    """Parse sentences, as --run asks for, and draw the tree of one."""
    if options.tree and len(options.input or []) != 1:
        received = f"{len(options.input or [])} with --input"
        raise InputError("--tree draws the tree of one sentence", received, "Give it one.")
    trained = load(options.run)
    code = answer_inputs(options, trained, kind=Parsing)
    if options.tree:
        words = trained.text.symbols(*options.input)
        how = generation_settings(options, trained.text)
        (written,) = trained.text.write(trained.model, [words], **how)
        draw_tree(options.tree, of_symbols(written, words)[0])
    return code


STUDY = study.Study(
    name="parse",
    description=DESCRIPTION,
    model=Transformer,
    defaults=DEFAULTS,
    rows={
        f"{model} {count}": dict(
            sentences=count,
            steps=steps,
            evaluate_every=steps // 8,
            p_drop=0.1 * (count <= FEW),
        )
        for count, of_models in STEPS.items()
        for model, steps in zip(MODELS, of_models, strict=True)
    },
    make=make,
    measure=measure,
    figure="f1",
    table=table,
    draw=draw,
    verdict=verdict,
    example="the dog saw a cat",
    by_tokens=True,
    flags=flags,
    use=use,
)


def main(arguments: list[str] | None = None) -> int:
    """Train and compare, or with --run parse sentences; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
