"""Translating sentences as subwords: the task, and what its model writes."""

import argparse
import contextlib
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from numformer.counts import counted
from numformer.data import PairBatch, SpecialIds, Subwords, TokenBatches, Vocabulary
from numformer.data.vocabulary import DEFAULT_IDS
from numformer.errors import InputError
from numformer.generation import Translation, text_pipeline
from numformer.generation.measures import Measure
from numformer.models import Transformer
from numformer.randomness import seed_sequence
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.answers import note
from toy_tasks.data.parallel_corpus import tokenizer_languages
from toy_tasks.data.subwords import save_subwords
from toy_tasks.data.text_files import Pair
from toy_tasks.measures.bleu import bleu_measure, print_scores
from toy_tasks.measures.loss import mean_loss
from toy_tasks.text_to_text.transduction import TransductionTask

MAX_SUBWORDS = 256
"""Pairs with a side of this many subwords or more are not trained on."""
HELD_OUT_BATCH = 128
"""Pairs in a batch when the perplexity is measured."""
EPOCHS_FILE = "epochs.json"
"""In a run's folder: how many batches each epoch has, when BPE dropout makes epochs differ."""


class TranslationTask(TransductionTask):
    """Batches of about the same number of tokens, and the perplexity of development sentences.

    `data` has the pairs of "train", "val" and "test" as tokens, `sides` the subwords of source and
    target. With BPE dropout, each epoch splits its sentences into different subwords.
    """

    metric, higher_is_better = "perplexity", False
    figures: ClassVar = {"BLEU": ".2f"}
    name = "translate"

    def __init__(
        self,
        data: dict[str, list[Pair]],
        sides: tuple[Vocabulary, Vocabulary],
        options: argparse.Namespace,
        special: SpecialIds = DEFAULT_IDS,
    ):
        def encode(sentence: str, subwords: Vocabulary) -> list[int]:
            return subwords.encode(subwords.split(sentence))

        self.seed, self.dropout = options.seed, options.bpe_dropout
        self.accumulate = options.accumulate
        if self.dropout and not all(isinstance(side, Subwords) for side in sides):
            rule = "--bpe-dropout needs subwords that were learned by this program"
            raise InputError(rule, "a published model's subwords", "Leave it out.")
        short = {}
        for split in ("train", "val"):
            rows = [(pair, tuple(map(encode, pair, sides))) for pair in data[split]]
            short[split] = [row for row in rows if max(map(len, row[1])) < MAX_SUBWORDS]
            if left_out := len(rows) - len(short[split]):
                pairs = counted(left_out, "pair")
                print(f"{split}: {pairs} of {MAX_SUBWORDS} or more subwords left out")
            if not short[split]:
                rule = f"{split} holds pairs of fewer than {MAX_SUBWORDS} subwords"
                raise InputError(rule, "none", "Put one sentence on each line.")
        self.pairs, training = map(list, zip(*short["train"], strict=True))
        development, validation = map(list, zip(*short["val"], strict=True))
        trained = {source for source, _ in self.pairs}
        if shared := sum(source in trained for source, _ in data["test"]):
            self.unseen = f"of the test set, {shared:,} of which are trained on, too"
        source, target = (max(map(len, side)) for side in zip(*training, strict=True))
        languages = tokenizer_languages(options.languages, options.cased)
        search = options.beam, options.length_penalty, options.penalty
        text = Translation(*sides, 2 * target, source, *search, *languages)
        super().__init__(text, development, data["test"])
        test_sources = split_into_subwords(text, [source for source, _ in data["test"]])
        sequences = [*test_sources, *(side for pair in training + validation for side in pair)]
        longest_sample = MAX_SUBWORDS if self.dropout else 0
        self.longest = max(text.max_length, longest_sample + 1, 1 + max(map(len, sequences)))
        sample_pairs = self.sample_pairs if self.dropout else None
        self.batches = TokenBatches(
            training, options.batch_size, self.seed, sample_pairs=sample_pairs
        )
        self.batches.special = special
        self.pairs_by_name = {"data": self.pairs, "development": data["val"], "test": data["test"]}
        self.folder, self.saved_epochs = None, 1

    def begin(self, folder: Path) -> None:
        """Save the subwords in the folder of a run; load the lengths of epochs, if saved there."""
        self.folder = folder
        save_subwords(self.text.source, folder)
        saved = run_folders.last_state(folder).get("task")
        if isinstance(saved, dict):  # runs of earlier versions saved fewer checksums
            known = saved.keys() | {"data"}
            self.pairs_by_name = {
                name: pairs for name, pairs in self.pairs_by_name.items() if name in known
            }
        with contextlib.suppress(InputError):  # without the file, epochs are counted again
            epochs = run_folders.read_config(folder, EPOCHS_FILE)
            if epochs.get("of") == self._epoch_settings():
                self.batches.ends = epochs["ends"]
                self.saved_epochs = len(epochs["ends"])

    def _epoch_settings(self) -> dict:
        """Everything that the number of batches of an epoch depends on."""
        return self.description() | {"seed": self.seed}

    def sample_pairs(self, epoch: int) -> list[tuple[list[int], list[int]]]:
        """The pairs as ids of the subwords into which BPE dropout splits them in this epoch."""
        seeds = seed_sequence(self.seed, "subwords", epoch).generate_state(2).tolist()
        texts = zip(*self.pairs, strict=True)
        sides = [
            self.text.source.encode_with_dropout(side, self.dropout, seed)
            for side, seed in zip(texts, seeds, strict=True)
        ]
        return [tuple(ids[:MAX_SUBWORDS] for ids in pair) for pair in zip(*sides, strict=True)]

    def batch(self, step: int) -> list[PairBatch]:
        first = (step - 1) * self.accumulate + 1
        batches = [self.batches(first + number) for number in range(self.accumulate)]
        if self.folder and self.dropout and self.saved_epochs < len(self.batches.ends):
            self.saved_epochs = len(self.batches.ends)
            epochs = {"of": self._epoch_settings(), "ends": self.batches.ends}
            run_folders.write_config(self.folder, epochs, EPOCHS_FILE)
        return batches

    @property
    def held_out(self) -> list[PairBatch]:
        pairs = sorted(self.encode(self.development), key=lambda pair: len(pair[1]))
        parts = (pairs[i : i + HELD_OUT_BATCH] for i in range(0, len(pairs), HELD_OUT_BATCH))
        return [PairBatch.of(part, self.batches.special) for part in parts]

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """The mean loss of a token of the development sentences, and the perplexity."""
        loss = mean_loss(model, self.held_out)
        return {"held_out_loss": loss, "perplexity": math.exp(min(loss, 99))}

    def write(self, model: Transformer, sources: Iterable[str], **settings) -> list[str]:
        """The translations, each a string of tokens."""
        symbols = split_into_subwords(self.text, [*sources])
        written = self.text.write(model, symbols, **settings)
        return [self.text.target.join(target) for target in written]

    def measure(self, written: Sequence[str], examples: Sequence[Pair]) -> dict[str, float]:
        references = [reference for _, reference in examples]
        return {"BLEU": bleu_measure(written, references, bool(self.text.to)).value}

    def description(self) -> dict:
        hashes = {
            name: zlib.crc32("\n".join(map("\t".join, pairs)).encode())
            for name, pairs in self.pairs_by_name.items()
        }
        return {
            "name": self.name,
            **hashes,
            "subwords": zlib.crc32(self.text.source.model),
            "max_tokens": self.batches.max_tokens,
            "accumulate": self.accumulate,
            "bpe_dropout": self.dropout,
        }


