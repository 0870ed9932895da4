"""The warm-up schedule, Adam and clipping against plain Python numbers."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.layer import FlatParameters, pack
from numformer.layers.linear import Linear
from numformer.training import optimizers as optim
from numformer.training.optimizers import Adam, Optimizer, clip_global_norm
from numformer.training.recipe import Recipe, cosine_rate, linear_rate, warmup_rate

PIECE = 1 << 15


# The warm-up schedule.


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 1.746928e-7),  # 512^-0.5 * 4000^-1.5
        (100, 1.746928e-5),
        (4000, 6.987712e-4),  # the peak: (512 * 4000)^-0.5
        (16000, 3.493856e-4),  # four times the steps, half the rate
        (100000, 1.397542e-4),
    ],
)
def test_rates_of_the_base_model(step, rate):
    """The values of equation 3 with d_model 512 and a warm-up of 4000 steps."""
    assert warmup_rate(step, 512) == pytest.approx(rate, rel=1e-6)


def test_the_rate_rises_in_a_line_to_its_peak_at_the_end_of_the_warm_up():
    rates = [warmup_rate(step, 64, warmup=50, factor=2.0) for step in range(1, 201)]
    assert rates.index(max(rates)) == 49
    assert max(rates) == pytest.approx(2 / math.sqrt(64 * 50))
    assert_allclose(np.diff(rates[:50]), rates[0], rtol=1e-10)
    assert rates[199] == pytest.approx(max(rates) / 2)
    assert rates[7] == pytest.approx(2 * warmup_rate(8, 64, warmup=50))


def test_linear_decay_shares_the_rise_and_reaches_0_after_the_last_step():
    rates = [linear_rate(step, 150, 64, warmup=50, factor=2.0) for step in range(1, 152)]
    rising = [warmup_rate(step, 64, warmup=50, factor=2.0) for step in range(1, 51)]
    assert_allclose(rates[:50], rising, rtol=1e-12)
    assert_allclose(np.diff(rates[49:]), -rising[-1] / 101, rtol=1e-10)
    assert rates[150] == 0 < rates[149]


def test_cosine_decay_is_half_a_cosine_from_the_peak_to_0():
    rates = [cosine_rate(step, 150, 64, warmup=50, factor=2.0) for step in range(1, 152)]
    linear = [linear_rate(step, 150, 64, warmup=50, factor=2.0) for step in range(1, 152)]
    assert_allclose(rates[:50], linear[:50], rtol=1e-12)
    half_way = (rates[99] + rates[100]) / 2
    assert half_way == pytest.approx(rates[49] / 2)
    assert_allclose(rates[50:101], [rates[49] - rate for rate in rates[149:98:-1]], atol=1e-12)
    assert all(a > b for a, b in zip(rates[50:75], linear[50:75], strict=True))
    assert rates[150] == pytest.approx(0, abs=1e-15) and rates[149] > 0


@pytest.mark.parametrize("decay", [linear_rate, cosine_rate])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_run_no_longer_than_the_warm_up_only_rises(steps, decay):
    for step in range(1, steps + 1):
        assert decay(step, steps, 64, warmup=4) == pytest.approx(warmup_rate(step, 64, 4))
        assert decay(step, steps, 64) == pytest.approx(warmup_rate(step, 64, 4000))  # the paper's


@pytest.mark.parametrize("decay", [linear_rate, cosine_rate])
@pytest.mark.parametrize("step", [1002, 2000])
def test_beyond_the_end_the_rate_stays_0(step, decay):
    """In a straight line it would fall below, along the cosine rise again."""
    assert decay(step, 1000, 64) == decay(step, 1000, 64, warmup=5) == 0


def test_the_decay_of_the_recipe_chooses_the_schedule():
    changes = dict(warmup=50, factor=2.0)
    for step in (3, 50, 120):
        paper, linear = Recipe(**changes), Recipe(**changes, decay="linear")
        cosine = Recipe(**changes, decay="cosine").rate(step, 150, 64)
        assert cosine == cosine_rate(step, 150, 64, 50, 2.0)
        assert paper.rate(step, 150, 64) == warmup_rate(step, 64, 50, 2.0)
        assert linear.rate(step, 150, 64) == linear_rate(step, 150, 64, 50, 2.0)


def test_a_recipe_hands_its_optimizer_the_settings_that_it_takes(rng):
    made = Recipe(beta1=0.5, beta2=0.7, adam_epsilon=0.3).optimizer_of(pack(Linear(3, 2, rng)))
    assert made.rule is optim.adam
    assert made.settings == dict(beta1=0.5, beta2=0.7, epsilon=0.3)
    for decay in ({"weight_decay": 0.2}, {}):
        made = Recipe(optimizer="adamw", **decay).optimizer_of(pack(Linear(3, 2, rng)))
        assert made.rule is optim.adamw
        usual = dict(beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.01)
        assert made.settings == usual | decay


def test_another_optimizer_is_one_function(rng):
    """Its vectors are the arguments after data and grad, its settings the keywords."""

    def momentum(data, grad, velocity, *, step, rate, decay=0.5):
        velocity *= decay
        velocity += grad
        data -= rate * velocity

    flat = pack(Linear(3, 2, rng), np.float64)
    start, flat.grad[...] = flat.data.copy(), 1.0
    optimizer = Optimizer(flat, momentum, decay=0.25)
    optimizer.step(0.1)
    optimizer.step(0.2)
    assert_allclose(flat.data, start - 0.1 * 1 - 0.2 * 1.25)
    assert [*optimizer.state] == ["velocity"] and (optimizer.state["velocity"] == 1.25).all()


# Adam.


def adam_by_loops(values, gradients, rates, beta1, beta2, epsilon):
    """Algorithm 1 of Kingma and Ba, one element at a time."""
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
def test_adam_is_its_algorithm_element_by_element(settings, rng):
    """The large epsilon shows whether it stands outside the root, and after the correction."""
    data = rng.standard_normal(20)
    gradients = rng.standard_normal((6, 20)) * 10.0 ** rng.integers(-3, 3, 20)
    rates = [0.1 / step for step in range(1, 7)]
    expected, mean, square = adam_by_loops(data, gradients, rates, *settings)
    flat = FlatParameters(data.copy(), np.zeros(20))
    adam = Adam(flat, *settings)
    for gradient, rate in zip(gradients, rates, strict=True):
        flat.grad[...] = gradient
        adam.step(rate)
        assert_array_equal(flat.grad, gradient)  # the gradient may still be logged
    assert adam.steps == 6
    assert_allclose(flat.data, expected, rtol=1e-12)
    assert_allclose(adam.state["mean"], mean, rtol=1e-12)
    assert_allclose(adam.state["square"], square, rtol=1e-12)


def test_weight_decay_is_apart_from_the_gradient(rng):
    """Beside Adam on the same gradients each step takes the same share off every weight."""
    settings = dict(beta1=0.9, beta2=0.98, epsilon=1e-9)
    plain, decayed = np.ones((2, 5)), np.ones((2, 5))
    states = np.zeros((4, 5))
    for step, rate in enumerate((0.1, 0.2), 1):
        grad, before = rng.standard_normal(5), (plain[0].copy(), decayed[0].copy())
        optim.adam(plain[0], grad, *states[:2], step=step, rate=rate, **settings)
        how = dict(step=step, rate=rate, weight_decay=0.5, **settings)
        optim.adamw(decayed[0], grad, *states[2:], **how)
        moved = plain[0] - before[0]
        assert_allclose(decayed[0], before[1] * (1 - 0.5 * rate) + moved, rtol=1e-12)


def test_adam_has_the_paper_s_defaults(rng):
    flat = pack(Linear(3, 2, rng))
    assert Adam(flat).settings == dict(beta1=0.9, beta2=0.98, epsilon=1e-9)


def test_the_first_step_has_the_size_of_the_rate(rng):
    """Without the bias corrections it is about 0.7 of it."""
    flat = pack(Linear(3, 2, rng), np.float64)
    before = flat.data.copy()
    flat.grad[...] = rng.standard_normal(flat.grad.shape)
    Adam(flat).step(0.01)
    assert_allclose(flat.data, before - 0.01 * np.sign(flat.grad), rtol=1e-6)


def test_an_optimizer_moves_through_memory_in_pieces_that_fit_the_cache(rng):
    sizes = []

    def watched(data, grad, *, step, rate):
        sizes.append(data.shape)

    Optimizer(pack(Linear(200, 200, rng)), watched).step(0.1)
    assert sizes == [(PIECE,), (200 * 201 - PIECE,)]


def test_adam_refuses_a_model_that_was_packed_again(rng):
    """Its vectors are no longer the model's: steps would change nothing, silently."""
    layer = Linear(3, 2, rng)
    optimizer = Adam(pack(layer))
    optimizer.step(0.1)
    pack(layer)
    with pytest.raises(RuntimeError, match="packed again"):
        optimizer.step(0.1)


