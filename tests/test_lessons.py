"""The course: exercises and their checker, questions, the commands, the text, the pages."""

import inspect
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lesson_solutions import HEADER, RIGHT, WRONG, attention, function, softmax
from matplotlib.backends.backend_agg import FigureCanvasAgg

import lessons
from lessons.__main__ import main
from lessons.exercise import EQUAL, Mistake, Sizes
from lessons.lesson import (
    INK,
    Beside,
    Matrix,
    Picture,
    Piece,
    pieces,
    plain,
    statements,
    table,
)
from lessons.lesson_03 import attention_steps as steps_03
from lessons.lesson_03 import exercises as exercises_03
from lessons.lesson_03.attention_stepper import Example
from lessons.percent import cells
from lessons.quiz import Question, ask
from lessons.run import run
from numformer.config import Config
from numformer.layer import pack
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.softmax import softmax_backward
from numformer.loss import CrossEntropy
from numformer.model import Transformer
from numformer.optim import Adam

ROOT = Path(__file__).parents[1]
LESSON = "lesson_03_scaled_dot_product.html"
LESSONS = [entry.number for entry in lessons.COURSE if entry.path]
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
    assert f"{name} Right: d" in said and EXERCISES[name].done in said


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
    "mended_attention_backward": exercises_03.MENDED_MISTAKES[:9],
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


def test_explanations_hold_no_formula():
    whys = [mistake.why for name in KNOWN for mistake in KNOWN[name]]
    assert not [why for why in whys if re.search(r" \* | @ |sum\(|keepdims|swapaxes|\.shape", why)]


def test_which_results_are_right_is_said_first(checked):
    _, said, _ = checked(attention(dK="np.einsum('bhts,bhtk->bhsk', dZ, Q)"))
    table = "dquery (3, 2, 5, 11) right dkey (3, 2, 7, 11) wrong dvalue (3, 2, 7, 13) right"
    assert table in said
    assert said.index(table) < said.index("The scale is missing in dkey alone")


def test_two_mistakes_in_two_results_are_both_explained(checked):
    _, said, _ = checked(attention(dV="A.T.T @ dO", dS="dZ"))
    assert "dvalue lacks a transpose" in said and "The scale is missing: " in said
    _, said, _ = checked(attention(dV="np.einsum('bhts,bhtv->bhsv', A, dO) / 11 ** 0.5", dS="dZ"))
    assert "dvalue is scaled" in said and "The scale is missing: " in said


def test_each_of_three_mistakes_is_explained():
    source = attention(
        dQ="dS @ K",
        dK="np.einsum('bhts,bhtk->bhsk', dZ, Q)",
        dV="np.einsum('bhts,bhtv->bhsv', A, dO) / 11 ** 0.5",
        dS="dZ * 11 ** 0.5",
    )
    said = EXERCISES["attention_backward"].check(scope(source)["attention_backward"]).words
    for words in ("The scale is turned round", "scale is missing", "dvalue is scaled"):
        assert words in said


def test_beside_a_known_mistake_an_unknown_one_waits(checked):
    source = attention(
        dQ="np.einsum('bhts,bhsk->bhtk', dS, K ** 3)", dV="A.swapaxes(2, 3) @ dO / 11**0.5"
    )
    _, said, _ = checked(source)
    assert "dvalue: dvalue is scaled" in said and "Then look again at dquery." in said
    assert "entries are wrong" not in said


S_BACKWARD = "weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"2 * {S_BACKWARD}", "Every entry is 2 times what it should be: a factor is missing"),
        (f"-3 * {S_BACKWARD}", "is -3 times what it should be, which is -3, and 3 is the number"),
        (f"{S_BACKWARD} / math.sqrt(7)", "which is 1/sqrt(7), and 7 is the number of keys here"),
        ("np.zeros_like(weights)", "Every entry is 0:"),
        ("np.where(weights > 0, {}, 1)", "Wrong are only entries that should be 0."),
        ("({})[:, ::-1, :, :] * [[[1]], [[1]]]", "It is no pattern that the check knows."),
        ("({}) * np.array([1, 2, 3])[:, None, None, None]", "where the index of axis 0 is 0."),
        ("({}) * weights", "It is no pattern that the check knows. Take a small example"),
    ],
)
def test_an_unknown_mistake_gets_the_numbers_and_no_formula(line, words, checked):
    _, said, _ = checked(softmax("return " + line.replace("{}", S_BACKWARD)))
    assert re.search(
        r"dscores: \d+ of 210 entries are wrong. The worst, at \(\d, \d, \d, \d\)", said
    )
    assert words in said
    worst = r"The worst, at \(.*?\), is (\S+) and should be (\S+)\.(?: |$)"
    given, right = map(float, re.search(worst, said).groups())
    assert abs(given - right) > 1e-6
    if times := re.search(r"Every entry is (\S+) times", said):
        assert np.isclose(given, float(times[1]) * right, rtol=1e-4)
    for foreign in ("number of heads", "LayerNorm", "grad +=", "embedding", "dy", "weights * ("):
        assert foreign not in said


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (3, "the number of sequences"),
        (5, "the number of queries"),
        (7, "the number of keys"),
        (11, "d_k"),
        (13, "d_v"),
    ],
)
def test_a_size_that_is_a_factor_too_many_is_named(size, words, checked):
    _, said, _ = checked(attention(dV=f"np.einsum('bhts,bhtv->bhsv', A, dO) * {size}"))
    assert f"times what it should be, which is {size}, and {size} is {words} here" in said


def test_a_mistake_of_two_results_is_explained_once(checked):
    _, said, _ = checked(attention(dS="dZ / 1.5"))
    assert "dquery: 308 of 330 entries" in said and "dkey: 440 of 462 entries" in said
    assert said.count("Every entry is 2.21") == 1 and "dquery and dkey: Every entry" in said


def test_two_results_with_the_same_explanation_get_it_once():
    right = exercises_03.altered()

    def off(*wrong):
        def backward(*arguments):
            return tuple(x + x**2 * w for x, w in zip(right(*arguments), wrong, strict=True))

        return backward

    mistakes = [Mistake(off(1, 0, 0), "Squared."), Mistake(off(0, 1, 0), "Squared.")]
    exercise = replace(EXERCISES["attention_backward"], mistakes=mistakes)
    said = exercise.check(off(1, 1, 1)).words
    assert said.endswith("\n\ndquery and dkey: Squared.\n\nThen look again at dvalue.")


@pytest.mark.parametrize("line", ["-dS @ K", "dA @ K / 11**0.5"])
def test_a_cause_has_to_make_wrong_only_what_is_wrong(line, checked):
    _, said, _ = checked(attention(dQ=line))
    assert "dquery alone is wrong, so look at the line that only it comes from" in said
    assert "softmax is" not in said and ("Every entry has the wrong sign." in said) == (
        line[0] == "-"
    )


def test_sizes_are_told_apart_by_every_factor():
    """No product of powers of up to three sizes is that of others, nor 1."""
    powers = (-1, -0.5, 0, 0.5, 1)
    sizes = list(vars(Sizes()).values())
    exponents = [e for e in itertools.product(powers, repeat=6) if sum(map(bool, e)) <= 3]
    factors = np.sort(np.exp(np.array(exponents) @ np.log(sizes)))
    assert (factors[1:] / factors[:-1] - 1).min() > 1e-7


