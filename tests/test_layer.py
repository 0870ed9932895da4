"""Parameter, Layer, pack and the modes."""

import concurrent.futures
import dataclasses
import operator
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.generation import greedy
from numformer.layer import Layer, Parameter, inference, mode, pack, saving, training
from numformer.models import Config, Transformer
from numformer.paper.embedding import Embedding, OutputProjection
from numformer.paper.feed_forward import FeedForward
from numformer.paper.linear import Linear

LAST = "embedding.weight"  # of Tied, written last


class Doubling(Layer):
    def forward(self, x):
        self.save(x=x)
        return 2 * x

    def backward(self, dy):
        return self.pop_saved()["x"]  # not a gradient: it shows which record was popped


class Tied(Layer):
    """Two layers that hold one Parameter, and layers in a list and a tuple, one under two names."""

    def __init__(self, rng):
        self.gains = (Parameter(np.ones(2)), Doubling())
        self.parts = [Linear(2, 3, rng), Linear(3, 2, rng, bias=False)]
        self.again = self.parts[0]
        self.embedding = Embedding(5, 4, rng)
        self.output = OutputProjection(self.embedding.weight)


@pytest.mark.parametrize("name", ["data", "grad"])
def test_assigning_an_array_is_refused_and_arithmetic_in_place_works(name, complaint):
    """`parameter.data = new` would silently leave the vector that the optimizer works on."""
    parameter = Parameter(np.ones((2, 3)))
    before = getattr(parameter, name)
    expected = before + 2
    fix = {"data": "parameter.data[...] = values", "grad": "parameter.grad += values"}
    for array in (np.zeros((2, 3)), before.copy()):
        assert fix[name] in complaint(setattr, parameter, name, array)
    setattr(parameter, name, operator.iadd(before, 2))  # what `parameter.data += 2` does
    assert getattr(parameter, name) is before
    assert_array_equal(before, expected)


def test_a_parameter_copies_its_first_values_and_starts_with_no_gradient():
    values = np.ones((2, 3))
    parameter = Parameter(values)
    values.fill(7)
    assert (parameter.data == 1).all() and parameter.data.dtype == np.float32
    assert not parameter.grad.any() and parameter.grad.dtype == np.float32
    assert parameter.shape == (2, 3) and parameter.size == 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pack_lays_parameters_end_to_end_a_tied_one_once_and_shares_their_memory(dtype, rng):
    layer = Tied(rng)
    before = layer.state_dict()
    next(iter(layer.named_parameters().values())).grad.fill(1)
    flat = pack(layer, dtype)
    assert flat.data.dtype == flat.grad.dtype == dtype
    assert_array_equal(flat.data, np.concatenate([value.ravel() for value in before.values()]))
    assert not flat.grad.any()
    assert layer.output.weight is layer.embedding.weight
    flat.data += 1
    flat.grad[...] = np.arange(flat.grad.size)
    start = 0
    for name, parameter in layer.named_parameters().items():
        assert parameter.data.dtype == parameter.grad.dtype == dtype
        assert_array_equal(parameter.data, before[name].astype(dtype) + 1)
        place = slice(start, start + parameter.size)
        assert_array_equal(parameter.grad.ravel(), flat.grad[place])
        start = place.stop
    assert start == len(flat.data)
    layer.output.weight.grad += 5
    assert_array_equal(flat.grad[-20:], np.arange(start - 20, start) + 5)
    layer.load_state_dict(before)  # which is of float32
    assert_array_equal(flat.data, np.concatenate([value.ravel() for value in before.values()]))
    assert flat.data.dtype == layer.output.weight.data.dtype == dtype
    assert not np.shares_memory(layer.state_dict()[LAST], flat.data)
    assert pack(Doubling(), dtype).data.shape == (0,)


def test_equal_layers_are_two():
    """A dataclass with equal fields is equal, and cannot be hashed: identity decides."""

    @dataclasses.dataclass
    class Scaled(Layer):
        factor: float

    both = Layer()
    both.a, both.b = Scaled(2.0), Scaled(2.0)
    both.a.save(kept=True)
    both.b.save(kept=True)
    assert [*both.named_layers()] == ["", "a", "b"] and both.pending() == 2
    both.clear_saved()
    assert both.pending() == 0


def test_what_is_tied_or_in_a_list_has_the_name_met_first(rng):
    layer = Tied(rng)
    names = "gains.0 parts.0.weight parts.0.bias parts.1.weight embedding.weight".split()
    assert [*layer.named_parameters()] == [*layer.state_dict()] == names
    assert [*layer.named_layers()] == ["", "gains.1", "parts.0", "parts.1", "embedding", "output"]
    assert layer.layers_within() == [*layer.named_layers().values()]
    layer.again.forward(np.ones((1, 2)))
    assert layer.pending() == 1


