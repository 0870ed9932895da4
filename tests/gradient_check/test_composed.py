"""The gradient check names mistakes in layers composed of other layers, and where they are."""

import numpy as np
import pytest
from composed_layers import INPUTS, MISTAKES, is_named, reports
from user_layers import RNG, Formula

import numformer as nf
from numformer.gradient_check import __main__ as gradient_check
from numformer.gradient_check import check
from tests.gradient_check.test_tails import X

FIRST = {mistake.layer: mistake for mistake in reversed(MISTAKES)}
LAST = {mistake.layer: mistake for mistake in MISTAKES}


@pytest.mark.parametrize("layer", INPUTS, ids=lambda layer: layer.__name__)
def test_a_right_layer_passes_and_a_mistake_in_it_is_named(layer):
    assert all(row.passed for row in check(layer(), INPUTS[layer], directions=1, scales=()))
    for mistake in {FIRST[layer], LAST[layer]}:
        messages = reports(mistake)
        assert is_named(mistake, messages), messages


KINK = "Forward has a kink at these inputs"
STEPS = np.arange(-4.0, 5.0)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nf.ReLU(), STEPS),
        (nf.ReLU(), np.eye(4)),
        (Formula(lambda a: np.maximum(a, 0), lambda dy, a: dy * (a >= 0)), STEPS),
        (
            Formula(
                lambda a: a.max(axis=1),
                lambda dy, a: dy[:, None] * (a == a.max(axis=1, keepdims=True)),
            ),
            np.ones((3, 4)),
        ),
    ],
)
def test_inputs_on_a_kink_are_checked_beside_it(layer, x):
    (row,) = check(layer, [x])
    assert row.passed and KINK in str(row)


def test_a_mistake_beside_a_kink_is_named():
    wrong = Formula(lambda a: np.maximum(a, 0), lambda dy, a: dy.copy())
    (row,) = check(wrong, [STEPS])
    assert KINK in str(row) and "the derivative of `np.maximum(a, 0)` is left out" in row.meaning


def test_a_check_that_cannot_fail_says_so():
    (row,) = check(Formula(np.square, lambda dy, a: 0 * dy), [np.zeros((3, 4))], scales=())
    assert row.passed and "shows nothing" in str(row)


def test_a_forward_that_draws_random_numbers_of_its_own_is_refused(complaint):
    layer = Formula(lambda a: a * RNG.integers(2, size=a.shape), lambda dy, a: dy.copy())
    assert "dropout_stream.mask(x.shape, p, x)" in complaint(check, layer, [X])


def test_a_forward_in_float32_is_named_with_its_line():
    narrow = Formula(lambda a: np.tanh(a.astype(np.float32)) * 1.0, lambda dy, a: dy * (1 - a))
    (row,) = check(narrow, [X])
    assert "forward computes in float32 here" in row.meaning and "astype" in row.meaning


def test_what_is_no_layer_or_no_list_of_inputs_is_refused(complaint):
    assert "received a ndarray (3, 4, 8). Put it into a list" in complaint(check, nf.ReLU(), X)
    for wrong, kind in ((np.tanh, "ufunc"), (nf.ReLU, "type")):
        assert f"received a {kind}." in complaint(check, wrong, [X])


def test_a_row_that_is_never_added_to_and_a_record_that_is_left_are_named():
    by_code = {mistake.right + mistake.wrong: mistake for mistake in MISTAKES}
    messages = " ".join(reports(by_code["self.w.grad[1] += (dy * x * x).sum()pass"]))
    assert "self.w.data[1]" in messages
    record_left = by_code[
        "self.value.backward(dvalue) + self.gate.backward(dgate)self.value.backward(dvalue)"
    ]
    assert "1 in gate" in " ".join(reports(record_left))


FAILING = """
import numpy as np
import numformer as nf

class Narrow(nf.Layer):
    def forward(self, x):
        return np.einsum("bi,ij->bj", x[:, :3], np.eye(4))  # one column too few

    def backward(self, dy):
        return dy

case = lambda: (Narrow(), [np.ones((2, 4))])
"""


def test_an_error_inside_numpy_names_the_caller_s_line_and_a_module_may_be_its_file(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "narrow_layers.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    assert gradient_check.main(["narrow_layers.py:case"]) == 2
    output = capsys.readouterr().err
    assert "narrow_layers.py, line 7" in output and "Traceback" not in output
