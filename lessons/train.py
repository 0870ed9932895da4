"""The models that lessons show, trained once: python -m lessons.train"""

import argparse
import importlib
import json
import sys
from pathlib import Path

from lessons.kit import models
from numformer.allocator import reuse_freed_memory
from numformer.errors import InputError
from numformer.runs.files import write_atomically
from toy_tasks.command_line import exit_code

DESCRIPTION = """\
Train the models that lessons show, each once, and keep them in the cache folder. Pages are built
without them, from data stored in the lessons' folders. After an interruption, start the command
again: it goes on where it stopped.

  python -m lessons.train                    train those that are not trained yet
  python -m lessons.train --measure 10 11    then measure and store what these lessons show"""


def train(name: str, data: Path | None) -> None:
    """Train a model, or go on with it, to its end."""
    run, out = models.MODELS[name], models.folder(name)
    print(f"{name}: {out}, about {run.minutes:g} minutes on two cores", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    task = importlib.import_module(f"toy_tasks.{run.task}")
    code = task.main(run.arguments(out, data))
    if code == 0:
        write_atomically(out / models.DONE, b"")
    else:  # the task has said why
        rule = f"python -m toy_tasks.{run.task} {run.flags} reaches its target"
        raise InputError(rule, f"exit code {code}", f"Look into {out}.")


def measure(lesson: int) -> Path:
    """Measure what a lesson shows and store it."""
    (module,) = (m for m in models.measuring() if f"lesson_{lesson:02d}" in m.__name__)
    data = {"command": f"python -m lessons.train --measure {lesson}", "measured": module.measure()}
    path = models.stored(module)
    write_atomically(path, json.dumps(data, indent=1).encode() + b"\n")
    return path


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lessons.train",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    lessons = [int(module.__name__.split(".")[1][-2:]) for module in models.measuring()]
    parser.add_argument("--only", nargs="+", choices=models.MODELS, help="only these models")
    parser.add_argument("--data", type=Path, metavar="DIR", help="Multi30k, instead of a download")
    parser.add_argument(
        "--measure",
        nargs="+",
        type=int,
        choices=lessons,
        default=[],
        metavar="LESSON",
        help="then measure and store what these lessons show",
    )
    options = parser.parse_args(arguments)
    reuse_freed_memory()
    for name in models.missing(options.only or [*models.MODELS]):
        train(name, options.data)
    for lesson in options.measure:
        print(f"{measure(lesson)} is written", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
