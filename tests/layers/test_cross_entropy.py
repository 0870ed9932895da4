"""Cross-entropy: targets that do not count, extreme logits, errors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.paper.cross_entropy import CrossEntropy

B, T, V = 3, 4, 7
TARGETS = np.array([[3, 0, 2, 0], [1, 5, 5, 2], [4, 6, 0, 0]])
VALID = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 0]], bool)  # 0 is a class like all others


def test_what_counts_does_not_widen_the_loss(rng):
    layer, logits = CrossEntropy(0.1), rng.standard_normal((B, T, V)).astype(np.float32)
    assert layer.forward(logits, TARGETS, VALID).dtype == layer.backward().dtype == np.float32


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [50.0, -np.inf, np.inf, np.nan])
def test_targets_that_do_not_count_have_no_effect(odd, rng):
    """Whatever their logits, ids and number, even if their loss would be infinite."""
    layer, logits = CrossEntropy(0.1), rng.standard_normal((B, T, V))
    loss = layer.forward(logits, TARGETS, VALID)
    gradient = layer.backward()
    assert not gradient[~VALID].any() and gradient[VALID].all()
    changed, targets = logits.copy(), np.where(VALID, TARGETS, 2)
    changed[~VALID] = odd
    wider = [((0, 0), (0, T)), ((0, 0), (0, T), (0, 0))]
    changed, targets = np.pad(changed, wider[1]), np.pad(targets, wider[0])
    found = layer.forward(changed, targets, np.pad(VALID, wider[0]))
    assert found == pytest.approx(loss, rel=1e-14)
    assert_allclose(layer.backward(), np.pad(gradient, wider[1]), rtol=1e-14)


@pytest.mark.filterwarnings("error")
def test_without_targets_that_count_loss_and_gradients_are_0(rng, xp):
    layer, logits = CrossEntropy(0.1), xp.asarray(rng.standard_normal((B, T, V)))
    assert layer.forward(logits, TARGETS, np.zeros((B, T), bool)) == 0
    assert layer.backward().shape == (B, T, V) and not layer.forward(logits[:0], TARGETS[:0])


# Logits near or beyond the range of float32, with the results of torch 2.13's cross_entropy:
# logits, target, smoothing, loss, gradient.
EXTREME = [
    ([1, 2, -np.inf], 1, 0.0, 0.31326165795326233, [0.2689414322, -0.2689414024, 0]),
    ([1, 2, -np.inf], 2, 0.0, np.inf, [0.2689414322, 0.7310585976, -1]),
    ([1, 2, -np.inf], 1, 0.1, np.inf, [0.2356081009, -0.2022747397, -0.0333333351]),
    ([3e38, -3e38, 0], 0, 0.0, 0, [0, 0, 0]),
    ([3e38, -3e38, 0], 1, 0.0, np.inf, [1, -1, 0]),
    ([3e38, -3e38, 0], 0, 0.1, np.inf, [0.0666666627, -0.0333333351, -0.0333333351]),
    ([3e38, 0, 0], 1, 0.0, 3e38, [1, -1, 0]),
    ([3e38, 0, 0], 0, 0.1, np.inf, [0.0666666627, -0.0333333351, -0.0333333351]),
    ([-3e38, -3e38, -3e38], 0, 0.1, 1.0986123085021973, [-0.6, 0.3, 0.3]),
    ([1e38, 0, 2e38], 0, 0.1, 9.999999680285692e37, [-0.9333333373, -0.0333333351, 0.9666666389]),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("logits", "target", "smoothing", "loss", "gradient"), EXTREME)
def test_extreme_logits_give_the_losses_of_torch(logits, target, smoothing, loss, gradient):
    layer = CrossEntropy(smoothing)
    found = layer.forward(np.array([logits], np.float32), np.array([target]))
    assert_allclose(found, loss, rtol=1e-6)
    assert_allclose(layer.backward(), [gradient], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("targets", "valid", "words"),
    [
        (TARGETS[:, 1:], None, "targets (3, 3), logits (3, 4, 7)"),
        (TARGETS + 1, None, "ids from 1 to 7"),
        (TARGETS - 1, None, "ids from -1 to 5"),
        (TARGETS.astype(float), None, "dtype float64"),
        (TARGETS, VALID[:, 1:], "valid (3, 3) of bool"),
        (TARGETS, VALID.astype(int), "valid (3, 4) of int64"),
    ],
)
def test_targets_and_masks_that_do_not_fit_are_refused(targets, valid, words, complaint):
    assert words in complaint(CrossEntropy().forward, np.zeros((B, T, V)), targets, valid)


def test_a_smoothing_that_is_no_probability_below_1_is_refused(complaint):
    for smoothing in (-0.1, 1):
        assert str(smoothing) in complaint(CrossEntropy, smoothing)
    assert CrossEntropy(0).smoothing == 0


def test_rows_are_computed_a_few_at_a_time(rng):
    """With 40,000 symbols three rows fit into the cache together."""
    logits, targets = rng.standard_normal((7, 40_000)), rng.integers(40_000, size=7)
    valid, layer = np.array([1, 1, 0, 1, 1, 1, 1], bool), CrossEntropy(0.1)
    loss = layer.forward(logits, targets, valid)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    q = np.full(p.shape, 0.1 / 40_000)
    q[np.arange(7), targets] += 0.9
    assert loss == pytest.approx(-(q * np.log(p))[valid].sum() / 6, rel=1e-12)
    assert_allclose(layer.backward(), (p - q) * valid[:, None] / 6, rtol=1e-9, atol=1e-15)
