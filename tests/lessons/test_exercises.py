"""The exercises of every lesson, and what the checker says of solutions, right and wrong."""

import contextlib
import copy
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
from lessons.kit import further, reader_file
from lessons.kit.exercise import Exercise
from lessons.kit.explanations import EQUAL, Sizes
from lessons.kit.trace import trace
from lessons.lesson_12 import sizes
from numformer.generation.sampling import Sampling
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.beam import length_penalty
from numformer.paper.softmax import softmax as library_softmax

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
def test_what_operators_make_is_wrong_and_explained_without_a_formula(exercise, monkeypatch):
    """The gradient check looks at the first that an operator makes of a line."""
    monkeypatch.setattr(reader_file, "limited", contextlib.nullcontext)
    known, checked = exercise.known[Sizes()], Exercise._wrong
    assert known.single, "no operator finds a line of this solution"
    lines = set()

    def compared(self, call, given, sizes):
        right = self.known[sizes].right
        return [name for name in given if not np.allclose(given[name], right[name])]

    for _, words, variation in known.single:
        line = variation.operator, variation.index
        monkeypatch.setattr(Exercise, "_wrong", compared if line in lines else checked)
        lines.add(line)

        def wrong(*arguments, variation=variation):
            values = known.solution.run(arguments, variation)
            return tuple(values[name] for name in known.right)

        verdict = exercise.check(wrong)
        assert not verdict.right and verdict.known, f"not told from what is right: {words}"
        assert verdict.words.endswith(words), "of the same numbers the first is believed"
    for why in {words for _, words, _ in known.single}:
        assert why[0].isupper(), why
        given_away = re.search(r" \* | @ |sum\(|keepdims|swapaxes|\.shape|[][{}]|  |\.\.", why)
        assert not given_away, f"code or markup in the words: {why}"


@pytest.mark.parametrize(("name", "source", "words"), PICKED, ids=range(len(PICKED)))
def test_a_file_hears_what_is_right_and_what_is_wrong(name, source, words, checked):
    code, output, err = checked(source, EXERCISES[name].lesson)
    right = source in RIGHT.get(name, ())
    assert (code, err) == (1, []) and words in output, output
    every = len(lessons.load(EXERCISES[name].lesson).EXERCISES)
    assert output.endswith(f" {right:d} of {every} right")
    assert (EXERCISES[name].done in output) == right


def by_steps(log_p, step, state):
    """A step of a beam: all ways in a list."""
    ways = [(log_p[i] + step[i, j], i) for i, j in np.ndindex(step.shape)]
    best = sorted(ways, reverse=True)[: len(log_p)]
    return [total for total, _ in best], state[[i for _, i in best]]


def by_sequence(log_p, valid, alpha):
    """The scores of translations, each cut to its length."""
    cut = [row[mask > 0] for row, mask in zip(log_p, valid, strict=True)]
    return np.array([row.sum() / length_penalty(len(row), alpha) for row in cut])


def by_position(weights, symbols):
    """The score for induction, position by position."""
    symbols, found = [*symbols], []
    for t, symbol in enumerate(symbols):
        if symbol in symbols[:t]:
            found.append(weights[:, t, t - symbols[:t][::-1].index(symbol)])
    return np.mean(found, axis=0)


def by_parts(d_model, d_ff, layers, vocabulary, places):
    """The sizes of a GPT, as the ledger of lesson 12 has them."""
    counts = sizes.count_parameters(0, layers, d_model, d_ff, vocabulary, places, 1, sizes.GPT_2)
    return counts[3] / layers, counts[5] / layers, sum(counts)


def by_ledger(d_model, d_ff, length):
    """The work of an encoder layer: without what the length squares, the projections are left."""
    sizes_of = 1, 0, d_model, d_ff, 0, length
    attention, network = sizes.count_operations(*sizes_of)[1:3]
    pairs = 2 * (2 * length**2 * d_model)
    return attention - pairs, pairs, network, 3 * (attention + network)


