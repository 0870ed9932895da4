"""The gradient check goes red for wrong backwards, names the cause, and is a usable command."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest

from numformer.gradient_check import __main__ as gradient_check
from numformer.gradient_check.cases import SOURCE_MASK
from numformer.gradient_check.gradients import GradientCheck, check
from numformer.layer import Layer, Parameter
from numformer.layers.activation import ReLU
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.linear import Linear
from numformer.layers.softmax import Softmax

B, S, T, D, H = 3, 5, 4, 8, 2
RNG = np.random.default_rng(0)
X = RNG.standard_normal((B, T, D))
SCORES = RNG.standard_normal((B, H, T, S))
IDS = np.array([[4, 9, 4, 2], [4, 1, 1, 0]])


# Layers with one mistake each; test_diagnosis.py has many more.


class InTwice(Linear):
    """y = x W W: the second backward must add to the gradient of the first."""

    def forward(self, x):
        return super().forward(super().forward(x))

    def backward(self, dy):
        dy = super().backward(dy)
        self.weight.grad.fill(0)  # `=` where `+=` belongs
        return super().backward(dy)


class WithoutReLUMask(ReLU):
    def backward(self, dy):
        self.pop_saved()
        return dy.copy()


def test_a_wrong_gradient_fails_with_both_numbers_their_ratio_and_the_cause():
    class Doubled(Linear):
        def backward(self, dy):
            return 2 * super().backward(dy)

    row, *others = check(Doubled(D, 6, RNG), [X])
    assert not row.passed and all(other.passed for other in others)
    numbers = f"explicit {row.explicit:.9g}, numerical {row.numerical:.9g}"
    assert "FAILED" in str(row) and f"{numbers}: constant ratio 2: counted twice" in str(row)
    unknown = dataclasses.replace(row, meaning="unknown")
    assert f"{numbers}, ratio 2: unknown" in str(unknown)


def test_a_layer_that_returns_its_very_argument_gives_no_false_alarm():
    (row,) = check(Dropout(0.0), [X])
    assert row.passed, str(row)


def test_a_true_gradient_of_zero_passes_and_a_wrong_one_fails():
    """Softmax ignores a constant added to all scores; so does attention a key's bias."""

    class Shifted(Softmax):
        def __init__(self, wrong):
            self.shift, self.wrong = Parameter(np.zeros(1)), wrong

        def forward(self, scores):
            return super().forward(scores + self.shift.data)

        def backward(self, dweights):
            dscores = super().backward(dweights)
            self.shift.grad += dscores.sum() + self.wrong
            return dscores

    assert all(row.passed for row in check(Shifted(0), [SCORES]))
    rows = {row.name: row for row in check(Shifted(1e-3), [SCORES])}
    assert not rows["shift"].passed and "true gradient is zero" in rows["shift"].meaning


# Strictness.


class Along:
    """In place of a random generator: the directions that it is given, again and again."""

    def __init__(self, *directions):
        self.directions = itertools.cycle(directions)

    def standard_normal(self, shape):
        return next(self.directions).reshape(shape)


@pytest.mark.parametrize("size", [1, 1e-3], ids=["large", "small"])
def test_an_error_beyond_the_tolerance_fails_and_one_below_it_passes(size, rng):
    """In a small gradient too: what is forgiven as rounding is smaller than that."""
    checked = GradientCheck(Linear(D, 6, rng), [X])
    one = np.eye(6)[0]
    checked.upstream[..., 0] *= size
    exact = checked.upstream[..., 0].sum()  # the gradient of bias[0], but for its rounding
    assert 1 < abs(exact) / size < 10
    for error, passes in ((1.5e-7, False), (0.5e-7, True)):
        checked.rng, checked.gradients["bias"] = Along(one), (1 + error) * exact * one
        assert checked.row("bias").passed == passes


@pytest.mark.parametrize("wrong", [0, 1], ids=["first", "second"])
def test_the_worst_direction_counts(wrong, rng):
    checked = GradientCheck(Linear(D, 6, rng), [X])
    directions = np.eye(6)[:2]
    checked.gradients["bias"] += directions[wrong]
    for count, passes in ((1, wrong == 1), (2, False)):
        checked.rng = Along(*directions)
        assert checked.row("bias", count).passed == passes
    checked.rng = Along(*directions)
    row = checked.row("bias")
    assert row.explicit - row.numerical == pytest.approx(1)


