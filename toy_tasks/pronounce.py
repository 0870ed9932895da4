"""Learn to pronounce a language: the characters of a word in, its phonemes out."""

import argparse
import json
import sys
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from numformer.backend import find_backend
from numformer.data import UNKNOWN, EpochBatches, PairBatch, Vocabulary, pad_sources
from numformer.errors import InputError
from numformer.generation import beam_search, greedy
from numformer.layer import pack
from numformer.models import Config, Transformer
from numformer.plots import attention_maps, cross_attention_weights
from numformer.training.checkpoints import load_model
from toy_tasks import script
from toy_tasks.datasets import LONGEST, Pair, pronunciations

DESCRIPTION = """\
Learn to pronounce a language (SIGMORPHON 2021 task 1: 8,000 words, characters in, phonemes out)
and print the share of unseen words with any phoneme wrong.

Languages that can be downloaded, and the word error rate that the run is to reach, in percent:
fre (French) 10.2, dut (Dutch) 16.9, vie_hanoi (Vietnamese) 5.0. Any other: --data DIR.

  python -m toy_tasks.pronounce --language fre
  python -m toy_tasks.pronounce --run runs/pronounce-fre --word bonjour
"""

DEFAULTS = dict(
    steps=7000, batch_size=64, evaluate_every=1000, d_model=128, d_ff=512, heads=4, layers=3,
    tying="target", warmup=300, factor=0.4, decay="linear",
)  # fmt: skip
TARGETS = {"fre": 10.2, "dut": 16.9, "vie_hanoi": 5.0}  # word error rate in percent
BEAM, LENGTH_PENALTY = 5, 1.0
RUN = "pronounce-{language}"  # the default run folder


def edit_distance(a: Sequence, b: Sequence) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b (Levenshtein)."""
    distances = list(range(len(b) + 1))
    for i, symbol in enumerate(a, start=1):
        diagonal, distances[0] = distances[0], i
        for j, other in enumerate(b, start=1):
            substituted = diagonal + (symbol != other)
            diagonal = distances[j]
            distances[j] = min(substituted, distances[j] + 1, distances[j - 1] + 1)
    return distances[-1]


def error_rates(
    predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Words with any phoneme wrong, and edits per phoneme, both in percent."""
    edits = [edit_distance(p, r) for p, r in zip(predicted, right, strict=True)]
    return {
        "word_error_rate": 100 * float(np.mean([edit > 0 for edit in edits])),
        "phoneme_error_rate": 100 * sum(edits) / sum(map(len, right)),
    }


class Pronouncer:
    """Characters to phonemes with a trained model: what a saved run is used for.

    `data` is a checksum of what the model was trained and measured on.
    """

    def __init__(
        self,
        characters: Sequence[str],
        phonemes: Sequence[str],
        max_length: int,
        data: int | None = None,
    ):
        self.characters, self.phonemes = Vocabulary(characters), Vocabulary(phonemes)
        self.max_length, self.data = max_length, data

    def description(self) -> dict:
        return {
            "characters": self.characters.symbols,
            "phonemes": self.phonemes.symbols,
            "max_length": self.max_length,
            "data": self.data,
        }

    def fits(self, config: Config) -> bool:
        """Whether a model of this Config knows these symbols; lengths are those of words."""
        symbols = [*self.characters.symbols, *self.phonemes.symbols]
        sizes = len(self.characters), len(self.phonemes)
        return (
            all(isinstance(symbol, str) for symbol in symbols)
            and sizes == (config.source_vocabulary, config.target_vocabulary)
            and type(self.max_length) is int
            and 1 <= self.max_length <= 4096
        )

    def pronounce(
        self, model: Transformer, words: Sequence[Sequence[str]], beam: int = BEAM
    ) -> list[list[str]]:
        """The phonemes of each word, by beam search (greedy where beam is 1)."""
        order = sorted(range(len(words)), key=lambda index: len(words[index]))
        result: list[list[str]] = [[]] * len(words)
        for start in range(0, len(order), 250):
            part = order[start : start + 250]
            source = pad_sources([self.characters.encode(words[index]) for index in part])
            if beam == 1:
                found = greedy(model, source, self.max_length)
            else:
                found = beam_search(model, source, self.max_length, beam, LENGTH_PENALTY)
            for index, ids in zip(part, found, strict=True):
                result[index] = self.phonemes.decode(ids)
        return result


