"""Translating sentences by subwords: the task, what its model writes, and how that is measured."""

import contextlib
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from numformer.data import PairBatch, SpecialIds, Subwords, TokenBatches, Vocabulary
from numformer.data.moses import detokenize
from numformer.data.vocabulary import DEFAULT_IDS
from numformer.errors import InputError
from numformer.generation import Translation
from numformer.generation import text as texts
from numformer.models import Transformer
from numformer.randomness import seed_sequence
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.answers import note
from toy_tasks.data.datasets import Pair
from toy_tasks.data.parallel_corpus import rules
from toy_tasks.data.subwords import keep
from toy_tasks.reports.charts import draw_attention
from toy_tasks.text_to_text.transduction import TransductionTask

MOST = 256
"""Subwords of a sentence to train on; pairs with a longer one are left out."""
HELD_OUT = 128
"""Pairs of a batch for the perplexity."""
EPOCHS = "epochs.json"
"""In a run's folder: how many batches the epochs have that are cut anew, up to each of them."""


class TranslationTask(TransductionTask):
    """Batches by tokens, and the perplexity of the development sentences.

    `data` has the pairs of "train", "val" and "test" as tokens, `sides` the subwords of source and
    target; with `dropout` each epoch cuts its sentences into subwords anew (BPE dropout).
    """

    metric, higher_is_better = "perplexity", False
    figures: ClassVar = {"BLEU": ".2f"}
    name = "translate"

    def __init__(
        self,
        data: dict[str, list[Pair]],
        sides: tuple[Vocabulary, Vocabulary],
        options,
        special: SpecialIds = DEFAULT_IDS,
    ):
        def ids(sentence: str, subwords: Vocabulary) -> list[int]:
            return subwords.encode(subwords.split(sentence))

        self.seed, self.dropout = options.seed, options.bpe_dropout
        self.accumulate = options.accumulate
        if self.dropout and not all(isinstance(side, Subwords) for side in sides):
            rule, fix = "--bpe-dropout cuts subwords that were learned here", "Leave it out."
            raise InputError(rule, "those of a published model", fix)
        kept = {}
        for split in ("train", "val"):
            encoded = [(pair, tuple(map(ids, pair, sides))) for pair in data[split]]
            kept[split] = [row for row in encoded if max(map(len, row[1])) < MOST]
            if left_out := len(encoded) - len(kept[split]):
                print(f"{split}: {left_out} pairs of {MOST} or more subwords are left out")
            if not kept[split]:
                rule = f"{split} holds pairs of fewer than {MOST} subwords"
                raise InputError(rule, "none", "Put a sentence on each line, not a text.")
        self.pairs, pairs = map(list, zip(*kept["train"], strict=True))
        development, others = map(list, zip(*kept["val"], strict=True))
        trained = {source for source, _ in self.pairs}
        if known := sum(source in trained for source, _ in data["test"]):
            self.tested = f"of the test, {known:,} of which are trained on, too"
        source, target = (max(map(len, side)) for side in zip(*pairs, strict=True))
        cut_by = rules(options.languages, options.cased)
        how = options.beam, options.length_penalty, options.penalty, *cut_by
        text = Translation(*sides, 2 * target, source, *how)
        super().__init__(text, development, data["test"])
        asked = split_up(text, [source for source, _ in data["test"]])
        read = [*asked, *(side for pair in pairs + others for side in pair)]
        cut_anew = MOST if self.dropout else 0
        self.longest = max(text.max_length, cut_anew + 1, 1 + max(map(len, read)))
        sampled = self.sampled if self.dropout else None
        self.batches = TokenBatches(pairs, options.batch_size, self.seed, sampled=sampled)
        self.batches.special = special
        self.read = {"data": self.pairs, "development": data["val"], "test": data["test"]}
        self.folder, self.noted = None, 1

    def begin(self, folder: Path) -> None:
        """Keep the subwords in the folder of a run, and there find what it had come to know."""
        self.folder = folder
        keep(self.text.source, folder)
        saved = run_folders.last_state(folder).get("task")
        if isinstance(saved, dict):  # an older run tells nothing of other data than it trained on
            told = saved.keys() | {"data"}
            self.read = {name: pairs for name, pairs in self.read.items() if name in told}
        with contextlib.suppress(InputError):  # then the epochs are counted again
            told = run_folders.read_config(folder, EPOCHS)
            if told.get("of") == self._counted():
                self.batches.ends = told["ends"]
                self.noted = len(told["ends"])

    def _counted(self) -> dict:
        """What decides how many batches an epoch has."""
        return self.description() | {"seed": self.seed}

    def sampled(self, epoch: int) -> list[tuple[list[int], list[int]]]:
        """The pairs as an epoch cuts them."""
        seeds = seed_sequence(self.seed, "subwords", epoch).generate_state(2).tolist()
        sides = zip(*self.pairs, strict=True)
        cut = [
            self.text.source.sampled(side, self.dropout, seed)
            for side, seed in zip(sides, seeds, strict=True)
        ]
        return [tuple(ids[:MOST] for ids in pair) for pair in zip(*cut, strict=True)]

    def batch(self, step: int) -> list[PairBatch]:
        first = (step - 1) * self.accumulate + 1
        batches = [self.batches(first + number) for number in range(self.accumulate)]
        if self.folder and self.dropout and self.noted < len(self.batches.ends):
            self.noted = len(self.batches.ends)
            told = {"of": self._counted(), "ends": self.batches.ends}
            run_folders.write_config(self.folder, told, EPOCHS)
        return batches

    @property
    def held_out(self) -> list[PairBatch]:
        pairs = sorted(self.encode(self.development), key=lambda pair: len(pair[1]))
        parts = (pairs[i : i + HELD_OUT] for i in range(0, len(pairs), HELD_OUT))
        return [PairBatch.of(part, self.batches.special) for part in parts]

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """The development sentences' mean loss of a token, without smoothing, and e to it."""
        batches = self.held_out
        losses = [float(model.objective().prediction_loss(*batch.inputs)) for batch in batches]
        loss = float(np.average(losses, weights=[batch.weight for batch in batches]))
        return {"held_out_loss": loss, "perplexity": math.exp(min(loss, 99))}

    def written(self, model: Transformer, sources: Iterable[str], **how) -> list[str]:
        """The tokens of the translations."""
        asked = split_up(self.text, [*sources])
        return [self.text.target.join(symbols) for symbols in self.text.write(model, asked, **how)]

    def measure(self, written: Sequence[str], examples: Sequence[Pair]) -> dict[str, float]:
        """BLEU, of tokens where the target is cut into such."""
        how = dict(tokenize="none", force=True) if self.text.to else {}
        references = [reference for _, reference in examples]
        bleu = sacrebleu().BLEU(**how).corpus_score(list(written), [references])
        return {"BLEU": bleu.score}

    def description(self) -> dict:
        hashes = {
            name: zlib.crc32("\n".join(map("\t".join, pairs)).encode())
            for name, pairs in self.read.items()
        }
        return {
            "name": self.name,
            **hashes,
            "subwords": zlib.crc32(self.text.source.model),
            "max_tokens": self.batches.max_tokens,
            "accumulate": self.accumulate,
            "bpe_dropout": self.dropout,
        }


