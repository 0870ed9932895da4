"""`python -m toy_tasks` lists the tasks."""

import sys

from toy_tasks import TASKS


def main() -> int:
    """Print each task with what it learns, what it teaches and how long it takes."""
    print("python -m toy_tasks.NAME trains a model; with --help it lists its flags, with --quick it")
    print("tries everything in seconds. The times are those of two cores.\n")
    for name, (learns, teaches, time) in TASKS.items():
        print(f"  {name:<10} {time:>10}  learns to {learns};\n{'':25}shows {teaches}")
    print("\npython -m toy_tasks.compare RUN RUN ...  draws the curves of runs and lists their figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