def by_query(query, source_key, key):
    """One attention to a source and to a target, which is causal."""
    mask = np.hstack([np.ones((len(query), len(source_key)), bool), np.tri(len(query), dtype=bool)])
    keys = np.vstack([source_key, key])
    return scaled_dot_product_attention(query, keys, keys, mask)[1]


def by_exponentials(m_1, n_1, o_1, m_2, n_2, o_2):
    a, b, m = n_1 * np.exp(m_1), n_2 * np.exp(m_2), np.maximum(m_1, m_2)
    return m, (a + b) / np.exp(m), (a * o_1 + b * o_2) / (a + b)


WITHOUT_FORWARD = {
    "nucleus": lambda p, top_p: Sampling(top_p=float(top_p)).probabilities(np.log(p)),
    "beam_step": by_steps,
    "mended_scores": by_sequence,
    "induction_score": by_position,
    "mended_importance": lambda heads, d: abs(np.einsum("bthk,bthk->bh", heads, d)).mean(axis=0),
    "gpt_size": by_parts,
    "layer_work": by_ledger,
    "mended_one_softmax": by_query,
    "merge": by_exponentials,
    "mended_one_after_the_other": lambda scores, value: library_softmax(scores) @ value,
    "whole_gradient": lambda g, n: np.average(g, axis=0, weights=n[:, 0]),
    "reduce_scatter": lambda parts: None,
}


@pytest.mark.parametrize("name", WITHOUT_FORWARD)
def test_a_solution_without_a_forward_is_what_the_library_computes(name):
    exercise = EXERCISES[name]
    for sizes_of in Sizes(), EQUAL:
        arguments = exercise.known[sizes_of].arguments
        results = exercise.solution(*copy.deepcopy(arguments))
        results = results if isinstance(results, tuple) else (results,)
        expected = WITHOUT_FORWARD[name](*copy.deepcopy(arguments))
        if name == "reduce_scatter":  # machine r ends with all of chunk r + 1
            held, whole = results[0], arguments[0].sum(axis=0)
            places = [(r, (r + 1) % len(held)) for r in range(len(held))]
            results, expected = [held[at] for at in places], [whole[c] for _, c in places]
        elif len(results) == 1:
            expected = (expected,)
        for result, right in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, right, err_msg=name)


def test_every_exercise_has_a_forward_or_a_second_solution():
    assert {name for name, task in EXERCISES.items() if not task.forward} == {*WITHOUT_FORWARD}


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
        ("2).mean(", "2).sum(", "In the variance, a sum stands where a mean belongs."),
        ("(x - mean) ** 2", "x**2", "In the variance, a part is missing."),
        ("scale * (x", "(x", "In y, a factor is missing. Before the scale each row has the"),
        ("] - mean", "] + mean", "In y, a sign is wrong: one part has to be subtracted."),
        ("+= scale", "= scale", "In y, a part is missing."),
        ("scale * (", "scale / (", "In y, a factor is upside down: it divides where it has to"),
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
    for words in ("a factor is upside down", "dkey: In the gradient of query key^T, a", "by d_k"):
        assert words in output
    _, output, _ = checked(attention(dQ="dS @ K**3", dV=scaled))
    assert "dkey (3, 2, 7, 11) right" in output and "Then look again at dquery." in output
    assert "dvalue: In dvalue, there is an extra division by d_k." in output
    # What would make wrong what is right is no cause.
    assert "dquery alone is wrong" in checked(attention(dQ="-dA @ K / 11**0.5"))[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"2 * {S_BACKWARD}", "Every entry is 2 times what it should be: a factor is missing"),
        (f"-5 * {S_BACKWARD}", "is -5 times what it should be, which is -5, and 5 is the number"),
        ("np.zeros_like(weights)", "Every entry is 0:"),
        ("({}).sum(axis=-1, keepdims=True) * weights", "every entry is 0: a sum cancels"),
        ("{} + (weights == 0) * dweights", "It is not 0 everywhere where weights is 0. A masked"),
        ("{} + weights * dweights.max()", "Its rows do not sum to 0. One number added"),
        ("{} * (weights @ dweights.T).sum()", "Three times the upstream gradient has to give"),
        ("({}) * np.array([1, 1, 2, 3, 3])[:, None]", "where the index of axis 0 is 0."),
        ("1.5 * dweights + weights", "The checker does not recognise this pattern. Take an"),
        ("({}).round(6)", "only its first digits are right"),
        ("dweights / weights", "it holds NaN or infinity, first at (0, 6)"),
        ("({}) * (weights / weights)", "it holds NaN or infinity, first at (0, 6)"),
    ],
)
def test_an_unknown_mistake_gets_what_right_results_have_and_numbers(line, words, checked):
    _, output, _ = checked(softmax("return " + line.replace("{}", S_BACKWARD)))
    assert words in output and "number of heads" not in output
    assert not ("NaN" in output and "Three times" in output)


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
    assert (code, err) == (1, []) and " 0 of 4 right" in output
    assert ("Look for a number that stands for a size" in output) == ("11**0.5" in source)


