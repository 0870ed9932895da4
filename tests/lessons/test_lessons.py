"""The course: its commands, exercises, questions, text and pages, these in a real browser."""

import inspect
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lesson_solutions import EXERCISES, HEADER, RIGHT, softmax
from matplotlib.backends.backend_agg import FigureCanvasAgg

import lessons
from lessons.__main__ import main
from lessons.lesson import INK, Beside, Matrix, Picture, Piece, plain, table
from lessons.percent import cells
from lessons.quiz import Question, ask
from lessons.run import run

pytestmark = pytest.mark.usefixtures("compared_once")

ROOT = Path(__file__).parents[2]
LESSON = "lesson_03_scaled_dot_product.html"
LESSONS = [entry.number for entry in lessons.COURSE if entry.path]
QUESTIONS = [
    Question("Which one is `even`?", "Half of *two* is one.", 1, ("one", "two", "three")),
    Question("How much is a quarter?", "It is $0.25$.", 0.25),
]


# Exercises


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "FILE defines one of softmax_backward, attention_backward"),
        (b"x = 1\ndef f(:\n", "mine.py, line 2: invalid syntax. Mend that line first."),
        (b"\x00\xff\xfe\x89PNG", "FILE is a Python file"),
        (b"caf\xe9 = 1", "FILE is a Python file"),
        (b"\n\nimport no_such_module\n", "line 3: ModuleNotFoundError: No module named"),
        (b"softmax_backward = nothing", "line 1: NameError"),
        (b"import sys\nsys.exit(0)", "line 2: SystemExit"),
        (b"import json\n\njson.loads('{')", "line 3: JSONDecodeError"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(source, words, checked):
    code, said, err = checked(source)
    assert (code, said, len(err)) == (2, "", 1)
    assert err[0].startswith("error: ") and words in err[0]


def test_a_missing_file_hints_at_start(call, tmp_path):
    for place in (tmp_path / "none.py", tmp_path):
        code, out, err = call(main, "check", "3", str(place))
        assert (code, out, len(err)) == (2, [], 1)
        assert "`python -m lessons start 3 FILE` writes one" in err[0]


def test_the_starter_file_is_checked_as_not_begun(call, tmp_path):
    file = tmp_path / "mine.py"
    code, out, _ = call(main, "start", "3", str(file))
    assert code == 0 and out[-1].endswith(f"python -m lessons check 3 {file}")
    code, out, _ = call(main, "check", "3", str(file))
    said = "\n".join(out)
    assert code == 1 and said.count("Not begun yet.") == 4 and out[-1] == "0 of 4 right"
    text = file.read_text()
    for exercise in lessons.load(3).EXERCISES:
        assert exercise.code in text and f". {exercise.title}\n" in text
        assert plain(exercise.task) in text.replace("# ", "")
    assert text.startswith('"""Exercises: lesson 3, Scaled dot-product attention\n')


def test_a_starter_file_completed_is_right(call, tmp_path):
    file = tmp_path / "mine.py"
    call(main, "start", "3", str(file))
    text = file.read_text()
    for name in ("softmax_backward", "attention_backward", "tempered_backward"):
        head, body = RIGHT[name][0].removeprefix(HEADER).split("\n", 1)
        names = ", ".join(inspect.signature(EXERCISES[name].start).parameters)
        others = f"    {head[head.index('(') + 1 : -2]} = {names}\n"
        text = text.replace("    raise NotImplementedError\n", others + body, 1)
    file.write_text(text.replace(" / doutput.shape[0]", ""))
    code, out, err = call(main, "check", "3", str(file))
    assert (code, out[-1], err) == (0, "4 of 4 right", [])


def test_a_starter_file_is_never_written_over_another(call, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("mine")
    for place in (file, tmp_path, tmp_path / "none" / "mine.py"):
        code, out, err = call(main, "start", "3", str(place))
        assert (code, out, len(err)) == (2, [], 1) and "never over another" in err[0]
    assert file.read_text() == "mine"


class Page:
    """What a page offers to pieces."""

    def __init__(self):
        self.scripts = []
        self.script = self.scripts.append

    def markdown(self, text):
        return f"<p>{text}</p>\n"

    def inline(self, text):
        return text

    def code(self, text):
        return f"<pre>{text}</pre>"

    def math(self, latex):
        return f"<math>{latex}</math>"


def test_an_exercise_shows_what_to_begin_with():
    exercise = EXERCISES["softmax_backward"]
    for shown in (exercise.markdown(), exercise.html(Page())):
        assert "def softmax_backward(dweights, weights):" in shown
        assert "python -m lessons check 3 FILE" in shown and exercise.task in shown
        assert "average" not in shown, "the solution"


# Questions


def answered(monkeypatch, capsys, text: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return ask(QUESTIONS), capsys.readouterr().out


@pytest.mark.parametrize("typed", ["b\n0.25\n", "B)\n1/4\n", "2\n0,26\n", " (b) \n .24\n"])
def test_right_answers_in_every_form(typed, monkeypatch, capsys):
    right, said = answered(monkeypatch, capsys, typed)
    assert right == 2 and said.endswith("2 of 2 right\n")
    assert said.count("Right.") == 2 and "Half of *two* is one." in said


@pytest.mark.parametrize("typed", ["a\n0.27\n", "3\n-0.25\n", "1\n4\n"])
def test_wrong_answers_are_explained(typed, monkeypatch, capsys):
    right, said = answered(monkeypatch, capsys, typed)
    assert right == 0 and said.endswith("0 of 2 right\n")
    assert "Not right. The answer is: two" in said and "Not right. The answer is: 0.25" in said


def test_nonsense_is_asked_again(monkeypatch, capsys):
    typed = "d\n4\n0\nab\n-1\nb\nquarter\n1/0\nnan\n1e999\n1/4/2\n0.25\n"
    right, said = answered(monkeypatch, capsys, typed)
    assert right == 2
    assert said.count("This asks for a letter from a to c, and '") == 5
    assert said.count("This asks for a number such as 0.5 or 1/2, and '") == 5


def test_an_empty_line_shows_the_answer(monkeypatch, capsys):
    right, said = answered(monkeypatch, capsys, "\n\n")
    assert right == 0 and "The answer is: two" in said and "Not right" not in said


@pytest.mark.parametrize(("typed", "right", "left"), [("", 0, 2), ("b\n", 1, 1), ("b\nx", 1, 1)])
def test_the_end_of_the_input_ends_the_quiz(typed, right, left, monkeypatch, capsys):
    count, said = answered(monkeypatch, capsys, typed)
    assert count == right and said.endswith(f"left: {left}.\n{right} of 2 right\n")


def test_a_large_number_has_its_thousands_marked_and_a_comma_may_be_a_point():
    question = Question("How many?", "So many.", 36864)
    assert question.solution == "36,864" and question.right(question.read(question.solution))
    assert Question("How much?", "So much.", 0.51234).solution == "0.5123"
    read = {"36,864": 36864, "1,048,576": 1048576, "0,500": 0.5, "1,25": 1.25, "1,25/2": 0.625}
    assert {text: question.read(text) for text in read} == read


@pytest.mark.parametrize(
    ("answer", "choices"), [(2, ("a", "b")), (-1, ("a", "b")), (0, ("a",)), (np.nan, ())]
)
def test_a_question_without_a_right_answer_is_refused(answer, choices, complaint):
    assert "the index of one as its answer" in complaint(Question, "?", "!", answer, choices)


def test_a_question_on_a_page_works_without_scripts():
    page = Page()
    choice, number = (question.html(page) for question in QUESTIONS)
    assert page.scripts == ["quiz", "quiz"]
    assert choice.count('<input type="radio" name="answer"') == 3 and 'data-answer="1"' in choice
    assert 'data-answer="0.25" data-tolerance="0.01"' in number and "radio" not in number
    for made, solution in ((choice, "two"), (number, "0.25")):
        assert f"<details><summary>Answer</summary><p><strong>{solution}</strong></p>" in made
        assert '<p class="verdict" role="status"></p>' in made


# The command


def test_without_a_command_the_lessons_are_listed(call):
    code, out, err = call(main)
    assert (code, err) == (0, [])
    for entry in lessons.COURSE:
        (line,) = (line for line in out if line.startswith(f"{entry.number:4}  {entry.title}"))
        assert line.endswith("(to come)") == (entry.path is None)
    assert any("python -m lessons check 3 FILE" in line for line in out)
    for command in re.findall(r"python -m lessons ([a-z]+)", " ".join(out)):
        _, _, err = call(main, command, "--help")
        assert err == [], command


def test_the_answers_of_lesson_3_are_these():
    questions = lessons.load(3).quiz()
    assert [round(question.answer, 2) for question in questions] == [8, 0.53, 448, 1, 1, 2, 1]
    right = [question.choices[question.answer] for question in questions if question.choices]
    for solution, word in zip(right, ("0", "the sign", "very much smaller", "after"), strict=True):
        assert word in solution


@pytest.mark.parametrize("number", LESSONS)
def test_the_quiz_command_asks_the_lesson(number, call, monkeypatch):
    questions = lessons.load(number).quiz()
    typed = [question.answer + bool(question.choices) for question in questions]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{answer}\n" for answer in typed)))
    code, out, err = call(main, "quiz", str(number))
    assert (code, out[-1], err) == (0, f"{len(questions)} of {len(questions)} right", [])


@pytest.mark.parametrize("arguments", [["3"], ["run", "3"]])
def test_a_number_alone_runs_the_lesson(arguments, call, monkeypatch):
    ran = []
    monkeypatch.setitem(sys.modules, "lessons.run", SimpleNamespace(run=ran.append))
    assert call(main, *arguments)[0] == 0
    assert ran == [lessons.load(3)]


@pytest.mark.parametrize("command", ["quiz", "run", "start", "check"])
def test_a_lesson_that_is_not_there_is_refused(command, call, tmp_path):
    file = [str(tmp_path / "mine.py")] if command in ("start", "check") else []
    for number in ("13", "0", "-3", "12"):
        code, out, err = call(main, command, number, *file)
        assert (code, out) == (2, []) and ("error:" in err[-1])
    assert not (tmp_path / "mine.py").exists()


def test_wrong_usage_is_refused(call):
    for arguments in (["chek", "3"], ["check"], ["check", "3"], ["quiz", "x"], ["3", "4"]):
        assert call(main, *arguments)[0] == 2
    for command in ("check", "start"):
        code, _, err = call(main, command, "mine.py", "3")
        assert code == 2 and "number comes first, as in `check 3 mine.py`" in err[-1]
    code, out, _ = call(main, "--help")
    assert code == 0 and any("exit codes: 0" in line for line in out)


def program(*arguments) -> subprocess.Popen:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "lessons", *arguments]
    return subprocess.Popen(command, env=environment, text=True, encoding="utf-8", **pipes)


def test_the_program_lists_where_letters_are_few(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    out, err = program().communicate(timeout=60)
    assert "Scaled dot-product attention" in out and "\\u221ad_k" in out and err == ""


@pytest.fixture
def interruptible():
    """Ctrl-C does what it does in a terminal, also where a shell had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_question_ends_it(call, monkeypatch, interruptible):
    monkeypatch.setattr("builtins.input", lambda prompt: os.kill(os.getpid(), signal.SIGINT))
    code, out, err = call(main, "quiz", "3")
    assert (code, err) == (130, []) and out[0].startswith("Question 1 of ")


def test_ctrl_c_ends_a_solution_that_does_not_end(call, tmp_path, interruptible):
    file = tmp_path / "mine.py"
    file.write_text(
        softmax("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile 1: pass")
    )
    code, _, err = call(main, "check", "3", str(file))
    assert (code, err) == (130, [])


def test_a_pipe_that_closes_early_is_no_error():
    process = program()
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=60)) == ("", 0)


# The lesson as text


@pytest.mark.parametrize("number", LESSONS)
def test_an_import_prints_nothing_and_draws_nothing(number, tmp_path):
    name = lessons.load(number).__name__
    code = f"import sys, {name}; assert 'matplotlib.pyplot' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", LESSONS)
def test_a_lesson_runs_in_a_terminal_and_saves_its_pictures(number, call, tmp_path, monkeypatch):
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    code, lines, err = call(main, str(number))
    assert (code, err) == (0, [])
    out = "\n".join(lines)
    told = {line.split(":")[0] for line in lines if line.startswith("runs/lessons/")}
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")}
    assert told == written and len(written) >= 2
    assert all(len(line.split(": ", 1)[1]) > 20 for line in lines if line.startswith("runs/"))
    headings = re.findall(r"^# ##? (.*)$", Path(lessons.load(number).__file__).read_text(), re.M)
    assert len(headings) > 8
    places = [out.find(f"\n{plain(heading)}\n---") for heading in headings]
    places = [place for place in places if place >= 0]
    assert len(places) > 8 and places == sorted(places)
    for heading in headings:
        assert plain(heading) in out
    # Formulas in letters, nothing bold; a power in code has spaces around its stars.
    assert not re.search(r"[$\\]|(?<! )\*\*|\*\*(?! )", out)


def test_the_lesson_runs_as_a_notebook_does(capsys):
    """Cell after cell in one namespace; a notebook shows what it can."""
    displayed = []
    names = {"__name__": "__main__", "get_ipython": object()}
    ipython = SimpleNamespace(display=displayed.append)
    with pytest.MonkeyPatch.context() as patches:
        patches.setitem(sys.modules, "IPython", SimpleNamespace(display=ipython))
        patches.setitem(sys.modules, "IPython.display", ipython)
        for cell in cells(Path(lessons.load(3).__file__)):
            if not cell.is_markdown:
                exec(compile(cell.text, "<cell>", "exec"), names)
    assert capsys.readouterr().out == ""
    module = lessons.load(3)
    shown = [name for name, value in vars(module).items() if getattr(value, "shown", False)]
    assert len(displayed) > len(shown) > 8
    pictures = 0
    for piece in displayed:
        assert isinstance(piece, Piece)
        if isinstance(piece, Picture):
            pictures += 1
            assert piece._repr_png_().startswith(b"\x89PNG") and piece._repr_markdown_() is None
        else:
            assert len(piece._repr_markdown_()) > 20
    assert pictures >= 6


def test_jupytext_opens_the_lesson_as_a_notebook():
    jupytext = pytest.importorskip(
        "jupytext", reason="needs the dev extra: pip install -e '.[dev]'"
    )
    path = Path(lessons.load(3).__file__)
    kinds = [cell.cell_type for cell in jupytext.read(path).cells]
    assert kinds == ["markdown" if cell.is_markdown else "code" for cell in cells(path)]


def doubled(x):
    """A function to be explained."""
    y = x + x  # once more
    return y


def test_lines_that_the_lesson_does_not_explain_stop_it():
    notes = {"y = x + x": "Twice.", "return": ""}
    shown = Beside(doubled, notes)
    assert "<p>Twice.</p>\n</div><pre>y = x + x  # once more</pre></li>" in shown.html(Page())
    assert "Twice.\n\n    y = x + x  # once more\n\n" in shown.markdown()
    assert Beside(doubled, notes).rows() == [("Twice.", "y = x + x  # once more"), ("", "return y")]
    for other in ({"y = 2 * x": "", "return": ""}, {"y = x": ""}, notes | {"more": ""}):
        with pytest.raises(ValueError, match=r"doubled has .* mend the lesson"):
            Beside(doubled, other).rows()


def test_a_text_cell_without_its_sign_stops_the_page(tmp_path):
    file = tmp_path / "lesson.py"
    file.write_text("# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nx = 1\n")
    text, code = cells(file)
    assert (text.is_markdown, text.text) == (True, "# Title\n\nText.")
    assert (code.is_markdown, code.text, code.first, code.last) == (False, "x = 1", 6, 7)
    file.write_text("# %% [markdown]\n# Text.\nx = 1\n")
    with pytest.raises(ValueError, match="'x = 1'"):
        cells(file)


def test_plain_text_has_formulas_in_letters():
    shown = plain(
        "## A *title*\n\nWith $\\sqrt{d_k}$ and **bold** `code`.\n\n"
        "$$A_{ts} = \\frac{e^{Z_{ts}}}{\\sum_u e^{Z_{tu}}}$$\n\n- one\n  two\n- three"
    )
    assert shown.splitlines() == [
        "A *title*",
        "---------",
        "",
        "With √d_k and bold code.",
        "",
        "    A_ts = (e^Z_ts) / (Σ_u e^Z_tu)",
        "",
        "- one two",
        "- three",
    ]


def test_lists_tables_and_code_stay_what_they_are_in_a_terminal():
    markdown = "| a | $b_{t,s}$ |\n|---|---:|\n| 1 | −2 |\n| | 4 |"
    table = "| a | b_t,s |\n| - | ----- |\n| 1 |    −2 |\n|   |     4 |"
    code = "```\nprice = '$'\n\n\nprint(price)\n```"
    shown = plain(f"1. one\n   more\n2. two $A_{{t,s}}$\n\n{markdown}\n\n{code}\n\n    a  b\n    c")
    assert shown == f"1. one more\n2. two A_t,s\n\n{table}\n\n{code}\n\n    a  b\n    c"
    assert plain("$$\\sum_{i=1}^{d_k} \\frac{\\partial L}{\\partial x_i} \\ne 0$$") == (
        "    Σ(i=1..d_k) (∂ L) / (∂ x_i) ≠ 0"
    )


def test_a_matrix_shows_its_numbers():
    numbers = np.array([[-1.25, 0.001], [0, -np.inf]])
    matrix = Matrix("M", numbers, ["a", "b"], ["c", "d"])
    assert matrix.cells() == [["−1.25", "0.00"], ["0", "−∞"]]
    assert matrix.markdown().splitlines()[2].split() == ["|", "a", "|", "−1.25", "|", "0.00", "|"]
    assert Matrix("M", np.array([[-2.0, 3]]), ["a"], ["c", "d"]).cells() == [["−2", "3"]]
    made = Matrix("M", np.array([[-2, 1, 0], [3, -4, 5]]), ["a", "b"], ["c", "d", "e"]).html(Page())
    assert "<math>M</math> <small>(2 × 3)</small>" in made
    head, *body = made.split("<tr>")[1:]
    assert re.findall(r">(\w)</th>", head) == ["c", "d", "e"]
    assert [re.findall(r">([\w−]+)</t", row) for row in body] == [
        ["a", "−2", "1", "0"],
        ["b", "3", "−4", "5"],
    ]
    sides = [re.findall(r"--(\w+)\) / 0.[1-9]", row) for row in body]
    assert sides == [["negative", "positive"], ["positive", "negative", "positive"]]


def test_a_picture_has_its_words_and_the_colour_of_the_text_around_it():
    def draw(figure):
        figure.subplots().set(xlabel="x")

    made = Picture("drawn", draw, "What is <seen>.", "What to look for.").html(Page())
    assert made.count('<svg role="img" aria-label="What is &lt;seen&gt;."') == 1
    assert made.endswith("<figcaption><p>What to look for.</p>\n</figcaption></figure>")
    assert made.count("currentColor") > 3 and INK not in made
    assert table(["a"], [("b",)], "Seen.").markdown().endswith("\n\n*Seen.*")


def test_where_there_is_a_window_pictures_open_in_it(monkeypatch, capsys, tmp_path):
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("agg")
    monkeypatch.setattr(FigureCanvasAgg, "required_interactive_framework", "a window")
    monkeypatch.setattr(pyplot, "show", lambda: opened.extend(pyplot.get_fignums()))
    opened = []
    lesson = lessons.load(3)
    cell = SimpleNamespace(is_markdown=False, shown=lambda _: [lesson.stepper])
    monkeypatch.setattr("lessons.run.cells", lambda path: [cell])
    try:
        run(lesson)
        (figure,) = map(pyplot.figure, pyplot.get_fignums())
        assert len(opened) == 1 and len(figure.widgets) >= 3
    finally:
        pyplot.close("all")
    assert "window attention: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