def test_a_check_tries_two_random_directions_of_each_tensor_unless_told(rng, monkeypatch):
    tried, original = [], GradientCheck.numerical

    def numerical(checked, name, direction):
        tried.append(direction)
        return original(checked, name, direction)

    monkeypatch.setattr(GradientCheck, "numerical", numerical)
    for asked, count in (({}, 2), ({"directions": 3}, 3)):
        tried.clear()
        check(Linear(D, 6, rng, bias=False), [X], **asked)
        assert [u.shape for u in tried] == [X.shape] * count + [(D, 6)] * count
        assert all(np.linalg.norm(u) == pytest.approx(1) for u in tried)
        assert len({u.tobytes() for u in tried}) == len(tried)


# What nothing would train or check.


class Holding(Linear):
    """A Linear that holds something in an attribute besides."""

    def __init__(self, **held):
        super().__init__(D, 6, RNG)
        vars(self).update(held)


LINEAR_OF_8 = Linear(8, 8, RNG)
LINEAR, PARAMETER, ARRAY = Linear(2, 2, RNG), Parameter(np.ones(3)), np.ones((2, 3))


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({"experts": {"a": LINEAR}}, "a Linear in experts['a'], which is neither trained"),
        ({"blocks": [[], [PARAMETER]]}, "a Parameter in blocks[1][0], "),
        ({"blocks": ((LINEAR,),)}, "a Linear in blocks[0][0], "),
        ({"both": {LINEAR}}, "a Linear in both, "),
        ({"_hidden": {"a": [{"b": LINEAR}]}}, "a Linear in _hidden['a'][0]['b'], "),
        ({"grid": np.array([[PARAMETER]])}, "a Parameter in grid[0, 0], "),
        ({"inner": Holding(own={1: LINEAR})}, "a Linear in inner.own[1], "),
        ({"gain": ARRAY}, "a plain array (2, 3) in gain, which is neither trained nor checked"),
        ({"gain": np.array(1.0)}, "a plain array () in gain, "),
        ({"gains": [{"a": ARRAY}]}, "a plain array (2, 3) in gains[0]['a'], "),
        ({"inner": Holding(gain=ARRAY)}, "a plain array (2, 3) in inner.gain, "),
    ],
    ids=lambda each: each if isinstance(each, str) else "held",
)
def test_a_hidden_layer_and_a_weight_in_a_plain_array_are_refused(held, says, complaint):
    text = complaint(check, Holding(**held), [X])
    assert says in text
    if "gain" in held:
        assert "begins with _, as self._gain." in text


class Through(Layer):
    """x -> what a layer that is held in some odd way makes of it."""

    def __init__(self, call):
        self.call = call

    def forward(self, x):
        self.save(kept=True)
        return self.call(x)

    def backward(self, dy):
        self.pop_saved()
        return dy.copy()


@pytest.mark.parametrize(
    "call",
    [
        Linear(8, 8, RNG).forward,
        lambda x: LINEAR_OF_8.forward(x),
        lambda x: Linear(8, 8, np.random.default_rng(0)).forward(x),
    ],
    ids=["a bound method", "a closure", "made anew"],
)
def test_a_layer_that_no_attribute_holds_is_refused_once_it_saves(call, complaint):
    text = complaint(check, Through(call), [X])
    assert "a Linear held elsewhere, which is neither trained nor checked" in text
    LINEAR_OF_8.clear_saved()
    assert Layer.save.__name__ == "save"  # nobody notes any more


@pytest.mark.parametrize(
    "held",
    [
        {"experts": {"a": LINEAR}, "also": [LINEAR]},
        {"_table": {"a": ARRAY}, "_constant": ARRAY},
        {"root": np.sqrt(512), "ids": np.arange(3), "mask": ARRAY > 0, "sizes": {"a": [1.5]}},
        {"inner": Holding(_constant=ARRAY)},
        {"loop": (loop := [LINEAR, 1]), "again": loop.append(loop)},
    ],
    ids=["found elsewhere", "underscore", "no weights", "nested", "a list in itself"],
)
def test_what_can_be_no_weight_is_left_alone(held):
    assert all(row.passed for row in check(Holding(**held), [X]))


