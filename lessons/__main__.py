"""The course in the terminal: python -m lessons"""

import argparse
import difflib
import sys
import textwrap
import webbrowser
from collections.abc import Iterable, Sequence
from pathlib import Path

import lessons
from lessons.kit.exercise import NOT_BEGUN, Exercise, verdicts, wrapped
from lessons.kit.lesson import plain
from lessons.kit.notebook import exercise_notebook, lesson_notebook
from lessons.kit.quiz import ask
from lessons.kit.reader_file import solutions, starter
from numformer.errors import InputError, complain
from toy_tasks.command_line import any_path, exit_code, integer
from toy_tasks.command_line.training import quote

COMMANDS = """\
python -m lessons 3               a lesson: its text, tables and figures
python -m lessons quiz 3          its questions
python -m lessons start 3 FILE    write its exercises into a new file, to be filled in
python -m lessons check 3 FILE    what is right in that file, and why the rest is not
                                  (FILE.py, or FILE.ipynb for a notebook)
python -m lessons progress FILE   how much of the whole course your files solve
python -m lessons notebooks       all lessons as notebooks, in the folder notebooks
python -m lessons serve           all lessons as pages: build them, and open them in a browser"""


def contents() -> str:
    """The table of contents and the commands."""
    lines = ["The Transformer, forward and backward, in fourteen lessons", ""]
    for entry in lessons.COURSE:
        lines.append(f"{entry.number:4}  {entry.title}{'' if entry.path else '  (to come)'}")
        lines.append(f"      {plain(entry.question)}")
    return "\n".join([*lines, "", COMMANDS])


