"""Learning rates, Adam and clipping against plain Python numbers."""

import itertools
import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import to_host
from numformer.gradient_check.cases import CASES
from numformer.layer import FlatParameters, Layer, pack
from numformer.optimization import clipping
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.optimizers import (
    OPTIMIZERS,
    Adam,
    Parameterwise,
    ineffective_settings,
    optimizer_for,
    orthogonal,
    stretches,
)
from numformer.optimization.recipe import Recipe, cosine_rate, linear_rate, warmup_rate
from numformer.paper.adam import Optimizer, adam, elementwise
from numformer.paper.linear import Linear

PIECE = 1 << 15
MODELS = "transformer_pre_norm_untied language_model vision recurrent_lstm_attention".split()
MODELS += ["transformer_learned_positions", "transformer_relative", "language_model_state_space"]


def rates(decay, count: int = 152, **how) -> list[float]:
    """Those of a run of 150 steps, and of the one after it."""
    return [decay(step, d_model=64, warmup=50, factor=2.0, **how) for step in range(1, count)]


def test_the_rate_rises_in_a_line_to_its_peak_and_falls_with_the_root_of_the_step():
    """Equation 3, at first of the base model: the peak is (512 * 4000)^-0.5."""
    base = {1: 1.746928e-7, 100: 1.746928e-5, 4000: 6.987712e-4, 16000: 3.493856e-4}
    assert {step: warmup_rate(step, 512) for step in base} == pytest.approx(base, rel=1e-6)
    found = rates(warmup_rate, 201)
    assert found.index(max(found)) == 49
    assert max(found) == pytest.approx(2 / math.sqrt(64 * 50))
    assert_allclose(np.diff(found[:50]), found[0], rtol=1e-10)
    assert found[199] == pytest.approx(max(found) / 2)


def test_the_other_decays_share_the_rise_and_reach_0_after_the_last_step():
    """One in a line, the other along half a cosine, which stays near its peak for longer."""
    linear, cosine = rates(linear_rate, steps=150), rates(cosine_rate, steps=150)
    rising = rates(warmup_rate, 51)
    for found in (linear, cosine):
        assert_allclose(found[:50], rising, rtol=1e-12)
        assert found[149] > 0 == found[150]
    assert_allclose(np.diff(linear[49:]), -rising[-1] / 101, rtol=1e-10)
    falling = [rising[-1] * (1 + math.cos(math.pi * share / 101)) / 2 for share in range(101)]
    assert_allclose(cosine[49:150], falling, rtol=1e-10)


@pytest.mark.parametrize("decay", [linear_rate, cosine_rate])
def test_a_run_no_longer_than_the_warm_up_only_rises_and_none_goes_on_beyond_its_end(decay):
    for steps in (1, 2, 3, 4):
        for step in range(1, steps + 1):
            assert decay(step, steps, 64, warmup=4) == pytest.approx(warmup_rate(step, 64, 4))
            assert decay(step, steps, 64) == pytest.approx(warmup_rate(step, 64, 4000))
    for step in (1001, 1002, 2000):
        assert decay(step, 1000, 64) == decay(step, 1000, 64, warmup=5) == 0


def test_another_optimizer_is_one_function(rng):
    """Its vectors are the arguments after data and grad, its settings the keywords."""

    def momentum(data, grad, velocity, *, step, rate, decay=0.5):
        velocity *= decay
        velocity += grad
        data -= rate * velocity

    flat = pack(Linear(3, 2, rng), np.float64)
    start, flat.grad[...] = flat.data.copy(), 1.0
    optimizer = Parameterwise(flat, momentum, decay=0.25)
    optimizer.step(0.1)
    optimizer.step(0.2)
    assert_allclose(flat.data, start - 0.1 * 1 - 0.2 * 1.25)
    assert [*optimizer.state] == ["velocity"] and (optimizer.state["velocity"] == 1.25).all()


def normalized(data, grad, *, step, rate):
    """A step of the length `rate` for every parameter, whatever the size of its gradient."""
    data -= rate * grad / np.sqrt((grad * grad).sum())


