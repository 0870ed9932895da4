"""Lesson 3: its numbers, claims and equations, computed again another way."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import lessons
from lessons.lesson import pieces
from lessons.lesson_03.attention import MASKS, STEPS, TEMPERATURES, attention
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.softmax import softmax_backward

pytestmark = pytest.mark.usefixtures("compared_once")


@pytest.mark.parametrize("mask", range(4))
@pytest.mark.parametrize("temperature", range(5))
def test_the_simulation_has_the_numbers_of_plain_formulas(mask, temperature, rng):
    lesson, allowed = lessons.load(3), MASKS[mask].value
    doutput = rng.integers(-3, 4, (4, 2)).astype(float)
    shown = attention.compute(allowed, TEMPERATURES[temperature].value, doutput)
    scores = lesson.query @ lesson.key.T / TEMPERATURES[temperature].value
    for t, row in enumerate(scores):
        seen = np.flatnonzero(allowed[t])
        exponentials = np.exp(row[seen] / np.sqrt(3))
        a = exponentials / exponentials.sum()
        jacobian = np.diag(a) - np.outer(a, a)
        weights, dscaled = np.zeros((2, 5))
        weights[seen], dscaled[seen] = a, jacobian @ (lesson.value[seen] @ doutput[t])
        np.testing.assert_allclose(shown["weights"][t], weights, atol=1e-12)
        np.testing.assert_allclose(shown["output"][t], weights @ lesson.value, atol=1e-12)
        np.testing.assert_allclose(shown["dscaled"][t], dscaled, atol=1e-12)
    dscores = shown["dscaled"] / np.sqrt(3)
    np.testing.assert_allclose(shown["dquery"], np.einsum("ts,si->ti", dscores, lesson.key))
    dkey = np.einsum("ts,ti->si", dscores, shown["query"])
    np.testing.assert_allclose(shown["dkey"], dkey, atol=1e-12)
    dvalue = np.einsum("ts,tj->sj", shown["weights"], doutput)
    np.testing.assert_allclose(shown["dvalue"], dvalue, atol=1e-12)


def test_the_numbers_in_the_text_are_these():
    """By hand, or from formulas that the lesson does not use."""
    lesson = lessons.load(3)
    scores = np.array([[0, 0, 4, 2, 0], [0, 4, 0, -1, 2], [0, -2, 4, 2, 0], [0, 0, 4, 3, -2]])
    scaled = scores / np.sqrt(3)
    weights = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
    steps = scores, scaled, weights, weights @ lesson.value
    for piece, expected in zip(pieces(lesson.four_steps), steps, strict=True):
        np.testing.assert_allclose(piece.numbers, expected, atol=1e-12)
    doutput, dvalue, dweights, _ = pieces(lesson.back_through_the_blend)
    np.testing.assert_allclose(dvalue.numbers, weights.T @ doutput.numbers)
    np.testing.assert_allclose(dweights.numbers, doutput.numbers @ lesson.value.T)
    da = dweights.numbers[2]
    centred = da - weights[2] @ da
    wanted = [weights[2], da, centred, weights[2] * centred]
    rows, _ = pieces(lesson.back_through_the_softmax)
    np.testing.assert_allclose(rows.numbers, wanted, atol=1e-12)
    wanted = np.diag(weights[2]) - np.outer(weights[2], weights[2])
    np.testing.assert_allclose(pieces(lesson.jacobian)[0].numbers, wanted, atol=1e-12)
    (axes,) = pieces(lesson.results_are_mixtures)[0].figure().axes
    points = {dots.get_label(): dots.get_offsets() for dots in axes.collections}
    np.testing.assert_allclose(points["value"], lesson.value)
    np.testing.assert_allclose(points["result"], lesson.output)


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
    shown = {}
    for piece, name in zip(pictures, ("variance", "largest", "gradient"), strict=True):
        assert name in piece.alt
        without, with_it = (curves(piece)[key] for key in ("as it is", r"divided by $\sqrt{d_k}$"))
        shown[name] = without, with_it
        told = re.sub(r"\$(\d) .cdot 10\^\{(.*?)\}\$", r"\1e\2", piece.caption)
        told = re.sub(r"\$d_k = 1024\$|16 keys", "", told)
        told = [float(number) for number in re.findall(r"\d[\d.]*(?:e-\d+)?(?=[ .])", told)]
        np.testing.assert_allclose(told, [without[-1], with_it[-1]], rtol=0.5 / min(told[0], 5))
    without, with_it = shown["variance"]
    np.testing.assert_allclose(without, lesson.WIDTHS, rtol=0.2)
    np.testing.assert_allclose(with_it, 1, rtol=0.2)
    pattern = r"from (\d+) of the 400 rows\. With the\s+scale they come from (\d+)"
    told = re.search(pattern, words.markdown())
    for count, scaled in zip(map(int, told.groups()), (False, True), strict=True):
        share = np.sort(lengths[scaled])[::-1].cumsum() / lengths[scaled].sum()
        assert share[count - 2] < 0.9 <= share[count - 1]


@pytest.mark.parametrize("scaled", [True, False])
def test_random_attention_has_the_gradients_of_numformer(scaled):
    """Values that are the identity make dweights of doutput."""
    measure, rng = lessons.load(3).random_attention, np.random.default_rng(1)
    _, weights, dscores, dquery = measure(9, scaled, np.random.default_rng(1))
    query, key = rng.standard_normal((400, 1, 9)), rng.standard_normal((400, 16, 9))
    query = query if scaled else 3 * query
    inputs = query, key, np.broadcast_to(np.eye(16), (400, 16, 16))
    _, expected, _ = scaled_dot_product_attention(*inputs)
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    doutput = rng.standard_normal((400, 1, 16))
    back = scaled_dot_product_attention_backward(doutput, *inputs, expected, expected, None)
    lengths = np.linalg.norm(back[0], axis=-1).ravel() * (1 if scaled else 3)
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
        curve = curves(accuracy)[score]
        means = [result.accuracy.mean() for result in results if result.score == score]
        np.testing.assert_allclose(curve, means)
        assert f"{score} is at {means[-1]:.2f}" in accuracy.alt
    said = " ".join(words.markdown().split())
    pattern = r"standard deviation of (\d+):.* is (\d+) times smaller"
    told = [int(number) for number in re.search(pattern, said).groups()]
    ratio = wide["scaled dot product"].gradient / wide["dot product"].gradient
    np.testing.assert_allclose(told, [wide["dot product"].spread, ratio], atol=0.5)
    small, large = map(int, re.findall(r"finds (?:only )?(\d+) %", said))
    assert small > 95 > 90 > large  # the text draws its conclusion from this


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
    for sign in re.findall(token, text):
        if before and before[-1] not in "(+-/×:" and sign[0] not in ")^+-/×":
            made += times
        if sign[:4] in ("sum:", "max:"):
            made, ends[-1] = f"{made}{sign[:3]}(", f" for {sign[4]} in R({sign[4]!r})){ends[-1]}"
            sign = ":"
        elif sign[-1] == "(":
            made, ends = made + sign, [*ends, ""]
        elif sign == ")":
            made += ends.pop() + ")"
        else:
            made += sign.replace("^", "**").replace("×", "*").replace("@", "")
        before = sign
    return made + ends.pop()


def holds(sides: list[str], values: dict, sizes: dict) -> bool:
    """Whether all sides of an equation are equal, entry by entry where they have indices."""
    sides = [python_of(side) for side in sides]
    free = sorted(
        {name for sign in re.findall(r"\[([\w,]+)\]", sides[0]) for name in sign.split(",")}
    )
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
    saved = query, key, value, weights, weights, None
    dquery, dkey, dvalue = scaled_dot_product_attention_backward(doutput, *saved)
    z, da = query[1] @ key.T / 2, doutput[1] @ value.T
    dweights, a = doutput @ value.T, weights[1]
    dscaled = softmax_backward(dweights, weights)
    values = dict(Q=query, K=key, V=value, E=query @ key.T, Z=query @ key.T / 2, A=weights)
    values |= dict(O=output, dO=doutput, dV=dvalue, dA=dweights, dZ=dscaled, dE=dscaled / 2)
    values |= dict(dQ=dquery, dK=dkey, a=a, z=z, n=np.exp(z).sum(), da=da, dz=dscaled[1])
    values |= dict(J=np.diag(a) - np.outer(a, a), root=2)
    text = re.sub(r"\n# ?|\n +", " ", Path(lessons.load(3).__file__).read_text())
    text = text.replace("{{d}}", "{d}").replace("\\\\", "\\").replace("$$", "$")
    held = []
    for formula in re.findall(r"\$([^$]+)\$", text):
        sides = re.split(r"(?<!\\)=", formula.strip())
        known = r"(\\mathrm\{d\})?[QKVEZAOazn](_\w|_\{\w\w\})?|\\frac\{\\partial a_s\}.*"
        other = re.search(r"tanh|W|ldots", formula)
        if len(sides) > 1 and re.fullmatch(known, sides[0].strip()) and not other:
            assert holds(sides, values, sizes), formula
            held.append(formula)
    assert len(held) > 30 and len(set(held)) > 15


def test_every_equation_of_the_stepper_holds():
    values = attention.compute(MASKS[0].value, 1.0, lessons.load(3).doutput)
    values |= {name: values[name][:, 0] for name in ("total", "average")} | {"root": 3**0.5}
    held = 0
    for step in STEPS:
        for formula in re.split(r"\n\n|, .quad ", step.equation):
            if not re.search(r"Attention|partial|cases", formula):
                assert holds(formula.split("="), values, dict(t=4, s=5, u=5, j=2)), step.id
                held += 1
    assert held == 14