def test_adam_on_a_vector_of_several_pieces_takes_one_step(rng):
    """A step counted once a piece (or once a tensor) corrects, and warms up, too fast."""
    size = 2 * PIECE + 7
    flat = FlatParameters(rng.standard_normal(size), rng.standard_normal(size))
    edges = [0, PIECE - 1, PIECE, 2 * PIECE - 1, 2 * PIECE, size - 1]
    gradient = flat.grad[edges].copy()
    expected, _, _ = adam_by_loops(flat.data[edges], [gradient] * 2, [0.1, 0.1], 0.9, 0.98, 1e-9)
    adam = Adam(flat)
    adam.step(0.1)
    adam.step(0.1)
    assert adam.steps == 2
    assert_allclose(flat.data[edges], expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adam_and_clipping_keep_the_dtype(dtype, rng):
    flat = pack(Linear(3, 2, rng), dtype)
    flat.grad[...] = rng.standard_normal(flat.grad.shape)
    data, norm = flat.data, clip_global_norm(flat.grad, 0.5)
    adam = Adam(flat)
    adam.step(0.1)
    assert flat.data is data
    assert {x.dtype for x in (data, flat.grad, *adam.state.values(), norm)} == {np.dtype(dtype)}


# Clipping.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("max_norm", [5.0, 5.001, 1e9, None])
def test_a_gradient_within_the_norm_keeps_its_bits(dtype, max_norm):
    grad = np.array([3.0, 0.0, -4.0, 1e-30], dtype)
    before = grad.tobytes()
    assert clip_global_norm(grad, max_norm) == 5
    assert grad.tobytes() == before


@pytest.mark.parametrize("max_norm", [4.99, 1.0, 1e-3])
def test_a_longer_gradient_is_scaled_to_the_norm(max_norm, rng):
    """One factor for the whole vector: the direction stays; the norm before is returned."""
    grad = rng.standard_normal(1000)
    before = grad.copy()
    norm = clip_global_norm(grad, max_norm)
    assert norm == pytest.approx(math.sqrt(sum(g * g for g in before)))
    assert math.sqrt(sum(g * g for g in grad)) == pytest.approx(max_norm)
    assert_allclose(grad, before * (max_norm / norm), rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_a_gradient_of_zeros_stays():
    grad = np.zeros(4)
    assert clip_global_norm(grad, 1.0) == 0
    assert not grad.any()