@pytest.mark.parametrize(
    "source",
    [
        softmax("g = weights * dweights\nreturn g - weights * g.sum((0, -1), keepdims=True)"),
        softmax("g = weights * dweights\nreturn g - weights * g.sum((1, -1), keepdims=True)"),
        softmax("g = weights * dweights\nreturn g - weights * g[:1].sum(-1, keepdims=True)"),
        softmax("return S_BACKWARD / weights.sum(-1, keepdims=True)"),
        softmax("g = weights * dweights\nreturn g - weights * np.swapaxes(g, 2, 3).sum(2)"),
        attention(dS="dZ / 11**0.5"),
        attention(dS="dZ / V.shape[-1]**0.5"),
        attention(dK="np.einsum('bhts,bhtk->bhsk', dS[:, :1], Q)"),
        attention(dV="np.einsum('bhts,bhtv->bhsv', A[:1], dO)"),
        *(
            softmax(f"weights = seen.setdefault({key}, weights)\nreturn S_BACKWARD").replace(
                "def ", "seen = {}\n\ndef "
            )
            for key in ("0", "weights.shape")
        ),
        softmax("return seen.setdefault(0, S_BACKWARD)").replace("def ", "seen = {}\n\ndef "),
        softmax("seen.append(1)\nreturn S_BACKWARD if len(seen) < 6 else weights").replace(
            "def ", "seen = []\n\ndef "
        ),
    ],
)
def test_what_is_right_by_chance_is_wrong(source, checked):
    code, said, err = checked(source.replace("S_BACKWARD", S_BACKWARD))
    assert (code, err) == (1, []) and " 0 of 1 right" in said


def test_a_size_written_as_a_number_is_told(checked):
    assert "Look for a number that stands for a size" in checked(attention(dS="dZ / 11**0.5"))[1]


def test_a_loop_without_end_is_stopped(checked, monkeypatch):
    monkeypatch.setattr("lessons.reader_file.LIMIT", 0.05)
    before = signal.getsignal(signal.SIGVTALRM)
    loop = "while True:\n    try:\n        weights.sum()\n    except Exception:\n        pass"
    code, said, err = checked(softmax(loop))
    assert (code, err) == (1, [])
    assert "stopped after 0.05 seconds: a loop in it does not end. line " in said
    code, said, err = checked("while True: pass")
    assert (code, said) == (2, "") and "FILE runs to its end" in err[0]
    monkeypatch.undo()
    assert checked(RIGHT["softmax_backward"][0])[0] == 0
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_outside_the_main_thread_there_is_no_limit():
    exercise = EXERCISES["softmax_backward"]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(exercise.check, softmax_backward).result().right


SHAPES = "A gradient has the shape of what it belongs to"


@pytest.mark.parametrize(
    ("line", "words", "about_shapes"),
    [
        ("weigths * 3", "A name is misspelt, not imported, or has no value", False),
        ("weights.transpose(1, 0)", "wants a number for each axis", False),
        (
            "weights @ dweights",
            "last axis of a, here 7, has to equal the last but one of b, here 5",
            True,
        ),
        ("weights @ dweights.T", "last but one of b, here 2", True),
        ("weights @ np.zeros((4, 4, 7, 1))", "the axes before the last two, batch and heads", True),
        ("weights * dweights.swapaxes(2, 3)", "could not be broadcast", True),
        ("np.einsum('ij,jk', weights, dweights)", "It raises ValueError", False),
        ("np.einsum('abcd,abdc->abc', weights, dweights)", "a letter has one size", False),
        ("np.diag(weights)", "the arrays have four axes", False),
        ("int('x')", "invalid literal", False),
    ],
)
def test_an_exception_is_followed_by_what_helps(line, words, about_shapes, checked):
    _, said, _ = checked(softmax(f"return {line}"))
    assert words in said and (SHAPES in said) == about_shapes and "gufunc" not in said


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_an_exercise_names_the_shapes_of_its_arguments(exercise):
    seen, sizes = [], Sizes()
    layer, inputs = exercise.case(lambda *arguments: seen.extend(arguments), sizes)
    layer.backward(layer.forward(*inputs))
    shape = dict(T=sizes.T, S=sizes.S, d_k=sizes.K, d_v=sizes.K_v)
    for name, array in zip(inspect.signature(exercise.start).parameters, seen, strict=True):
        told = re.search(rf"\b{name}(?:, \w+)* \(\.\.\., (.*?)\)", exercise.start.__doc__)[1]
        ends = tuple(shape[letter] for letter in told.split(", "))
        assert array.shape[-len(ends) :] == ends, name


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_a_phone_shows_the_code_to_begin_with(exercise):
    assert max(map(len, exercise.code.splitlines())) <= 70


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (softmax("raise NotImplementedError"), "Not written yet."),
        (softmax("dscores = dweights * weights"), "It returns None. Its last line has to be"),
        (attention(**{"return": "dQ, dK"}), "2 results and not 3: its last line"),
        (attention(**{"return": "dQ"}), "1 result and not 3: its last line"),
        (softmax("return 0.5"), "Its dscores is a float and not an array."),
        (softmax("return (dweights * weights).tolist()"), "returns a list of numbers and not an"),
        (softmax("return (weights * dweights).swapaxes(2, 3)"), "axes stand in another order"),
        (softmax("return weights.sum(axis=-1)"), "shape (3, 2, 5), but a gradient has the shape"),
        (softmax("return (dweights * weights).astype(np.float32)"), "is of float32"),
        (softmax("weights *= dweights\nreturn weights"), "It writes into its argument weights"),
        (softmax("return dweights / weights"), "it holds NaN or infinity, first at (0, 0, 0, 6)"),
        (
            RIGHT["softmax_backward"][0] + ".round(6)",
            "right to a few digits only",
        ),
        (softmax("total = dweights.summ()"), "It raises AttributeError: "),
        (softmax("total = dweights.summ()"), "line 5: total = dweights.summ() with dweights (3, 2"),
        (softmax("return exit()"), "It raises SystemExit"),
        (softmax("return softmax_backward(dweights, weights)"), "It raises RecursionError"),
        (softmax("return dweights + np.random.rand()"), "Called again with the same arguments"),
        (function("softmax_backward", "weights", "return weights"), "called as softmax_backward("),
        (HEADER + "softmax_backward = 3", "It is no function but an int."),
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
    assert said.count("shape (3, 2, 5, 7)") == 1


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


def test_what_a_file_may_be_made_of(checked):
    """What asks for its module by name, and functions that call themselves."""
    source = RIGHT["softmax_backward"][0]
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    code, said, err = checked(f"{head}\n\n@dataclass\nclass A:\n    x: int = 1\n\n\n{source}")
    assert (code, err) == (0, []), said
    wrong = "def softmax_backward(dweights, weights, n=3):\n    return dweights if n == 0 else "
    code, said, err = checked(f"{wrong}softmax_backward(dweights, weights, n - 1)\n")
    assert (code, err) == (1, []) and "mend that first" not in said


@pytest.mark.parametrize(
    "raised", ["class Odd(BaseException): pass", "class Odd(Exception):\n    __str__ = None"]
)
def test_whatever_a_solution_raises_is_told(raised, checked):
    code, said, err = checked(f"{raised}\n\n\n{softmax('raise Odd')}")
    assert (code, err) == (1, []) and "It raises Odd" in said


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
    assert code == 1 and said.count("Not begun yet.") == 3 and out[-1] == "0 of 3 right"
    text = file.read_text()
    for exercise in EXERCISES.values():
        assert exercise.code in text and f". {exercise.title}\n" in text
        assert plain(exercise.task) in text.replace("# ", "")
    assert text.startswith('"""Exercises: lesson 3, Scaled dot-product attention\n')


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
    for command in re.findall(r"python -m lessons ([a-z]+)", " ".join(out)):
        _, _, err = call(main, command, "--help")
        assert err == [], command


def test_the_answers_of_lesson_3_are_these():
    questions = lessons.load(3).quiz()
    assert [round(question.answer, 2) for question in questions] == [8, 0.6, 448, 1, 1, 2, 1]
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


