"""What there is, and what it runs on: python -m numformer, or numformer."""

import argparse
import platform
import sys
from pathlib import Path

import numpy as np

import lessons
import numformer
import toy_tasks
from numformer import blas
from numformer.devices import default_backend, find_backend
from numformer.errors import InputError
from numformer.training.forks import cores
from toy_tasks.command_line import exit_code
from toy_tasks.data.datasets import CACHE

CHECKS = {
    "python -m numformer.gradient_check": "every gradient against a numerical one",
    "python -m numformer.gradient_check mine:case": "that of a layer of your own",
}
OF_A_CLONE = {
    "pytest": "all tests",
    "python -m tests.faults": "runs that are killed and resumed, files that are damaged",
    "python -m tests.mutation": "whether a test notices each mistake that can be made",
}


def machine() -> dict[str, str]:
    """What a program of this library would run on, by name."""
    kind = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    threads = blas.threads()
    try:
        find_backend("cupy")
        cupy = "answers"
    except InputError as problem:
        cupy = f"cannot be used: {problem.args[1]}"
    return {
        "numformer": f"{numformer.__version__}, in {Path(numformer.__file__).parent}",
        "Python": f"{platform.python_version()}, {platform.platform()}, {cores()} cores",
        "NumPy": f"{np.__version__}, BLAS {kind.get('name', 'unknown')} {kind.get('version', '')}"
        f" with {threads} thread{'s' * (threads != 1)}",
        "backend": f"{default_backend()}, unless --backend names another; cupy {cupy}",
        "downloads": f"{CACHE}",
    }


def overview() -> str:
    """Tasks, lessons, checks and the machine, a line each."""
    tasks = {
        f"python -m toy_tasks.{name}": f"{what} ({time})"
        for name, (time, what, _) in toy_tasks.TASKS.items()
    }
    written = (entry for entry in lessons.COURSE if entry.path)
    course = {f"python -m lessons {entry.number}": entry.title for entry in written}
    course["python -m lessons.build --out site"] = "all of them as pages for a browser"
    clone = (Path(numformer.__file__).parents[1] / "tests" / "mutation").is_dir()
    groups = {
        "Tasks: each trains a model to (--help lists its flags, --quick tries it)": tasks,
        "Lessons, in the terminal": course,
        "Checks": CHECKS | (OF_A_CLONE if clone else {}),
        "This machine": machine(),
    }
    lines = ["The Transformer in NumPy and CuPy, every gradient written by hand"]
    for title, rows in groups.items():
        width = max(map(len, rows))
        lines += ["", title, *(f"  {name:<{width}}  {about}" for name, about in rows.items())]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="numformer",
        description="List the tasks, the lessons and the checks of numformer, and what it runs on.",
    )
    parser.add_argument("--version", action="version", version=f"numformer {numformer.__version__}")
    _, others = parser.parse_known_args(arguments)
    if others:
        raise InputError(
            "numformer lists what there is, and starts nothing",
            " ".join(others),
            "Start a task by python -m toy_tasks.NAME, a lesson by python -m lessons NUMBER.",
        )
    print(overview())
    return 0


def program() -> int:
    """What the installed command runs."""
    return exit_code(main)


if __name__ == "__main__":
    sys.exit(program())