STOPPED = "stopped after 0.05 seconds: a loop in it does not end, or takes too long. line"
CAUGHT = "try:\n    while True: sum(range(99))\nexcept:\n    pass"
A_SECOND = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end:"
GOES_ON = f"{A_SECOND}\n    try:\n        time.sleep(0.01)\n    except{{}}:\n        pass"


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr("lessons.kit.reader_file.LIMIT", 0.05)
    # A busy machine may stop a loop after a second limit only, which would end the tests.
    monkeypatch.setattr("os._exit", lambda code: None)


@pytest.mark.parametrize("body", ["while True: pass", GOES_ON.format(" Exception")])
def test_a_loop_without_end_is_stopped(body, checked, short_limit):
    assert STOPPED in checked(softmax(body))[1]
    code, output, err = checked(f"softmax_backward = None\n{body}")
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
    assert codes[0] == 2 and "as in `except ValueError:`" in words
    assert re.search(r"mine.py, line \d+ in softmax_backward: stopped after 0.05 seconds", words)


def test_there_is_time_in_a_debugger(checked, short_limit, monkeypatch):
    monkeypatch.setattr("lessons.kit.reader_file.DEBUGGERS", "a_readers")
    right = RIGHT["softmax_backward"][0]
    assert checked(f"{right}\nimport time\ntime.sleep(0.2)")[1].endswith("1 of 4 right")


@pytest.mark.timeout(30)
def test_python_can_trace_after_a_time_limit(checked):
    """PyThreadState_SetAsyncExc(thread, NULL) makes Python 3.11 trace a call for ever."""
    assert checked(RIGHT["softmax_backward"][0])[1].endswith("1 of 4 right")
    assert trace(library_softmax, np.zeros((2, 3)))[-1].value.shape == (2, 3)


SHAPES = "A gradient has the shape of its array"
CALLED = "\n" + attention(dZ="softmax_backward(dA, A)").removeprefix(HEADER)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (softmax("return weigths * 3"), "A name is misspelt, not imported, or has no value"),
        (softmax("return weights @ dweights"), "last axis of a, here 7, has to equal the last but"),
        (softmax("return weights * dweights.T"), f"could not be broadcast .*{SHAPES}"),
        (softmax("raise NotImplementedError()"), "Not written yet."),
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
        assert (code, err) == (1, []) and "mended_additive_backward: not in this file" in output
    assert sys.path == before
    code, output, _ = checked(f"{right}\n{attention(dS='dZ')}\ndef temperedbackward(): 0")
    assert code == 1 and output.endswith("1 of 4 right")
    assert "temperedbackward: is tempered_backward meant?" in output
