"""Using a trained model: its answers to the texts of --input or of standard input."""

import argparse
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.generation import Continuation, Infilling, Parsing, Transduction
from numformer.generation.text_pipeline import TextPipeline
from numformer.layer import pack
from numformer.trained import Trained, load
from toy_tasks import TASKS
from toy_tasks.data.text_files import read_text

SAMPLING = "temperature", "top_k", "top_p"
PROGRAMS = {Continuation: "write", Infilling: "masked"}
PROGRAMS |= {Parsing: "parse", Transduction: "translate"}
"""For each kind of text pipeline, the script that can use any model with such a pipeline."""


def note(text: str) -> None:
    print("note:", text, file=sys.stderr)


def answer_inputs(
    options: argparse.Namespace,
    trained: Trained | None = None,
    lines: Iterable[str] | None = None,
    say: Callable[[str], None] = note,
    kind: type[TextPipeline] = TextPipeline,
) -> int:
    """Print what the model of --run answers to --input or to lines of text -> the exit code.

    `trained` is the model, if it is loaded already. Without --input the texts are `lines`, by
    default the lines of standard input. `say` is called with remarks about a text. Raises
    InputError as `load_run` does.
    """
    trained = load_run(options, kind, trained)
    settings = generation_settings(options, trained.text)
    for flag in sorted(
        {"count", "seed", "seeds"} & options.explicit if "seed" not in settings else ()
    ):
        rule, fix = f"--{flag} is for answers that are sampled at random", "Add --temperature 0.8."
        raise InputError(rule, "answers that are not sampled", fix)
    n_best, count = getattr(options, "n_best", None), getattr(options, "count", None)
    repeats = count or 1
    pack(trained.model, xp=find_backend(options.backend))
    inputs = options.input
    if getattr(options, "input_file", None):
        inputs = [_file_text(options.input_file)]
    attention = trained.attention(*inputs, **settings) if options.attention else None
    if attention:
        attention.draw(options.attention)
    # Answers of several lines need a separator between them.
    rule = "\n" + "-" * 15 if count and isinstance(trained.text, Continuation) else ""
    for texts in [inputs] if inputs else _batches(sys.stdin if lines is None else lines):
        # The answer to an empty line is an empty line, so that texts and answers stay in step.
        alone = inputs and len(texts) == 1
        nonempty = [text for text in texts if alone or text.strip()]
        if n_best:
            hypotheses = trained.n_best(nonempty, n_best, say=say, **settings)
            answers = ([f"{score:.4f}\t{text}" for score, text in best] for best in hypotheses)
        else:
            copies = [text for text in nonempty for _ in range(repeats)]
            written = iter(trained.write(copies, say=say, **settings))
            answers = ([next(written) + rule for _ in range(repeats)] for _ in nonempty)
        if "seed" in settings:  # the next texts get other random numbers
            settings["seed"] += repeats * len(nonempty)
        for text in texts:
            answer = next(answers) if alone or text.strip() else [""]
            print(*answer, sep="\n", flush=True)
    return 0


def load_run(
    options: argparse.Namespace,
    kind: type[TextPipeline] = TextPipeline,
    trained: Trained | None = None,
) -> Trained:
    """The model of --run.

    Raises InputError if the model's pipeline is not of the `kind`. Without --data, it also raises
    InputError for a run of another task.
    """
    trained = trained or load(options.run)
    pipeline, task = trained.text, str(task_of(trained.metadata).get("name", ""))
    tasks = {task, options.program.rpartition(".")[2]} & TASKS.keys()
    is_answering = "data" not in options.explicit
    if (len(tasks) == 2 and is_answering) or not isinstance(pipeline, kind):
        programs = (name for other, name in PROGRAMS.items() if isinstance(pipeline, other))
        program = task if task in TASKS else next(programs)
        raise InputError(
            f"{options.program} takes its own runs and models of that kind, not other tasks' runs",
            f"{options.run}, a run of {task}" if task else f"{options.run}, a model for {program}",
            f"Use python -m toy_tasks.{program}.",
        )
    if task and not options.program.endswith(f".{task}"):
        note(f"{options.run} is a run of {task}")
    return trained


def generation_settings(options: argparse.Namespace, pipeline: TextPipeline) -> dict:
    """The settings for writing answers: from the command line, or else the defaults.

    A default is left out if the pipeline has its own value from its run. Settings on the command
    line are included even if the pipeline's `write` will refuse them.
    """
    known = inspect.signature(pipeline.write).parameters
    settings = {}
    for name in ("beam", "length_penalty", "penalty", "max_length", "length", *SAMPLING):
        value = getattr(options, name, None)
        by_default = name in known and getattr(pipeline, name, None) is None
        if value is not None and (name in options.explicit or by_default):
            settings[name] = value
    if settings.keys() & {*SAMPLING} or getattr(pipeline, "temperature", None):
        settings["seed"] = options.seeds[0] if hasattr(options, "seeds") else options.seed
    return settings


def task_of(metadata: dict) -> dict:
    """The description of the task that a saved model was trained on; {} if it has none."""
    task = metadata.get("task")
    return task if isinstance(task, dict) else {}


def _file_text(file: Path) -> str:
    """The text of a file; `-` is standard input."""
    fix = "Name a text file, or - for standard input."
    return sys.stdin.read() if str(file) == "-" else read_text(file, fix)


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Batches of lines without newlines: single lines from a keyboard, otherwise up to 1,000."""
    keyboard = lines is sys.stdin and sys.stdin.isatty()
    if keyboard:
        end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
        note(f"type a text and press Enter; {end} ends the input")
    lines = iter(lines)
    while batch := [*itertools.islice(lines, 1 if keyboard else 1000)]:
        yield [line.rstrip("\r\n") for line in batch]
