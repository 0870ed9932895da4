"""Layers beyond their gradients: initial weights, extreme numbers, tables, errors."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numformer as nf
from numformer.half_precision import half_products
from numformer.later import ClassToken, NoPositions, RichInputEmbedding
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.heads import BiasedHeads
from numformer.later.experts import route
from numformer.later.mixers.convolution import Convolution
from numformer.later.positions import sinusoidal_fairseq_table
from numformer.paper.attention import Heads, head_size
from numformer.paper.linear import linear_backward
from numformer.paper.positions import sinusoidal_table
from numformer.paper.softmax import softmax
from numformer.randomness import splitmix64
from numformer.recurrence import CELLS

B, D = 2, 8
warnings_are_errors = pytest.mark.filterwarnings("error")


def test_linear_without_bias_returns_no_bias_gradient(rng):
    dy, x, weight, bias = (rng.standard_normal(n) for n in ((4, 2), (4, 3), (3, 2), 2))
    assert linear_backward(dy, x, weight)[2] is None
    assert_allclose(linear_backward(dy, x, weight, bias)[2], dy.sum(axis=0))


@pytest.mark.parametrize("projection", [False, True])
def test_products_with_a_weight_can_have_half_precision(projection, rng):
    """All three equal exact products of rounded numbers, rounded."""
    layer = nf.Linear(3, 4, rng, bias=False)
    if projection:
        layer = nf.OutputProjection(nf.Embedding(4, 3, rng).weight)
    x, dy = (rng.standard_normal((2, 5, n)).astype(np.float32) for n in (3, 4))
    found, rounded = [], lambda array: array.astype(np.float16).astype(np.float32)
    with half_products():
        found = [layer.forward(x), layer.backward(dy), layer.weight.grad.copy()]
    layer.weight.grad.fill(0)
    layer.weight.data[...] = rounded(layer.weight.data)
    exact = [layer.forward(rounded(x)), layer.backward(rounded(dy)), layer.weight.grad]
    for array, expected in zip(found, exact, strict=True):
        assert_array_equal(array, rounded(expected), strict=True)


def test_initial_weights_are_within_the_glorot_bound(rng):
    layer = nf.Linear(40, 60, rng)
    weight = layer.weight.data
    assert not layer.bias.data.any()
    assert 0.95 * math.sqrt(6 / 100) < abs(weight).max() <= math.sqrt(6 / 100)


@pytest.mark.parametrize("kind", CELLS.values(), ids=CELLS)
def test_each_gate_of_a_cell_begins_with_a_rotation_of_its_own(kind, rng):
    gates = np.split(kind(6, rng).weight.data, kind.gates, axis=1)
    for number, gate in enumerate(gates):
        assert_allclose(gate.T @ gate, np.eye(6), atol=1e-6)
        assert not any(np.allclose(gate, other) for other in gates[:number])


def test_initial_filters_and_class_tokens_have_the_documented_size(rng):
    for width in (1, 4, 9):
        layer = Convolution(500, rng, width)
        assert 0.98 / width**0.5 < abs(layer.weight.data).max() <= 1 / width**0.5
        assert not layer.bias.data.any()
    assert ClassToken(4096, rng).token.data.std() == pytest.approx(1 / 64, rel=0.05)


def test_relu_and_its_gradient_at_zero():
    """The subgradient at exactly 0 is 0: `x >= 0` would let the gradient pass."""
    layer = nf.ReLU()
    assert_array_equal(layer.forward(np.array([-2.0, -0.0, 0.0, 3.0])), [0, 0, 0, 3])
    assert_array_equal(layer.backward(np.array([5.0, 6.0, 7.0, 8.0])), [0, 0, 0, 8])


@warnings_are_errors
@pytest.mark.parametrize("d_model", [4, 6, 96, 768])
def test_layer_norm_of_equal_values_is_beta_with_finite_gradients(d_model, rng):
    """The mean, a product with 1 / D, may be off by more than epsilon because of rounding."""
    layer = nf.LayerNorm(d_model)
    x = np.full((2, 3, d_model), 1e3, np.float32)
    assert not layer.forward(x).any()
    assert np.isfinite(layer.backward(rng.standard_normal(x.shape).astype(np.float32))).all()


def test_splitmix64_gives_the_published_numbers_from_any_start():
    """The first outputs for seed 0 are those of the reference implementation; pieces join."""
    first, long, later = (
        splitmix64(key, np.arange(*limits, dtype=np.uint64))
        for key, limits in ((0, (1, 4)), (7, (0, 100_000)), (7, (40_000, 40_100)))
    )
    assert [*first] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert_array_equal(long[40_000:40_100], later)
    assert len(np.unique(long)) == len(long)


def test_dropout_of_neighbours_is_independent():
    """One random word decides four values, which must not be dropped together."""
    kept = nf.Dropout(0.5).forward(np.ones((999, 333))) > 0
    for lag in (1, 2, 3, 4, 333):
        line = kept.ravel()
        both = (line[lag:] & line[:-lag]).mean()
        assert abs(both - 0.25) < 5 * math.sqrt(0.25 * 0.75 / line.size)


def test_initial_embeddings_have_the_documented_variance(rng):
    weight = nf.Embedding(500, 64, rng).weight.data
    assert weight.std() == pytest.approx(1 / 8, rel=0.02)
    assert abs(weight.mean()) < 0.005


def test_ids_outside_the_vocabulary_are_refused(rng, complaint):
    """NumPy takes -1 for the last row, and a GPU wraps any index silently."""
    for ids, words in (
        ([[1, 7]], "size 7; received ids from 1 to 7"),
        ([[-1, 2]], "ids from -1 to 2"),
        ([[1.0, 2.0]], "dtype float64"),
        ([[True, False]], "dtype bool"),
    ):
        assert words in complaint(nf.Embedding(7, 4, rng).forward, np.array(ids))
    assert nf.Embedding(7, 4, rng).forward(np.zeros((0, 3), int)).shape == (0, 3, 4)


def test_a_shared_embedding_weight_is_not_copied_and_must_fit(rng, complaint):
    one = nf.Embedding(7, 4, rng)
    assert nf.Embedding(7, 4, rng, one.weight).weight is one.weight
    assert "(7, 4) for (8, 4)" in complaint(nf.Embedding, 8, 4, rng, one.weight)


def test_sinusoidal_positions_add_the_rows_of_their_positions(rng):
    """The table of each width grows and is reused, also for shorter sequences."""
    layer = nf.SinusoidalPositions()
    for length, offset in ((3, 0), (1, 64), (200, 0), (4, 130), (1, 499), (3, 0)):
        for d_model in (7, 8):
            x, table = rng.standard_normal((B, length, d_model)), sinusoidal_table(500, d_model)
            positions = np.arange(offset, offset + length)
            assert_allclose(layer.forward(x, positions), x + table[positions], atol=1e-12)
    assert_allclose(layer.forward(x), x + table[:3], atol=1e-12)
    x = np.zeros((1, 3, d_model), np.float32)
    assert_allclose(layer.forward(x, np.array([9, 0, 9]))[0], table[[9, 0, 9]], atol=1e-6)


def test_sinusoids_of_fairseq_by_hand():
    """From position 2 on; the last of several wavelengths is 10000 times the first."""
    two, three, four = (sinusoidal_fairseq_table(3, width) for width in (2, 3, 4))
    assert_allclose(two, [[math.sin(n), math.cos(n)] for n in (2, 3, 4)], rtol=1e-12)
    assert_array_equal(three, np.pad(two, [(0, 0), (0, 1)]))
    assert_allclose(four[:, ::2], two, rtol=1e-12)
    assert_allclose(four[:, 1], np.sin(np.arange(2, 5) / 10000), rtol=1e-12)


@pytest.mark.parametrize(("length", "offset"), [(7, 0), (2, 5), (3, 4)])
def test_positions_beyond_max_length_are_refused(length, offset, rng, complaint):
    """Slicing would give fewer rows, which then broadcast or fail far from the cause."""
    layer = nf.LearnedPositions(6, D, rng)
    positions = np.arange(offset, offset + length)
    text = complaint(layer.forward, np.zeros((B, length, D)), positions)
    assert f"length {length + offset}" in text and "max_length" in text
    layer.forward(np.zeros((B, length - 1, D)), positions[:-1])


def test_the_table_of_sinusoids_doubles_when_it_is_too_short():
    computed = []

    def table(length, *others):
        computed.append(length)
        return sinusoidal_table(length, *others)

    layer = nf.SinusoidalPositions(table)
    for length in range(1, 200):
        layer.forward(np.zeros((1, length, 4)))
        assert computed == [64, 128, 256][: 1 + (length > 64) + (length > 128)]


def test_head_size_is_an_integer_or_an_error(rng, complaint):
    assert head_size(512, 8) == 64
    for heads in (3, 0, -1):
        text = complaint(head_size, 8, heads)
        assert f"d_model 8, heads {heads}" in text
    assert nf.MultiHeadAttention(8, 3, rng, d_k=2, d_v=4).output.weight.shape == (12, 8)
    complaint(nf.MultiHeadAttention, 8, 3, rng, d_k=2)


@pytest.mark.parametrize("d_k", [16, 1024])
def test_which_scores_grow_with_the_size_of_queries_and_keys(d_k, rng):
    """Standard deviations at the start of training, for entries of variance 1."""
    query, key = rng.standard_normal((2, 64, d_k))

    def spread(layer):
        return layer.forward(query, key).std()

    root = math.sqrt(d_k)
    assert spread(nf.DotProductScore()) == pytest.approx(1, rel=0.2)
    assert spread(nf.DotProductScore(scaled=False)) == pytest.approx(root, rel=0.2)
    assert spread(nf.MultiplicativeScore(d_k, d_k, rng)) == pytest.approx(root, rel=0.2)
    assert spread(nf.AdditiveScore(d_k, d_k, d_k, rng)) == pytest.approx(1, rel=0.2)


def test_a_rich_embedding_may_lack_segments_or_a_norm(rng):
    """By default the segment is 0."""
    table, segments, ids = nf.Embedding(9, D, rng), nf.Embedding(2, D, rng), np.array([[4, 5, 4]])
    plain = table.forward(ids)
    for parts, expected in (
        ({}, plain),
        (dict(segments=segments), plain + segments.forward(0 * ids)),
    ):
        layer = RichInputEmbedding(table, NoPositions(), **parts)
        assert_array_equal(layer.forward(ids), expected)


def test_attention_without_a_bias_has_no_gradient_of_one(rng):
    layer, inputs = BiasedAttention(), rng.standard_normal((3, 2, 4, 5, 6))
    gradients = layer.backward(layer.forward(*inputs))
    assert [gradient.shape for gradient in gradients] == [(2, 4, 5, 6)] * 3


def test_ties_between_experts_go_to_the_first():
    """An unstable sort may choose any of them."""
    scores = np.tile([[0.0], [1.0]], 20).T.reshape(1, 40)
    assert np.flatnonzero(route(scores, 3)[1]).tolist() == [1, 3, 5]


def test_dropout_probabilities_out_of_range_are_refused(rng, complaint):
    for p in (-0.1, 1.0, math.nan):
        assert str(p) in complaint(nf.Dropout, p)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mask_that_allows_everything_changes_no_bit(dtype, rng):
    scores = 0.1 * rng.standard_normal((4, 8)).astype(dtype)
    allowed = np.ones((4, 8), bool)
    assert_array_equal(softmax(scores, allowed), softmax(scores))


@warnings_are_errors
def test_very_negative_scores_are_not_mistaken_for_masked_ones():
    assert_array_equal(softmax(np.full((2, 2), -3e38, np.float32)), 0.5)


def test_shapes_of_weights(rng, complaint):
    config = nf.TowerConfig(d_model=3, d_ff=5, heads=1, activation="swiglu")
    assert config.feed_forward(rng).inner.weight.shape == (3, 10)
    assert nf.FeedForward(3, 5, rng).inner.weight.shape == (3, 5)
    assert "(V, D)" in complaint(nf.OutputProjection, nf.Linear(2, 3, rng).bias)
    for heads in (Heads(4, 2, 3, rng), BiasedHeads(4, 2, 3, rng)):
        text = complaint(heads.forward, np.ones((2, 3, 5)), nf.Places.without_padding(2, 3))
        assert "5" in text


def test_patches_hold_their_pixels_and_backward_copies(rng):
    images, ones = rng.standard_normal((2, 6, 9, 2)), nf.Patches(1)
    assert_array_equal(nf.Patches(3).forward(images)[:, 1], images[:, :3, 3:6].reshape(2, -1))
    assert not np.shares_memory(ones.backward(dy := ones.forward(images)), dy)
