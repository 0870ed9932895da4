"""List the commands of numformer, and describe this machine: python -m numformer."""

import argparse
import importlib
import platform
import sys
from pathlib import Path

import numpy as np

from numformer import blas, sizes
from numformer.devices import default_backend, find_backend
from numformer.errors import InputError
from numformer.execution.forked import cores
from numformer.exit_codes import exit_code
from numformer.runs.files import cache_folder
from numformer.version import __version__

FOLDER = Path(__file__).parent
PACKAGES = {
    "Tasks that a model learns (--help lists the flags, --quick is a trial run)": "toy_tasks",
    "Lessons, in the terminal": "lessons",
}
"""The title of each list, and the package whose `commands()` it shows."""

COUNT = {"numformer count CONFIG.json": "parameters, memory and operations of a model or a run"}

CHECKS = {
    "python -m numformer.gradient_check": "compare every gradient with a numerical one",
    "python -m numformer.gradient_check mine:case": "do the same for a layer of your own",
}
CHECKS_IN_CLONE = {
    "pytest": "run all tests",
    "python -m tests.faults": "kill and resume runs, damage files",
    "python -m tests.mutation": "find mistakes that no test notices",
}


def machine() -> dict[str, str]:
    """Return descriptions of the software and hardware of this machine, by name."""
    kind = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    threads = blas.threads()
    try:
        find_backend("cupy")
        cupy = "works"
    except InputError as problem:
        cupy = f"cannot be used: {problem.args[1]}"
    return {
        "numformer": f"{__version__}, in {FOLDER}",
        "Python": f"{platform.python_version()}, {platform.platform()}, {cores()} cores",
        "NumPy": f"{np.__version__}, BLAS {kind.get('name', 'unknown')} {kind.get('version', '')}"
        f" with {threads} thread{'s' * (threads != 1)}",
        "backend": f"{default_backend()}, unless --backend names another; cupy {cupy}",
        "downloads": str(cache_folder()),
    }


def overview() -> str:
    """Return a text that lists tasks, lessons and checks, and describes this machine."""
    groups = {
        title: importlib.import_module(package).commands() for title, package in PACKAGES.items()
    }
    is_clone = (FOLDER.parent / "tests" / "mutation").is_dir()
    groups["Sizes of a model"] = COUNT
    groups["Checks"] = CHECKS | (CHECKS_IN_CLONE if is_clone else {})
    groups["This machine"] = machine()
    lines = ["The Transformer in NumPy and CuPy, every gradient written by hand"]
    for title, rows in groups.items():
        width = max(map(len, rows))
        lines += ["", title, *(f"  {name:<{width}}  {about}" for name, about in rows.items())]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the overview; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["count"]:
        return sizes.main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="numformer",
        description="List the tasks, lessons and checks of numformer, and describe this machine.",
        epilog=": ".join(*COUNT.items()),
    )
    parser.add_argument("--version", action="version", version=f"numformer {__version__}")
    _, others = parser.parse_known_args(arguments)
    if others:
        raise InputError(
            "numformer lists commands, and counts: numformer count CONFIG.json",
            " ".join(others),
            "Start a task with python -m toy_tasks.NAME, a lesson with python -m lessons NUMBER.",
        )
    print(overview())
    return 0


def program() -> int:
    """Run the installed command."""
    return exit_code(main)


if __name__ == "__main__":
    sys.exit(program())