def test_what_forward_itself_keeps_in_an_attribute_is_no_weight():
    class Showing(Linear):
        def forward(self, x):
            self.shown = super().forward(x)
            return self.shown.copy()

    layer = Showing(D, 6, RNG)
    for _ in range(2):
        assert all(row.passed for row in check(layer, [X]))


# Kinks.


def near_zero(rng):
    """Inputs between 2e-7 and 1e-6 from zero, on both sides of it."""
    return rng.uniform(2e-7, 1e-6, (B, T, D)) * rng.choice([-1, 1], (B, T, D))


@pytest.mark.parametrize("seed", range(5))
def test_relu_inputs_near_the_kink_give_no_false_alarm(seed, rng):
    (row,) = check(ReLU(), [near_zero(rng)], seed)
    assert row.passed, str(row)


def test_near_the_kink_a_wrong_backward_is_still_found(rng):
    (row,) = check(WithoutReLUMask(), [near_zero(rng)])
    assert not row.passed


# What the checker refuses, and what it leaves alone.


class Returning(Layer):
    """Two inputs, and whatever gradients and saved records it is told."""

    def __init__(self, gradients, records=1):
        self._gradients, self.records = gradients, records

    def forward(self, x, y):
        for _ in range(self.records):
            self.save()
        return x + y

    def backward(self, dy):
        self.pop_saved()
        return self._gradients


@pytest.mark.parametrize("gradients", [None, X, (X,), (X, X, X)], ids=["0", "1", "(1,)", "3"])
def test_a_wrong_number_of_gradients_is_refused(gradients, complaint):
    text = complaint(check, Returning(gradients), [X, X])
    assert "one gradient for each" in text and "['x', 'y']" in text


def test_a_gradient_of_another_shape_and_a_record_left_over_are_refused(complaint):
    text = complaint(check, Returning((X, X[0])), [X, X])
    assert f"{X[0].shape} for y {X.shape}" in text
    assert "1 saved records left" in complaint(check, Returning((X, X), records=2), [X, X])


def test_a_gradient_that_is_not_added_to_the_one_before_is_refused(complaint):
    """`=` where `+=` belongs, within one backward or from one backward to the next."""

    class Assigning(Linear):
        def backward(self, dy):
            self.weight.grad.fill(0)
            return super().backward(dy)

    for layer in (InTwice(D, D, RNG, bias=False), Assigning(D, 6, RNG)):
        text = complaint(check, layer, [X])
        assert "adds to the gradients of the first" in text and "weight" in text and "+=" in text


def test_a_layer_that_writes_into_its_arguments_is_refused(complaint):
    class IntoInput(ReLU):
        def forward(self, x):
            x *= 2
            return super().forward(x)

    class IntoUpstream(ReLU):
        def backward(self, dy):
            dy *= self.pop_saved()["positive"]
            return dy

    assert "other values in x" in complaint(check, IntoInput(), [X])
    assert "other values in dy" in complaint(check, IntoUpstream(), [X])


def test_a_gradient_that_shares_memory_is_refused(complaint):
    """Its receiver may overwrite it, and would overwrite the other too."""

    class Sharing(Layer):
        def __init__(self, shared):
            self.gain, self.shared = Parameter(np.ones(T)), shared

        def forward(self, x, y):
            self.save(x=x)
            return x + y

        def backward(self, dy):
            dx, dy = self.shared(dy, self.pop_saved()["x"], self.gain)
            return dx, dy

    for shared, says in (
        (lambda dy, x, gain: (dy, dy.copy()), "memory of dy in the gradient of x"),
        (lambda dy, x, gain: (dy.copy(), x), "memory of x in the gradient of y"),
        (lambda dy, x, gain: [dy.copy()] * 2, "memory of the gradient of x in the gradient of y"),
        (
            lambda dy, x, gain: (dy.copy(), np.broadcast_to(gain.grad[:, None], dy.shape)),
            "memory of the gradient of a parameter in the gradient of y",
        ),
    ):
        assert says in complaint(check, Sharing(shared), [X, X])