@pytest.fixture(scope="module", autouse=True)
def compared_once():
    """Lesson 3's long experiment runs once for all tests here."""
    lesson, found = lessons.load(3), {}
    compare = lesson.compare

    def remembered(*arguments, **options):
        scores = options.get("scores", {})
        call = (str(arguments), *scores)
        if call not in found:
            found[call] = compare(*arguments, **options)
        return found[call]

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("lessons.lesson_03.retrieval.compare", remembered)
        patches.setattr(lesson, "compare", remembered)
        yield


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


def test_the_lesson_runs_in_a_terminal_and_saves_its_pictures(call, tmp_path, monkeypatch):
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    code, lines, err = call(main, "3")
    assert (code, err) == (0, [])
    out = "\n".join(lines)
    told = {line.split(":")[0] for line in lines if line.startswith("runs/lessons/")}
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")}
    assert told == written and len(written) >= 6
    assert all(len(line.split(": ", 1)[1]) > 20 for line in lines if line.startswith("runs/"))
    headings = re.findall(r"^# ##? (.*)$", Path(lessons.load(3).__file__).read_text(), re.M)
    assert len(headings) > 8
    places = [out.find(f"\n{plain(heading)}\n---") for heading in headings]
    places = [place for place in places if place >= 0]
    assert len(places) > 8 and places == sorted(places)
    for heading in headings:
        assert plain(heading) in out
    assert not re.search(r"[$\\]|\*\*", out)  # formulas in letters


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
    jupytext = pytest.importorskip("jupytext", reason="needs pip install jupytext")
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


def words_of(name: str) -> str:
    """What a function of lesson 3 says, in one line."""
    found = [piece.markdown() for piece in pieces(getattr(lessons.load(3), name))
             if not isinstance(piece, Picture)]  # fmt: skip
    return " ".join(" ".join(found).split())


def test_the_numbers_in_the_text_are_these():
    """By hand, or from formulas that the lesson does not use."""
    lesson = lessons.load(3)
    scores = np.array([[0, 4, 2, 0], [4, 0, 0, 2], [0, 3, 0, 0], [0, 5, 4, 0]]) / 2
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    four = pieces(lesson.four_steps)
    for piece, expected in zip(
        four, (2 * scores, scores, weights, weights @ lesson.value), strict=True
    ):
        np.testing.assert_allclose(piece.numbers, expected, atol=1e-12)
    assert "0.61 · 1 + 0.08 · 0 + 0.60 · (−1) + 0.56 · 1 ≈ 0.58" in words_of(
        "back_through_the_blend"
    )
    average = "0.13 · (−1) + 0.60 · 0 + 0.13 · 4 + 0.13 · (−5) ≈ −0.27"
    assert average in words_of("back_through_the_softmax")
    rows, _ = pieces(lesson.back_through_the_softmax)
    np.testing.assert_allclose(rows.numbers[3], [-0.0979, 0.1601, 0.5704, -0.6326], atol=1e-4)
    jacobian, words = pieces(lesson.jacobian)
    row = weights[2]
    np.testing.assert_allclose(np.diag(jacobian.numbers), row * (1 - row), atol=1e-12)
    np.testing.assert_allclose(jacobian.numbers.sum(axis=0), 0, atol=1e-12)
    power = re.search(r"10\^\{(-\d+)\}", words.markdown())[1]
    assert int(power) <= -10
    told = words_of("often_told")
    for right in ("[0.411, 0.185, 0.336, 0.0679]", "[0.598, 0.22, 0.133, 0.0491]", "0.971", "0.847",
                  "and that is nan", "[1, 0, 0, 0]. Zeroed afterwards they are [0.0826, 0, 0, 0]",
                  "the scores get [0.0758,", "Right is [0, 0, 0, 0]"):  # fmt: skip
        assert right in told, (right, told)
    checked = words_of("gradient_check")
    assert all(f"| {name} " in checked for name in ("query", "key", "value"))
    assert all(int(power) <= -8 for power in re.findall(r"10\^\{(-\d+)\}", checked))
    for rise in ("0.599021 | 0.023764", "0.999982 | 0.000002"):
        assert rise in words_of("a_saturated_row"), words_of("a_saturated_row")


def numbers_in(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", text.replace("−", "-"))]


def test_one_row_of_nan_spoils_a_model_as_the_text_says(monkeypatch):
    def by_the_formula(scores, mask):
        exponentials = np.exp(np.where(mask, scores, -np.inf))
        return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(scores.dtype)

    monkeypatch.setattr("numformer.layers.attention.softmax", by_the_formula)
    sizes = dict(source_vocabulary=300, target_vocabulary=300, d_model=16, d_ff=32, heads=2)
    for empty_sentence in (False, True):
        model, loss = Transformer(Config(**sizes, layers=2, p_drop=0)), CrossEntropy()
        adam, rng = Adam(pack(model)), np.random.default_rng(0)
        source, target = rng.integers(4, 300, (2, 5, 6))
        source[3] *= not empty_sentence  # 0 is padding
        with np.errstate(invalid="ignore"):
            loss.forward(model.forward(source, target), target)
            model.backward(loss.backward())
            adam.step(0.001)
        parameters = [each.data.ravel() for each in model.named_parameters().values()]
        assert np.isnan(np.concatenate(parameters)).mean().round(2) == float(empty_sentence)


def test_the_matrices_on_the_way_back_are_those_of_numformer():
    lesson = lessons.load(3)
    expected = computed(MASKS["none"], 1, lesson.doutput)
    named = {"dO": "doutput", "dV": "dvalue", "dA": "dweights"}
    *matrices, _ = pieces(lesson.back_through_the_blend)
    for piece, (symbol, name) in zip(matrices, named.items(), strict=True):
        assert piece.symbol == rf"\mathrm{{d}}{symbol[1]}"
        np.testing.assert_allclose(piece.numbers, expected[name], atol=1e-12)
    it, cat = lesson.tokens.index("it"), lesson.tokens.index("cat")
    assert f"2 · (−1) + 1 · 2 = {expected['dweights'][it, cat]:.0f}. If" in words_of(
        "back_through_the_blend"
    )
    rows, _ = pieces(lesson.back_through_the_softmax)
    average = expected["weights"][it] @ expected["dweights"][it]
    rules = {
        "weight a": expected["weights"][it],
        "gradient da": expected["dweights"][it],
        "da minus average": expected["dweights"][it] - average,
        "times a: dz": expected["dscaled"][it],
    }
    for name, row, rule in zip(rows.rows, rows.numbers, rules, strict=True):
        assert name == rule
        np.testing.assert_allclose(row, rules[rule], atol=1e-12, err_msg=name)
    # What is to be checked by hand.
    text = " ".join(Path(lesson.__file__).read_text().replace("\n#", " ").split())
    by_hand = re.search(
        r"The query of \*it\* is \((.*?)\), the key of \*cat\* is \((.*?)\), so their score is "
        r"(.*?) = (\S+)\. Divided by 2 it is (\S+)\.",
        text,
    )
    assert numbers_in(by_hand[1]) == lesson.query[it].tolist()
    assert numbers_in(by_hand[2]) == lesson.key[cat].tolist()
    assert evaluated(by_hand[3]) == float(by_hand[4]) == expected["scores"][it, cat]
    assert float(by_hand[5]) == expected["scaled"][it, cat]


def curves(piece) -> dict[str, np.ndarray]:
    """The heights of a picture's curves by their labels."""
    (axes,) = piece.figure().axes
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.lines}