def split_up(text: Translation, sources: Sequence[str]) -> list[list[str]]:
    """Tokens of sentences -> their subwords. Raises InputError for a sentence that is too long."""
    asked = [text.source.split(source) for source in sources]
    for number, symbols in enumerate(asked, start=1):
        if len(symbols) > texts.MOST:
            rule = f"a sentence to translate has at most {texts.MOST} subwords"
            received = f"{len(symbols):,} in line {number}"
            raise InputError(rule, received, "Put a sentence on each line, not a text.")
    return asked


def tell(text: Translation, asked: Sequence[Sequence[str]]) -> None:
    """Note how many sentences, as subwords, are not like those of training."""
    known = {*text.source.symbols}
    if strange := [unseen for symbols in asked if (unseen := {*symbols} - known)]:
        which = sorted(set.union(*strange))
        some = " ".join(map(repr, which[:20])) + " ..." * (len(which) > 20)
        note(f"{len(strange)} of {len(asked)} sentences have what training never saw: {some}")
    if long := sum(len(symbols) > text.longest for symbols in asked):
        note(
            f"{long} of {len(asked)} sentences are longer than any of training, which had at most "
            f"{text.longest} subwords"
        )


def translated(text: Translation, model: Transformer, sources: Sequence[str], **how) -> list[str]:
    """Tokens of sentences -> tokens of their translations; an empty one stays so."""
    asked = split_up(text, sources)
    tell(text, asked)
    some = [index for index, symbols in enumerate(asked) if symbols]
    written = [""] * len(sources)
    answers = text.write(model, [asked[i] for i in some], **how)
    for index, symbols in zip(some, answers, strict=True):
        written[index] = text.target.join(symbols)
    return written


