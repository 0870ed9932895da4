"""Mistakes in layers of others are recognised by what their forward computes, not by names."""

import inspect

import numpy as np
import pytest
from strangers import (
    Cell,
    Dense,
    Formula,
    Glu,
    InPlace,
    MeanGate,
    logistic,
    stable_logistic,
)

from numformer.gradient_check.gradients import check
from numformer.gradient_check.trace import Reporting
from numformer.layer import Layer

X = np.random.default_rng(3).standard_normal((2, 3, 8))


def said(layer: Layer) -> dict[str, str]:
    """What is said of each tensor that fails."""
    rows = check(layer, [X], directions=1)
    return {row.name: row.meaning for row in rows if not row.passed}


def of_sigmoid(wrong, slope, function=logistic):
    says = f"the derivative of sigmoid is s * (1 - s), s its output: not {wrong}. "
    return Dense(5, function, slope), "x kernel offset", says


def swish(dx):
    return Formula(lambda x: x * logistic(x), lambda dy, a: dx(dy, a, logistic(a)))


BRANCH = "a branch %s: that through %s"
OTHER = "the second operand"


@pytest.mark.parametrize(
    ("layer", "fails", "says"),
    [
        of_sigmoid("1 (left out)", lambda z, s: 1),
        of_sigmoid("z * (1 - z), z its input", lambda z, s: z * (1 - z), stable_logistic),
        of_sigmoid(
            "s * (1 - s) with sigmoid(s) for s", lambda z, s: logistic(s) * (1 - logistic(s))
        ),
        (Glu(), "x", f"{BRANCH % ('is left out', OTHER)} of `multiply`"),
        (swish(lambda dy, x, s: dy * x * s * (1 - s)), "x", BRANCH % ("is left out", "`x`")),
        (
            swish(lambda dy, x, s: dy * s - dy * x * s * (1 - s)),
            "x",
            BRANCH % ("has the wrong sign", OTHER),
        ),
        (
            swish(lambda dy, x, s: 2 * dy * s + dy * x * s * (1 - s)),
            "x",
            BRANCH % ("is counted twice", "`x`"),
        ),
        (swish(lambda dy, x, s: dy * s + dy * s * (1 - s)), "x", f"a product by {OTHER} lacks `x`"),
        (Dense(4, summed=lambda dz: dz.sum()), "offset", "wrong axes, (0, 1, 2) instead of (0, 1)"),
        (
            Dense(3, summed=lambda dz: dz.sum(axis=(0, 2))),
            "offset",
            "`offset` is summed over the wrong axes, (0, 2) instead of (0, 1) of (2, 3, 3)",
        ),
        (Cell(), "x hidden", "the derivative of tanh is 1 - s * s, s its output: not 1"),
        (MeanGate(), "x", "the derivative of `divide` is left out"),
        (InPlace(slope=lambda z, s: 1), "x kernel offset", "the derivative of `exp` is left out"),
    ],
)
def test_what_is_wrong_in_one_line_of_forward_is_said(layer, fails, says):
    messages = said(layer)
    assert " ".join(messages) == fails
    assert all(says in message for message in messages.values()), messages


@pytest.mark.parametrize(
    ("layer", "line"),
    [(Glu(), "return u * g"), (MeanGate(), "return x * x.mean(axis=1, keepdims=True)")],
)
def test_the_line_of_forward_is_shown(layer, line):
    """That of the layer, also where the operation stands in one of NumPy's own functions."""
    lines, first = inspect.getsourcelines(type(layer).forward)
    number = first + [text.strip() for text in lines].index(line)
    (message,) = said(layer).values()
    assert message.endswith(f"Forward's line: `{line}` (strangers.py, {number}).")


def test_nothing_is_reported_after_a_forward_that_raises():
    class Once(Glu):
        def forward(self, x):
            if isinstance(x, Reporting):
                raise RuntimeError("no more")
            return super().forward(x)

    assert said(Once())["x"].startswith("No known pattern")
    assert Reporting.trace is None