def test_what_is_no_array_is_refused(complaint):
    class Returned(Linear):
        def __init__(self, output, gradient):
            super().__init__(D, 6, RNG)
            self.output, self.gradient = output, gradient

        def forward(self, x):
            return self.output(super().forward(x))

        def backward(self, dy):
            return self.gradient(super().backward(dy))

    def same(array):
        return array

    for output, gradient, says in (
        (lambda y: (y, y), same, "a tuple from Returned.forward"),
        (lambda y: float(y.sum()), same, "a float from Returned.forward"),
        (same, lambda dx: [dx], "a list, where the floating-point inputs are ['x']"),
        (same, lambda dx: (None,), "a NoneType, where"),
        (same, lambda dx: (dx, dx), "2 array(s), where"),
    ):
        assert says in complaint(check, Returned(output, gradient), [X])


def test_inputs_stay_as_they_were_and_ids_and_masks_are_not_differentiated():
    scores, ids = SCORES.astype(np.float32), IDS.copy()
    before = scores.copy()
    assert [row.name for row in check(Softmax(), [scores, SOURCE_MASK])] == ["scores"]
    assert [row.name for row in check(Embedding(11, D, RNG), [ids])] == ["weight"]
    assert (scores == before).all() and (ids == IDS).all()


def test_the_upstream_gradient_is_random():
    """All ones let a softmax whose backward is zero pass."""
    upstream = GradientCheck(Softmax(), [SCORES]).upstream
    assert upstream.shape == SCORES.shape and len(np.unique(upstream)) == upstream.size


def test_the_upstream_gradient_is_not_the_input_that_the_same_seed_drew():
    """Where dy = x, a ReLU gated on dy passes."""
    x = np.random.default_rng(0).standard_normal((B, T, D))
    assert abs(GradientCheck(ReLU(), [x], seed=0).upstream - x).min() > 0


def test_elementwise_gradients_of_a_small_layer(rng):
    """For y = x W the numerical gradient of W is x^T upstream, entry by entry."""
    checked = GradientCheck(Linear(2, 3, rng), [X[..., :2]])
    explicit, numerical = checked.elementwise("weight")
    expected = X[..., :2].reshape(-1, 2).T @ checked.upstream.reshape(-1, 3)
    np.testing.assert_allclose(explicit, expected, rtol=1e-12)
    np.testing.assert_allclose(numerical, expected, rtol=1e-8, atol=1e-10)
    _, some = checked.elementwise("weight", largest=4)
    assert np.isnan(some.ravel()).tolist() == [False] * 4 + [True] * 2


# The command.

