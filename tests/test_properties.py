"""Properties of layers for any shapes, head counts, masks and paddings.

hypothesis draws what the other tests fix, always the same examples: sizes and choices. The numbers
come from a drawn seed.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from numformer.data import PADDING
from numformer.gradient_check.cases import CASES
from numformer.gradient_check.cases.case import V
from numformer.gradient_check.gradients import GradientCheck
from numformer.paper.attention import ScaledDotProductAttention
from numformer.paper.cross_entropy import CrossEntropy
from numformer.paper.softmax import Softmax
from tests.gradient_check.test_contract import assert_gradients_agree

many = settings(max_examples=100)
pytestmark = pytest.mark.filterwarnings("error")
seeds = st.integers(0, 2**32 - 1)
batches, heads, lengths, head_sizes = (st.integers(1, most) for most in (4, 4, 6, 5))


@many
@given(
    st.tuples(batches, heads, lengths, lengths, head_sizes, head_sizes),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from([0.6, 0.3, 0.9, 1.0, 0.0]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([1, 100, 1e4]),
    seeds,
)
def test_weights_are_shares_of_what_the_mask_allows(sizes, mask_axes, share, dtype, factor, seed):
    """Outputs lie between the allowed values; rows allow nothing, and masks are broadcast."""
    (*leading, T, S, d_k, d_v), rng = sizes, np.random.default_rng(seed)
    shapes = (T, d_k), (S, d_k), (S, d_v)
    query, key, value = (rng.standard_normal((*leading, *n)).astype(dtype) for n in shapes)
    mask_sizes = zip((*leading, T, S), mask_axes, strict=True)
    mask = rng.random([size if kept else 1 for size, kept in mask_sizes]) < share
    layer = ScaledDotProductAttention()
    output = layer.forward(query * dtype(factor), key, value, mask)
    weights = layer.saved[0]["weights"]
    allowed = np.broadcast_to(mask, weights.shape)
    reached = allowed.any(axis=-1)
    rounding = 10 * np.finfo(dtype).eps
    assert_allclose(weights.sum(axis=-1), reached, rtol=0, atol=rounding)
    assert not weights[~allowed].any() and not output[~reached].any()
    assert ((weights >= 0) & (weights <= 1)).all()
    reach = np.where(allowed[..., None], value[:, :, None], np.nan)[reached]  # (N, S, d_v)
    lowest, highest = np.nanmin(reach, axis=1), np.nanmax(reach, axis=1)
    margin = rounding * abs(value).max()
    assert (output[reached] >= lowest - margin).all()
    assert (output[reached] <= highest + margin).all()


def other_ids(name: str) -> dict:
    """Up to four pairs of up to six ids, drawn by a case's name: no other case changes them."""
    rng = np.random.default_rng([*name.encode()])
    row_lengths = rng.integers(0, 7, (rng.integers(1, 5), 2, 1))
    row_lengths[0] = np.maximum(row_lengths[0], 1)
    places = np.arange(6) < row_lengths
    ids = np.where(places, rng.integers(1, V, places.shape), PADDING)
    source, target = (side[:, side.any(axis=0)] for side in ids.swapaxes(0, 1))
    following = np.where(target, rng.integers(1, V, target.shape), PADDING)
    lengths = np.count_nonzero(target, axis=1)
    some = rng.permutation(len(source) * min(source.shape[1], target.shape[1]))[:5]
    of_target = dict(target_in=target, target_out=following, lengths=lengths)
    return dict(source=source, some_places=some, **of_target)


# A whole model's take long, and what they are made of stands among the others.
SMALL = [name for name in CASES if not CASES[name].composed and not name.startswith("objective")]


@pytest.mark.parametrize("name", SMALL)
def test_gradients_agree_with_numerical_ones_for_any_shape(name):
    check = GradientCheck(*CASES[name](**other_ids(name)))
    assert check.tensors
    assert_gradients_agree(check)


@st.composite
def extreme_scores(draw):
    """rng, and float32 (B, T, V) up to +-1e4: spread, all equal, or one by far the highest."""
    rng = np.random.default_rng(draw(seeds))
    shape = draw(st.tuples(batches, lengths, st.integers(2, 70)))  # max_last changes at 64
    scores = draw(st.sampled_from([1e4, 100, 1, 1e-4, 0])) * rng.uniform(-1, 1, shape)
    scores += draw(st.sampled_from([0, 1e4, -1e4])) * (1 - abs(scores).max() / 1e4)
    if draw(st.booleans()):
        scores[..., rng.integers(shape[-1])] = 1e4
    return rng, scores.astype(np.float32)


def log_softmax(scores):
    """In float64, of float32 scores; minus infinity where they are."""
    shifted = scores.astype(np.float64) - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@many
@given(extreme_scores(), st.sampled_from([1.0, 0.7, 0.1, 0.0]))
def test_softmax_of_extreme_scores_is_right_to_float32(drawn, share):
    """Weights to 1e-6; the gradients of a row sum to 0, for the weights' sum is fixed."""
    rng, scores = drawn
    mask = rng.random(scores.shape) < share
    dweights = rng.standard_normal(scores.shape).astype(np.float32)
    layer = Softmax()
    weights, dscores = layer.forward(scores, mask), layer.backward(dweights)
    reached = mask.any(axis=-1)
    expected = np.zeros(scores.shape)
    expected[reached] = np.exp(log_softmax(np.where(mask, scores, -np.inf)[reached]))
    assert_allclose(weights, expected, rtol=0, atol=1e-6)
    along = (expected * dweights).sum(axis=-1, keepdims=True)
    assert_allclose(dscores, expected * (dweights - along), rtol=0, atol=1e-5)
    assert_allclose(dscores.sum(axis=-1), 0, rtol=0, atol=1e-5)
    assert not weights[~mask].any() and not dscores[~mask].any()


@many
@given(extreme_scores(), st.sampled_from([0.0, 0.1, 0.9]), st.floats(0, 1))
def test_loss_of_extreme_logits_is_right_to_float32(drawn, smoothing, share):
    """The loss to 1e-6 of the logits' spread, for it is a difference of logits."""
    rng, logits = drawn
    vocabulary = logits.shape[-1]
    targets = rng.integers(1, vocabulary, logits.shape[:-1])
    targets[rng.random(targets.shape) > share] = PADDING
    real = targets != PADDING
    layer = CrossEntropy(smoothing)
    loss, dlogits = layer.forward(logits, targets, real), layer.backward(1.0)
    q = (1 - smoothing) * (np.arange(vocabulary) == targets[..., None]) + smoothing / vocabulary
    weight = real[..., None] / max(1, real.sum())
    log_p = log_softmax(logits)
    assert abs(loss - (-q * log_p * weight).sum()) <= 1e-6 * (1 + np.ptp(logits))
    assert_allclose(dlogits, (np.exp(log_p) - q) * weight, rtol=0, atol=1e-6)
    assert_allclose(dlogits.sum(axis=-1), 0, rtol=0, atol=1e-6)
