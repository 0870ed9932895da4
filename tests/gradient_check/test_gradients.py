"""The gradient check fails for wrong backwards and refuses layers that break rules; its command."""

import dataclasses
import itertools
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from user_layers import Formula, WithAttributes

from numformer.gradient_check import __main__ as gradient_check
from numformer.gradient_check.gradients import GradientCheck, check
from numformer.layer import Layer, Parameter
from numformer.paper.dropout import Dropout
from numformer.paper.embedding import Embedding
from numformer.paper.feed_forward import ReLU
from numformer.paper.linear import Linear
from numformer.paper.softmax import Softmax
from numformer.randomness import dropout_stream

B, S, T, D, H = 3, 5, 4, 8, 2
RNG = np.random.default_rng(0)
X = RNG.standard_normal((B, T, D))
SCORES = RNG.standard_normal((B, H, T, S))


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


def along(*directions) -> SimpleNamespace:
    """A stand-in for a random generator that draws these directions in turn, over and over."""
    turns = itertools.cycle(directions)
    return SimpleNamespace(standard_normal=lambda shape: next(turns).reshape(shape))


@pytest.mark.parametrize("size", [1, 1e-3], ids=["large", "small"])
def test_an_error_beyond_the_tolerance_fails_and_one_below_it_passes(size, rng):
    """Also in a small gradient, since the allowance for rounding is smaller still."""
    checked = GradientCheck(Linear(D, 6, rng), [X])
    bias = np.eye(6)[0]
    checked.upstream[..., 0] *= size
    exact = checked.upstream[..., 0].sum()  # the gradient of bias[0], but for its rounding
    assert 1 < abs(exact) / size < 10
    for error, passes in ((1.5e-7, False), (0.5e-7, True)):
        checked.rng, checked.gradients["bias"] = along(bias), (1 + error) * exact * bias
        assert checked.row("bias").passed == passes


@pytest.mark.parametrize("wrong", [0, 1], ids=["first", "second"])
def test_the_worst_direction_counts(wrong, rng):
    checked = GradientCheck(Linear(D, 6, rng), [X])
    directions = np.eye(6)[:2]
    checked.gradients["bias"] += directions[wrong]
    for count, passes in ((1, wrong == 1), (2, False)):
        checked.rng = along(*directions)
        assert checked.row("bias", count).passed == passes
    row = checked.row("bias")
    assert row.explicit - row.numerical == pytest.approx(1)


LINEAR_OF_8 = Linear(8, 8, RNG)
HELD = [LINEAR_OF_8.forward, lambda x: LINEAR_OF_8.forward(x)]
HELD += [lambda x: Linear(8, 8, np.random.default_rng(0)).forward(x)]
LINEAR, PARAMETER, ARRAY = Linear(2, 2, RNG), Parameter(np.ones(3)), np.ones((2, 3))


class Showing(Softmax):
    def forward(self, x):
        self.shown = super().forward(x)
        return self.shown.copy()


@pytest.mark.parametrize(
    "layer",
    [
        WithAttributes(experts={"a": LINEAR}, also=[LINEAR]),
        WithAttributes(_table={"a": ARRAY}, _constant=ARRAY),
        WithAttributes(root=np.sqrt(512), ids=np.arange(3), mask=ARRAY > 0, sizes={"a": [1.5]}),
        WithAttributes(inner=WithAttributes(_constant=ARRAY)),
        WithAttributes(loop=(loop := [LINEAR, 1]), again=loop.append(loop)),
        Showing(),
        Dropout(0.0),
    ],
    ids=["held elsewhere", "_", "no weights", "nested", "in itself", "of forward", "its argument"],
)
def test_what_keeps_the_rules_gives_no_false_alarm(layer):
    for _ in range(2):
        assert all(row.passed for row in check(layer, [X]))


class Ungated(ReLU):
    def backward(self, dy):
        self.pop_saved()
        return dy.copy()


@pytest.mark.parametrize("seed", range(3))
def test_near_the_kink_of_a_relu_the_right_backward_alone_passes(seed, rng):
    """Inputs between 2e-7 and 1e-6 from zero, on both sides of it."""
    x = rng.uniform(2e-7, 1e-6, (B, T, D)) * rng.choice([-1, 1], (B, T, D))
    for relu in (ReLU(), Ungated()):
        (row,) = check(relu, [x], seed, directions=1)
        assert row.passed == (type(relu) is ReLU), str(row)


def same(value):
    return value


class Odd(Linear):
    """A Linear with functions around its arguments, its output and its gradients."""

    def __init__(self, x=same, y=same, dy=same, dx=same, records=0):
        super().__init__(D, 6, RNG)
        self.changes, self.records = (x, y, dy, dx), records

    def forward(self, x):
        for _ in range(self.records):
            self.save()
        return self.changes[1](super().forward(self.changes[0](x)))

    def backward(self, dy):
        return self.changes[3](super().backward(self.changes[2](dy)))


