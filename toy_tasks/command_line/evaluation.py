"""Evaluating a trained model on a test set, with --run and --data."""

import argparse
from collections.abc import Callable

from numformer.counts import counted
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.generation.evaluation import Evaluation, require_output
from numformer.generation.text_pipeline import TextPipeline
from numformer.layer import pack
from numformer.trained import Trained
from toy_tasks.command_line.answers import generation_settings, load_run
from toy_tasks.command_line.parser import Parser, any_path


def add_evaluation_flag(parser: Parser) -> None:
    """Let --data go with --run, and add the flag for a file of predictions."""
    about = "with --run and --data: write each source, target and answer, and log p of the target"
    parser.answer_flags.add_argument("--predictions", type=any_path, metavar="FILE.tsv", help=about)
    parser.answer_settings |= {"data"}


def evaluate_run(
    options: argparse.Namespace,
    kind: type[TextPipeline],
    evaluate: Callable[..., Evaluation],
    trained: Trained | None = None,
) -> int:
    """Print the measures of the model of --run, and write the file of --predictions.

    `evaluate(options, trained, **settings)` makes the evaluation, with the settings for writing
    answers. `trained` is the model, if it is loaded already. Returns the exit code.
    """
    require_predictions_path(options)
    trained = load_run(options, kind, trained)
    pack(trained.model, xp=find_backend(options.backend))
    settings = generation_settings(options, trained.text)
    report(options, evaluate(options, trained, **settings))
    return 0


def require_predictions_path(options: argparse.Namespace) -> None:
    """Raise InputError unless --predictions, if given, names a new file that can be written."""
    if getattr(options, "predictions", None):
        if require_output(options.predictions).exists():
            fix = "Choose another name."
            raise InputError("--predictions names a new file", options.predictions, fix)


def report(options: argparse.Namespace, evaluation: Evaluation) -> None:
    """Print the measures of an evaluation, and write the file of --predictions."""
    count = counted(len(next(iter(evaluation.measures.values())).counts), "example")
    data = options.data if isinstance(options.data, list) else [options.data]
    files = " ".join(map(str, data))
    print(f"measures of {count} in {files}, each with its 95 % bootstrap interval:")
    print(*evaluation.lines(), sep="\n")
    if getattr(options, "predictions", None):
        evaluation.save(options.predictions)
        print(f"predictions: {options.predictions}")