def test_what_is_said_of_the_scale_is_what_was_measured(monkeypatch):
    lesson, lengths = lessons.load(3), {}
    measure = lesson.random_attention

    def remembered(d_k, scaled, rng):
        *others, lengths[scaled], dquery = measure(d_k, scaled, rng)
        return *others, lengths[scaled], dquery

    monkeypatch.setattr(lesson, "random_attention", remembered)
    *pictures, words = pieces(lesson.what_the_scale_does)
    found = {}
    for piece, name in zip(pictures, ("variance", "largest", "gradient"), strict=True):
        assert name in piece.alt
        without, with_it = (curves(piece)[key] for key in ("as it is", r"divided by $\sqrt{d_k}$"))
        found[name] = without, with_it
        told = re.sub(r"\$(\d) .cdot 10\^\{(.*?)\}\$", r"\1e\2", piece.caption)
        told = re.sub(r"\$d_k = 1024\$|16 keys", "", told)
        told = [float(number) for number in re.findall(r"\d[\d.]*(?:e-\d+)?(?=[ .])", told)]
        np.testing.assert_allclose(told, [without[-1], with_it[-1]], rtol=0.5 / min(told[0], 5))
    without, with_it = found["variance"]
    np.testing.assert_allclose(without, lesson.WIDTHS, rtol=0.2)
    np.testing.assert_allclose(with_it, 1, rtol=0.2)
    assert found["largest"][0][-1] > 0.9 and abs(found["largest"][1][-1] - 0.25) < 0.05
    assert found["gradient"][0][-1] < 1e-4 * found["gradient"][0][0]  # as its alt says
    assert min(found["gradient"][1]) > 0.5 * max(found["gradient"][1])
    told = re.search(
        r"from (\d+) of the 400 rows\. With the\s+scale they come from (\d+)", words.markdown()
    )
    for count, scaled in zip(map(int, told.groups()), (False, True), strict=True):
        share = np.sort(lengths[scaled])[::-1].cumsum() / lengths[scaled].sum()
        assert share[count - 2] < 0.9 <= share[count - 1]


@pytest.mark.parametrize("scaled", [True, False])
def test_random_attention_has_the_gradients_of_numformer(scaled):
    """Values that are the identity make dweights of doutput."""
    _, weights, dscores, dquery = lessons.load(3).random_attention(
        9, scaled, np.random.default_rng(1)
    )
    rng = np.random.default_rng(1)
    query, key = rng.standard_normal((400, 1, 9)), rng.standard_normal((400, 16, 9))
    query = query if scaled else 3 * query
    value = np.broadcast_to(np.eye(16), (400, 16, 16))
    _, expected, _ = scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    doutput = rng.standard_normal((400, 1, 16))
    gradients = scaled_dot_product_attention_backward(
        doutput, query, key, value, expected, expected, None
    )
    lengths = np.linalg.norm(gradients[0], axis=-1).ravel() * (1 if scaled else 3)
    np.testing.assert_allclose(dquery, lengths)
    lengths = np.linalg.norm(softmax_backward(doutput, expected), axis=-1).ravel()
    np.testing.assert_allclose(dscores, lengths)


def test_what_is_said_of_four_scores_is_what_was_measured():
    lesson = lessons.load(3)
    accuracy, _, before, words = pieces(lesson.four_ways_to_score)
    results = lesson.compare()
    wide = {result.score: result for result in results if result.width == 256}
    for score, result in wide.items():
        row = re.search(rf"\| {score} \| (.*) \|", before.markdown())[1]
        told = [float(cell) for cell in row.split(" | ")]
        measured = [result.spread, result.largest, result.gradient]
        np.testing.assert_allclose(told, measured, atol=0.05, rtol=0.02)
        assert abs(told[1] - result.largest) < 1e-3 and abs(told[2] - result.gradient) < 1e-4
        curve = curves(accuracy)[score]
        means = [each.accuracy.mean() for each in results if each.score == score]
        np.testing.assert_allclose(curve, means)
        assert f"{score} is at {means[-1]:.2f}" in accuracy.alt
    said = " ".join(words.markdown().split())
    spread, less = re.search(
        r"standard deviation of (\d+):.* is (\d+) times smaller", said
    ).groups()
    assert abs(int(spread) - wide["dot product"].spread) <= 0.5
    ratio = wide["scaled dot product"].gradient / wide["dot product"].gradient
    assert abs(int(less) - ratio) <= 0.5
    small, large = map(int, re.findall(r"finds (?:only )?(\d+) %", said))
    assert small > 95 > 90 > large  # the text draws its conclusion from this


def test_the_points_of_the_mixtures_are_the_results():
    lesson = lessons.load(3)
    (axes,) = pieces(lesson.results_are_mixtures)[0].figure().axes
    points = {each.get_label(): each.get_offsets() for each in axes.collections}
    np.testing.assert_allclose(points["value"], lesson.value)
    np.testing.assert_allclose(points["result"], lesson.output)


def test_the_reasons_of_the_quiz_have_the_numbers_of_its_answers():
    """And what is calculated there is true."""
    lesson = lessons.load(3)
    variance, weight, count, *_ = questions = lesson.quiz()
    for question in questions:
        if not question.choices:
            assert round(question.answer, 2) in numbers_in(question.why)
    ((left, right),) = re.findall(r"\$([^$]*) \\approx ([\d.]+)\$", weight.why)
    assert abs(eval(left) - float(right)) < 0.005 and float(right) == round(weight.answer, 2)
    given = re.search(r"scores of \*it\* are (.*?)\. What", weight.question)[1]
    assert numbers_in(given) == lesson.scaled[lesson.tokens.index("it")].tolist()
    assert f"the variance is {variance.answer**2:.0f}." in variance.why
    rows, columns = map(int, re.search(r"\$K\$ is \((\d+), (\d+)\)", count.why).groups())
    assert rows * columns == count.answer == int(re.search(r"holds (\d+)", count.why)[1])


# The equations


def python_of(latex: str) -> str:
    """An equation's side as Python: by entries where symbols have indices, else of matrices."""
    text = re.sub(r"\\(?:,|!|Bigl|Bigr|left|right)", "", latex.replace(r"\mathrm{d}", "d"))
    text = text.replace(r"\odot", "×").replace(r"^\top", ".T").replace(r"\sqrt{d_k}", "root ")
    text = re.sub(r"\\frac\{\\partial (\w)_(\w)\}\{\\partial (\w)_(\w)\}", r" J[\2,\4]", text)
    text = re.sub(r"\\(sum|max)_(\w)", r" \1:\2 ", text)
    text = re.sub(r"_\{(\w)(\w)\}", r"[\1,\2]", re.sub(r"_(\w)", r"[\1]", text))
    text = re.sub(r"e\^\{([^{}]*)\}", r" exp(\1)", text)
    for _ in range(2):
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    token = r"(?:sum|max):\w|exp\(|(?:@\w+|root|d?[A-Za-z])(?:\[[\w,]+\]|\.T)?|\^\d|[-+/×()]"
    assert not re.sub(token, "", text).split(), latex
    times = "*" if "[" in text else "@"
    made, ends, before = "", [""], ""  # `ends`: how what is open ends, the innermost last
    for found in re.findall(token, text):
        if before and before[-1] not in "(+-/×:" and found[0] not in ")^+-/×":
            made += times
        if found[:4] in ("sum:", "max:"):
            made, ends[-1] = f"{made}{found[:3]}(", f" for {found[4]} in R({found[4]!r})){ends[-1]}"
            found = ":"
        elif found[-1] == "(":
            made, ends = made + found, [*ends, ""]
        elif found == ")":
            made += ends.pop() + ")"
        else:
            made += found.replace("^", "**").replace("×", "*").replace("@", "")
        before = found
    return made + ends.pop()