def sacrebleu():
    """The library that measures. Raises InputError where there is none."""
    try:
        from sacrebleu import metrics
    except ImportError:
        raise InputError(
            "BLEU and chrF need the library sacrebleu",
            "an installation without it",
            "Install the extra: pip install 'numformer[translate]'",
        ) from None
    return metrics


def scores(written: Sequence[str], references: Sequence[str], language: str) -> float:
    """Print BLEU and chrF of tokens and of sentences, with signatures -> BLEU of tokens.

    Where the language is "", they are of sentences with their capitals -> BLEU of these.
    """
    metrics, results, lower = sacrebleu(), [], bool(language)
    sides = {"tokens": (list(written), list(references))}
    sides["sentences"] = [[detokenize(line, language) for line in side] for side in sides["tokens"]]
    measures = [
        ("BLEU", metrics.BLEU(tokenize="none", force=True), "tokens"),
        ("chrF", metrics.CHRF(), "tokens"),
        ("BLEU", metrics.BLEU(lowercase=lower), "sentences"),
        ("chrF", metrics.CHRF(lowercase=lower), "sentences"),
    ]
    for name, metric, unit in measures if lower else measures[2:]:
        hypotheses, right = sides[unit]
        results.append(metric.corpus_score(hypotheses, [right]).score)
        print(f"{name}, {unit}: {results[-1]:.2f}  ({metric.get_signature()})")
    return round(results[0], 2)


def measure(model: Transformer, text: Translation, pairs: Sequence[Pair], **how) -> float:
    """Translate by the settings `how`, print figures, BLEU in the last line -> BLEU."""
    sources, references = zip(*pairs, strict=True)
    if empty := sum(not source or not reference for source, reference in pairs):
        print(f"{empty} lines with an empty side count all the same")
    return scores(translated(text, model, sources, **how), references, text.to)


def require_filled(pairs: Sequence[Pair]) -> None:
    """Raise InputError for a test without a sentence."""
    if not any(source and reference for source, reference in pairs):
        fix = "Name files with a sentence on each line."
        raise InputError("a test has sentences on both sides", "none", fix)


def draw(task: TranslationTask, model: Transformer, path: Path, title: str) -> None:
    """Draw where the decoder looks as it translates a sentence of the test."""
    sources = [task.text.source.split(source) for source, _ in task.test[:50]]
    asked = max(sources, key=lambda symbols: len(symbols) if len(symbols) <= 14 else 0)
    *_, maps = task.text.maps(model, asked)
    cross = [kind for kind in maps if kind.kind == "decoder cross_attention"]
    draw_attention(path, cross, f"{title}: where the decoder looks (⊢ start, ⊣ end)")