class Slot(Formula):
    """Writes the output of every forward of one shape into the same array."""

    slot = np.zeros(0)

    def forward(self, x):
        if self.slot.shape != x.shape:
            self.slot = np.zeros_like(x)
        self.slot[...] = super().forward(x)
        return self.slot


class InTwice(Linear):
    """y = x W W: the second backward must add to the gradient of the first."""

    def forward(self, x):
        return super().forward(super().forward(x))

    def backward(self, dy):
        dy = super().backward(dy)
        self.weight.grad.fill(0)  # `=` where `+=` belongs
        return super().backward(dy)


def added(gradients):
    """y = a + b, whose backward returns gradients(dy, a, b)."""
    return Formula(np.add, gradients)


OF_WEIGHT = Odd(dx=lambda dx: np.broadcast_to(OF_WEIGHT.weight.grad[:, 0], dx.shape))
NUMBER = "backward returns one gradient for each floating-point input"


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        *((added(lambda dy, a, b, dx=dx: dx), [NUMBER]) for dx in (None, X, (X,), (X, X, X))),
        (added(lambda dy, a, b: dy), ["1 array(s), where", "['x', 'others']"]),
        (Odd(dx=lambda dx: [dx]), ["a list, where the floating-point inputs are ['x']"]),
        (Odd(y=lambda y: (y, y)), ["a tuple from Odd.forward"]),
        (added(lambda dy, a, b: (a, a[0])), [f"{X[0].shape} for others {X.shape}"]),
        (Odd(records=1), ["1 saved records left"]),
        (InTwice(D, D, RNG, bias=False), ["adds to the gradients of the first", "weight", "+="]),
        (Odd(x=lambda x: x.__imul__(2)), ["changed values in x"]),
        (Odd(dy=lambda dy: dy.__imul__(2)), ["changed values in dy"]),
        (Slot(np.exp, lambda dy, a: dy * np.exp(a)), ["changed values in what forward returned"]),
        (added(lambda dy, a, b: (dy, dy.copy())), ["memory of dy in the gradient of x"]),
        (added(lambda dy, a, b: (dy.copy(), a)), ["memory of x in the gradient of others"]),
        (added(lambda dy, a, b: (dy.copy(),) * 2), ["the gradient of x in the gradient of others"]),
        (Formula(lambda a: X, lambda dy, a: X), ["memory of what forward returned in the"]),
        (OF_WEIGHT, ["memory of the gradient of a parameter in the gradient of x"]),
        (
            WithAttributes(experts={"a": LINEAR}),
            ["a Linear in experts['a'], which is neither trained"],
        ),
        (WithAttributes(blocks=[[], [PARAMETER]]), ["a Parameter in blocks[1][0], "]),
        (WithAttributes(both={LINEAR}), ["a Linear in both, "]),
        (WithAttributes(grid=np.array([[PARAMETER]])), ["a Parameter in grid[0, 0], "]),
        (WithAttributes(inner=WithAttributes(own={1: LINEAR})), ["a Linear in inner.own[1], "]),
        (
            WithAttributes(gain=ARRAY),
            ["a plain array (2, 3) in gain, which is neither", "self._gain."],
        ),
        (
            WithAttributes(inner=WithAttributes(gain=ARRAY)),
            ["a plain array (2, 3) in inner.gain, "],
        ),
        *((Formula(held, lambda dy, a: dy.copy()), ["a Linear held elsewhere, "]) for held in HELD),
    ],
)
def test_what_breaks_a_rule_is_refused(layer, words, complaint):
    two = isinstance(layer, Formula) and layer.formula is np.add
    text = complaint(check, layer, [X, X.copy()] if two else [X])
    assert all(word in text for word in words), text
    assert Layer.save.__name__ == "save"  # nobody notes any more who saves


def test_inputs_stay_as_they_were_and_ids_and_masks_are_not_differentiated():
    scores, mask = SCORES.astype(np.float32), SCORES > 0
    before = scores.copy()
    assert [row.name for row in check(Softmax(), [scores, mask])] == ["scores"]
    (row,) = check(Embedding(11, D, RNG), [np.eye(3, 2, dtype=int)])
    assert row.name == "weight"
    assert (scores == before).all()


def test_the_upstream_gradient_is_random_and_not_the_input_that_the_same_seed_drew():
    """With dy = 1 a softmax with a backward of zero passes, with dy = x a ReLU gated on dy."""
    x = np.random.default_rng(0).standard_normal((B, T, D))
    upstream = GradientCheck(ReLU(), [x], seed=0).upstream
    assert upstream.shape == x.shape and len(np.unique(upstream)) == upstream.size
    assert abs(upstream - x).min() > 0


def test_the_masks_of_a_check_are_those_of_its_seed():
    layer = Dropout(0.5)
    checked = GradientCheck(layer, [X], seed=7)
    dropout_stream.reseed(7, 0)
    assert_array_equal(checked.output, layer.forward(*checked.inputs))