SPOILT = {
    "none for parts.1.weight": lambda state: state.pop("parts.1.weight"),
    "an unknown mine": lambda state: state.update(mine=np.ones(2)),
    "(2, 3) instead of (3, 2) for parts.1.weight": (
        lambda state: state.update({"parts.1.weight": np.ones((2, 3))})
    ),
}
WRONG = {"list": [[1.0] * 4] * 5, "NoneType": None, "<U1": np.full((5, 4), "1")}
WRONG |= {"int64": np.ones((5, 4), int), "complex128": np.ones((5, 4), complex)}
for kind, array in WRONG.items():
    SPOILT[f"{kind} for {LAST}"] = lambda state, array=array: state.update({LAST: array})


@pytest.mark.parametrize("received", SPOILT)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(received, rng, complaint):
    """Broadcasting a (3, 2) into a (2, 3), or loading half a state, would go unnoticed."""
    layer = Tied(rng)
    before = layer.state_dict()
    state = {name: value + 1 for name, value in before.items()}
    SPOILT[received](state)
    text = complaint(layer.load_state_dict, state)
    assert f"received {received}. Build the model with the Config" in text
    for name, value in layer.state_dict().items():
        assert_array_equal(value, before[name])


def test_a_layer_shows_its_parameters_and_what_is_nested_in_it(rng):
    layer = Layer()
    layer.part, layer.gain, layer.owner = Linear(2, 3, rng), Parameter(np.ones(2)), layer
    assert repr(layer.part) == "Linear(weight (2, 3), bias (3,))"
    inside = f"  part: {layer.part!r}\n  gain (2,)\n  owner: ...\n"
    assert repr(layer) == f"Layer(\n{inside})" and repr(Doubling()) == "Doubling()"


def test_modes_nest_and_return_to_what_they_were():
    """Also after an exception."""
    modes = lambda: (training(), saving())  # noqa: E731
    assert modes() == (True, True)
    with pytest.raises(ZeroDivisionError), mode(training=False):
        assert modes() == (False, True)
        with mode(saving=False):
            assert modes() == (False, False)
            with mode(training=True, saving=True):
                assert modes() == (True, True)
            assert modes() == (False, False)
        assert modes() == (False, True)
        1 / 0  # noqa: B018
    assert modes() == (True, True)
    with inference():
        assert modes() == (False, False)
    assert modes() == (True, True)


def test_threads_that_answer_with_one_model_do_not_disturb_each_other():
    """Nor one that trains meanwhile: modes are those of a thread."""
    model = Transformer(Config.base(9, d_model=8, d_ff=8, heads=2, layers=1), seed=1)
    source = np.array([[4, 5, 6, 2], [7, 2, 0, 0]])
    expected, interval = greedy(model, source, 6), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(greedy, model, source, 6) for _ in range(20)]
            while not all(answer.done() for answer in answers):
                assert training() and saving()
    finally:
        sys.setswitchinterval(interval)
    assert [answer.result() for answer in answers] == [expected] * 20


def test_saved_records_are_a_layer_s_own_and_popped_latest_first():
    layer, other = Doubling(), Doubling()
    for x in "abc":
        layer.forward(x)
    assert layer.pending() == 3 and [record["x"] for record in layer.saved] == ["a", "b", "c"]
    assert not other.saved and other.pending() == 0
    assert [layer.backward(None) for _ in "abc"] == ["c", "b", "a"]
    with pytest.raises(RuntimeError, match="Doubling"):
        layer.backward(None)


def test_pending_counts_sublayers_and_zero_grad_clears_an_interrupted_step(rng):
    """What an exception between forward and backward left must not serve the next step."""
    layer, x = FeedForward(4, 6, rng), rng.standard_normal((2, 3, 4))
    layer.forward(x)
    layer.backward(np.ones_like(x))
    layer.forward(x)
    assert layer.pending() == 3 and not layer.saved  # two products, the activation
    with pytest.warns(UserWarning, match="left 3 records, .* call zero_grad"):
        layer.zero_grad()
    assert layer.pending() == 0
    with pytest.raises(RuntimeError, match="zero_grad discards what it saved"):
        layer.backward(x)
    assert not any(p.grad.any() for p in layer.named_parameters().values())
    layer.forward(x)
    layer.clear_saved()
    assert layer.pending() == 0


@pytest.mark.parametrize("method", ["forward", "backward"])
def test_a_layer_that_lacks_a_method_says_which(method):
    with pytest.raises(NotImplementedError, match=f"Layer has no {method}"):
        getattr(Layer(), method)(1)
