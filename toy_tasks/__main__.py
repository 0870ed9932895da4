"""`python -m toy_tasks` lists the tasks."""

import sys

from numformer.errors import complain
from toy_tasks import TASKS

HEAD = """\
python -m toy_tasks.NAME trains a model. --help lists the flags of a task; --quick tries in
seconds whether everything runs. The times are for two cores.
"""
FOOT = """
python -m toy_tasks.compare RUN RUN ... draws the curves of runs and lists their figures.
python -m toy_tasks.heads --run RUN says what each attention head does.
python -m toy_tasks.listen --run FOLDER --input FILE.wav writes down speech.
python -m toy_tasks.from_paper reverses digits with numformer/paper alone, in sixty lines.
"""


def main(arguments: list[str]) -> int:
    """Print each task with what it learns, what it shows and how long it takes."""
    if arguments and arguments != ["--help"]:
        complain(f"a task is started by python -m toy_tasks.NAME, not by {arguments[0]!r} alone")
        return 2
    print(HEAD)
    for name, row in {"NAME": ("time", "learns to", "shows"), **TASKS}.items():
        print("  {:<11} {:>10}  {:<31} {}".format(name, *row))
    print(FOOT, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