class PronunciationTask(Pronouncer):
    """Batches and evaluation for `numformer.training.train`; the test words stay untouched."""

    metric, higher_is_better = "word_error_rate", False

    def __init__(self, data: dict[str, list[Pair]], batch_size: int, seed: int):
        train = data["train"]
        longest = max(len(phonemes) for _, phonemes in train)
        characters = Vocabulary.of(word for word, _ in train).symbols
        phonemes = Vocabulary.of(phonemes for _, phonemes in train).symbols
        super().__init__(characters, phonemes, 2 * longest, zlib.crc32(json.dumps(data).encode()))
        sequences = (sequence for split in data.values() for pair in split for sequence in pair)
        self.longest = max(self.max_length, 1 + max(map(len, sequences)))
        self.development = data["dev"]
        self.batch = EpochBatches(self.encode(train), batch_size, seed)

    def encode(self, pairs: list[Pair]) -> list[tuple[list[int], list[int]]]:
        """(source, target) pairs of ids."""
        return [(self.characters.encode(w), self.phonemes.encode(p)) for w, p in pairs]

    @property
    def held_out(self) -> list[PairBatch]:
        """The development words and their phonemes."""
        pairs = self.encode(self.development)
        return [PairBatch.of(pairs[start : start + 256]) for start in range(0, len(pairs), 256)]

    def measure(self, model: Transformer, pairs: list[Pair], beam: int) -> dict[str, float]:
        words, right = zip(*pairs, strict=True)
        return error_rates(self.pronounce(model, words, beam), right)

    def evaluate(self, model: Transformer) -> dict[str, float]:
        return self.measure(model, self.development, beam=1)


def show(task: PronunciationTask, model: Transformer, folder: Path, plots: bool) -> None:
    """Print some words that training never saw, and draw one's attention maps."""
    examples = task.development[:: max(1, len(task.development) // 10)][:10]
    predicted = task.pronounce(model, [word for word, _ in examples])
    for (word, right), found in zip(examples, predicted, strict=True):
        note = "right" if found == right else f"WRONG, it is {' '.join(right)}"
        print(f"  {''.join(word):>20}  {' '.join(found)}  {note}")
    if plots:
        word, phonemes = max(examples, key=lambda pair: len(pair[0]) <= 12 and len(pair[0]))
        pair = task.characters.encode(word), task.phonemes.encode(phonemes)
        batch = PairBatch.of([pair])
        weights = cross_attention_weights(model, batch.source, batch.target_in)[:, 0]
        title = f"Where the decoder looks as it pronounces {''.join(word)} (⊣ is the end id)"
        attention_maps(folder / "attention.png", weights, [*word, "⊣"], [*phonemes, "⊣"], title)


def use(run: Path, words: list[str], backend: str) -> int:
    """Pronounce `words` with the best model of a run folder."""
    model, metadata = load_model(run / "best.safetensors")
    pack(model, xp=find_backend(backend))
    try:
        pronouncer = Pronouncer(**metadata["task"])
    except (KeyError, TypeError):
        pronouncer = None
    if not pronouncer or not pronouncer.fits(model.config):
        raise InputError("--run names a run of pronounce", run, "Train one: --language fre")
    words = [unicodedata.normalize("NFC", word.strip()) for word in words]
    for word in words:
        if not 1 <= len(word) <= LONGEST:
            raise InputError(
                f"a word has at least one character and at most {LONGEST}",
                f"one of {len(word)}",
                "Give --word a word.",
            )
    for word, phonemes in zip(words, pronouncer.pronounce(model, words), strict=True):
        print(f"{word}\t{' '.join(phonemes)}")
        unknown = [c for c in word if pronouncer.characters.encode(c) == [UNKNOWN]]
        if unknown:
            print(f"note: training never saw {' '.join(unknown)} of {word}", file=sys.stderr)
    return 0


def learn(options: argparse.Namespace) -> int:
    """Train on a language, then read the test words once."""
    data = pronunciations(options.language, options.data)
    task = PronunciationTask(data, options.batch_size, options.seed)
    sizes = dict(source_vocabulary=len(task.characters), target_vocabulary=len(task.phonemes))
    config = script.chosen(options, Config, **sizes)
    if config.tying == "all" and task.characters.symbols != task.phonemes.symbols:
        raise InputError(
            "tying all needs one vocabulary for source and target",
            "as many symbols, but others",
            "Use --tying target or --tying none.",
        )
    model, folder = script.train_task(RUN, task, Transformer, config, options)
    show(task, model, folder, plots=not options.no_plots)
    rates = task.measure(model, data["test"], BEAM)
    target = TARGETS.get(options.language)
    print(f"{len(data['test'])} words that training never saw, beam {BEAM}", end="")
    print(f", target at most {target}:" if target else ":")
    print(f"phoneme error rate {rates['phoneme_error_rate']:.2f}")
    print(f"word error rate {rates['word_error_rate']:.2f}")
    return 0 if options.quick or not target or rates["word_error_rate"] <= target else 1


def main(arguments: list[str] | None = None) -> int:
    """Train, or with --run use a trained model; returns the exit code."""
    flags = script.parser("pronounce", DESCRIPTION, Transformer, **DEFAULTS)
    flags.add_argument("--language", default="fre", help="language to learn")
    flags.add_argument(
        "--data", type=script.path, metavar="DIR", help="folder with LANG_train.tsv, _dev and _test"
    )
    flags.add_argument(
        "--run", type=script.path, metavar="DIR", help="use this run instead of training"
    )
    flags.add_argument("--word", nargs="+", default=[], help="with --run: words to pronounce")
    options = script.parse(flags, RUN, arguments)
    if options.run or options.word:
        if not (options.run and options.word):
            raise InputError(
                "--run and --word go together",
                "only one of them",
                "For example --run runs/pronounce-fre --word bonjour",
            )
        return use(options.run, options.word, options.backend)
    return learn(options)


if __name__ == "__main__":
    sys.exit(script.exit_code(main))