OWN = """
import numpy as np
from numformer.layer import Layer, Parameter

class Scale(Layer):
    def __init__(self, right):
        self.scale, self.right = Parameter(np.ones(4)), right

    def forward(self, x):
        self.save(x=x)
        return x * self.scale.data

    def backward(self, dy):
        x = self.pop_saved()["x"]
        self.scale.grad += (dy * x).sum(axis=0)
        return dy * self.scale.data * (1 if self.right else 2)

def inputs():
    return [np.random.default_rng(0).standard_normal((3, 4))]

def right():
    return Scale(True), inputs()

def wrong():
    return Scale(False), inputs()

def no_layer():
    return 3, inputs()

def bare():
    return Scale(True), inputs()[0]

class Failing(Scale):
    def backward(self, dy):
        return dy @ self.pop_saved()["absent"]

def failing():
    return Failing(True), inputs()

class NoBackward(Layer):
    def forward(self, x):
        return 2 * x

def no_backward():
    return NoBackward(), inputs()

class Nothing(Layer):
    def forward(self, ids):
        return np.zeros(2)

    def backward(self, dy):
        return None

def nothing():
    return Nothing(), [np.arange(3)]

class Thrice(Layer):
    def __init__(self):
        self.scale, self.shift = Parameter(np.ones(4)), Parameter(np.ones(4))

    def forward(self, x):
        self.save(x=x)
        return np.sin(x) * self.scale.data + self.shift.data

    def backward(self, dy):
        x = self.pop_saved()["x"]
        self.scale.grad += 2 * (dy * np.sin(x)).sum(axis=0)
        self.shift.grad += 2 * dy.sum(axis=0)
        return dy * x**2

def thrice():
    return Thrice(), inputs()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a layer of one's own in own_layers.py, as the current one."""
    (tmp_path / "own_layers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the current folder
    yield tmp_path
    sys.modules.pop("own_layers", None)


def test_the_command_passes_a_right_layer_and_fails_a_wrong_one(own, capsys):
    assert gradient_check.main(["own_layers:right"]) == 0
    printed = capsys.readouterr().out
    assert "right/x" in printed and "right/scale" in printed
    assert "0 of 2 failed" in printed and "FAILED" not in printed
    assert gradient_check.main(["own_layers:wrong"]) == 1
    printed = capsys.readouterr().out
    assert "1 of 2 failed" in printed and "counted twice" in printed


def test_the_command_as_a_user_runs_it(own):
    for factory, code in (("right", 0), ("wrong", 1), ("absent", 2)):
        command = [sys.executable, "-m", "numformer.gradient_check", f"own_layers:{factory}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=own, timeout=60)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("own_layers:absent", "AttributeError"),
        ("absent_module:right", "ModuleNotFoundError"),
        ("own_layers", "own_layers without a colon"),
        ("own_layers:no_layer", "(int, list) from own_layers:no_layer"),
        ("own_layers:bare", "ndarray instead of a list of inputs"),
        ("own_layers:failing", "own_layers:failing does not run: KeyError: 'absent', in "),
        ("own_layers:failing --elementwise failing/x", "own_layers.py, line"),
        ("own_layers:no_backward", "NotImplementedError: NoBackward has no backward"),
        ("own_layers:nothing", "nothing to check in nothing"),
        ("own_layers:right --elementwise right/absent", "right has the tensors x, scale"),
        ("own_layers:right --elementwise absent/x", "The cases are: right."),
        ("own_layers:right --only absent", "Cases: right."),
        ("--elementwise linear/x --only linear", "--only linear beside it"),
        ("--elementwise linear", "linear has the tensors"),
        ("--only absent", "received absent. Cases: "),
    ],
)
def test_a_bad_place_or_layer_gives_exit_code_2_and_one_line(arguments, says, own, capsys):
    assert gradient_check.main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert says in printed.err


def test_an_exception_in_a_layer_of_the_library_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(ReLU, "forward", lambda relu, x: x.absent)
    with pytest.raises(AttributeError):
        gradient_check.main(["--only", "relu"])


def test_a_cause_is_told_once_and_how_to_see_an_unknown_one(own, capsys):
    assert gradient_check.main(["own_layers:thrice"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("counted twice") == 1
    assert "No known pattern. 12 of 12 entries are wrong. `--elementwise thrice/x`" in printed
    assert ": the same cause as thrice/scale\n" in printed


def test_the_command_checks_the_cases_of_the_library(capsys):
    assert gradient_check.main(["--only", "layer_norm"]) == 0
    printed = capsys.readouterr().out
    for row in ("layer_norm/x", "layer_norm/gamma", "layer_norm_of_nearly_equal_values/beta"):
        assert row in printed
    assert "0 of 6 failed" in printed


def test_elementwise_prints_entries_the_worst_first(own, capsys):
    place = "wrong/x"
    assert gradient_check.main(["own_layers:wrong", "--elementwise", place]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["index", "explicit", "numerical", "ratio"]
    entries = [line.replace(", ", ",").split() for line in lines[1:13]]
    assert {index for index, *_ in entries} == {f"({i},{j})" for i in range(3) for j in range(4)}
    differences = [abs(float(explicit) - float(numerical)) for _, explicit, numerical, _ in entries]
    assert differences == sorted(differences, reverse=True)
    assert all(float(ratio) == pytest.approx(2) for *_, ratio in entries)
    assert gradient_check.main(["--elementwise", "linear/bias"]) == 0
