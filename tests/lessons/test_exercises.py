"""The exercises of every lesson, and what the checker says of solutions, right and wrong."""

import inspect
import io
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from lesson_solutions import (
    EXERCISES,
    HEADER,
    LESSONS,
    RIGHT,
    S_BACKWARD,
    WRONG,
    attention,
    softmax,
)

import lessons
from lessons.kit import further
from lessons.kit.exercise import Exercise
from lessons.kit.explanations import EQUAL, Sizes

SOLVED = {name: exercise for name, exercise in EXERCISES.items() if not exercise.to_find}
PICKED = [
    *((name, source, f"{name} Right: ") for name in RIGHT for source in RIGHT[name]),
    *((name, *pair) for name in WRONG for pair in WRONG[name].items()),
]


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_the_solution_is_right_and_the_start_is_not_begun(exercise, page):
    verdict = exercise.check(exercise.solution)
    assert verdict.right and exercise.done in verdict.words
    assert exercise.check(exercise.start).words == "Not begun yet."
    wide = [line for line in exercise.code.splitlines() if len(line) > 70]
    assert wide == [], "a phone shows 70 characters of an exercise's code"
    assert exercise.code in exercise.html(page) and exercise.task in exercise.html(page)
    assert exercise.task in exercise.markdown() and exercise.command in exercise.markdown()


def test_one_file_can_hold_all_exercises_and_a_page_all_words():
    exercises = [exercise for number in LESSONS for exercise in lessons.load(number).EXERCISES]
    for names in (
        [exercise.name for exercise in exercises],
        [word.place for word in further.words()],
    ):
        assert sorted({*names}) == sorted(names)


@pytest.mark.parametrize("exercise", SOLVED.values(), ids=SOLVED)
def test_what_operators_make_is_wrong_and_explained_without_a_formula(exercise):
    known = exercise.known[Sizes()]
    assert known.single, "no operator finds a line of this solution"
    for _, words, variation in known.single:

        def wrong(*arguments, variation=variation):
            values = known.solution.run(arguments, variation)
            return tuple(values[name] for name in known.right)

        verdict = exercise.check(wrong)
        assert not verdict.right and verdict.known, f"not told from what is right: {words}"
        assert verdict.words.endswith(words), "of the same numbers the first is believed"
    whys = {words for sizes in (Sizes(), EQUAL) for _, words, _ in exercise.known[sizes].single}
    for why in whys:
        assert why[0].isupper(), why
        given_away = re.search(r" \* | @ |sum\(|keepdims|swapaxes|\.shape|[][{}]|  |\.\.", why)
        assert not given_away, f"code or markup in the words: {why}"


@pytest.mark.parametrize(("name", "source", "words"), PICKED, ids=range(len(PICKED)))
def test_a_file_hears_what_is_right_and_what_is_wrong(name, source, words, checked):
    code, output, err = checked(source, EXERCISES[name].lesson)
    right = source in RIGHT.get(name, ())
    assert (code, err) == (1 - right, []) and words in output, output
    assert output.endswith(f" {right:d} of 1 right") and (EXERCISES[name].done in output) == right


def normed(x, scale):
    """x (B, K), scale (K,) -> y: a mean, a loop, no forward, which no lesson's solution has."""
    # The mean. Each row has one.
    mean = x.mean(axis=-1, keepdims=True)
    # The variance. Each row has one.
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    # y. Before the scale each row has the variance 1.
    y = np.ones(x.shape)
    for row in range(len(x)):
        # y. Before the scale each row has the variance 1.
        y[row] += scale * (x[row] - mean[row]) / np.sqrt(variance[row])
    return y


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("2).mean(", "2).max(", "In the variance, the largest entry stands where a mean belongs."),
        ("(x - mean) ** 2", "x**2", "In the variance, a part is missing."),
        ("scale * (x", "(x", "In y, a factor is missing. Before the scale each row has the"),
        ("] - mean", "] + mean", "In y, a sign is wrong: one part has to be subtracted."),
        ("+= scale", "= scale", "In y, a part is missing."),
        ("scale * (", "scale / (", "In y, a factor is turned round: it divides where it has to"),
    ],
)
def test_an_operator_and_its_words(old, new, words):
    exercise = Exercise(1, "", "", normed, lambda n: dict(x=(n.B, n.K), scale=(n.K,)), "")
    source = inspect.getsource(normed)
    assert old in source and exercise.check(normed).right
    exec(HEADER + source.replace(old, new, 1), names := {})
    assert words in exercise.check(names["normed"]).words


