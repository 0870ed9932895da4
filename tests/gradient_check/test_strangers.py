"""Mistakes in layers of others are recognised by what their forward computes, not by names."""

import inspect

import numpy as np
import pytest
from strangers import (
    Cell,
    Dense,
    Glu,
    InPlace,
    MeanGate,
    Swish,
    TwoDense,
    logistic,
    stable_logistic,
)

from numformer.gradient_check.gradients import check
from numformer.gradient_check.trace import Reporting
from numformer.layer import Layer

X = np.random.default_rng(3).standard_normal((3, 4, 8))


def said(layer: Layer) -> dict[str, str]:
    """What is said of each tensor that fails."""
    return {row.name: row.meaning for row in check(layer, [X]) if not row.passed}


SIGMOID = "the derivative of sigmoid is s * (1 - s), s its output: not "
SLOPES = {
    "1 (left out)": lambda z, s: 1,
    "s": lambda z, s: s,
    "1 - s": lambda z, s: 1 - s,
    "s * s": lambda z, s: s * s,
    "s * (1 + s)": lambda z, s: s * (1 + s),
    "1 - s * s": lambda z, s: 1 - s * s,
    "z * (1 - z), z its input": lambda z, s: z * (1 - z),
    "s * (1 - s) with sigmoid(s) for s": lambda z, s: logistic(s) * (1 - logistic(s)),
}


@pytest.mark.parametrize("wrong", SLOPES)
@pytest.mark.parametrize(
    ("build", "fails"),
    [
        (lambda slope: Dense(5, slope=slope), ["x", "kernel", "offset"]),
        (lambda slope: Dense(5, stable_logistic, slope), ["x", "kernel", "offset"]),
        (TwoDense, ["x", "first"]),
    ],
    ids=["at the end", "stable", "within"],
)
def test_a_wrong_derivative_of_a_sigmoid_is_said_with_what_stands_in_its_place(build, fails, wrong):
    messages = said(build(SLOPES[wrong]))
    assert list(messages) == fails
    assert all(f"{SIGMOID}{wrong}. " in message for message in messages.values()), messages


@pytest.mark.parametrize(
    ("layer", "fails", "says"),
    [
        (
            Dense(through=lambda dz, kernel: dz @ kernel),
            ["x"],
            "exactly the gradient for `kernel` transposed",
        ),
        (Glu(), ["x"], "a branch is left out: that through the second operand of `multiply`"),
        (
            Swish(lambda dy, x, s: dy * x * s * (1 - s)),
            ["x"],
            "a branch is left out: that through `x` of `multiply`",
        ),
        (
            Swish(lambda dy, x, s: dy * s - dy * x * s * (1 - s)),
            ["x"],
            "a branch has the wrong sign: that through the second operand",
        ),
        (
            Swish(lambda dy, x, s: 2 * dy * s + dy * x * s * (1 - s)),
            ["x"],
            "a branch is counted twice: that through `x`",
        ),
        (
            Swish(lambda dy, x, s: dy * s + dy * s * (1 - s)),
            ["x"],
            "the derivative of a product by the second operand lacks `x`",
        ),
        (
            Dense(4, summed=lambda dz: dz.sum()),
            ["offset"],
            "wrong axes, (0, 1, 2) instead of (0, 1)",
        ),
        (
            Dense(4, summed=lambda dz: dz.sum(axis=(0, 2))),
            ["offset"],
            "the gradient of `offset` is summed over the wrong axes, (0, 2) instead of (0, 1) of "
            "(3, 4, 4)",
        ),
        (
            Dense(3, summed=lambda dz: dz.sum(axis=(1, 2))),
            ["offset"],
            "wrong axes, (1, 2) instead of (0, 1)",
        ),
        (
            Cell(lambda s: 1),
            ["x", "hidden"],
            "the derivative of tanh is 1 - s * s, s its output: not 1",
        ),
        (
            Cell(through=lambda dz, hidden: dz @ hidden),
            ["x", "hidden"],
            "exactly the gradient for `hidden` transposed",
        ),
        (MeanGate(), ["x"], "the derivative of `divide` is left out"),
        (InPlace(), ["x", "kernel", "offset"], "the derivative of `exp` is left out"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Layer) else "",
)
def test_what_is_wrong_in_one_line_of_forward_is_said(layer, fails, says):
    messages = said(layer)
    assert list(messages) == fails
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

    layer = Once()
    assert said(layer)["x"].startswith("No known pattern")
    assert Reporting.trace is None


def test_a_layer_of_very_many_operations_is_not_tried_line_by_line():
    """Each line costs some forwards, so that a whole model would take minutes."""

    class Long(Glu):
        def forward(self, x):
            for _ in range(50):
                x = x + 1 - 1
            return super().forward(x)

    assert said(Long())["x"].startswith("No known pattern")
