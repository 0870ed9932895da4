"""The smoothed cross-entropy against its definition, symbol by symbol."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.layers.cross_entropy import CrossEntropy

B, T, V = 3, 4, 7
TARGETS = np.array([[3, 6, 2, 0], [1, 5, 5, 2], [4, 0, 0, 0]])


def loss_by_loops(logits, targets, smoothing: float):
    """Section 5.4 and Szegedy et al.: q is 1 - eps on the target plus eps / V on EVERY symbol.

    -> mean loss of the real targets, its gradient with respect to the logits.
    """
    losses, gradient = [], np.zeros_like(logits)
    real = [place for place in np.ndindex(targets.shape) if targets[place] != 0]
    for place in real:
        total = sum(math.exp(logit) for logit in logits[place])
        loss = 0.0
        for v in range(V):
            p = math.exp(logits[place][v]) / total
            q = smoothing / V + (1 - smoothing if v == targets[place] else 0)
            loss -= q * math.log(p)
            gradient[place][v] = (p - q) / len(real)
        losses.append(loss)
    return sum(losses) / len(losses), gradient


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_and_gradient_are_the_definition(smoothing, rng):
    """eps / (V - 1) on the others, no share for padding's symbol, or a mean over all differ."""
    logits = 2 * rng.standard_normal((B, T, V))
    layer = CrossEntropy(smoothing)
    loss, gradient = loss_by_loops(logits, TARGETS, smoothing)
    assert_allclose(layer.forward(logits, TARGETS), loss, rtol=1e-13)
    assert_allclose(layer.backward(), gradient, rtol=1e-10, atol=1e-15)


def test_the_paper_s_smoothing_is_the_default():
    assert CrossEntropy().smoothing == 0.1


def test_equal_logits_cost_the_logarithm_of_the_vocabulary():
    for smoothing in (0.0, 0.1):
        loss = CrossEntropy(smoothing).forward(np.zeros((B, T, V)), TARGETS)
        assert loss == pytest.approx(math.log(V))


def test_smoothing_has_its_minimum_at_the_entropy_of_its_targets():
    """Where p = q the gradient is 0 and the loss is not."""
    smoothing = 0.1
    q = np.full((1, 1, V), smoothing / V)
    q[0, 0, 4] += 1 - smoothing
    layer = CrossEntropy(smoothing)
    loss = layer.forward(np.log(q), np.array([[4]]))
    assert loss == pytest.approx(-(q * np.log(q)).sum())
    assert_allclose(layer.backward(), 0, atol=1e-16)


def test_logits_at_padding_do_not_matter(rng):
    layer, logits = CrossEntropy(0.1), rng.standard_normal((B, T, V))
    changed = logits.copy()
    changed[TARGETS == 0] += 50 * rng.standard_normal(V)
    loss = layer.forward(logits, TARGETS)
    assert layer.forward(changed, TARGETS) == loss
    gradient = layer.backward()
    assert not gradient[TARGETS == 0].any() and gradient[TARGETS != 0].all()


def test_more_padding_leaves_the_mean_over_real_targets(rng):
    """A mean over all positions would shrink with the batch's padding."""
    logits, wider = rng.standard_normal((2, B, T, V))
    loss = CrossEntropy(0.1).forward(logits, TARGETS)
    logits = np.concatenate([logits, wider], axis=1)
    targets = np.pad(TARGETS, ((0, 0), (0, T)))
    assert CrossEntropy(0.1).forward(logits, targets) == pytest.approx(loss, rel=1e-13)


@pytest.mark.filterwarnings("error")
def test_a_batch_of_nothing_but_padding_has_loss_and_gradients_0(rng):
    layer = CrossEntropy(0.1)
    assert layer.forward(rng.standard_normal((B, T, V)), np.zeros((B, T), int)) == 0
    assert not layer.backward().any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_logits_stay_finite(dtype):
    """A loss of 2e4 exactly: log(exp(-2e4)) instead of -2e4 would be minus infinity."""
    layer = CrossEntropy(0.0)
    logits = np.full((1, 2, V), -1e4, dtype)
    logits[0, :, 3] = 1e4
    targets = np.array([[3, 5]])
    assert layer.forward(logits, targets) == 1e4  # 0 and 2e4
    expected = np.zeros((1, 2, V))
    expected[0, 1, 3], expected[0, 1, 5] = 0.5, -0.5
    assert_array_equal(layer.backward(), expected)
    smoothed = CrossEntropy(0.1)
    assert smoothed.forward(logits[:, :1], targets[:, :1]) == pytest.approx(0.1 * 2e4 * (V - 1) / V)


def test_the_upstream_gradient_multiplies(rng):
    layer, logits = CrossEntropy(0.1), rng.standard_normal((B, T, V))
    gradients = []
    for arguments in ((), (1.0,), (-3.5,), (np.asarray(-3.5),)):
        layer.forward(logits, TARGETS)
        gradients.append(layer.backward(*arguments))
    assert_array_equal(gradients[0], gradients[1])
    assert_allclose(gradients[2], -3.5 * gradients[0], rtol=1e-13)
    assert_array_equal(gradients[2], gradients[3])


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (TARGETS[:, 1:], "targets (3, 3), logits (3, 4, 7)"),
        (TARGETS + 1, "ids from 1 to 7"),
        (TARGETS - 1, "ids from -1 to 5"),
        (TARGETS.astype(float), "dtype float64"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets, words, complaint):
    assert words in complaint(CrossEntropy().forward, np.zeros((B, T, V)), targets)


@pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5])
def test_a_smoothing_that_is_no_probability_below_1_is_refused(smoothing, complaint):
    assert str(smoothing) in complaint(CrossEntropy, smoothing)
    assert CrossEntropy(0.999).smoothing == 0.999 and CrossEntropy(0).smoothing == 0