def test_several_mistakes_are_each_explained_and_an_unknown_one_waits(checked):
    scaled = "A.swapaxes(2, 3) @ dB / 11"
    wrong = dict(dQ="dS @ K", dK="dZ.swapaxes(2, 3) @ Q", dV=scaled, dS="dZ * 11**0.5")
    _, output, _ = checked(attention(**wrong))
    assert (
        "dquery (3, 2, 5, 11) wrong dkey (3, 2, 7, 11) wrong dvalue (3, 2, 7, 13) wrong" in output
    )
    for words in ("a factor is turned round", "dkey: In the gradient of query key^T, a", "by d_k"):
        assert words in output
    _, output, _ = checked(attention(dQ="dS @ K**3", dV=scaled))
    assert "dkey (3, 2, 7, 11) right" in output and "Then look again at dquery." in output
    assert "dvalue: In dvalue, there is a division too many, by d_k." in output
    # What would make wrong what is right is no cause.
    assert "dquery alone is wrong" in checked(attention(dQ="-dA @ K / 11**0.5"))[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"2 * {S_BACKWARD}", "Every entry is 2 times what it should be: a factor is missing"),
        (f"-5 * {S_BACKWARD}", "is -5 times what it should be, which is -5, and 5 is the number"),
        ("np.zeros_like(weights)", "Every entry is 0:"),
        ("({}).sum(axis=-1, keepdims=True) * weights", "is 0, but for rounding: what is added up"),
        ("{} + (weights == 0) * dweights", "It is not 0 everywhere where weights is 0. A masked"),
        ("{} + weights * dweights.max()", "Its rows do not sum to 0. One number added"),
        ("{} * (weights @ dweights.T).sum()", "Three times the upstream gradient has to give"),
        ("({}) * np.array([1, 1, 2, 3, 3])[:, None]", "where the index of axis 0 is 0."),
        ("1.5 * dweights + weights", "The check does not recognise this pattern. Take a small"),
        ("({}).round(6)", "right to a few digits only"),
        ("dweights / weights", "it holds NaN or infinity, first at (0, 6)"),
    ],
)
def test_an_unknown_mistake_gets_what_right_results_have_and_numbers(line, words, checked):
    _, output, _ = checked(softmax("return " + line.replace("{}", S_BACKWARD)))
    assert words in output and "number of heads" not in output


@pytest.mark.parametrize(
    "source",
    [
        softmax(f"return {S_BACKWARD} / weights.sum(-1, keepdims=True)"),
        softmax("g = weights * dweights\nreturn g - weights * g[:1].sum(-1, keepdims=True)"),
        attention(dS="dZ / 11**0.5"),
        attention(dK="dS.swapaxes(2, 3) @ Q * (np.arange(2) < 1)[:, None, None]"),
        f"seen = {{}}\n{softmax(f'weights = seen.setdefault(0, weights); return {S_BACKWARD}')}",
    ],
)
def test_what_is_right_by_chance_is_wrong(source, checked):
    code, output, err = checked(source)
    assert (code, err) == (1, []) and " 0 of 1 right" in output
    assert ("Look for a number that stands for a size" in output) == ("11**0.5" in source)


