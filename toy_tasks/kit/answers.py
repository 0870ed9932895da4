"""Using a trained model: its answers to the texts of --input or of standard input."""

import argparse
import contextlib
import inspect
import itertools
import os
import sys
from collections.abc import Iterator

from numformer.backend import find_backend
from numformer.layer import pack
from numformer.trained import Trained, load
from toy_tasks.kit.options import SAMPLING


def use(options: argparse.Namespace, trained: Trained | None = None, **how) -> int:
    """Answer --input, or the lines of standard input, with the model of --run; the exit code.

    `trained` is what was loaded already, `how` what the model's Text is to know about writing.
    """
    trained = trained or load(options.run)
    task = task_of(trained.metadata).get("name")
    if task and not options.program.endswith(f".{task}"):
        note(f"{options.run} is a run of {task}")
    known = inspect.signature(trained.text.write).parameters
    how = {name: value for name, value in how.items() if name in known}
    if sampling := {name: v for name in SAMPLING if (v := getattr(options, name)) is not None}:
        seed = options.seeds[0] if hasattr(options, "seeds") else options.seed
        how |= sampling | {"seed": seed}
    pack(trained.model, xp=find_backend(options.backend))
    attention = trained.attention(options.input[0]) if options.attention else None
    with while_read():
        for texts in [options.input] if options.input else _lines():
            filled = [text for text in texts if text.strip()] if not options.input else texts
            answers = iter(trained.write(filled, say=note, **how))
            if sampling:
                how["seed"] += len(filled)  # the next texts get other random numbers
            for text in texts:  # an empty line is answered by one, so that lines stay side by side
                print(next(answers) if text.strip() or options.input else "", flush=True)
    if attention:
        attention.draw(options.attention)
    return 0


def task_of(metadata: dict) -> dict:
    """What a saved model says of the task that it was trained on; {} where it says nothing."""
    task = metadata.get("task")
    return task if isinstance(task, dict) else {}


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """What is printed here ends where who read it has gone, `| head` for example."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    print("note:", text, file=sys.stderr)


def _lines() -> Iterator[list[str]]:
    """The lines of standard input: one at a time from a keyboard, otherwise many."""
    keyboard = sys.stdin.isatty()
    if keyboard:
        end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
        note(f"type a text and Enter; {end} ends")
    while lines := [*itertools.islice(sys.stdin, 1 if keyboard else 1000)]:
        yield [line.rstrip("\r\n") for line in lines]
