# PYTHON_ARGCOMPLETE_OK
"""Learn to pronounce a language: read the characters of a word, write its phonemes."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from numformer.generation import Transduction
from numformer.generation.evaluation import Evaluation
from numformer.generation.measures import Measure
from numformer.models import Transformer
from numformer.trained import Trained
from toy_tasks.command_line import (
    add_evaluation_flag,
    answer_inputs,
    any_path,
    beam_settings,
    build_parser,
    evaluate_run,
    exit_code,
    parse_options,
    start_vocabularies,
)
from toy_tasks.data.datasets import pronunciations
from toy_tasks.data.text_files import Pair, read_pairs
from toy_tasks.pairs import PairsTask, sides
from toy_tasks.text_to_text.transduction import Example, train_and_test

DESCRIPTION = """\
Learn to pronounce a language (SIGMORPHON 2021 task 1: 8,000 words, characters in, phonemes out)
and print the share of test words whose pronunciation has any wrong phoneme.

Languages that can be downloaded, and the word error rate that a model must reach, in percent:
fre (French) 10.2, dut (Dutch) 16.9, vie_hanoi (Vietnamese) 5.0. For other languages: --data DIR.

  python -m toy_tasks.pronounce --language fre
  python -m toy_tasks.pronounce --run runs/pronounce-fre --input bonjour
  python -m toy_tasks.pronounce --run runs/pronounce-fre --data TEST.tsv
"""

BEAM = 5
DEFAULTS = dict(
    steps=10000,
    batch_size=64,
    evaluate_every=500,
    d_model=128,
    d_ff=512,
    heads=4,
    layers=3,
    tying="target",
    positions="sinusoidal_rotary",
    p_drop=0.15,
    warmup=300,
    factor=0.4,
    average=5,
    beam=BEAM,
    length_penalty=1.0,
    penalty="paper",
)
TARGETS = {"fre": 10.2, "dut": 16.9, "vie_hanoi": 5.0}  # word error rate in percent


class PronunciationTask(PairsTask):
    """Words and their phonemes; the measure is the share of words with any phoneme wrong."""

    metric, higher_is_better = "word_error_rate", False
    figures: ClassVar = {"phoneme_error_rate": ".2f", "word_error_rate": ".2f"}
    name = "pronounce"

    def __init__(
        self,
        data: dict[str, list[Pair]],
        batch_size: int,
        seed: int,
        vocabularies=(),
        beam: int = BEAM,
        **search,
    ):
        super().__init__(data, batch_size, seed, "target", vocabularies, beam=beam, **search)

    def examples(self, pairs: Sequence[Pair]) -> list[Example]:
        """Each line is an example, as in the shared task, even if a word is in several lines."""
        return [(word, (phonemes,)) for word, phonemes in pairs]

    def measures(self, texts, answers, right) -> dict[str, Measure]:
        return error_rates(self.text, texts, answers, right)


def error_rates(text: Transduction, texts, answers, right) -> dict[str, Measure]:
    """The edits per 100 phonemes, and the percentage of words with any phoneme wrong."""
    phonemes, words = text.measures(texts, answers, right).values()
    wrong = words.counts[:, 1] - words.counts[:, 0]
    return {
        "phoneme_error_rate": phonemes,
        "word_error_rate": Measure.ratio(wrong, words.counts[:, 1], 100),
    }


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program."""
    keywords = dict(has_epochs=True, **DEFAULTS)
    parser = build_parser("pronounce", DESCRIPTION, Transformer, "--word", **keywords)
    parser.add_argument("--language", default="fre", help="the language to learn")
    about = "a folder with LANG_train.tsv, _dev and _test; with --run, a file to evaluate on"
    parser.add_argument("--data", type=any_path, metavar="DIR|TEST.tsv", help=about)
    add_evaluation_flag(parser)
    return parse_options(parser, lambda options: f"pronounce-{options.language}", arguments)


def make_task(options: argparse.Namespace) -> PronunciationTask:
    """The task that the options describe."""
    data = pronunciations(options.language, options.data)
    vocabularies = start_vocabularies(options, **sides(data))
    settings = options.batch_size, options.seed, vocabularies
    return PronunciationTask(data, *settings, **beam_settings(options))


def use(options: argparse.Namespace) -> int:
    """Pronounce words with the model of --run, or evaluate it on --data; returns the exit code."""
    if not options.data:
        return answer_inputs(options, kind=Transduction)
    return evaluate_run(options, Transduction, evaluate)


def evaluate(options: argparse.Namespace, trained: Trained, **settings) -> Evaluation:
    """Compare the answers to the words in the file of --data with its phonemes."""
    pairs = read_pairs(options.data, "target", "Name a file of words and their phonemes.")
    return trained.evaluate(pairs, partial(error_rates, trained.text), **settings)


def main(arguments: list[str] | None = None) -> int:
    """Train a model, or with --run use a trained one; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return use(options)
    return train_and_test(make_task(options), options, TARGETS.get(options.language))


if __name__ == "__main__":
    sys.exit(exit_code(main))