STOPPED = "stopped after 0.05 seconds: a loop in it does not end, or takes too long. line"
CAUGHT = "try:\n    while True: sum(range(99))\nexcept:\n    pass"
A_SECOND = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end:"
GOES_ON = f"{A_SECOND}\n    try:\n        time.sleep(0.01)\n    except{{}}:\n        pass"


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr("lessons.kit.reader_file.LIMIT", 0.05)


@pytest.mark.parametrize("body", ["while True: pass", GOES_ON.format(" Exception")])
def test_a_loop_without_end_is_stopped(body, checked, short_limit):
    assert STOPPED in checked(softmax(body))[1]
    code, output, err = checked(body)
    assert (code, output) == (2, "") and "FILE runs to its end" in err[0]
    with ThreadPoolExecutor(1) as pool:
        exec(softmax(body), names := {})
        check = EXERCISES["softmax_backward"].check
        assert STOPPED[:26] in pool.submit(check, names["softmax_backward"]).result().words
    assert checked(CAUGHT)[0] == 2


def test_what_goes_on_all_the_same_ends_the_program(checked, short_limit, monkeypatch):
    codes, errors = [], io.StringIO()
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr(sys, "__stderr__", errors)
    checked(softmax(GOES_ON.format("")))
    words = errors.getvalue()
    assert codes[0] == 2 and "as `except ValueError:` does" in words
    assert re.search(r"mine.py, line \d+ in softmax_backward: stopped after 0.05 seconds", words)


def test_there_is_time_in_a_debugger(checked, short_limit, monkeypatch):
    monkeypatch.setattr("lessons.kit.reader_file.DEBUGGERS", "a_readers")
    right = RIGHT["softmax_backward"][0]
    assert checked(f"{right}\nimport time\ntime.sleep(0.2)")[1].endswith("1 of 1 right")


SHAPES = "A gradient has the shape of what it belongs to"
CALLED = "\n" + attention(dZ="softmax_backward(dA, A)").removeprefix(HEADER)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (softmax("return weigths * 3"), "A name is misspelt, not imported, or has no value"),
        (softmax("return weights @ dweights"), "last axis of a, here 7, has to equal the last but"),
        (softmax("return weights * dweights.T"), f"could not be broadcast .*{SHAPES}"),
        (softmax("raise NotImplementedError"), "Not written yet."),
        (attention(**{"return": "dQ, dK"}), "2 results and not 4: its last line"),
        (softmax("return 0.5"), "Its dscores is a float and not an array."),
        (softmax("return weights.sum(axis=-1)"), "shape .5,., but a gradient has the shape"),
        (softmax("return (dweights * weights).astype(np.float32)"), "is of float32"),
        (softmax("weights *= dweights\nreturn weights"), "It writes into its argument weights"),
        (softmax("return dweights + np.random.rand()"), "Called again with the same arguments"),
        (HEADER + "def softmax_backward(weights): return 1", "called as softmax_backward."),
        (softmax("return weights * dweights") + CALLED, "It calls softmax_backward: mend that"),
        (softmax("print('seen')\nreturn dweights"), "^(?!.*seen.*seen).*seen"),
    ],
)
def test_what_cannot_be_compared_is_explained(source, words, checked):
    code, output, err = checked(source)
    assert (code, err) == (1, []) and re.search(words, output), output
    assert "gufunc" not in output


def test_what_a_file_may_be_made_of(checked, tmp_path):
    right, before = RIGHT["softmax_backward"][0], sys.path[:]
    (tmp_path / "beside_mine.py").write_text(right)
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    for source in ("", f"{head}\n\n@dataclass\nclass A:\n    x: int = 1\n"):
        code, output, err = checked(f"{source}from beside_mine import softmax_backward")
        assert (code, err) == (0, []) and "mended_additive_backward: not in this file" in output
    assert sys.path == before
    code, output, _ = checked(f"{right}\n{attention(dS='dZ')}")
    assert code == 1 and output.endswith("1 of 2 right")
