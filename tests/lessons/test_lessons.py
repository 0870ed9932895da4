"""The commands of the course: files with exercises, questions, what is typed wrong."""

import importlib
import io
import json
import os
import re
import signal
import sys
import threading
import urllib.request
from unittest import mock

import numpy as np
import pytest
from lesson_solutions import HEADER, LESSONS, NUMBERS, RIGHT, attention, softmax

import lessons
from lessons.__main__ import main
from lessons.kit.lesson import plain
from lessons.kit.quiz import Question, ask, read_number
from toy_tasks.command_line.training import quote

QUESTIONS = [
    Question(
        "Which one is `even`?",
        "Half of *two* is one.",
        1,
        {"one": "Half of *one* is a fraction.", "two": "", "three": "Half of *three* is, too."},
    ),
    Question("How much is a quarter?", "It is $0.25$.", 0.25, mistakes={4: "That is $1/0.25$."}),
]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "FILE defines one of softmax_backward, attention_backward"),
        (b"x = 1\ndef f(:\n", "mine.py, line 2: invalid syntax. Mend that line first."),
        (b"\x00\xff\xfe\x89PNG", "FILE is a Python file"),
        (
            b"\n\nimport no_such_module\nsoftmax_backward = 0",
            "line 3: ModuleNotFoundError: No module named",
        ),
        (b"import sys\nsys.exit(softmax_backward := 0)", "line 2: SystemExit"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(source, words, checked):
    code, output, err = checked(source)
    assert (code, output, len(err)) == (2, "", 1)
    assert err[0].startswith("error: ") and words in err[0]


def test_a_starter_file_is_written_once_filled_in_and_right(call, tmp_path):
    file = tmp_path / "my own.py"
    code, out, _ = call(main, "start", "3", str(file))
    assert code == 0 and out[-1].endswith(f"python -m lessons check 3 {quote(file)}")
    code, out, _ = call(main, "check", "3", str(file))
    output = "\n".join(out)
    assert code == 1 and output.count("Not begun yet.") == 4 and out[-1] == "0 of 4 right"
    text = file.read_text()
    for exercise in lessons.load(3).EXERCISES:
        assert exercise.code in text and plain(exercise.task) in text.replace("# ", "")
    code, out, err = call(main, "start", "3", str(file))
    assert (code, out, len(err)) == (2, [], 1) and "never over another" in err[0]
    assert file.read_text() == text
    for name in ("softmax_backward", "attention_backward", "tempered_backward"):
        right = RIGHT[name][0].removeprefix(HEADER)
        text = re.sub(rf'(?s)def {name}.*?""".*?Error\n', lambda _, new=right: new, text, count=1)
    file.write_text(text.replace(" / dscores.shape[0]", ""))
    solution = file.rename(tmp_path / "solution_of_a_reader.py")
    file.write_text(f"from {solution.stem} import *\n")
    for path in (solution, file):
        code, out, err = call(main, "check", "3", str(path))
        assert (code, out[-1], err) == (0, "4 of 4 right", [])


def test_a_notebook_is_started_and_checked_as_a_file_is(call, tmp_path, monkeypatch):
    """Reading it runs none of its checks, which take time that the file has not."""
    monkeypatch.setattr(lessons, "check", lambda *_: pytest.fail("a check ran"))
    file = tmp_path / "mine.ipynb"
    assert call(main, "start 3", str(file))[0] == 0
    code, out, _ = call(main, "check 3", str(file))
    assert code == 1 and "\n".join(out).count("Not begun yet.") == 4
    file.unlink()
    assert call(main, "start 3 --solved", str(file))[0] == 0
    notebook = json.loads(file.read_text())
    commands = "%matplotlib inline", "!ls", "%%bash\nls *", "%%time\nx = (7\n    % 2)", "np.exp?"
    notebook["cells"][2:2] = [{"cell_type": "code", "source": [text]} for text in commands]
    file.write_text(json.dumps(notebook))
    code, out, err = call(main, "check 3", str(file))
    assert (code, out[-1], err) == (0, "4 of 4 right", [])
    text = file.read_text().replace("return dscores", "return dscore")
    file.write_text(text)
    code, out, _ = call(main, "check 3", str(file))
    assert code == 1 and re.search(r"line \d+: return dscore\b", "\n".join(out))
    for text in "{}", "[]", "import numpy", '{"cells": [3]}':
        file.write_text(text)
        code, out, err = call(main, "check 3", str(file))
        assert (code, out) == (2, []) and "it holds no cells of a notebook" in err[0]


def test_the_cells_of_a_started_notebook_run_and_check(call, tmp_path):
    file, names, shown = tmp_path / "mine.ipynb", {}, []
    call(main, "start 4 --solved", str(file))
    for cell in json.loads(file.read_text())["cells"]:
        if cell["source"].startswith("lessons.check"):
            shown.append(repr(eval(cell["source"], names)))
        elif cell["cell_type"] == "code":
            exec(cell["source"], names)
    assert len(shown) == len(lessons.load(4).EXERCISES)
    assert {words.partition(":")[0] for words in shown} == {"Right"}
    assert max(map(len, "\n".join(shown).splitlines())) <= 84


def test_a_function_is_checked_by_its_name(complaint):
    def softmax_backward(dweights, weights):
        return dweights * weights

    verdict = lessons.check(3, softmax_backward)
    assert not verdict.right and repr(verdict).startswith("Not right yet:\n\n    dscores")
    for function in (np.exp, 3):
        assert "lesson 3's exercises are softmax_backward, att" in complaint(
            lessons.check, 3, function
        )
    assert "received '3'. " in complaint(lessons.check, "3", softmax_backward)


def test_progress_tells_what_is_solved_in_one_of_the_files(call, tmp_path):
    wrong, right, other = (tmp_path / f"{name}.py" for name in ("early", "late", "training"))
    other.write_text("raise SystemExit('a script without exercises is not run')")
    wrong.write_text(softmax("return dweights * weights") + attention().removeprefix(HEADER))
    right.write_text(RIGHT["softmax_backward"][0])
    todo = [exercise.name for exercise in lessons.load(3).EXERCISES][2:]
    every = sum(len(lessons.load(number).EXERCISES) for number in LESSONS)
    not_yet = ["softmax_backward (not right yet)"]
    for files, first in ((wrong,), not_yet), ((wrong, right), []), ((other, right, wrong), []):
        code, out, err = call(main, "progress", *map(str, files))
        assert (code, err) == (1, []) and len(out) == len(LESSONS) + 1
        (line,) = (line for line in out if line.startswith("   3  "))
        assert line.endswith(f"to do: {', '.join([*first, *todo])}")
        assert out[-1] == f"{2 - len(first)} of {every} exercises solved"
    code, out, err = call(main, "progress", str(tmp_path / "none.py"), str(right))
    assert (code, out[-1], len(err)) == (1, f"1 of {every} exercises solved", 1)
    for file in (tmp_path / "none.py", other):
        code, out, err = call(main, "progress", str(file))
        assert (code, out, len(err)) == (2, [], 1)


def test_serve_builds_the_pages_and_opens_them_until_ctrl_c(call, builder, tmp_path, monkeypatch):
    seen = []

    def build(out):
        (out / "index.html").write_text("the course")
        return "1 lesson"

    def visit(address):
        seen.append(urllib.request.urlopen(address).read())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("lessons.kit.build.build", build)
    monkeypatch.setattr(
        "webbrowser.open_new", lambda url: threading.Thread(target=visit, args=[url]).start()
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, err = call(main, "serve --out", str(tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err, seen) == (0, [], [b"the course"]) and out[0] == "1 lesson"
    code, out, err = call(main, "serve --port 99999 --out", str(tmp_path))
    assert (code, out) == (2, []) and "--port is one that no other program uses" in err[-1]


NONSENSE = "d\n4\n0\nab\n-1\nb\nquarter\n1/0\nnan\n1e999\n1/4/2\n0.25\n"
WHY, ALSO, NOT = "Half of *two* is one.", "It is 0.25.", "Not right. The answer is: "
A_LETTER = "This asks for a letter from a to c, and '"
A_NUMBER = "This asks for a number such as 0.5 or 1/2, and '"


@pytest.mark.parametrize(
    ("typed", "right", "words"),
    [
        ("b\n0.25\n", 2, {"Right.": 2, WHY: 1, ALSO: 1}),
        *((typed, 2, {NOT: 0}) for typed in ("B)\n1/4\n", " (2) \n0,26\n")),
        (
            "c\n4.0\n",
            0,
            {"right. Half of *three* is, too. ": 1, "right. That is 1/0.25. ": 1},
        ),
        ("a\n0.27\n", 0, {"a fraction. The answer is: two": 1, f"{NOT}0.25": 1, WHY: 1}),
        (NONSENSE, 2, {A_LETTER: 5, A_NUMBER: 5}),
        ("\n\n", 0, {"The answer is: two": 1, "Not right": 0}),
        ("b\nx", 1, {"left: 1.\n1 of 2": 1}),
    ],
)
def test_what_a_quiz_says_to_what_is_typed(typed, right, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    count, output = ask(QUESTIONS), capsys.readouterr().out
    assert count == right and output.endswith(f"{right} of 2 right\n")
    assert {part: output.count(part) for part in words} == words


def test_numbers_are_read_as_people_write_them(chromium):
    """In Python and on a page."""
    assert {text: read_number(text) for text in NUMBERS} == NUMBERS
    script = (lessons.FOLDER / "page/quiz.js").read_text().partition("for (const form")[0]
    read = "texts.map(readNumber).map(given => Number.isFinite(given) ? given : null)"
    page = chromium.new_page()
    found = page.evaluate(f"texts => {{ {script}; return {read} }}", [*NUMBERS])
    page.close()
    assert dict(zip(NUMBERS, found, strict=True)) == NUMBERS


@pytest.mark.parametrize(
    ("answer", "choices", "mistakes"),
    [
        *((answer, {"a": "A.", "b": ""}, {}) for answer in (0, 2, -1)),
        (0, {"a": ""}, {}),
        (0, {"a": "", "b": ""}, {}),
        (0, {"a": "", "b": "No.", "c": "No."}, {}),
        (np.nan, {}, {}),
        (3, {}, {4: ""}),
        (3, {}, {4: "No.", 5: "No."}),
        *((3, {}, {near: "No.", 4: "Not at all."}) for near in (3.005, 4.005)),
    ],
)
def test_a_question_has_a_right_answer_and_a_reply_to_each_wrong_one(
    answer, choices, mistakes, complaint
):
    refused = complaint(Question, "?", "!", answer, choices, 0.01, mistakes)
    assert "each wrong answer has a reply of its own" in refused


@pytest.mark.parametrize("number", LESSONS)
def test_the_replies_of_a_lesson(number):
    """One or two sentences to each wrong answer; the right one is right as a page writes it."""
    for question in lessons.load(number).quiz():
        replies = {given: plain(reply) for given, reply in question.replies.items()}
        assert replies.pop(question.answer) == "" and len(replies) > 1 - bool(question.choices)
        for reply in replies.values():
            assert reply[-1] in ".?)" and 3 < len(reply.split()) <= 36, reply
        assert len({*replies.values()}) == len(replies)
        if not question.choices:
            for sign in "−", "-", " − ":
                typed = question.solution.replace("−", sign)
                assert question.right(question.read(typed)), typed


def test_lessons_are_listed_and_help_tells_the_exit_codes(call):
    code, out, err = call(main)
    assert (code, err) == (0, [])
    for entry in lessons.COURSE:
        (line,) = (line for line in out if line.startswith(f"{entry.number:4}  {entry.title}"))
        assert line.endswith("(to come)") == (entry.path is None)
    code, out, _ = call(main, "--help")
    assert code == 0 and any("exit codes: 0" in line for line in out)


def test_the_quiz_command_asks_the_lesson(call, monkeypatch):
    for number in LESSONS:
        questions = lessons.load(number).quiz()
        typed = [f"{question.answer + bool(question.choices)}\n" for question in questions]
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(typed)))
        code, out, err = call(main, "quiz", str(number))
        assert (code, out[-1], err) == (0, f"{len(typed)} of {len(typed)} right", [])


FIRST = "number comes first, as in `check 3 mine.py`"
NOT_THERE = "a lesson is named by its number"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((command, NOT_THERE) for command in ("quiz 20", "run 0", "check 20 new.py")),
        *((f"{command} mine.py 3", FIRST) for command in ("start", "check")),
        *((f"check 3 {file}", "lessons start 3 FILE` writes") for file in (".", "no.py")),
        *((typed, "error: ") for typed in ("run -3", "check 3", "quiz x", "3 4")),
    ],
)
def test_wrong_usage_is_refused(arguments, words, call, empty_folder):
    code, out, err = call(main, *arguments.split())
    assert (code, out) == (2, []) and words in err[-1] and not os.listdir()


def test_ctrl_c_while_numformer_is_imported_ends_the_program(monkeypatch):
    """The first import of `python -m lessons` sets the handler. Here, the second import fails."""
    monkeypatch.setattr(sys, "argv", ["-m"])
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    with mock.patch.dict(sys.modules, {"numformer.errors": None}), pytest.raises(ImportError):
        del sys.modules["lessons"], sys.modules["toy_tasks"]
        importlib.import_module("lessons")
    assert signal.signal(signal.SIGINT, handler).until_main


def test_ctrl_c_ends_a_question_and_a_solution_that_does_not_end(call, monkeypatch, checked):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    stop = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)"
    code, _, err = checked(softmax(f"{stop}\nwhile 1: pass"))
    assert (code, err) == (130, [])
    monkeypatch.setattr("builtins.input", lambda prompt: os.kill(os.getpid(), signal.SIGINT))
    code, out, err = call(main, "quiz", "3")
    assert (code, err) == (130, []) and out[0].startswith("Question 1 of ")
    signal.signal(signal.SIGINT, before)
