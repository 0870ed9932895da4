"""The course in the terminal: python -m lessons"""

import argparse
import os
import shutil
import sys
import textwrap
from pathlib import Path

import lessons
from lessons.kit.lesson import plain
from lessons.kit.quiz import ask
from lessons.kit.reader_file import solutions, starter
from numformer.errors import InputError
from toy_tasks.kit import exit_code, integer, path

COMMANDS = """\
python -m lessons 3               a lesson: its text, tables and figures
python -m lessons quiz 3          its questions
python -m lessons start 3 FILE    write its exercises into a new file, to be filled in
python -m lessons check 3 FILE    what is right in that file, and why the rest is not
python -m lessons.build           all lessons as pages for a browser"""


def contents() -> str:
    """The table of contents and the commands."""
    lines = ["The Transformer, forward and backward, in thirteen lessons", ""]
    for entry in lessons.COURSE:
        lines.append(f"{entry.number:4}  {entry.title}{'' if entry.path else '  (to come)'}")
        lines.append(f"      {plain(entry.question)}")
    return "\n".join([*lines, "", COMMANDS])


def start(number: int, file: Path) -> int:
    """Write the starter file of a lesson's exercises; never over another file."""
    exercises = lessons.load(number).EXERCISES
    text = starter(f"lesson {number}, {lessons.COURSE[number - 1].title}", exercises)
    try:
        with file.open("x", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except OSError as problem:
        raise InputError(
            "`start` writes a new file, never over another",
            f"{file} ({problem.strerror})",
            "Choose another name.",
        ) from None
    print(f"{file} is written. Fill it in, then: python -m lessons check {number} {file}")
    return 0


def check(number: int, file: Path) -> int:
    """Say of each exercise whether the file has it right: 0 where all that it has are right."""
    exercises = lessons.load(number).EXERCISES
    functions = solutions(file, exercises)
    right, wrong = 0, set()
    for exercise in exercises:
        if exercise.name not in functions:
            print(f"{exercise.name}: not in this file\n")
            continue
        verdict = exercise.check(functions[exercise.name])
        words = verdict.words
        right += verdict.right
        if not verdict.right:
            called = getattr(functions[exercise.name], "__code__", main.__code__).co_names
            if begin := [name for name in called if name in wrong]:
                words = f"It calls {begin[0]}: mend that first.\n\n{words}"
            wrong.add(exercise.name)
        print(f"{exercise.name}\n\n{_wrapped(words)}\n", flush=True)
    print(f"{right} of {len(functions)} right")
    return 0 if right == len(functions) else 1


def _wrapped(words: str) -> str:
    """Paragraphs as wide as the terminal, at most 88; those that are indented stay as they are."""
    width = min(88, shutil.get_terminal_size().columns) - 4
    blocks = [
        block if block.startswith("    ") else textwrap.fill(block, width)
        for block in words.split("\n\n")
    ]
    return textwrap.indent("\n\n".join(blocks), "    ")


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
        epilog=COMMANDS
        + "\n\nexit codes: 0 done, and what was checked is right; 1 not all of it is "
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
            command.add_argument("file", type=path, metavar="FILE", help="a Python file of yours")
    options = parser.parse_args(arguments)
    if options.command is None:
        print(contents())
    elif options.command == "start":
        return start(options.number, options.file)
    elif options.command == "check":
        return check(options.number, options.file)
    elif options.command == "quiz":
        ask(lessons.load(options.number).quiz())
    else:
        from lessons.kit.run import run

        run(lessons.load(options.number))
    return 0


def until_the_pipe_ends() -> int:
    """main, for which it is no error that `| less` has seen enough."""
    try:
        code = main()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is left in the buffer is written when Python ends: to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(exit_code(until_the_pipe_ends))
