"""Learn to parse: a sentence in, its constituents as brackets out (section 6.3 of the paper)."""

import argparse
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from numformer.data import EpochBatches, Vocabulary
from numformer.errors import InputError
from numformer.generation import Parsing
from numformer.models import Config, Model, RecurrentEncoderDecoder, Transformer
from numformer.randomness import seed_sequence
from numformer.trained import load
from toy_tasks import kit
from toy_tasks.grammar import Grammar
from toy_tasks.kit import charts, study
from toy_tasks.kit.sequences import held_out
from toy_tasks.kit.transduction import TransductionTask
from toy_tasks.kit.tree_pictures import draw_tree
from toy_tasks.kit.trees import Score, Tree, of_symbols, read_trees, score

DESCRIPTION = """\
Learn to parse sentences, as section 6.3 of the paper does: the words go in, the brackets of the
tree come out (Vinyals et al. 2015). A Transformer and a recurrent encoder-decoder with attention
learn from 500 to 32,000 sentences of a grammar (toy_tasks/grammar.py) in which words decide where a
phrase belongs. The best parse under the grammar itself is the most that anybody can reach. Target:
the Transformer with 32,000 sentences within 1.0 of its F1, and 99 % of the trees well formed.

  python -m toy_tasks.parse
  python -m toy_tasks.parse --run runs/parse/Transformer-32000-1 --input "the dog saw a cat"
  python -m toy_tasks.parse --data DIR        the Penn Treebank: its sections 02 to 21, 22 and 23
"""
DEFAULTS = dict(
    batch_size=64,
    d_model=128,
    d_ff=256,
    heads=4,
    layers=2,
    norm="pre",
    positions="rotary",
    tying="none",
    p_drop=0.1,
    warmup=200,
    factor=0.7,
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
COUNTS = {"development": 200, "test": 1000, "longer": 200}
TRANSFORMER, RECURRENT = "Transformer", "recurrent"
STEPS = {32000: 4000, 8000: 2400, 2000: 1200, 500: 600}
"""Of each number of sentences; those with most come first, as they take longest."""
SECTIONS = {"train": range(2, 22), "development": (22,), "test": (23,)}
"""Of the Penn Treebank, as the paper and all others split it."""
RARE = 2
"""Words that training has less often are unknown, so that the unknown one is learned, too."""


@cache
def grammatical(count: int, tested: int = 1) -> dict[str, list[Tree]]:
    """Trees of the grammar: `count` to train on, and those that are measured on, which are others.

    A hash of the sentence decides. Of the measured ones `tested` is the share that is taken.
    """
    grammar, rng = Grammar(), np.random.default_rng(seed_sequence(1, "data"))
    wanted = {"train": count} | {name: number // tested for name, number in COUNTS.items()}
    found: dict[str, dict[str, Tree]] = {name: {} for name in wanted}
    while any(len(found[name]) < number for name, number in wanted.items()):
        if (tree := grammar.draw(rng, most=LONGER)) is None:
            continue
        words = tree.words()
        sentence = " ".join(words)
        name = "longer" if len(words) > LONGEST else "train"
        if name == "train" and held_out(sentence):
            full = len(found["development"]) == wanted["development"]
            name = "test" if full else "development"
        if len(found[name]) < wanted[name]:
            found[name][sentence] = tree
    return {name: [*trees.values()] for name, trees in found.items()}


@cache
def ceiling(tested: int = 1) -> dict[str, Score]:
    """What the best parse under the grammar itself comes to, where sentences are ambiguous."""
    grammar, trees = Grammar(), grammatical(1, tested)
    names = "test", "longer"
    return {
        name: score([(grammar.parse(t.words())[0], True) for t in trees[name]], trees[name])
        for name in names
    }


@cache
def treebank(folder: Path) -> dict[str, list[Tree]]:
    """The Penn Treebank's trees by what they are for. Raises InputError for a folder without."""
    fix = "Name the folder of the treebank's files: wsj_0200.mrg and so on, or folders 02 to 23."
    of: dict[str, list[Tree]] = {name: [] for name in SECTIONS}
    for path in sorted(folder.rglob("*")):
        digits = "".join(filter(str.isdigit, path.stem))[:2]
        for name, sections in SECTIONS.items():
            if path.suffix in (".mrg", ".parse", ".txt") and digits.isdigit():
                of[name] += read_trees(path) if int(digits) in sections else []
    for name, trees in of.items():
        if not trees:
            rule = f"--data has trees for {name}, in files of section {min(SECTIONS[name]):02d}"
            raise InputError(rule, f"none in {folder}", fix)
    long = [tree for tree in of["test"] if len(tree.words()) > LONGEST]
    return of | {"longer": long}


class ParseTask(TransductionTask):
    """Sentences and the symbols of their trees, for `numformer.training.train`."""

    metric = "f1"

    def __init__(self, data: dict[str, list[Tree]], count: int, batch_size: int, seed: int, **how):
        self.data, self.count = data, count
        trees = data["train"][:count]
        counted = Counter(word for tree in trees for word in tree.words())
        known = sorted(word for word, number in counted.items() if number >= RARE)
        source, target = (
            Vocabulary(known, " "),
            Vocabulary.of((t.linear() for t in trees), " "),
        )
        longest = max(len(tree.words()) for tree in trees)
        text = Parsing(source, target, BEYOND, longest, **how)
        super().__init__(text, data["development"], data["test"])
        pairs = self.encode(trees)
        self.longest = 1 + max(text.most(longest), *(len(target) for _, target in pairs))
        self.batch = EpochBatches(pairs, batch_size, seed)

    def encode(self, trees):
        text = self.text
        return [(text.source.encode(t.words()), text.target.encode(t.linear())) for t in trees]

    @property
    def held_out(self):
        pairs = self.encode(self.development)
        from numformer.data import PairBatch

        return [PairBatch.of(pairs[i : i + 256]) for i in range(0, len(pairs), 256)]

    def score(self, model: Model, trees: Sequence[Tree], **how) -> Score:
        """What a model writes for the words of some trees, beside these."""
        sentences = [tree.words() for tree in trees]
        written = self.text.write(model, sentences, **how)
        return score([*map(of_symbols, written, sentences)], trees)

    def evaluate(self, model: Model) -> dict[str, float]:
        """On the development sentences, greedily."""
        scored = self.score(model, self.development, beam=1)
        return {"f1": scored.f1, "well_formed": scored.well_formed}

    def description(self) -> dict:
        trees = "\n".join(map(str, self.data["train"][: self.count]))
        return {"name": "parse", "sentences": self.count, "data": zlib.crc32(trees.encode())}


def make(options: argparse.Namespace):
    """What a run trains, and on what."""
    data = treebank(options.data) if options.data else grammatical(32000)
    task = ParseTask(
        data, options.sentences, options.batch_size, options.seed, **kit.search(options)
    )
    sizes = dict(source_vocabulary=len(task.text.source), target_vocabulary=len(task.text.target))
    kind = Transformer if options.row.startswith(TRANSFORMER) else RecurrentEncoderDecoder
    return task, kind, kit.chosen(options, kind.Config, **sizes)


def measure(model: Model, task: ParseTask, folder: Path) -> dict:
    """The scores of the test and of longer sentences, and the model's size."""
    test, longer = (task.score(model, task.data[name]) for name in ("test", "longer"))
    return {
        "f1": test.f1,
        "exact": 100 * test.exact,
        "well_formed": 100 * test.well_formed,
        "longer": longer.f1,
        "parameters": model.parameter_counts()["total"],
    }