def holds(sides: list[str], values: dict, sizes: dict) -> bool:
    """Whether all sides of an equation are equal, entry by entry where they have indices."""
    sides = [python_of(side) for side in sides]
    free = sorted({name for found in re.findall(r"\[([\w,]+)\]", sides[0])
                   for name in found.split(",")})  # fmt: skip
    for places in itertools.product(*(range(sizes[name]) for name in free)):
        at = dict(zip(free, places, strict=True))
        if at.get("s", -1) == at.get("u", -2) and "J" in sides[0]:
            continue  # the derivative by another score
        names = values | at | {"R": lambda name: range(sizes[name]), "exp": np.exp}
        first, *others = (np.asarray(eval(side, names)) for side in sides)
        if not all(first.size == other.size and np.allclose(first, other) for other in others):
            return False
    return True


def test_every_equation_of_the_lesson_holds(rng):
    """On random matrices of which no two sizes are equal, as numformer computes them."""
    sizes = dict(t=3, s=5, u=5, i=4, j=2)
    query, key = rng.standard_normal((3, 4)), rng.standard_normal((5, 4))
    value, doutput = rng.standard_normal((5, 2)), rng.standard_normal((3, 2))
    output, weights, _ = scaled_dot_product_attention(query, key, value)
    dquery, dkey, dvalue = scaled_dot_product_attention_backward(
        doutput, query, key, value, weights, weights, None
    )
    z, da = query[1] @ key.T / 2, doutput[1] @ value.T
    dweights, a = doutput @ value.T, weights[1]
    dscaled = softmax_backward(dweights, weights)
    values = dict(
        Q=query, K=key, V=value, S=query @ key.T, Z=query @ key.T / 2, A=weights, O=output,
        dO=doutput, dV=dvalue, dA=dweights, dZ=dscaled, dS=dscaled / 2, dQ=dquery, dK=dkey,
        a=a, z=z, n=np.exp(z).sum(), da=da, dz=dscaled[1], J=np.diag(a) - np.outer(a, a), root=2,
    )  # fmt: skip
    text = re.sub(r"\n# ?|\n +", " ", Path(lessons.load(3).__file__).read_text())
    text = text.replace("{{d}}", "{d}").replace("\\\\", "\\").replace("$$", "$")
    held = []
    for formula in re.findall(r"\$([^$]+)\$", text):
        sides = re.split(r"(?<!\\)=", formula.strip())
        known = r"(\\mathrm\{d\})?[QKVSZAOazn](_\w|_\{\w\w\})?|\\frac\{\\partial a_s\}.*"
        other = re.search(r"tanh|W|ldots", formula)
        if len(sides) > 1 and re.fullmatch(known, sides[0].strip()) and not other:
            assert holds(sides, values, sizes), formula
            held.append(formula)
    assert len(held) > 30 and len(set(held)) > 15
    of_size = {"T": 3, "S": 5, "d_k": 4, "d_v": 2}
    rows = re.findall(r"\| \$\\mathrm\{d\}(\w).*? \| \$\((\w+), (\w+)\)\$ \|", text)
    for name, *shape in rows:
        assert values[f"d{name.upper()}"].shape == tuple(of_size[size] for size in shape), name
    assert len(rows) == 6


def test_every_equation_of_the_stepper_holds():
    lesson = lessons.load(3)
    sizes = dict(t=4, s=4, u=4, j=2)
    arrays = (lesson.query, lesson.key, lesson.value, lesson.doutput)
    example = Example(lesson.tokens, *arrays, lesson.features, ["x", "y"])
    values = example.values(example.masks[0]["mask"], 1, lesson.doutput) | {"root": 2}
    values |= {name: values[name][:, 0] for name in ("total", "average")}
    held = 0
    for step in steps_03.STEPS:
        for formula in step.equation.split("\n\n"):
            if re.search(r"Attention|partial|cases", formula):
                continue
            assert holds(formula.split("="), values, sizes), step.id
            held += 1
    assert held == 14


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
    assert "window attention_stepper: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


# The pages, in a real browser


