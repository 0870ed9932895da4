"""The course in the terminal: exercises and their checker, questions, the command."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lesson_solutions import HEADER, RIGHT, WRONG, attention, function, softmax

import lessons
from lessons import exercises_03
from lessons.__main__ import main
from lessons.exercise import EQUAL, Sizes
from lessons.quiz import Question, ask

ROOT = Path(__file__).parents[1]
EXERCISES = {exercise.name: exercise for exercise in exercises_03.EXERCISES}
QUESTIONS = [
    Question("Which one is `even`?", "Half of *two* is one.", 1, ("one", "two", "three")),
    Question("How much is a quarter?", "It is $0.25$.", 0.25),
]


def scope(source: str) -> dict:
    """What a file with this source defines."""
    names = {}
    exec(source, names)
    return names


@pytest.fixture(autouse=True)
def a_lesson(monkeypatch):
    module = SimpleNamespace(EXERCISES=exercises_03.EXERCISES, quiz=lambda: QUESTIONS)
    monkeypatch.setattr(lessons, "load", lambda number: module)


@pytest.fixture
def checked(call, tmp_path):
    """`checked(source)` writes a file and checks it -> exit code, what is said, in one line."""

    def check(source: str | bytes) -> tuple[int, str, list[str]]:
        file = tmp_path / "mine.py"
        file.write_bytes(source if isinstance(source, bytes) else source.encode())
        code, out, err = call(main, "check", "3", str(file))
        return code, " ".join(" ".join(out).split()), err

    return check


# Exercises


@pytest.mark.parametrize(
    ("name", "index"), [(name, index) for name in RIGHT for index in range(len(RIGHT[name]))]
)
def test_right_solutions_of_every_style_pass(name, index, checked):
    code, said, err = checked(RIGHT[name][index])
    assert (code, err) == (0, []), said
    assert f"{name} Right: d" in said


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name in WRONG for wrong in WRONG[name]]
)
def test_wrong_solutions_hear_what_is_wrong(name, wrong, checked):
    source, words = WRONG[name][wrong]
    code, said, err = checked(source)
    assert (code, err) == (1, [])
    assert words in said and said.endswith(" 0 of 1 right")
    others = {other for _, other in WRONG[name].values()} - {words}
    assert wrong == "two mistakes" or not any(other in said for other in others), said


KNOWN = {
    "softmax_backward": exercises_03.SOFTMAX_MISTAKES,
    "attention_backward": exercises_03.ATTENTION_MISTAKES[: len(exercises_03.FAULTS) + 1],
    "mended_attention_backward": exercises_03.MENDED_MISTAKES[:8],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_mistakes_are_wrong_and_each_in_its_own_way(name):
    exercise = EXERCISES[name]

    def results(function, sizes):
        layer, inputs = exercise.case(function, sizes)
        output = layer.forward(*inputs)
        upstream = np.random.default_rng(0).standard_normal(output.shape)
        gradients = layer.backward(upstream)
        return gradients if isinstance(gradients, tuple | list) else (gradients,)

    def equal(some, others):
        return len(some) == len(others) and all(
            a.shape == b.shape and np.allclose(a, b) for a, b in zip(some, others, strict=True)
        )

    first, *others = (scope(source)[name] for source in RIGHT[name])
    known = {sizes: [results(first, sizes)] for sizes in (Sizes(), EQUAL)}
    assert all(equal(known[Sizes()][0], results(function, Sizes())) for function in others)
    for mistake in KNOWN[name]:
        sizes = Sizes()
        try:
            result = results(mistake.wrong, sizes)
        except ValueError:  # a product that can only be formed where all sizes are equal
            result = results(mistake.wrong, sizes := EQUAL)
        assert not any(equal(result, other) for other in known[sizes]), mistake.why
        known[sizes].append(result)


def test_which_results_are_right_is_said_first(checked):
    _, said, _ = checked(attention(dK="np.einsum('bhts,bhtk->bhsk', dZ, Q)"))
    table = "dquery (2, 3, 4, 6) right dkey (2, 3, 5, 6) wrong dvalue (2, 3, 5, 7) right"
    assert table in said
    assert said.index(table) < said.index("The scale is missing in dkey alone")


def test_two_mistakes_in_two_results_are_both_explained(checked):
    _, said, _ = checked(attention(dV="A.T.T @ dO", dS="dZ"))
    assert "dvalue lacks a transpose" in said and "The scale is missing: " in said
    _, said, _ = checked(attention(dV="np.einsum('bhts,bhtv->bhsv', A, dO) / 6 ** 0.5", dS="dZ"))
    assert "dvalue is scaled" in said and "The scale is missing: " in said


def test_each_of_three_mistakes_is_explained():
    source = attention(
        dQ="dS @ K",
        dK="np.einsum('bhts,bhtk->bhsk', dZ, Q)",
        dV="np.einsum('bhts,bhtv->bhsv', A, dO) / 6 ** 0.5",
        dS="dZ * 6 ** 0.5",
    )
    said = EXERCISES["attention_backward"].check(scope(source)["attention_backward"]).words
    for words in ("The scale is turned round", "scale is missing", "dvalue is scaled"):
        assert words in said


def test_beside_a_known_mistake_an_unknown_one_waits(checked):
    source = attention(
        dQ="np.einsum('bhts,bhsk->bhtk', dS, K ** 3)", dV="A.swapaxes(2, 3) @ dO / 6**0.5"
    )
    _, said, _ = checked(source)
    assert "dvalue: dvalue is scaled" in said and "Then look again at dquery." in said
    assert "entries are wrong" not in said


def test_an_unknown_mistake_gets_the_numbers_and_the_diagnosis(checked):
    _, said, _ = checked(attention(dQ="1.5 * np.einsum('bhts,bhsk->bhtk', dS, K)"))
    assert "126 of 144 entries are wrong. The worst, at (" in said
    assert "Constant ratio 1.5" in said
    _, said, _ = checked(attention(dQ="np.einsum('bhts,bhsk->bhtk', dS, K ** 3)"))
    assert "No pattern that the check knows" in said and "--elementwise" not in said


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (softmax("raise NotImplementedError"), "Not written yet."),
        (softmax("dscores = dweights * weights"), "It returns None. Its last line has to be"),
        (attention(**{"return": "dQ, dK"}), "2 results and not 3: its last line"),
        (attention(**{"return": "dQ"}), "1 result and not 3: its last line"),
        (softmax("return 0.5"), "Its dscores is a float and not an array."),
        (softmax("return (dweights * weights).tolist()"), "returns 2 results and not 1"),
        (softmax("return weights.sum(axis=-1)"), "shape (2, 3, 4), but a gradient has the shape"),
        (softmax("return (dweights * weights).astype(np.float32)"), "is of float32"),
        (softmax("weights *= dweights\nreturn weights"), "It writes into its argument weights"),
        (softmax("return dweights / weights"), "it holds NaN or infinity, first at (0, 0, 0, 4)"),
        (
            RIGHT["softmax_backward"][0] + ".round(6)",
            "right to a few digits only",
        ),
        (softmax("total = dweights.summ()"), "It raises AttributeError: "),
        (softmax("total = dweights.summ()"), "line 5: total = dweights.summ() with dweights (2, 3"),
        (softmax("return exit()"), "It raises SystemExit"),
        (softmax("return softmax_backward(dweights, weights)"), "It raises RecursionError"),
        (softmax("return dweights + np.random.rand()"), "Called again with the same arguments"),
        (function("softmax_backward", "weights", "return weights"), "called as softmax_backward("),
        (HEADER + "softmax_backward = 3", "It is no function but a int."),
        (
            softmax("raise NotImplementedError\n")
            + attention(dZ="softmax_backward(dA, A)").removeprefix(HEADER),
            "It calls softmax_backward, which is not written yet.",
        ),
        (
            softmax("return weights * dweights")
            + "\n"
            + attention(dZ="softmax_backward(dA, A)").removeprefix(HEADER),
            "attention_backward It calls softmax_backward: mend that first.",
        ),
    ],
)
def test_what_cannot_be_compared_is_explained(source, words, checked):
    code, said, err = checked(source)
    assert (code, err) == (1, [])
    assert words in said


def test_only_the_exercises_in_the_file_count(checked):
    code, said, _ = checked(RIGHT["softmax_backward"][0])
    assert code == 0 and "mended_attention_backward: not in this file" in said
    both = RIGHT["softmax_backward"][0] + "\n" + attention(dS="dZ")
    code, said, _ = checked(both)
    assert code == 1 and said.endswith("1 of 2 right")


def test_a_print_in_a_solution_is_seen_once(checked):
    source = softmax("print('shape', weights.shape)\n" + "return weights * dweights")
    _, said, _ = checked(source)
    assert said.count("shape (2, 3, 4, 5)") == 1


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


def test_a_file_may_import_what_lies_beside_it(checked, tmp_path):
    (tmp_path / "beside_mine.py").write_text(RIGHT["softmax_backward"][0])
    before = sys.path[:]
    assert checked("from beside_mine import softmax_backward")[0] == 0
    assert sys.path == before


def test_a_missing_file_hints_at_start(call, tmp_path):
    for place in (tmp_path / "none.py", tmp_path):
        code, out, err = call(main, "check", "3", str(place))
        assert (code, out, len(err)) == (2, [], 1)
        assert "`python -m lessons start 3 FILE` writes one" in err[0]


def test_the_starter_file_is_checked_as_not_written(call, tmp_path):
    file = tmp_path / "mine.py"
    code, out, _ = call(main, "start", "3", str(file))
    assert code == 0 and out[-1].endswith(f"python -m lessons check 3 {file}")
    code, out, _ = call(main, "check", "3", str(file))
    said = "\n".join(out)
    assert code == 1 and said.count("Not written yet.") == 2
    assert "It still does what it did" in said and out[-1] == "0 of 3 right"
    text = file.read_text()
    for exercise in EXERCISES.values():
        assert exercise.code in text and f". {exercise.title}\n" in text


def test_a_starter_file_completed_is_right(call, tmp_path):
    file = tmp_path / "mine.py"
    call(main, "start", "3", str(file))
    formula = "return weights * (dweights - (weights * dweights).sum(-1, keepdims=True))"
    text = file.read_text().replace("raise NotImplementedError", formula, 1)
    body = RIGHT["attention_backward"][0].split("\n", 4)[4]
    names = "    dO, Q, K, V, A = doutput, query, key, value, weights"
    text = text.replace("    raise NotImplementedError", f"{names}\n{body}")
    file.write_text(text.replace(" / len(weights)", ""))
    code, out, err = call(main, "check", "3", str(file))
    assert (code, out[-1], err) == (0, "3 of 3 right", [])


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

    def code(self, text):
        return f"<pre>{text}</pre>"


def test_an_exercise_shows_what_to_begin_with():
    exercise = EXERCISES["softmax_backward"]
    for shown in (exercise.markdown(), exercise.html(Page())):
        assert "def softmax_backward(dweights, weights):" in shown
        assert "python -m lessons check 3 FILE" in shown and exercise.task in shown
    assert "SOFTMAX_MISTAKES" not in exercise.html(Page())


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


def test_the_quiz_command_asks_the_lesson(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("b\n1\n"))
    code, out, err = call(main, "quiz", "3")
    assert (code, out[-1], err) == (0, "1 of 2 right", [])


@pytest.mark.parametrize("arguments", [["3"], ["run", "3"]])
def test_a_number_alone_runs_the_lesson(arguments, call, monkeypatch):
    ran = []
    monkeypatch.setitem(sys.modules, "lessons.run", SimpleNamespace(run=ran.append))
    assert call(main, *arguments)[0] == 0
    assert [module.EXERCISES for module in ran] == [exercises_03.EXERCISES]


@pytest.mark.parametrize("command", ["quiz", "run", "start", "check"])
def test_a_lesson_to_come_is_refused(command, call, monkeypatch, tmp_path):
    monkeypatch.undo()
    file = [str(tmp_path / "mine.py")] if command in ("start", "check") else []
    for number in ("13", "0", "-3"):
        code, out, err = call(main, command, number, *file)
        assert (code, out) == (2, []) and ("error:" in err[-1])
    assert not (tmp_path / "mine.py").exists()


def test_wrong_usage_is_refused(call):
    for arguments in (["chek", "3"], ["check"], ["check", "3"], ["quiz", "x"], ["3", "4"]):
        assert call(main, *arguments)[0] == 2
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


def test_ctrl_c_in_a_question_ends_it(call, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: os.kill(os.getpid(), signal.SIGINT))
    code, out, err = call(main, "quiz", "3")
    assert (code, err) == (130, []) and out[0] == "Question 1 of 2"


def test_ctrl_c_ends_a_solution_that_does_not_end(call, tmp_path):
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