def bleu_of_symbols(text: Translation, texts, answers, right) -> dict[str, Measure]:
    """BLEU of the tokens if the target is tokenized, otherwise of the sentences."""
    written, references = (
        [*map(text.target.join, side)] if text.to else [*map(text.join, side)]
        for side in (answers, right)
    )
    return {"BLEU": bleu_measure(written, references, bool(text.to))}


def split_into_subwords(text: Translation, sentences: Sequence[str]) -> list[list[str]]:
    """Tokens of sentences -> their subwords. Raises InputError for a sentence that is too long."""
    split = [text.source.split(sentence) for sentence in sentences]
    for number, subwords in enumerate(split, start=1):
        if len(subwords) > text_pipeline.MAX_SYMBOLS:
            rule = f"a sentence to translate has at most {text_pipeline.MAX_SYMBOLS} subwords"
            received = f"{len(subwords):,} in line {number}"
            raise InputError(rule, received, "Put one sentence on each line.")
    return split


def note_unusual(text: Translation, sentences: Sequence[Sequence[str]]) -> None:
    """Print notes about sentences (given as subwords) with unknown symbols or of unusual length."""
    known = {*text.source.symbols}
    if strange := [unknown for symbols in sentences if (unknown := {*symbols} - known)]:
        symbols = sorted(set.union(*strange))
        listing = " ".join(map(repr, symbols[:20])) + " ..." * (len(symbols) > 20)
        total = len(sentences)
        note(f"{len(strange)} of {total} sentences have symbols that training never saw: {listing}")
    if long := sum(len(symbols) > text.longest for symbols in sentences):
        note(
            f"{long} of {len(sentences)} sentences are longer than all of training, which had at "
            f"most {text.longest} subwords"
        )


def translate(
    text: Translation, model: Transformer, sentences: Sequence[str], **settings
) -> list[str]:
    """Tokens of sentences -> tokens of their translations; an empty sentence stays empty."""
    split = split_into_subwords(text, sentences)
    note_unusual(text, split)
    nonempty = [index for index, subwords in enumerate(split) if subwords]
    translations = [""] * len(sentences)
    written = text.write(model, [split[index] for index in nonempty], **settings)
    for index, subwords in zip(nonempty, written, strict=True):
        translations[index] = text.target.join(subwords)
    return translations


def print_bleu(model: Transformer, text: Translation, pairs: Sequence[Pair], **settings) -> float:
    """Translate the sources of pairs and print BLEU and chrF -> BLEU."""
    sources, references = zip(*pairs, strict=True)
    if empty := sum(not source or not reference for source, reference in pairs):
        print(f"BLEU and chrF include {counted(empty, 'line')} with an empty side")
    return print_scores(translate(text, model, sources, **settings), references, text.to)


def require_sentences(pairs: Sequence[Pair]) -> None:
    """Raise InputError for test data without a pair of sentences."""
    if not any(source and reference for source, reference in pairs):
        fix = "Name files with a sentence on each line."
        raise InputError("test data have at least one sentence with its translation", "none", fix)