def test_a_rule_that_is_not_elementwise_gets_whole_parameters_in_their_shapes(rng):
    """In pieces a step of the length 1 became one of the length 2, and nobody complained."""
    layer = Linear(200, 2 * PIECE // 200 + 1, rng)
    flat = pack(layer, np.float64)
    before, flat.grad[...] = layer.state_dict(), rng.standard_normal(len(flat.grad))
    optimizer_for(flat, normalized).step(1.0)
    for name, array in layer.state_dict().items():
        assert np.linalg.norm(array - before[name]) == pytest.approx(1, rel=1e-12)
    seen = []

    def looks(data, grad, mean, *, step, rate, hidden):
        assert data.base is not None and data.shape == grad.shape == mean.shape
        seen.append((data.shape, hidden))

    optimizer_for(flat, looks).step(1.0)
    assert seen == [(layer.weight.shape, True), (layer.bias.shape, False)]
    flat = pack(Linear(3, 2, rng, bias=False))
    flat.grad[...] = 2
    optimizer_for(flat, normalized).step(1.0)


def test_blocks_divide_a_vector(monkeypatch):
    """One that has no entry is a block, too."""
    monkeypatch.setattr(clipping, "BLOCK", 3)
    for size, stops in ((0, [0]), (1, [1]), (3, [3]), (7, [3, 6, 7])):
        starts = [0, *stops[:-1]]
        assert clipping.blocks_of(size) == [*map(slice, starts, stops)]


def test_processes_share_whole_parameters_out_by_their_size(rng):
    """Each is updated once, by one of them, and no share is larger by more than a parameter."""
    both = Layer()
    both.layers = [Linear(*rng.integers(1, 30, 2), rng) for _ in range(20)]
    flat = pack(both, np.float64)
    optimizer = optimizer_for(flat, normalized)
    size, largest = len(flat.data), max(p.size for p in flat.parameters)
    for count in (1, 2, 3, 7):
        cuts = [size * place // count for place in range(count + 1)]
        assert stretches(Adam(flat), cuts) == [slice(*cut) for cut in itertools.pairwise(cuts)]
        shares = stretches(optimizer, cuts)
        places = np.concatenate([np.arange(size)[share] for share in shares])
        assert_array_equal(places, np.arange(size))
        assert max(share.stop - share.start for share in shares) <= size / count + largest
        flat.grad[...] = 1.0
        before = flat.data.copy()
        for share in shares:
            optimizer.update(flat.grad, 1, 1.0, share)
        moved = flat.views(before - flat.data)
        assert_allclose([np.linalg.norm(array) for array in moved], 1, rtol=1e-12)


def test_what_cannot_work_is_refused(rng, complaint):
    flat = pack(Linear(3, 2, rng))
    assert "is declared elementwise; received normalized" in complaint(Optimizer, flat, normalized)
    assert "received Linear. Write" in complaint(Optimizer, Linear(3, 2, rng), adam)
    alone = FlatParameters(np.zeros(4), np.zeros(4))
    assert "vectors without their parameters" in complaint(Parameterwise, alone, normalized)
    cutting = complaint(Parameterwise(flat, normalized).update, flat.grad, 1, 0.1, slice(0, 4))
    assert "from 0 to 4, which splits a parameter" in cutting

    def momentum(data, grad, mean, *, step, rate, own):
        pass

    def lacks_a_rate(data, grad, *, step):
        pass

    def of_data(data, *, step, rate):
        pass

    for rule in (momentum, lacks_a_rate, of_data):
        assert f"received {rule.__name__}: " in complaint(optimizer_for, flat, rule)
    how = dict(beta1=0.1, beta2=0.1, epsilon=0.1, beta3=0.1)
    assert "unexpected keyword argument 'beta3'" in complaint(optimizer_for, flat, adam, **how)


def test_a_setting_of_an_optimizer_that_is_not_chosen_is_refused(complaint, monkeypatch):
    message = complaint(Recipe, weight_decay=0.1)
    assert (
        "setting of the optimizer adamw" in message
        and "received weight_decay 0.1 with the optimizer adam." in message
    )
    assert Recipe(weight_decay=0.01) == Recipe()
    assert "received rate 0.1 and factor 2.0" in complaint(Recipe, rate=0.1, factor=2.0)
    assert Recipe(rate=0.1, warmup=7).learning_rate(7, 20, 512) == pytest.approx(0.1)
    assert Recipe(optimizer="adamw", weight_decay=0.1).weight_decay == 0.1
    monkeypatch.setitem(OPTIMIZERS, "normalized", normalized)
    for name, value in dict(beta1=0.5, beta2=0.5, adam_epsilon=1e-3).items():
        assert f"received {name} " in complaint(Recipe, optimizer="normalized", **{name: value})
    others = dict(optimizer="normalized", beta1=0.5, weight_decay=0.3, factor=3.0)
    assert ineffective_settings(others) == dict(beta1=0.9, weight_decay=0.01)
    assert ineffective_settings(dict(optimizer="adamw", beta1=0.5, weight_decay=0.3)) == {}


def test_a_recipe_gives_its_rule_what_it_asks_for(monkeypatch, rng):
    given = []

    @elementwise
    def mine(data, grad, slow, *, step, rate, epsilon, beta2, own=3):
        given.append((step, rate, epsilon, beta2, own))

    flat = pack(Linear(3, 2, rng))
    monkeypatch.setitem(OPTIMIZERS, "mine", mine)
    optimizer = Recipe(optimizer="mine", adam_epsilon=0.5, beta2=0.25).make_optimizer(flat)
    optimizer.step(0.1)
    assert given == [(1, 0.1, 0.5, 0.25, 3)] and [*optimizer.state] == ["slow"]
    assert type(optimizer) is Optimizer
    monkeypatch.setitem(OPTIMIZERS, "mine", normalized)
    assert type(Recipe(optimizer="mine").make_optimizer(flat)) is Parameterwise


def adam_by_loops(values, gradients, rates, beta1, beta2, epsilon):
    values, mean, square = list(values), [0.0] * len(values), [0.0] * len(values)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        for i, g in enumerate(gradient):
            mean[i] = beta1 * mean[i] + (1 - beta1) * g
            square[i] = beta2 * square[i] + (1 - beta2) * g * g
            corrected_mean = mean[i] / (1 - beta1**t)
            corrected_square = square[i] / (1 - beta2**t)
            values[i] -= rate * corrected_mean / (math.sqrt(corrected_square) + epsilon)
    return values, mean, square


@pytest.mark.parametrize("settings", [(0.9, 0.98, 1e-9), (0.5, 0.7, 0.3)])
def test_adam_is_its_algorithm_in_pieces_that_fit_the_cache(settings, rng):
    """A step counted once a piece (or once a tensor) corrects, and warms up, too fast.

    The large epsilon shows whether it stands outside the root, and after the correction.
    """
    size, lengths = 2 * PIECE + 7, []
    flat, gradients = FlatParameters(*rng.standard_normal((2, size))), []
    edges = [0, PIECE - 1, PIECE, 2 * PIECE - 1, 2 * PIECE, size - 1]
    start, adam = flat.data[edges], Adam(flat, *settings)
    for rate in (0.1, 0.05):
        flat.grad[...] = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 3, size)
        gradients.append(flat.grad[edges])
        adam.step(rate)
        assert_array_equal(flat.grad[edges], gradients[-1])  # the gradient may still be logged
    assert adam.steps == 2
    vectors = flat.data, adam.state["mean"], adam.state["square"]
    expected = adam_by_loops(start, gradients, [0.1, 0.05], *settings)
    assert_allclose([vector[edges] for vector in vectors], expected, rtol=1e-12)
    rule = elementwise(lambda data, grad, *, step, rate: lengths.append(len(data)))
    Optimizer(flat, rule).step(0.1)
    assert lengths == [PIECE, PIECE, 7]


def test_adam_refuses_a_model_that_was_packed_again(rng):
    """Its vectors are no longer the model's: steps would change nothing, silently."""
    layer = Linear(3, 2, rng)
    optimizer = Adam(pack(layer))
    optimizer.step(0.1)
    pack(layer)
    with pytest.raises(RuntimeError, match="packed again"):
        optimizer.step(0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adam_and_clipping_keep_the_dtype(dtype, rng):
    flat = pack(Linear(3, 2, rng), dtype)
    flat.grad[...] = rng.standard_normal(flat.grad.shape)
    data, norm, adam = flat.data, clip_global_norm(flat.grad, 0.5), Adam(flat)
    adam.step(0.1)
    assert flat.data is data
    assert {x.dtype for x in (data, flat.grad, *adam.state.values(), norm)} == {np.dtype(dtype)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("max_norm", [5.0, 5.001, None])
def test_a_gradient_within_the_norm_keeps_its_bits(dtype, max_norm):
    grad = np.array([3.0, 0.0, -4.0, 1e-30], dtype)
    before = grad.tobytes()
    assert clip_global_norm(grad, max_norm) == 5
    assert grad.tobytes() == before


@pytest.mark.filterwarnings("error")
def test_a_longer_gradient_is_scaled_to_the_norm(rng):
    """One factor for the whole vector: the direction stays; the norm before is returned."""
    grad = rng.standard_normal(1000)
    before = grad.copy()
    norm = clip_global_norm(grad, 4.99)
    assert norm == pytest.approx(math.sqrt(sum(before**2)))
    assert_allclose(grad, before * (4.99 / norm), rtol=1e-12)
    assert clip_global_norm(zeros := np.zeros(4), 1.0) == 0 and not zeros.any()


def test_lion_follows_the_sign_of_what_it_looks_ahead_to(rng):
    """And keeps another mean: with one decay for both, the second step would go elsewhere."""
    flat = pack(Linear(30, 20, rng), np.float64)
    first, second = rng.standard_normal((2, len(flat.data)))
    start, how = flat.data.copy(), dict(optimizer="lion", beta1=0.6, beta2=0.9, weight_decay=0.5)
    lion = Recipe(**how).make_optimizer(flat)
    for grad in (first, second):
        flat.grad[...] = grad
        lion.step(0.1)
    expected = 0.95 * start - 0.1 * np.sign(first)
    expected = 0.95 * expected - 0.1 * np.sign(0.6 * 0.1 * first + 0.4 * second)
    assert_allclose(flat.data, expected, rtol=1e-12)
    assert_allclose(lion.state["mean"], 0.9 * 0.1 * first + 0.1 * second, rtol=1e-12)


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (9, 9), (5, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_orthogonal_keeps_singular_vectors_and_brings_their_values_near_1(shape, dtype, rng, xp):
    """Whatever the size of the matrix, and of 0 it makes 0."""
    for size in (1e-4, 1.0, 1e4):
        x = (size * rng.standard_normal(shape)).astype(dtype)
        found = to_host(orthogonal(xp.asarray(x)))
        assert found.dtype == dtype
        u, values, v = np.linalg.svd(x.astype(float), full_matrices=False)
        inside = u.T @ found @ v.T
        values /= np.linalg.norm(values)
        for _ in range(5):
            values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
        assert_allclose(inside, np.diag(values), atol=1e-3 if dtype is np.float32 else 1e-11)
        assert 0.68 < values.min() and values.max() < 1.21
        assert_allclose(found, u @ inside @ v, atol=1e-3)
    assert not to_host(orthogonal(xp.zeros(shape, dtype))).any()


@pytest.mark.parametrize("kind", MODELS)
def test_muon_turns_hidden_matrices_alone(kind, rng):
    """Embeddings, tables, outputs and vectors move as with AdamW, all by one rate."""
    model, _ = CASES[kind]()
    flat = pack(model, np.float64)
    flat.data += 0.1 * rng.standard_normal(len(flat.data))
    flat.grad[...], start = rng.standard_normal(len(flat.grad)), flat.data.copy()
    names = [*model.named_parameters()]
    moved = {}
    for optimizer in ("adamw", "muon"):
        flat.data[...] = start
        Recipe(optimizer=optimizer).make_optimizer(flat).step(0.1)
        moved[optimizer] = dict(zip(names, flat.views(start - flat.data), strict=True))
    turned = {name for name in names if (moved["muon"][name] != moved["adamw"][name]).any()}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters().items()}
    apart = r"embedding|positions|^output|table|convolution|source.weight|target.weight"
    apart = re.compile(apart + r"|^bridge|^readout|query_weight|cross_attention.v$")
    assert turned == {n for n in names if len(shapes[n]) == 2 and not apart.search(n)}
    sizes = [np.sqrt(np.mean(moved["muon"][name] ** 2)) for name in turned]
    assert_allclose(sizes, 0.1 * 0.2, rtol=0.4)
