"""The checker of exercises: what it says of solutions, right and wrong, as learners write them."""

import inspect
import itertools
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from lesson_solutions import HEADER, RIGHT, attention, function, scope, softmax

from lessons.exercise import EQUAL, Mistake, Sizes
from lessons.lesson_03 import exercises as exercises_03
from numformer.layers.softmax import softmax_backward

EXERCISES = {exercise.name: exercise for exercise in exercises_03.EXERCISES}


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
