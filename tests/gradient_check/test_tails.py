"""The gradient check takes inputs into tails and other branches, or says which it did not take."""

import numpy as np
import pytest
from user_layers import Dense, Formula

from numformer.gradient_check import __main__ as gradient_check
from numformer.gradient_check import check, untaken_branches
from numformer.layer import Layer

X = np.random.default_rng(0).uniform(-2, 2, (3, 4, 8))


def slope(x):
    return 1 - np.tanh(x) ** 2


def test_a_wrong_slope_that_only_the_tail_has_is_found(capsys):
    wrong = Formula(np.tanh, lambda dy, a: dy * np.where(a < -2.5, 0.01, slope(a)))
    (row,) = check(wrong, [X])
    assert not row.passed and "only with inputs times 4, where x is -7.9" in row.meaning
    assert "to -2.5" in row.meaning
    # Its entries are shown where they are wrong.
    assert not gradient_check._print_elementwise({"tail": lambda: (wrong, [X])}, "tail/x", np)
    output = capsys.readouterr().out
    assert "only with inputs times 4" in output and float(output.splitlines()[1].split()[-1]) > 1.1


def test_a_wrong_slope_near_zero_alone_is_found():
    wrong = Formula(np.sin, lambda dy, a: dy * np.where(abs(a) < 1e-3, 0.9, np.cos(a)))
    (row,) = check(wrong, [np.where(abs(X) < 0.1, 1, X) / 2])
    assert "only with inputs times 0.001, where x is" in row.meaning


def test_backward_that_overflows_where_forward_is_finite_fails():
    wrong = Formula(np.arctan, lambda dy, a: dy * np.exp(a**4) / (np.exp(a**4) * (1 + a * a)))
    assert "NaN or infinity in backward" in check(wrong, [X])[0].meaning


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (Formula(np.tanh, lambda dy, a: dy * slope(a)), X),
        (Formula(np.exp, lambda dy, a: dy * np.exp(a)), X),
        (Formula(lambda a: a**5, lambda dy, a: 5 * dy * a**4), X),
        (Formula(np.log, lambda dy, a: dy / a), abs(X) + 0.1),
        # only within -1 to 1
        (Formula(np.arcsin, lambda dy, a: dy / np.sqrt(1 - a * a)), X / 2.1),
        (Dense(), X),
    ],
)
def test_right_slopes_pass_at_every_scale(layer, x):
    assert all(row.passed for row in check(layer, [x]))


class Branching(Layer):
    """y = sin(x) where all masks are True, with branches that few inputs take."""

    def forward(self, x, masks):
        y = np.where(x > 1e6, 0, np.sin(x))
        if abs(x).max() > 1e6:
            y = 2 * y
        if x.ndim > 4:
            raise ValueError(x.ndim)
        keep = np.maximum(x, -1e7) < 3
        for mask in masks:
            keep = keep if mask is None else keep & mask
        self.save(x=x, keep=keep)
        return np.asarray(np.where(keep, y, 0))

    def backward(self, dy):
        saved = self.pop_saved()
        return dy * np.cos(saved["x"]) * saved["keep"], None


def case():
    return Branching(), [X, (X > 0, None)]


def test_branches_that_no_input_took_are_named_and_masks_may_be_none(capsys):
    layer, inputs = case()
    assert all(row.passed for row in check(layer, inputs))
    texts = untaken_branches(layer, inputs)
    assert [text.partition("` (test_tails.py, ")[0] for text in texts] == [
        "never ran: `y = 2 * y",
        "always false for every number: `y = np.where(x > 1e6, 0, np.sin(x))",
        "always true for every number: `keep = np.maximum(x, -1e7) < 3",
    ]
    assert gradient_check.main(["test_tails:case"]) == 0
    printed = capsys.readouterr().out
    words = "not checked, because no input takes this branch"
    assert all(f"{words}; {text}\n" in printed for text in texts)