def test_elementwise_gradients_of_a_small_layer(rng):
    """For y = x W the numerical gradient of W is x^T upstream, entry by entry."""
    checked = GradientCheck(Linear(2, 3, rng), [X[..., :2]])
    explicit, numerical = checked.elementwise("weight")
    expected = X[..., :2].reshape(-1, 2).T @ checked.upstream.reshape(-1, 3)
    np.testing.assert_allclose(explicit, expected, rtol=1e-12)
    np.testing.assert_allclose(numerical, expected, rtol=1e-8, atol=1e-10)
    _, some = checked.elementwise("weight", largest=4)
    assert np.isnan(some.ravel()).tolist() == [False] * 4 + [True] * 2


UNKNOWN = "No known pattern. 12 of 12 entries are wrong. `--elementwise thrice/x`"
OWN = """
import numpy as np
from numformer.layer import Layer, Parameter

class Scale(Layer):
    def __init__(self, times=1, slope=np.cos):
        self.scale, self.shift = Parameter(np.ones(4)), Parameter(np.ones(4))
        self.times, self.slope = times, slope

    def forward(self, x):
        self.save(x=x)
        return np.sin(x) * self.scale.data + self.shift.data

    def backward(self, dy):
        x = self.pop_saved()["x"]
        self.scale.grad += self.times * (dy * np.sin(x)).sum(axis=0)
        self.shift.grad += self.times * dy.sum(axis=0)
        return dy * self.scale.data * self.slope(x)

class NoBackward(Layer):
    forward = lambda self, x: 2 * x

class Nothing(NoBackward):
    backward = lambda self, dy: None

X = np.random.default_rng(0).standard_normal((3, 4))
right = lambda: (Scale(), [X])
wrong = lambda: (Scale(slope=lambda x: 2 * np.cos(x)), [X])
thrice = lambda: (Scale(2, np.cosh), [X])
failing = lambda: (Scale(slope=lambda x: {}["absent"]), [X])
no_layer = lambda: (3, [X])
no_backward = lambda: (NoBackward(), [X])
nothing = lambda: (Nothing(), [np.arange(3)])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The current folder, with layers of a user in own_layers.py."""
    (tmp_path / "own_layers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the current folder
    yield tmp_path
    sys.modules.pop("own_layers", None)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("own_layers:right", 0, ["right/x\n", "right/scale\n", "0 of 3 failed"]),
        ("own_layers:wrong", 1, ["1 of 3 failed", "counted twice"]),
        # A cause is told once, and how to see an unknown one.
        ("own_layers:thrice", 1, ["counted twice", ": the same cause as thrice/scale\n", UNKNOWN]),
        (
            "--only layer_norm",
            0,
            ["layer_norm/gamma", "nearly_equal_values/beta", "0 of 17 failed"],
        ),
        ("--elementwise linear/bias", 0, ["linear/bias"]),
    ],
)
def test_the_command_tells_each_tensor_and_what_failed(arguments, code, words, own, capsys):
    assert gradient_check.main(arguments.split()) == code
    printed = capsys.readouterr().out
    assert all(printed.count(word) == 1 for word in words), printed
    assert ("FAILED" in printed) == (code == 1)


def test_the_command_as_a_user_runs_it(own):
    command = [sys.executable, "-m", "numformer.gradient_check", "own_layers:wrong"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=own, timeout=60)
    assert (done.returncode, done.stderr) == (1, "") and "1 of 3 failed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("own_layers:absent", "AttributeError"),
        ("absent_module:right", "ModuleNotFoundError"),
        ("own_layers", "own_layers without a colon"),
        ("own_layers:no_layer", "(int, list) from own_layers:no_layer"),
        ("own_layers:failing", "own_layers:failing does not run: KeyError: 'absent', in "),
        ("own_layers:no_backward", "NotImplementedError: NoBackward has no backward"),
        ("own_layers:nothing", "nothing to check in nothing"),
        ("own_layers:right --elementwise right/absent", "right has the tensors x, scale, shift"),
        ("own_layers:right --elementwise absent/x", "The cases are: right."),
        ("own_layers:right --only absent", "Nearest: right."),
        ("--only layer_nrom", "Nearest: layer_norm, "),
        ("--elementwise linear/x --only linear", "--only linear as well"),
    ],
)
def test_a_bad_place_or_layer_gives_exit_code_2_and_one_line(arguments, says, own, capsys):
    assert gradient_check.main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert says in printed.err


def test_elementwise_prints_entries_the_worst_first(own, capsys):
    assert gradient_check.main(["own_layers:wrong", "--elementwise", "wrong/x"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["index", "explicit", "numerical", "ratio"]
    entries = [line.replace(", ", ",").split() for line in lines[1:13]]
    assert {index for index, *_ in entries} == {f"({i},{j})" for i in range(3) for j in range(4)}
    differences = [abs(float(explicit) - float(numerical)) for _, explicit, numerical, _ in entries]
    assert differences == sorted(differences, reverse=True)
    assert all(float(ratio) == pytest.approx(2) for *_, ratio in entries)