def start(number: int, file: Path, solved: bool = False) -> int:
    """Write the starter file of a lesson's exercises, or one `solved`; never over another file."""
    exercises = lessons.load(number).EXERCISES
    write = exercise_notebook if file.suffix == ".ipynb" else starter
    text = write(f"lesson {number}, {lessons.COURSE[number - 1].title}", exercises, solved)
    try:
        with file.open("x", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except OSError as problem:
        rule = "`start` writes a new file into a folder that exists, never over another"
        raise InputError(rule, f"{file} ({problem.strerror})", "Choose another name.") from None
    then = "Look into it" if solved else "Fill it in"
    print(f"{file} is written. {then}, then: python -m lessons check {number} {quote(file)}")
    return 0


def _require_solutions(found: Iterable, exercises: Sequence[Exercise], files: list[Path]) -> None:
    """Raise InputError if the names found in the files are those of no exercise."""
    names = [exercise.name for exercise in exercises]
    if {*names}.isdisjoint(found):
        fix = f"`python -m lessons start {exercises[0].lesson} FILE` writes one to begin with."
        where = ", ".join(map(str, files))
        raise InputError(f"FILE defines one of {', '.join(names)}", f"none of them in {where}", fix)


def check(number: int, file: Path) -> int:
    """Say of each exercise whether the file solves it -> 0 if it solves all of the lesson."""
    exercises = lessons.load(number).EXERCISES
    functions = solutions(file, exercises)
    _require_solutions(functions, exercises, [file])
    right = 0
    for exercise, verdict in verdicts(exercises, functions):
        if verdict is None:
            print(f"{exercise.name}: not in this file")
            for near in difflib.get_close_matches(exercise.name, functions, 1, 0.9):
                print(f"{near}: is {exercise.name} meant?")
            print()
            continue
        right += verdict.right
        words = textwrap.indent(wrapped(verdict.words), "    ")
        print(f"{exercise.name}\n\n{words}\n", flush=True)
    print(f"{right} of {len(exercises)} right")
    return 0 if right == len(exercises) else 1


def progress(files: list[Path]) -> int:
    """Say which exercises of the course the files solve -> 0 if they solve all of them."""
    written = {
        entry: lessons.load(entry.number).EXERCISES for entry in lessons.COURSE if entry.path
    }
    every = [exercise for exercises in written.values() for exercise in exercises]
    read = []
    for file in files:
        try:
            read.append(solutions(file, every))
        except InputError as problem:
            if len(files) == 1:
                raise
            complain(problem)
    _require_solutions(set().union(*read), every, files)
    solved = 0
    for entry, exercises in written.items():
        open_ones = []
        for exercise in exercises:
            tries = [functions[exercise.name] for functions in read if exercise.name in functions]
            verdicts = [exercise.check(function) for function in tries]
            if not any(verdict.right for verdict in verdicts):
                begun = any(verdict.words != NOT_BEGUN for verdict in verdicts)
                open_ones.append(f"{exercise.name}{' (not right yet)' if begun else ''}")
        right = len(exercises) - len(open_ones)
        solved += right
        left = f"   to do: {', '.join(open_ones)}" if open_ones else ""
        print(f"{entry.number:4}  {right} of {len(exercises)}  {entry.title}{left}", flush=True)
    print(f"{solved} of {len(every)} exercises solved")
    return 0 if solved == len(every) else 1


def notebooks(out: Path) -> int:
    """Write each lesson as a notebook into a folder; never over another file."""
    files = {
        out / f"{entry.path.stem}.ipynb": lesson_notebook(lessons.load(entry.number))
        for entry in lessons.COURSE
        if entry.path
    }
    if there := [file for file in files if file.exists()]:
        rule, fix = "notebooks are new files", "Name another folder, or move the files."
        raise InputError(rule, f"{there[0]}, which exists", fix)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            file.write_text(text, encoding="utf-8", newline="\n")
            print(file)
    except OSError as problem:
        raise InputError("--out is a folder to write in", problem, "Name another.") from None
    return 0


def serve(out: Path, exercises: Path, port: int) -> int:
    """Build the pages into a folder, and serve them to a browser until Ctrl-C."""
    from lessons.kit.build import build
    from lessons.kit.server import CourseServer

    try:
        server = CourseServer(out, exercises, port)
    except (OSError, OverflowError) as problem:
        rule = "--port is one that no other program uses; 0 finds one"
        raise InputError(rule, f"{port} ({problem})", "Choose another.") from None
    with server:
        print(build(out))
        print(f"{server.address}   (Ctrl-C ends it)", flush=True)
        webbrowser.open_new(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _lesson(text: str) -> int:
    if not text.lstrip("-").isdigit():
        rule = "the lesson's number comes first, as in `check 3 mine.py`"
        raise argparse.ArgumentTypeError(f"{rule}, and not {text!r}")
    return integer(text)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0].lstrip("-").isdigit():
        arguments = ["run", *arguments]
    parser = argparse.ArgumentParser(
        prog="python -m lessons",
        description="The lessons of numformer. Without a command it lists them.",
        epilog=COMMANDS + "\n\nexit codes: 0 done, and all exercises are right; 1 not all are "
        "right;\n2 wrong usage or input; 130 stopped by Ctrl-C",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, about in (
        ("run", "go through a lesson; a number alone does the same"),
        ("quiz", "answer its questions"),
        ("start", "write its exercises into a new file"),
        ("check", "check the exercises in a file"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("number", type=_lesson, help="the lesson's number")
        if name in ("start", "check"):
            command.add_argument(
                "file", type=any_path, metavar="FILE", help="a Python file or notebook of yours"
            )
        if name == "start":
            command.add_argument(
                "--solved", action="store_true", help="with the solutions, for teachers"
            )
    about = "say how much of the whole course your files solve"
    command = commands.add_parser("progress", help=about, description=about)
    command.add_argument("files", type=any_path, nargs="+", metavar="FILE", help="your files")
    about = "write all lessons as notebooks"
    command = commands.add_parser("notebooks", help=about, description=about)
    command.add_argument(
        "--out", type=any_path, default=Path("notebooks"), help="folder (default: notebooks)"
    )
    about = "build the pages that have changed, and open the course in a browser"
    command = commands.add_parser("serve", help=about, description=about)
    command.add_argument(
        "--out", type=any_path, default=Path("site"), help="folder (default: site)"
    )
    command.add_argument(
        "--exercises",
        type=any_path,
        default=Path("exercises"),
        help="folder for what you write on the pages, a file for each lesson (default: exercises)",
    )
    command.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    options = parser.parse_args(arguments)
    if options.command is None:
        print(contents())
    elif options.command == "progress":
        return progress(options.files)
    elif options.command == "notebooks":
        return notebooks(options.out)
    elif options.command == "serve":
        return serve(options.out, options.exercises, options.port)
    elif options.command == "start":
        return start(options.number, options.file, options.solved)
    elif options.command == "check":
        return check(options.number, options.file)
    elif options.command == "quiz":
        ask(lessons.load(options.number).quiz())
    else:
        from lessons.kit.run import run

        run(lessons.load(options.number))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
