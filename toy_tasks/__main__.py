"""`python -m toy_tasks` lists the tasks."""

import sys

from toy_tasks import TASKS

HEAD = """\
python -m toy_tasks.NAME trains a model; with --help it lists its flags, with --quick it tries
everything in seconds. The times are those of two cores.
"""
FOOT = """
python -m toy_tasks.compare RUN RUN ... draws the curves of runs and lists their figures.
"""


def main() -> int:
    """Print each task with what it learns, what it shows and how long it takes."""
    print(HEAD)
    for name, row in {"NAME": ("time", "learns to", "shows"), **TASKS}.items():
        print("  {:<10} {:>10}  {:<32} {}".format(name, *row))
    print(FOOT, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
