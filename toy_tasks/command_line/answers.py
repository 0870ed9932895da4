"""Using a trained model: its answers to the texts of --input or of standard input."""

import argparse
import contextlib
import inspect
import itertools
import os
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
from toy_tasks.data.datasets import read_text

SAMPLING = "temperature", "top_k", "top_p"
PAGES = {Continuation: "write", Infilling: "masked"}
PAGES |= {Parsing: "parse", Transduction: "translate"}
"""The scripts that ask any model for what it does with texts."""


def note(text: str) -> None:
    print("note:", text, file=sys.stderr)


def answer_inputs(
    options: argparse.Namespace,
    trained: Trained | None = None,
    lines: Iterable[str] | None = None,
    say: Callable[[str], None] = note,
    kind: type[TextPipeline] | None = None,
) -> int:
    """Answer --input, or the lines of standard input, with the model of --run; the exit code.

    `trained` is what was loaded already; `lines` are answered where there is no --input, and `say`
    is called with what to know about a text. Raises InputError for a model that does something else
    with texts than the `kind` that the script is for.
    """
    trained = trained or load(options.run)
    task = task_of(trained.metadata).get("name")
    if kind and not isinstance(trained.text, kind):
        name = type(trained.text)
        page = next((page for of, page in PAGES.items() if issubclass(name, of)), None)
        raise InputError(
            f"{options.program} takes a model for {kind.__name__}",
            f"{options.run}, one for {name.__name__}",
            f"Use python -m toy_tasks.{task if task in TASKS else page}.",
        )
    if task and not options.program.endswith(f".{task}"):
        note(f"{options.run} is a run of {task}")
    how = generation_settings(options, trained.text)
    n_best, asked = getattr(options, "n_best", None), getattr(options, "count", None)
    count = asked or 1
    pack(trained.model, xp=find_backend(options.backend))
    given = _whole(options.input_file) if getattr(options, "input_file", None) else options.input
    attention = trained.attention(*given, **how) if options.attention else None
    # Answers of several lines need something between them.
    rule = "\n" + "-" * 15 if asked and isinstance(trained.text, Continuation) else ""
    with tolerate_closed_pipe():
        for texts in [given] if given else _several(sys.stdin if lines is None else lines):
            # Of several, an empty one is answered by an empty line: lines stay side by side.
            alone = given and len(texts) == 1
            filled = [text for text in texts if alone or text.strip()]
            if n_best:
                scored = trained.n_best(filled, n_best, say=say, **how)
                answers = ([f"{score:.4f}\t{text}" for score, text in best] for best in scored)
            else:
                repeated = [text for text in filled for _ in range(count)]
                written = iter(trained.write(repeated, say=say, **how))
                answers = ([next(written) + rule for _ in range(count)] for _ in filled)
            if "seed" in how:
                how["seed"] += count * len(filled)  # the next texts get other random numbers
            for text in texts:
                answer = next(answers) if alone or text.strip() else [""]
                print(*answer, sep="\n", flush=True)
    if attention:
        attention.draw(options.attention)
    return 0


def generation_settings(options: argparse.Namespace, text: TextPipeline) -> dict:
    """How answers are written: as the flags say, else as the run does, else by the defaults.

    What is given is passed on whatever the text knows, which says so where it does not.
    """
    known = inspect.signature(text.write).parameters
    asked = {}
    for name in ("beam", "length_penalty", "penalty", "max_length", "length", *SAMPLING):
        value = getattr(options, name, None)
        by_default = name in known and not hasattr(text, name)
        if value is not None and (name in options.given or by_default):
            asked[name] = value
    if asked.keys() & {*SAMPLING}:
        asked["seed"] = options.seeds[0] if hasattr(options, "seeds") else options.seed
    return asked


def task_of(metadata: dict) -> dict:
    """What a saved model says of the task that it was trained on; {} where it says nothing."""
    task = metadata.get("task")
    return task if isinstance(task, dict) else {}


@contextlib.contextmanager
def tolerate_closed_pipe() -> Iterator[None]:
    """What is printed here ends where who read it has gone, `| head` for example."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _whole(file: Path) -> list[str]:
    """The one text that a file is; `-` is standard input."""
    fix = "Name a text file, or - for standard input."
    return [sys.stdin.read() if str(file) == "-" else read_text(file, fix)]


def _several(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines without their ends: one at a time from a keyboard, otherwise many."""
    keyboard = lines is sys.stdin and sys.stdin.isatty()
    if keyboard:
        end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
        note(f"type a text and Enter; {end} ends")
    lines = iter(lines)
    while some := [*itertools.islice(lines, 1 if keyboard else 1000)]:
        yield [line.rstrip("\r\n") for line in some]