@pytest.fixture(scope="module")
def site(tmp_path_factory, compared_once):
    """The pages, built once, and the last line that building them prints."""
    for package in ("markdown_it", "mdit_py_plugins", "math_core", "pygments"):
        pytest.importorskip(package, reason="pages need the docs extra: pip install -e '.[docs]'")
    from lessons.build import build

    folder = tmp_path_factory.mktemp("pages") / "site"
    return folder, build(folder)


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium, as a driver that opens windows of any size."""
    reason = "needs the browser extra, pip install -e '.[browser]', and Chromium on the path"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    pytest.importorskip("axe_playwright_python", reason=reason)
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    if not any(found):
        pytest.skip(reason)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=next(filter(None, found)), args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, site):
    """Opens a page of the site from its folder; at the end nothing may have gone wrong in it."""
    contexts, problems = [], []

    def opened(name=LESSON, width=1280, scheme="light", **options):
        size = {"width": width, "height": 900}
        context = chromium.new_context(viewport=size, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda message: said.append((message.type, message.text)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site[0] / name).as_uri())
        return page

    requests, said = [], []
    yield opened
    for context in contexts:
        context.close()
    problems += [words for kind, words in said if kind in ("error", "warning")]
    assert problems == []
    inside = ("data:", site[0].as_uri())
    assert [url for url in requests if not url.startswith(inside)] == []


def test_the_pages_are_counted_as_they_are(site, open_page):
    folder, last_line = site
    assert {path.name for path in folder.iterdir()} == {"index.html", "style.css", LESSON}
    page = open_page()
    kinds = (".simulation", ".question", ".exercise")
    simulations, questions, exercises = (page.locator(kind).count() for kind in kinds)
    assert last_line == (
        f"1 lesson, {simulations} simulation{'s' * (simulations != 1)}, "
        f"{questions} quiz questions, {exercises} exercises"
    )
    assert simulations >= 1 and questions >= 5 and exercises >= 3


def test_the_index_leads_to_each_lesson_and_marks_those_to_come(open_page):
    page = open_page("index.html")
    assert page.locator(".course > li").count() == 12
    assert page.locator(".course > li.to-come").count() == 11
    page.get_by_role("link", name="Scaled dot-product attention").click()
    assert page.get_by_role("heading", level=1).inner_text() == "Scaled dot-product attention"
    page.get_by_role("link", name="numformer lessons").click()
    assert page.url.endswith("index.html")


@pytest.mark.parametrize("name", ["index.html", LESSON])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_a_page_fits_its_window_and_everyone_can_use_it(open_page, name, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(name, width, scheme)
    for folded in page.locator("details").all():
        folded.evaluate("element => element.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = Axe().run(page, options={"preload": False}).response["violations"]
    serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in serious] == []


def test_formulas_are_mathml_and_pictures_have_words(open_page):
    page = open_page()
    assert page.locator("math").count() > 100
    assert "$" not in page.locator("article").inner_text()
    assert "\\" not in page.locator("article").inner_text().replace("\\top", "")
    of_all = "all => all.map(one => one.getAttribute('aria-label'))"
    labels = page.eval_on_selector_all("svg", of_all)
    assert len(labels) >= 5 and all(label and len(label) > 40 for label in labels)
    identifiers = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(identifiers) == len(set(identifiers))
    for link in page.locator("a[href^='#']").all():
        assert page.locator(f"[id='{link.get_attribute('href')[1:]}']").count() == 1


def test_the_page_has_all_its_code_tables_and_reasons(open_page):
    page = open_page()
    text = page.locator("article").evaluate("article => article.textContent")
    assert "def random_attention" in text and "import numpy as np" in text
    for question, form in zip(lessons.load(3).quiz(), page.locator(".question").all(), strict=True):
        why = " ".join(form.locator("details").text_content().split())
        assert plain(question.why).split()[0] in why and len(why) > 60
    links = page.locator("nav.contents a").all_inner_texts()
    assert links == page.locator("article h2").all_inner_texts() and len(links) > 8
    assert page.locator("header > nav").inner_text().endswith("Lesson 3 of 12")
    assert page.locator(".simulation figcaption").first.inner_text()
    assert page.locator(".beside").count() == 3
    lines = [line for function in (scaled_dot_product_attention_backward, softmax_backward)
             for line in statements(function)]  # fmt: skip
    for line in lines:
        assert line in text


def test_without_scripts_pictures_answers_and_text_are_there(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator(".simulation svg").first.is_visible()
    assert not page.locator(".question button").first.is_visible()
    answer = page.locator(".question details").first
    answer.locator("summary").click()
    assert answer.locator("strong").first.is_visible()


def test_questions_answer_at_once(open_page):
    page = open_page()
    for question, form in zip(lessons.load(3).quiz(), page.locator(".question").all(), strict=True):
        verdict = form.locator(".verdict")
        form.locator("button").click()
        assert "first" in verdict.inner_text() or "Write a number" in verdict.inner_text()
        if question.choices:
            choices = form.locator("input")
            choices.nth((question.answer + 1) % len(question.choices)).check()
            form.locator("button").click()
            assert "Not right" in verdict.inner_text()
            assert form.get_attribute("data-verdict") == "wrong"
            choices.nth(question.answer).check()
        else:
            form.locator("input").fill(f"{question.answer + 1.5 * question.tolerance}")
            form.locator("input").press("Enter")
            assert "Not right" in verdict.inner_text()
            assert not form.locator("strong").first.is_visible()
            form.locator("input").fill(f"{2 * question.answer} / 2")
            form.locator("button").click()
            assert form.get_attribute("data-verdict") == "right"
            form.locator("input").fill(f"{question.answer:.2f}".replace(".", ","))
        assert verdict.inner_text() == "" and form.get_attribute("data-verdict") is None
        assert form.locator("strong").first.is_visible() == (not question.choices)
        form.locator("button").click()
        assert "Right" in verdict.inner_text() and form.locator("strong").first.is_visible()


# The stepper of lesson 3

STEPS = (
    "inputs scores scale mask softmax blend upstream dvalue dweights centred dscaled dscores "
    "dquery dkey"
).split()


def stepper_of(page):
    found = page.locator("[data-simulation=attention_stepper]")
    return found, lambda: found.get_attribute("data-step")


def shown_matrices(stepper) -> dict[str, np.ndarray]:
    """The numbers of every matrix that the stepper shows, by name."""
    cells = stepper.evaluate(
        """stepper => [...stepper.querySelectorAll(".matrix-box")].map(box => [
            box.dataset.matrix,
            [...box.querySelectorAll("tbody tr")].map(row =>
                [...row.querySelectorAll("td")].map(cell => cell.dataset.value)),
            [...box.querySelectorAll("tbody tr")].map(row =>
                [...row.querySelectorAll("td")].map(cell => cell.textContent))])"""
    )
    found = {}
    for name, values, texts in cells:
        found[name] = np.array(values, dtype=float)
        for value, text in zip(found[name].ravel(), np.ravel(texts), strict=True):
            if name != "allowed" and np.isfinite(value):
                assert abs(float(text.replace("−", "-")) - value) <= 0.005 + 1e-9
    return found


def computed(mask, temperature: float, doutput) -> dict[str, np.ndarray]:
    """What numformer computes for the lesson's example, under the stepper's names."""
    lesson = lessons.load(3)
    query, key, value = lesson.query / temperature, lesson.key, lesson.value
    output, weights, dropped = scaled_dot_product_attention(query, key, value, mask)
    gradients = scaled_dot_product_attention_backward(
        doutput, query, key, value, weights, dropped, None
    )
    dweights = doutput @ value.T
    dscaled = softmax_backward(dweights, weights)
    found = dict(zip(("dquery", "dkey", "dvalue"), gradients, strict=True))
    scores = query @ key.T
    masked = np.where(mask, scores / 2, -np.inf)
    return found | dict(
        query=query, key=key, value=value, scores=scores, scaled=scores / 2, masked=masked,
        weights=weights, output=output, doutput=doutput, dweights=dweights, dscaled=dscaled,
        dscores=dscaled / 2, allowed=mask,
    )  # fmt: skip


MASKS = {
    "none": np.ones((4, 4), dtype=bool),
    "causal": np.tril(np.ones((4, 4), dtype=bool)),
    "padding": np.ones((4, 4), dtype=bool) & (np.arange(4) != 3),
    "nothing": np.ones((4, 4), dtype=bool) & (np.arange(4) != 2)[:, None],
}


@pytest.mark.parametrize(
    ("mask", "temperature"), [("none", 4), ("causal", 0), ("padding", 2), ("nothing", 8)]
)
def test_each_step_shows_the_numbers_of_numformer(mask, temperature, open_page):
    """Every step forward and back again, with a mask, a temperature and an upstream gradient."""
    page = open_page()
    stepper, step = stepper_of(page)
    doutput = np.random.default_rng(temperature).integers(-3, 4, (4, 2))
    stepper.locator("button.dot[data-go=upstream]").click()
    for (row, column), entry in np.ndenumerate(doutput):
        stepper.locator(f"select[data-entry='{row},{column}']").select_option(str(entry))
    stepper.locator("button.dot[data-go=inputs]").click()
    stepper.locator(f"[data-choice=mask] input[value={mask}]").check(force=True)
    slider = stepper.locator(".temperature input")
    slider.fill(str(temperature))
    temperatures = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4)
    expected = computed(MASKS[mask], temperatures[temperature], doutput.astype(float))
    compared = set()
    for name in STEPS:
        assert step() == name
        for matrix, numbers in shown_matrices(stepper).items():
            if matrix in expected:
                np.testing.assert_allclose(
                    numbers, expected[matrix], rtol=0, atol=2e-5, err_msg=f"{matrix} at {name}"
                )
                compared.add(matrix)
        if name != STEPS[-1]:
            stepper.locator("button.next").click()
    assert compared == set(expected)
    assert stepper.locator("button.next").is_disabled()
    for name in reversed(STEPS):
        assert step() == name
        if name != STEPS[0]:
            stepper.locator("button.previous").click()


def test_the_keyboard_walks_the_stepper(open_page):
    page = open_page()
    stepper, step = stepper_of(page)
    stepper.locator("button.next").focus()
    page.keyboard.press("Enter")
    for name in STEPS[2:]:
        page.keyboard.press("ArrowRight")
        assert step() == name
        announced = stepper.locator("[aria-live]").inner_text()
        assert announced.startswith(f"Step {STEPS.index(name) + 1} of {len(STEPS)}")
    page.keyboard.press("ArrowLeft")
    assert step() == STEPS[-2]
    stepper.locator(f"button.dot[data-go={STEPS[-2]}]").focus()
    page.keyboard.press("ArrowLeft")
    focused = "document.activeElement.dataset.go ?? document.activeElement.className"
    assert step() == page.evaluate(focused) == STEPS[-3]
    for control in ("select >> nth=0", "[data-choice=query] input >> nth=0"):
        stepper.locator(control).focus()
        page.keyboard.press("ArrowRight")
        assert step() == STEPS[-3]
    # Where a button ends, the keyboard stays beside it.
    for turn, end, beside in (("next", STEPS[-1], "previous"), ("previous", STEPS[0], "next")):
        stepper.locator(f"button.{turn}").focus()
        for _ in STEPS:
            if page.evaluate(focused) == turn:
                page.keyboard.press("Enter")
        assert (step(), page.evaluate(focused)) == (end, beside)
    stepper.locator(f"button.dot[data-go={STEPS[-1]}]").click()
    # Everything that can be changed is reached by Tab.
    reached = set()
    stepper.locator("button.dot").first.focus()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """() => document.activeElement.closest("[data-choice]")?.dataset.choice
                    ?? document.activeElement.dataset.entry ?? document.activeElement.type"""
            )
        )
    entries = {f"{row},{column}" for row in range(4) for column in range(2)}
    assert {"query", "mask", "preset", "range", *entries} <= reached


def test_the_picked_token_is_marked_and_spelled_out(open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    stepper.locator("button.dot[data-go=scores]").click()
    for row, token in enumerate(lessons.load(3).tokens):
        stepper.locator(f"[data-choice=query] input[value='{row}']").check(force=True)
        marked = stepper.locator("[data-matrix=scores] td.picked")
        assert {cell.get_attribute("data-row") for cell in marked.all()} == {str(row)}
        assert f"{token} · cat" in stepper.locator(".worked").inner_text()
    assert "0·0 + 2·2 + 1·1 + 0·0 = 5" in stepper.locator(".worked").inner_text()


def test_symbol_matrix_and_code_light_up_together(open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    stepper.locator("button.dot[data-go=dquery]").click()
    stepper.locator(".matrix-box[data-matrix=dscores] button.matrix-symbol").focus()
    lit = stepper.locator(".lit")
    assert {one.get_attribute("data-matrix") for one in lit.all()} == {"dscores"}
    assert lit.count() >= 3  # the matrix, its symbol in the equation, its name in the code
    assert stepper.locator(".code .lit").count() == 1 and stepper.locator("math .lit").count() == 1


def test_the_python_under_the_stepper_gives_its_numbers(open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    stepper.locator("[data-choice=mask] input[value=causal]").check(force=True)
    stepper.locator(".temperature input").fill("6")
    stepper.locator(".simulation-code summary").click()
    names = scope(stepper.locator(".simulation-code code").inner_text())
    expected = computed(MASKS["causal"], 2, lessons.load(3).doutput)
    for name in ("dquery", "dkey", "dvalue"):
        np.testing.assert_allclose(names[name], expected[name], atol=1e-12)


def test_the_stepper_can_be_tapped_on_a_phone(open_page):
    page = open_page(width=375, has_touch=True, is_mobile=True)
    stepper, step = stepper_of(page)
    stepper.locator("button.next").tap()
    assert step() == "scores"
    stepper.locator("button.dot[data-go=softmax]").tap()
    assert step() == "softmax"
    for name in STEPS:
        stepper.locator(f"button.dot[data-go={name}]").tap()
        assert page.evaluate("document.documentElement.scrollWidth") == 375


def evaluated(text: str) -> float:
    """The value of arithmetic as the page writes it."""
    return eval(text.replace("−", "-").replace("·", "*").replace("max(0, 1)", "1"))


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_arithmetic_that_is_spelt_out_is_true(mask, open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    stepper.locator(f"[data-choice=mask] input[value={mask}]").check(force=True)
    compared = 0
    for name in STEPS:
        stepper.locator(f"button.dot[data-go={name}]").click()
        for picked in range(4):
            stepper.locator(f"[data-choice=query] input[value='{picked}']").check(force=True)
            lines = stepper.locator(".worked dd").all_inner_texts()
            cells = stepper.locator(".matrix-box").last.locator("tbody tr").nth(picked)
            row = cells.locator("td").evaluate_all("all => all.map(one => one.dataset.value)")
            row = [float(value) for value in row]
            if name == "mask":
                hidden = [value == -np.inf for value in row]
                assert [line == "hidden: −∞" for line in lines] == hidden
                continue
            if not lines:
                continue
            for line, value in zip(lines, [None] * (len(lines) - len(row)) + row, strict=True):
                left, sign, right = re.fullmatch(r"(.*) ([=≈]) (\S+)", line).groups()
                wanted = evaluated(right) if value is None else value
                assert abs(evaluated(right) - wanted) <= 0.005 + 1e-9
                exact = sign == "=" and value is not None
                assert exact or name not in ("scores", "dweights")  # all integers
                assert abs(evaluated(left) - wanted) <= (1e-6 if exact else 0.15), (name, line)
                compared += 1
    assert compared > 100


def test_presets_and_links_of_the_stepper(open_page):
    page = open_page()
    stepper, step = stepper_of(page)
    given = lessons.load(3).doutput
    stepper.locator("button.dot[data-go=upstream]").click()
    picked = given * (np.arange(4) == 2)[:, None]
    for preset, expected in (("ones", np.ones((4, 2))), ("picked", picked), ("given", given)):
        stepper.locator(f"[data-choice=preset] input[value={preset}]").check(force=True)
        np.testing.assert_array_equal(shown_matrices(stepper)["doutput"], expected)
    links = dict(
        dvalue="blend", dweights="blend", dscaled="softmax", dscores="scale", dkey="scores"
    )
    for name, back in links.items():
        stepper.locator(f"button.dot[data-go={name}]").click()
        stepper.locator(".undoes button").click()
        assert step() == back


def test_pointing_lights_up_and_shows_what_an_entry_is_made_of(open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    stepper.locator("button.dot[data-go=scores]").click()
    stepper.locator(".matrix-box[data-matrix=key] button.matrix-symbol").hover()
    assert {one.get_attribute("data-matrix") for one in stepper.locator(".lit").all()} == {"key"}
    page.mouse.move(0, 0)
    assert stepper.locator(".lit").count() == 0
    stepper.locator(".matrix-box[data-matrix=key] button.matrix-symbol").click()
    page.mouse.move(0, 0)
    assert stepper.locator(".lit").count() >= 3  # pinned
    stepper.locator("[data-matrix=scores] td[data-row='2'][data-column='1']").hover()
    used = stepper.locator("td.used").evaluate_all(
        "all => all.map(c => [c.closest('.matrix-box').dataset.matrix, c.dataset.row])"
    )
    assert {("query", "2"), ("key", "1")} <= set(map(tuple, used))
    assert not {("query", "1"), ("key", "2")} & set(map(tuple, used))


def given(page) -> dict:
    """What Python gave the stepper."""
    data = page.locator("[data-simulation=attention_stepper] > script").text_content()
    return json.loads(data)


def as_shown(page, html: str) -> str:
    return page.evaluate(
        "html => { const box = document.createElement('p'); box.innerHTML = html;"
        " return box.textContent; }",
        html,
    ).strip()


STATE = """stepper => {
    const texts = (where, root = stepper) =>
        [...root.querySelectorAll(where)].map(one => one.textContent.trim());
    const boxes = [...stepper.querySelectorAll(".matrix-box")].map(box => [box.dataset.matrix, {
        caption: texts("caption", box)[0],
        symbol: texts("caption button", box)[0],
        rows: texts("tbody th", box),
        columns: texts("thead th", box),
        cells: [...box.querySelectorAll("tbody td")].map(cell => ({
            row: Number(cell.dataset.row), column: Number(cell.dataset.column),
            value: Number(cell.dataset.value), text: cell.textContent,
            kinds: [...cell.classList], colour: cell.style.backgroundColor,
        })),
    }]);
    return {
        matrices: Object.fromEntries(boxes),
        current: [...stepper.querySelectorAll("[aria-current]")].map(dot => dot.dataset.go),
        passed: [...stepper.querySelectorAll(".dot.passed")].map(dot => dot.dataset.go),
        labels: [...stepper.querySelectorAll(".dot")].map(dot => dot.getAttribute("aria-label")),
        upstream: !stepper.querySelector(".upstream").hidden,
        words: texts(".step-words > header > *").concat(texts(".ask > *")),
        rule: texts(".rule .equation").concat(texts(".library > *")),
        worked: texts(".worked dl > div"),
        used: texts(".worked dl > .used > dt"),
        undoes: texts(".undoes button")[0] ?? "",
        place: texts(".place")[0],
        note: texts("[data-choice=mask] + .note")[0],
        summary: texts(".controls > summary")[0],
        temperature: texts(".temperature output").concat(texts(".temperature .note")),
        spoken: stepper.querySelector(".temperature input").getAttribute("aria-valuetext"),
        preset: [...stepper.querySelectorAll("[data-choice=preset] :checked")].map(x => x.value),
        presetNote: texts(".upstream > .note")[0],
        selects: [...stepper.querySelectorAll("select")].map(select => Number(select.value)),
    };
}"""


def test_each_step_says_and_marks_what_it_shows(open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    data = given(page)
    picked, names = 1, [step["id"] for step in data["steps"]]
    axes = dict(queries=data["tokens"], keys=data["tokens"], sum=["sum"], average=["average"])
    axes |= dict(features=data["features"], entries=data["entries"])
    stepper.locator("[data-choice=mask] input[value=causal]").check(force=True)
    stepper.locator(f"[data-choice=query] input[value='{picked}']").check(force=True)
    for at, step in enumerate(data["steps"]):
        stepper.locator(f"button.dot[data-go={step['id']}]").click()
        state = stepper.evaluate(STATE)
        assert (state["current"], state["passed"]) == ([step["id"]], names[:at])
        assert state["place"] == f"{at + 1} of {len(names)}"
        assert state["labels"][at] == f"{at + 1}, {step['part']}: {step['title']}"
        assert state["upstream"] == (step["part"] == "backward")
        kicker, title, say, *_ = state["words"]
        assert (kicker, title) == (f"{step['part']} · {step['name']}", step["title"])
        said = [as_shown(page, step[name]) for name in ("say", "ask", "answer", "equation", "note")]
        assert [say, *state["words"][-3:-1], state["rule"][0], state["rule"][-1]] == said
        assert state["rule"][1:3] == [f"numformer, in {step['of']}", as_shown(page, step["code"])]
        if step["inverts"]:
            back = names.index(step["inverts"])
            assert state["undoes"] == f"{back + 1}, {data['steps'][back]['name']}"
        assert [*state["matrices"]] == [*step["inputs"], *step["results"]]
        for name, shown in state["matrices"].items():
            about = data["matrices"][name]
            rows, columns = axes[about["rows"]], axes[about["columns"]]
            assert (shown["rows"], shown["columns"]) == (rows, columns)
            of = "one per query" if len(columns) == 1 else f"{about['rows']} × {about['columns']}"
            size = f"({len(rows)} × {len(columns)})"
            assert shown["caption"] == f"{as_shown(page, about['symbol'])} {size}{of}"
            for cell in shown["cells"]:
                hidden = cell["value"] == (0 if name == "allowed" else -np.inf)
                assert ("hidden-entry" in cell["kinds"]) == hidden
                if name == "allowed":
                    assert cell["text"] == ("no" if hidden else "yes")
                elif cell["value"] and not hidden:
                    assert ("--negative" in cell["colour"]) == (cell["value"] < 0)
                    assert "--" in cell["colour"]
            # The picked token's row, or the column that a product reads.
            factors = dict([step["worked"]["left"]]) if "left" in step["worked"] else None
            if factors is None or name in step["results"]:
                by = "row" if about["rows"] == "queries" or factors else None
            else:
                by = factors.get(name)
            for cell in shown["cells"]:
                assert ("picked" in cell["kinds"]) == (by == "row" and cell["row"] == picked)
                is_column = by == "column" and cell["column"] == picked
                assert ("picked-column" in cell["kinds"]) == is_column
        if not step["worked"]:
            continue
        row, column = 2, 1  # point at an entry: what it is made of is outlined
        result = stepper.locator(f".matrix-box[data-matrix={step['results'][-1]}]")
        result.locator(f"td[data-row='{row}'][data-column='{column}']").dispatch_event(
            "pointerover", {"bubbles": True}
        )
        state = stepper.evaluate(STATE)
        header = result.locator("thead th").nth(column).text_content()
        assert state["used"] == [f"{data['tokens'][row]} · {header}"]
        for name in {"total", "average"} & {*step["results"]}:
            told = state["worked"][0].replace("−", "-").split()[-1]
            cell = state["matrices"][name]["cells"][row]
            assert abs(float(told) - cell["value"]) <= 0.005 + 1e-9
        for name, shown in state["matrices"].items():
            if name == step["results"][-1] or step["worked"]["kind"] != "product":
                whole = len(shown["columns"]) == 1
                whole |= (name, step["id"]) == ("masked", "softmax")
                expected = {(row, c) for c in range(len(shown["columns"])) if whole or c == column}
            else:
                sides = dict([step["worked"]["left"], step["worked"]["right"]])
                place = row if name == step["worked"]["left"][0] else column
                expected = {
                    (cell["row"], cell["column"])
                    for cell in shown["cells"]
                    if cell[sides[name]] == place
                }
            used = {(c["row"], c["column"]) for c in shown["cells"] if "used" in c["kinds"]}
            assert used == expected, (step["id"], name)


def test_every_choice_is_shown_as_it_is(open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    data, lesson = given(page), lessons.load(3)

    def choose(what, value):
        stepper.locator(f"[data-choice={what}] input[value='{value}']").check(force=True)
        return stepper.evaluate(STATE)

    for row, token in enumerate(data["tokens"]):
        best = int(np.argmax(lesson.scores[row]))
        worked = choose("query", row)["words"][-1]
        assert worked.startswith(f"For “{token}” it is the key of “{data['tokens'][best]}”: ")
        assert worked.endswith(f" = {lesson.scores[row, best]:.0f}.")
    for mask in data["masks"]:
        state = choose("mask", mask["id"])
        assert state["note"] == mask["note"]
        assert state["summary"] == f"Choices: {token} · mask: {mask['name']} · temperature 1"
    for at, temperature in enumerate(data["temperatures"]):
        stepper.locator(".temperature input").fill(str(at))
        state, value = stepper.evaluate(STATE), f"{temperature['value']:g}"
        assert state["temperature"] == [value, temperature["note"]] and state["spoken"] == value
        assert state["summary"].endswith(f" · temperature {value}")
        note = "queries × features" if value == "1" else f"of the query / {value}"
        assert state["matrices"]["query"]["caption"].endswith(note)
    # A row that sees nothing, by hand; and which entries a choice has changed.
    choose("query", data["picked"])
    stepper.locator("button.dot[data-go=softmax]").click()
    assert "0 / max(0, 1) = 0" in choose("mask", "nothing")["worked"][-1]
    before = shown_matrices(stepper)
    state = choose("mask", "causal")
    for name, after in shown_matrices(stepper).items():
        cells = state["matrices"][name]["cells"]
        marked = [(cell["row"], cell["column"]) for cell in cells if "changed" in cell["kinds"]]
        assert marked == list(map(tuple, np.argwhere(after != before[name])))
    # The upstream gradient.
    stepper.locator("button.dot[data-go=dvalue]").click()
    for preset in data["presets"]:
        state = choose("preset", preset["id"])
        assert state["presetNote"] == as_shown(page, preset["note"])
        assert state["preset"] == [preset["id"]]
        shown = np.ravel(shown_matrices(stepper)["doutput"]).tolist()
        assert state["selects"] == shown
    choose("preset", "picked")
    shown = np.reshape(choose("query", 3)["selects"], (4, 2))
    np.testing.assert_array_equal(shown, lesson.doutput * (np.arange(4) == 3)[:, None])
    stepper.locator("select").first.select_option("2")
    state = stepper.evaluate(STATE)
    assert (state["preset"], state["presetNote"], state["selects"][0]) == ([], "", 2)


def test_the_python_under_the_stepper_follows_the_upstream_gradient(open_page):
    page = open_page()
    stepper, _ = stepper_of(page)
    stepper.locator("button.dot[data-go=upstream]").click()
    stepper.locator("[data-choice=preset] input[value=ones]").check(force=True)
    names = scope(stepper.locator(".simulation-code code").text_content())
    np.testing.assert_array_equal(names["doutput"], np.ones((4, 2)))
