"""Facts about each formula, computed by hand or by plain loops over the paper's equations."""

import copy
import dataclasses
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer import Config, Transformer
from numformer.backend import (
    dot_last,
    dropout_stream,
    matmul,
    mean_last,
    scatter_add,
    splitmix64,
    sum_rows,
    to_host,
)
from numformer.layer import inference, mode, pack
from numformer.layers import positional
from numformer.layers.activation import ReLU
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
    head_size,
    merge_heads,
    split_heads,
)
from numformer.layers.cache import KeyValueCache
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.feed_forward import FeedForward
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.linear import Linear, OutputProjection, linear_backward
from numformer.layers.mask import Mask, attention_mask, causal_mask
from numformer.layers.places import Places
from numformer.layers.positional import LearnedPositions, SinusoidalPositions, sinusoidal_table
from numformer.layers.residual import Residual
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.softmax import Softmax, softmax

B, S, T, D, H = 2, 5, 3, 8, 2
warnings_are_errors = pytest.mark.filterwarnings("error")


def in_float64(layer):
    """The layer in float64 with every parameter shaken, so that no bias is 0 and no gamma is 1."""
    flat = pack(layer, np.float64)
    flat.data += np.random.default_rng(9).standard_normal(flat.data.shape)
    return layer


def softmax_by_loops(scores, mask):
    """Every row in plain Python; a row with nothing allowed is 0."""
    mask = np.broadcast_to(mask, scores.shape)
    weights = np.zeros_like(scores)
    for *row, _ in np.argwhere(np.ones((*scores.shape[:-1], 1))):
        row = tuple(row)
        allowed = [s for s in range(scores.shape[-1]) if mask[(*row, s)]]
        total = sum(math.exp(scores[(*row, s)]) for s in allowed)
        for s in allowed:
            weights[(*row, s)] = math.exp(scores[(*row, s)]) / total
    return weights


def attention_by_loops(query, key, value, mask):
    """Equation 1 for one head, one query and one key at a time -> output, weights."""
    batch, heads, length, size = query.shape
    scores = np.empty((batch, heads, length, key.shape[2]))
    for b, h, t, s in np.ndindex(scores.shape):
        dot = sum(query[b, h, t, k] * key[b, h, s, k] for k in range(size))
        scores[b, h, t, s] = dot / math.sqrt(size)
    weights = softmax_by_loops(scores, mask)
    output = np.zeros((batch, heads, length, value.shape[3]))
    for b, h, t, s in np.ndindex(weights.shape):
        output[b, h, t] += weights[b, h, t, s] * value[b, h, s]
    return output, weights


def some_mask(rng, *shape):
    """Random, with every key masked in the first row and at least one allowed in the others."""
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True
    mask[(0,) * (len(shape) - 1)] = False
    return mask


# Products and sums of the backend.


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 3), (3, 5)),
        ((2, 4, 3), (3, 5)),
        ((2, 6, 4, 3), (2, 6, 3, 5)),
        ((2, 1, 4, 3), (6, 3, 5)),
    ],
)
def test_matmul_is_the_product_over_the_last_two_axes(a, b, rng):
    a, b = rng.standard_normal(a), rng.standard_normal(b)
    assert_allclose(matmul(a, b), np.matmul(a, b), rtol=1e-13)


def test_matmul_of_arrays_that_are_not_contiguous(rng):
    a, b = rng.standard_normal((4, 3, 2)).swapaxes(0, 1), rng.standard_normal((5, 2)).T
    assert_allclose(matmul(a, b), np.einsum("xyi,ij->xyj", a, b), rtol=1e-13)


def test_sums_and_means_agree_with_numpy(rng):
    a, b = rng.standard_normal((2, 2, 3, 5)) + 1
    assert_allclose(sum_rows(a), a.sum(axis=(0, 1)), rtol=1e-13)
    assert_allclose(mean_last(a), a.mean(axis=-1, keepdims=True), rtol=1e-13)
    assert_allclose(dot_last(a, b), (a * b).sum(axis=-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("rows", [1, 4, 256, 257, 1000])  # up to 256 rows it is one product
@pytest.mark.parametrize("count", [1, 700])
def test_scatter_add_sums_repeated_ids(rows, count, rng):
    """`target[ids] += values` keeps only one of several values for an id."""
    ids, values = rng.integers(0, rows, count), rng.standard_normal((count, 3))
    found = rng.standard_normal((rows, 3))
    expected = found.copy()
    np.add.at(expected, ids, values)
    scatter_add(found, ids, values)
    assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


# Linear and activation.


def test_without_a_bias_there_is_no_gradient_of_one(rng):
    dy, x, weight, bias = (rng.standard_normal(n) for n in ((4, 2), (4, 3), (3, 2), 2))
    assert linear_backward(dy, x, weight)[2] is None
    assert_allclose(linear_backward(dy, x, weight, bias)[2], dy.sum(axis=0))


def test_linear_is_x_times_weight_plus_bias_and_its_initial_range(rng):
    layer = Linear(40, 60, rng)
    weight = layer.weight.data
    assert not layer.bias.data.any()
    assert 0.95 * math.sqrt(6 / 100) < abs(weight).max() <= math.sqrt(6 / 100)
    layer = in_float64(Linear(3, 2, rng))
    x = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
    w, b = layer.weight.data, layer.bias.data
    first = [1 * w[0, j] - 2 * w[1, j] + 0.5 * w[2, j] + b[j] for j in range(2)]
    assert_allclose(layer.forward(x), [first, b], rtol=1e-13)


def test_output_projection_multiplies_with_the_rows_of_the_embedding(rng, complaint):
    layer = in_float64(OutputProjection(Embedding(7, 4, rng).weight))
    x = rng.standard_normal((2, 3, 4))
    logits = layer.forward(x)
    for b, t, v in np.ndindex(2, 3, 7):
        assert logits[b, t, v] == pytest.approx(x[b, t] @ layer.weight.data[v])
    assert "(V, D)" in complaint(OutputProjection, Linear(2, 3, rng).bias)


def test_relu_and_its_gradient_at_zero():
    """The subgradient at exactly 0 is 0: `x >= 0` would let the gradient pass."""
    layer = ReLU()
    assert_array_equal(layer.forward(np.array([-2.0, -0.0, 0.0, 3.0])), [0, 0, 0, 3])
    assert_array_equal(layer.backward(np.array([5.0, 6.0, 7.0, 8.0])), [0, 0, 0, 8])


# Softmax.


@warnings_are_errors
def test_softmax_of_scores_that_are_all_far_below_0():
    """What keeps a masked row from -inf - -inf must not be taken for its highest score."""
    for dtype, lowest in ((np.float32, -3e38), (np.float64, -1e300)):
        assert_array_equal(Softmax().forward(np.full((2, 2), lowest, dtype)), 0.5)


@warnings_are_errors
def test_softmax_of_extreme_scores_in_float32():
    """exp(1e4) overflows unless the highest score is subtracted first."""
    layer = Softmax()
    scores = np.array([[1e4, -1e4, 1e4, 0], [-1e4, -1e4, -1e4, -1e4]], np.float32)
    weights = layer.forward(scores)
    assert_array_equal(weights, np.array([[0.5, 0, 0.5, 0], [0.25] * 4], np.float32))
    assert np.isfinite(layer.backward(np.ones_like(weights))).all()


@warnings_are_errors
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_fully_masked_row_has_weights_and_gradients_0(dtype, rng):
    """-inf - -inf is NaN, and a large negative number instead of -inf gives 1 / S."""
    layer = Softmax()
    scores = rng.standard_normal((3, 4)).astype(dtype) * 1000
    mask = np.array([[True] * 4, [False] * 4, [True, False, True, False]])
    weights = layer.forward(scores, mask)
    dscores = layer.backward(rng.standard_normal((3, 4)).astype(dtype))
    assert not weights[1].any() and not dscores[1].any()
    assert not weights[~mask].any() and not dscores[~mask].any()
    assert_allclose(weights[[0, 2]].sum(axis=-1), 1, rtol=1e-6)
    assert np.isfinite(dscores).all()


@pytest.mark.parametrize("shape", [(B, 1, 1, S), (1, 1, T, S), (B, H, T, S), (S,)])
def test_softmax_mask_broadcasts_to_the_scores(shape, rng):
    """A masked score must not count even where it is by far the highest."""
    scores = rng.standard_normal((B, H, T, S))
    mask = some_mask(rng, *shape)
    scores[np.broadcast_to(~mask, scores.shape)] += 100
    found = Softmax().forward(scores, mask)
    assert_allclose(found, softmax_by_loops(scores, mask), rtol=1e-12)


def test_softmax_backward_is_the_product_with_the_jacobian(rng):
    """The Jacobian diag(w) - w w^T is built for each row; dividing by the batch differs."""
    layer = Softmax()
    scores, mask = rng.standard_normal((B, H, T, S)), some_mask(rng, B, 1, T, S)
    dweights = rng.standard_normal(scores.shape)
    weights = layer.forward(scores, mask)
    dscores = layer.backward(dweights)
    for row in np.ndindex(B, H, T):
        w = weights[row]
        jacobian = np.diag(w) - np.outer(w, w)
        assert_allclose(dscores[row], jacobian @ dweights[row], rtol=1e-11, atol=1e-14)


# Layer normalisation.


def test_layer_norm_uses_the_biased_variance_with_epsilon_inside_the_root():
    """Values 1 and 3: mean 2, biased variance 1 (unbiased 2); epsilon 3 makes the root 2."""
    layer = LayerNorm(2, epsilon=3.0)
    pack(layer, np.float64)
    layer.gamma.data[...] = [10, 100]
    layer.beta.data[...] = [5, 7]
    assert_allclose(layer.forward(np.array([[1.0, 3.0]])), [[-10 / 2 + 5, 100 / 2 + 7]])


def test_layer_norm_default_epsilon_and_first_values():
    layer = LayerNorm(4)
    assert layer.epsilon == 1e-5
    assert (layer.gamma.data == 1).all() and not layer.beta.data.any()


def test_layer_norm_of_each_position_by_loops(rng):
    layer = in_float64(LayerNorm(D))
    x = 3 + 2 * rng.standard_normal((B, T, D))
    found = layer.forward(x)
    for b, t in np.ndindex(B, T):
        mean = sum(x[b, t]) / D
        variance = sum((value - mean) ** 2 for value in x[b, t]) / D
        expected = (x[b, t] - mean) / math.sqrt(variance + 1e-5)
        assert_allclose(found[b, t], layer.gamma.data * expected + layer.beta.data, rtol=1e-12)


@warnings_are_errors
@pytest.mark.parametrize("d_model", [4, 6, 96, 768])
def test_layer_norm_of_equal_values_is_beta_with_finite_gradients(d_model, rng):
    """A mean that is a product with 1 / D, rounded, differs from the values by over epsilon."""
    layer = LayerNorm(d_model)
    x = np.full((2, 3, d_model), 1e3, np.float32)
    assert not layer.forward(x).any()
    assert np.isfinite(layer.backward(rng.standard_normal(x.shape).astype(np.float32))).all()


def test_layer_norm_far_from_zero_keeps_its_precision(rng):
    """E[x^2] - E[x]^2 cancels; the mean of squared deviations does not."""
    layer = LayerNorm(64)
    x = rng.standard_normal((2, 64))
    found = layer.forward((x + 1000).astype(np.float32))
    assert_allclose(found, layer.forward(x.astype(np.float32)), atol=2e-3)


# Dropout.


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_fraction_scale_and_mean(p):
    """Masks from random bytes would drop 26 / 256 = 0.1016 for 0.1; here 5 sigma is 0.0007."""
    y = Dropout(p).forward(np.ones((2048, 2048)))
    sigma = math.sqrt(p * (1 - p) / y.size)
    assert abs((y == 0).mean() - p) < 5 * sigma
    assert_allclose(np.unique(y), [0, 1 / (1 - p)], rtol=1e-4)
    assert abs(y.mean() - 1) < 6 * sigma / (1 - p)


def test_splitmix64_gives_the_published_numbers_from_any_start():
    """The first outputs for seed 0 are those of the reference implementation; pieces join."""
    first = splitmix64(0, 1, 3)
    assert [hex(int(v)) for v in first] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    long = splitmix64(7, 0, 100_000)
    assert_array_equal(long[40_000:40_100], splitmix64(7, 40_000, 100))
    assert len(np.unique(long)) == len(long)


def test_dropout_of_any_shape_and_of_neighbours_is_independent():
    """Four values come from one random word, so neighbours must not fall together."""
    kept = Dropout(0.5).forward(np.ones((999, 333))) > 0
    for lag in (1, 2, 3, 4, 333):
        line = kept.ravel()
        both = (line[lag:] & line[:-lag]).mean()
        assert abs(both - 0.25) < 5 * math.sqrt(0.25 * 0.75 / line.size)


def test_dropout_does_nothing_outside_training(rng):
    x = rng.standard_normal((4, 5))
    layer = Dropout(0.5)
    with mode(training=False):
        assert_array_equal(layer.forward(x), x)
        assert_array_equal(layer.backward(x), x)
    assert (Dropout(0.0).forward(x) == x).all()


def test_one_dropout_layer_used_twice_has_two_masks_and_backwards_match(rng):
    """One mask slot per layer gives the second mask to both backwards."""
    layer = Dropout(0.5)
    x, dy = np.ones((20, 30)), np.ones((20, 30))
    one, two = layer.forward(x), layer.forward(x)
    assert (one != two).any()
    assert_array_equal(layer.backward(dy), two)
    assert_array_equal(layer.backward(dy), one)


def test_masks_depend_on_seed_and_step_alone():
    like = np.zeros(0)

    def masks(seed, step):
        dropout_stream.reseed(seed, step)
        return [dropout_stream.keep((5, 7), 0.5, like) for _ in range(2)]

    first = masks(3, 4)
    masks(3, 5)
    assert_array_equal(first, masks(3, 4))
    for seed, step in ((3, 5), (4, 4), (4, 3), (0, 0)):
        assert (masks(seed, step)[0] != first[0]).any()


def test_masks_are_the_same_in_both_dtypes():
    found = []
    for dtype in (np.float32, np.float64):
        dropout_stream.reseed(1, 2)
        found.append(dropout_stream.keep((6, 5), 0.3, np.zeros(0, dtype)))
        assert found[-1].dtype == dtype
    assert_array_equal(found[0] > 0, found[1] > 0)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan])
def test_a_bad_dropout_probability_is_refused(p, complaint):
    assert str(p) in complaint(Dropout, p)


# Embedding and positions.


def test_embedding_is_the_row_times_sqrt_d_model(rng):
    layer = in_float64(Embedding(7, 16, rng))
    ids = np.array([[3, 0, 3], [6, 1, 2]])
    found = layer.forward(ids)
    for b, t in np.ndindex(2, 3):
        assert_allclose(found[b, t], 4 * layer.weight.data[ids[b, t]], rtol=1e-14)


def test_embedding_starts_with_the_variance_that_its_docstring_states(rng):
    weight = Embedding(500, 64, rng).weight.data
    assert weight.std() == pytest.approx(1 / 8, rel=0.02)
    assert abs(weight.mean()) < 0.005


@pytest.mark.parametrize("vocabulary", [7, 300])  # the two ways of scatter_add
def test_gradients_of_a_repeated_id_are_summed(vocabulary, rng):
    layer = in_float64(Embedding(vocabulary, 16, rng))
    layer.forward(np.array([[3, 0, 3], [3, 1, 2]]))
    dx = rng.standard_normal((2, 3, 16))
    assert layer.backward(dx) is None
    assert_allclose(layer.weight.grad[3], 4 * (dx[0, 0] + dx[0, 2] + dx[1, 0]), rtol=1e-12)
    assert_allclose(layer.weight.grad[1], 4 * dx[1, 1], rtol=1e-12)
    assert not layer.weight.grad[4:].any()


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[1, 7]], "size 7; received ids from 1 to 7"),
        ([[-1, 2]], "ids from -1 to 2"),
        ([[1.0, 2.0]], "dtype float64"),
        ([[True, False]], "dtype bool"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(ids, words, rng, complaint):
    """NumPy takes -1 for the last row, and a GPU wraps any index silently."""
    assert words in complaint(Embedding(7, 4, rng).forward, np.array(ids))


def test_a_shared_weight_is_held_not_copied_and_must_fit(rng, complaint):
    one = Embedding(7, 4, rng)
    assert Embedding(7, 4, rng, one.weight).weight is one.weight
    assert "(7, 4) for (8, 4)" in complaint(Embedding, 8, 4, rng, one.weight)


@pytest.mark.parametrize("d_model", [2, 7, 8])
def test_sinusoidal_table_is_the_formula_of_section_3_5(d_model):
    table = sinusoidal_table(300, d_model)
    assert table.shape == (300, d_model)
    for position in range(300):
        for dimension in range(d_model):
            i = dimension // 2
            angle = position / 10000 ** (2 * i / d_model)
            expected = math.cos(angle) if dimension % 2 else math.sin(angle)
            assert table[position, dimension] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("d_model", [7, 8])
def test_sinusoidal_positions_add_the_rows_of_their_positions(d_model, rng):
    """The table grows and is cached; a longer or shorter request afterwards is right too."""
    layer = SinusoidalPositions()
    table = sinusoidal_table(500, d_model)
    for length, offset in ((3, 0), (1, 64), (200, 0), (4, 130), (1, 499), (3, 0)):
        x = rng.standard_normal((B, length, d_model))
        positions = np.arange(offset, offset + length)
        assert_allclose(layer.forward(x, positions), x + table[positions], atol=1e-12)
    assert_allclose(layer.forward(x), x + table[:3], atol=1e-12)
    x = np.zeros((1, 3, d_model), np.float32)
    assert_allclose(layer.forward(x, np.array([9, 0, 9]))[0], table[[9, 0, 9]], atol=1e-6)


def test_learned_positions_add_and_train_the_rows_of_their_positions(rng):
    layer = in_float64(LearnedPositions(6, D, rng))
    x, dy = rng.standard_normal((2, B, T, D))
    assert T == 3
    assert_array_equal(layer.forward(x, np.arange(2, 5)), x + layer.weight.data[2:5])
    assert_array_equal(layer.backward(dy), dy)
    assert_allclose(layer.weight.grad[2:5], sum(dy), rtol=1e-13)
    assert not layer.weight.grad[[0, 1, 5]].any()

    layer.zero_grad()  # rows without padding: their positions in any order, and repeatedly
    rows, positions = rng.standard_normal((5, D)), np.array([0, 1, 0, 5, 1])
    assert_array_equal(layer.forward(rows, positions), rows + layer.weight.data[positions])
    layer.backward(rows)
    sums = [rows[0] + rows[2], rows[1] + rows[4], rows[3]]
    assert_allclose(layer.weight.grad[[0, 1, 5]], sums, rtol=1e-13)


@pytest.mark.parametrize(("length", "offset"), [(7, 0), (2, 5), (3, 4)])
def test_positions_beyond_max_length_are_refused(length, offset, rng, complaint):
    """Slicing would give fewer rows, which then broadcast or fail far from the cause."""
    layer = LearnedPositions(6, D, rng)
    positions = np.arange(offset, offset + length)
    text = complaint(layer.forward, np.zeros((B, length, D)), positions)
    assert f"length {length + offset}" in text and "max_length" in text
    layer.forward(np.zeros((B, length - 1, D)), positions[:-1])


def test_sinusoids_have_the_width_of_what_they_are_added_to(rng):
    """One layer keeps the tables of every width that it met, for any number of dimensions."""
    layer = SinusoidalPositions()
    for shape in ((2, 5, 8), (2, 5, 6), (5, 8), (2, 8, 6)):
        for dtype, rtol in ((np.float32, 1e-5), (np.float64, 1e-12)):
            x = rng.standard_normal(shape).astype(dtype)
            expected = x + sinusoidal_table(shape[-2], shape[-1])
            assert_allclose(layer.forward(x), expected, rtol=rtol, atol=rtol)


def test_sinusoids_are_computed_once_and_for_twice_the_length_where_they_run_out(monkeypatch):
    computed = []

    def table(length, *others):
        computed.append(length)
        return sinusoidal_table(length, *others)

    monkeypatch.setattr(positional, "sinusoidal_table", table)
    layer = SinusoidalPositions()
    for length in range(1, 200):
        layer.forward(np.zeros((1, length, 4)))
        assert computed == [64, 128, 256][: 1 + (length > 64) + (length > 128)]


def test_positions_and_a_whole_transformer_can_be_copied_after_they_were_used(rng, xp):
    """The diagnosis of a wrong gradient works on copies of the parts."""
    config = Config.base(9, d_model=8, d_ff=8, heads=2, layers=1)
    source, target = rng.integers(4, 9, (2, B, T))
    x = xp.asarray(rng.standard_normal((B, T, 8)), dtype=np.float32)
    for layer, inputs in ((SinusoidalPositions(), [x]), (Transformer(config, 1), [source, target])):
        pack(layer, xp=xp)
        with inference():
            expected = layer.forward(*inputs)
            twin = copy.deepcopy(layer)
            for parameter in layer.named_parameters().values():
                parameter.data[...] = 0
            found = twin.forward(*inputs)
        assert type(found) is type(x)
        assert_array_equal(to_host(found), to_host(expected))


@pytest.mark.parametrize("shape", [(2, 5, 4), (5, 4)])
def test_positions_are_counted_from_0_unless_given(shape, rng):
    x = rng.standard_normal(shape)
    for layer in (SinusoidalPositions(), LearnedPositions(9, 4, rng)):
        assert_array_equal(layer.forward(x), layer.forward(x, np.arange(5)))
        assert (layer.forward(x) != layer.forward(x, np.arange(1, 6))).any()


# Attention.


@pytest.mark.parametrize("shape", [(B, 1, 1, S), (1, 1, T, S), (B, H, T, S)])
def test_attention_is_equation_1_by_loops(shape, rng):
    """S != T, keys and values of different size, a row with every key masked."""
    query, key = rng.standard_normal((B, H, T, 3)), rng.standard_normal((B, H, S, 3))
    value, mask = rng.standard_normal((B, H, S, 4)), some_mask(rng, *shape)
    layer = ScaledDotProductAttention()
    output, weights = attention_by_loops(query, key, value, mask)
    assert_allclose(layer.forward(query, key, value, mask), output, rtol=1e-12, atol=1e-14)
    assert_allclose(layer.saved[0]["weights"], weights, rtol=1e-12)


def test_attention_needs_no_axis_for_heads(rng):
    """(B, T, K) is one head: with dropout, forward and backward as (B, 1, T, K)."""
    query, key = rng.standard_normal((B, T, 3)), rng.standard_normal((B, S, 3))
    value, doutput = rng.standard_normal((B, S, 4)), rng.standard_normal((B, T, 4))
    found = []
    for one_head in (False, True):
        dropout_stream.reseed(5, 6)
        layer = ScaledDotProductAttention(0.4)
        inputs = [x[:, None] if one_head else x for x in (query, key, value, doutput)]
        output = layer.forward(*inputs[:3])
        found.append([output, *layer.backward(inputs[3])])
    for without, with_axis in zip(*found, strict=True):
        assert_allclose(without, with_axis[:, 0], rtol=1e-12)


def test_gradient_of_the_values_goes_through_the_weights_after_dropout(rng):
    """dV = dropped^T doutput; taking the weights before dropout is a published mistake."""
    query, doutput = rng.standard_normal((2, B, H, T, 3))
    key, value = rng.standard_normal((2, B, H, S, 3))
    dropout_stream.reseed(5, 6)
    keep = dropout_stream.keep((B, H, T, S), 0.4, query)
    _, weights = attention_by_loops(query, key, value, True)
    dropout_stream.reseed(5, 6)
    layer = ScaledDotProductAttention(0.4)
    output = layer.forward(query, key, value)
    _, _, dvalue = layer.backward(doutput)
    expected_output, expected_dvalue = np.zeros_like(output), np.zeros_like(value)
    for b, h, t, s in np.ndindex(B, H, T, S):
        dropped = weights[b, h, t, s] * keep[b, h, t, s]
        expected_output[b, h, t] += dropped * value[b, h, s]
        expected_dvalue[b, h, s] += dropped * doutput[b, h, t]
    assert_allclose(output, expected_output, rtol=1e-12)
    assert_allclose(dvalue, expected_dvalue, rtol=1e-12)


def test_heads_split_into_neighbouring_columns_and_merge_back(rng):
    x = rng.standard_normal((B, T, 6))
    heads = split_heads(x, 2)
    for b, h, t, k in np.ndindex(B, 2, T, 3):
        assert heads[b, h, t, k] == x[b, t, 3 * h + k]
    assert_array_equal(merge_heads(heads), x)


def test_heads_of_real_positions_stand_at_their_places_and_come_back(rng):
    """As if the rows stood in a padded array; what stands at padding is of no matter."""
    ids = np.array([[5, 6, 0, 0], [7, 8, 9, 4], [0, 0, 0, 0], [5, 0, 0, 0]])
    real = ids != 0
    places = Places(real, skip_padding=True)
    rows = rng.standard_normal((7, 6))
    padded = np.zeros((4, 4, 6))
    padded[real] = rows
    heads = split_heads(rows, 3, places)
    assert heads.shape == (4, 3, 4, 2)
    assert_array_equal(heads.swapaxes(1, 2)[real], split_heads(padded, 3).swapaxes(1, 2)[real])
    assert_array_equal(merge_heads(heads, places), rows)
    assert_array_equal(merge_heads(split_heads(padded, 2), places), rows)  # other heads, too
    assert_array_equal(places.positions, [0, 1, 0, 1, 2, 3, 0])
    assert_array_equal(places.pick(ids), [5, 6, 7, 8, 9, 4, 5])
    assert len(Places(0 * real, skip_padding=True).pick(ids)) == 1  # some products need a row
    whole = Places(real)
    assert_array_equal(whole.positions, range(4))
    assert whole.pick(ids) is ids


@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_of_a_padded_batch_by_hand(causal):
    """Keys at padding are out of bounds, and later ones; without padding its queries, too."""
    valid = np.array([[True, True, False], [True, False, False]])
    others = np.array([[False, True, True], [False, False, True]])
    keys = np.tril(np.ones((3, 3), bool)) & valid[:, None] if causal else valid[:, None]
    mask = attention_mask(Places(others), Places(valid), causal)
    assert_array_equal(np.broadcast_to(mask.allowed, (2, 1, *keys.shape[1:]))[:, 0], keys)
    assert mask.queries is mask.keys is None
    queries, sources = (Places(each, skip_padding=True) for each in (others, valid))
    mask = attention_mask(queries, sources, causal)
    assert_array_equal(mask.allowed[:, 0], keys & others[:, :, None])
    assert mask.queries is queries and mask.keys is sources


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_is_section_3_2_2_by_loops(bias, rng):
    """Each head from its own columns of the weights, then Concat and W^O."""
    d_k, d_v = 3, 5
    layer = in_float64(MultiHeadAttention(D, H, rng, d_k, d_v, bias))
    x, memory = rng.standard_normal((B, T, D)), rng.standard_normal((B, S, D))
    mask = some_mask(rng, B, 1, T, S)

    def project(part, of, columns=slice(None)):
        y = np.einsum("btd,de->bte", of, part.weight.data[:, columns])
        return y + part.bias.data[columns] if bias else y

    heads = []
    for h in range(H):
        k_columns, v_columns = (slice(h * size, (h + 1) * size) for size in (d_k, d_v))
        query, key = project(layer.query, x, k_columns), project(layer.key, memory, k_columns)
        value = project(layer.value, memory, v_columns)
        head, _ = attention_by_loops(query[:, None], key[:, None], value[:, None], mask)
        heads.append(head[:, 0])
    expected = project(layer.output, np.concatenate(heads, axis=-1))
    assert_allclose(layer.forward(x, memory, mask), expected, rtol=1e-11, atol=1e-12)
    assert (layer.query.bias is not None) == bias


def test_self_attention_takes_everything_from_x(rng):
    layer = in_float64(SelfAttention(D, H, rng))
    x = rng.standard_normal((B, T, D))
    expected = MultiHeadAttention.forward(layer, x, x, causal_mask(T))
    assert_array_equal(layer.forward(x, causal_mask(T)), expected)


def test_head_size_is_an_integer_or_an_error(rng, complaint):
    assert head_size(512, 8) == 64
    for heads in (3, 0, -1):
        text = complaint(head_size, 8, heads)
        assert f"d_model 8, heads {heads}" in text
    assert MultiHeadAttention(8, 3, rng, d_k=2, d_v=4).d_v == 4
    complaint(MultiHeadAttention, 8, 3, rng, d_k=2)


# The key-value cache.


def test_causal_self_attention_step_by_step_equals_the_whole(rng):
    layer = in_float64(SelfAttention(D, H, rng, d_k=3, d_v=5))
    x = rng.standard_normal((B, 4, D))
    with inference():
        whole = layer.forward(x, causal_mask(4))
        cache = KeyValueCache(6)
        steps = [layer.forward(x[:, :2], causal_mask(2), cache)]  # several positions at once
        cache.advance(2)
        for t in (2, 3):
            steps.append(layer.forward(x[:, t : t + 1], None, cache))
            cache.advance(1)
    first, *steps = steps
    assert_allclose(np.concatenate([first, *steps], axis=1), whole, rtol=1e-12, atol=1e-13)


def test_a_cache_that_is_too_short_is_refused(rng, complaint):
    """Assigning beyond the end would write nothing and lose the position silently."""
    layer = SelfAttention(D, H, rng)
    x = rng.standard_normal((B, 1, D)).astype(np.float32)
    with inference():
        cache = KeyValueCache(2)
        for _ in range(2):
            layer.forward(x, None, cache)
            cache.advance(1)
        text = complaint(layer.forward, x, None, cache)
    assert "room for 2 positions" in text and "position 3" in text
    assert cache.length == 2


@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_a_cache_is_refused_while_saving(kind, rng, complaint):
    """Nothing could flow back to the positions in the cache."""
    layer = kind(D, H, rng)
    x = rng.standard_normal((B, 1, D)).astype(np.float32)
    inputs = [x] if kind is SelfAttention else [x, x]
    assert "inference" in complaint(layer.forward, *inputs, None, KeyValueCache(2))


def test_cross_attention_computes_keys_and_values_of_the_memory_once(rng, monkeypatch):
    layer = in_float64(CrossAttention(D, H, rng))
    x, memory = rng.standard_normal((B, T, D)), rng.standard_normal((B, S, D))
    mask = some_mask(rng, B, 1, 1, S)
    calls = []
    for part in (layer.key, layer.value):
        project = part.forward
        monkeypatch.setattr(part, "forward", lambda m, f=project: calls.append(1) or f(m))
    with inference():
        whole = layer.forward(x, memory, mask)
        calls.clear()
        cache = KeyValueCache(T)
        steps = [layer.forward(x[:, t : t + 1], memory, mask, cache) for t in range(T)]
    assert len(calls) == 2 and cache.length == 0
    assert_allclose(np.concatenate(steps, axis=1), whole, rtol=1e-12, atol=1e-13)


def test_a_cache_keeps_the_chosen_rows_in_their_order(rng):
    """Beam search keeps some rows several times and then goes on writing into each."""
    layer = in_float64(SelfAttention(D, H, rng))
    x, further = rng.standard_normal((3, 2, D)), rng.standard_normal((3, 1, D))
    chosen = np.array([2, 0, 0])
    with inference():
        cache = KeyValueCache(3)
        layer.forward(x, causal_mask(2), cache)
        cache.advance(2)
        cache.choose(chosen)
        found = layer.forward(further, None, cache)
        whole = layer.forward(np.concatenate([x[chosen], further], axis=1), causal_mask(3))
    assert_allclose(found, whole[:, 2:], rtol=1e-12, atol=1e-13)


# Scores.


@pytest.mark.parametrize("kind", [DotProductScore, MultiplicativeScore, AdditiveScore])
def test_scores_are_their_equations_by_loops(kind, rng):
    """S != T, queries and keys of different size where the score allows it."""
    d_query, d_key, sizes = {
        DotProductScore: (4, 4, []),
        MultiplicativeScore: (4, 3, [4, 3, rng]),
        AdditiveScore: (4, 3, [4, 3, 6, rng]),
    }[kind]
    layer = in_float64(kind(*sizes))
    query, key = rng.standard_normal((B, H, T, d_query)), rng.standard_normal((B, H, S, d_key))
    found = layer.forward(query, key)
    assert found.shape == (B, H, T, S)
    for b, h, t, s in np.ndindex(found.shape):
        q, k = query[b, h, t], key[b, h, s]
        if kind is DotProductScore:
            expected = sum(q[i] * k[i] for i in range(4)) / math.sqrt(4)
        elif kind is MultiplicativeScore:
            weight = layer.weight.data
            expected = sum(q[i] * weight[i, j] * k[j] for i in range(4) for j in range(3))
        else:
            from_query, from_key = layer.query_weight.data, layer.key_weight.data
            expected = sum(
                layer.v.data[a, 0] * math.tanh(q @ from_query[:, a] + k @ from_key[:, a])
                for a in range(6)
            )
        assert found[b, h, t, s] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d_k", [16, 1024])
def test_which_scores_grow_with_the_size_of_queries_and_keys(d_k, rng):
    """Their first standard deviations, for entries of variance 1."""
    query, key = rng.standard_normal((2, 64, d_k))

    def spread(layer):
        return layer.forward(query, key).std()

    root = math.sqrt(d_k)
    assert spread(DotProductScore()) == pytest.approx(1, rel=0.2)
    assert spread(DotProductScore(scaled=False)) == pytest.approx(root, rel=0.2)
    assert spread(MultiplicativeScore(d_k, d_k, rng)) == pytest.approx(root, rel=0.2)
    assert spread(AdditiveScore(d_k, d_k, d_k, rng)) == pytest.approx(1, rel=0.2)


# Feed-forward network and residual connection.


def test_feed_forward_is_equation_2(rng):
    layer = in_float64(FeedForward(4, 6, rng))
    x = rng.standard_normal((B, T, 4))
    inner, outer = layer.inner, layer.outer
    expected = np.empty_like(x)
    for b, t in np.ndindex(B, T):
        hidden = [max(0.0, value) for value in x[b, t] @ inner.weight.data + inner.bias.data]
        expected[b, t] = hidden @ outer.weight.data + outer.bias.data
    assert_allclose(layer.forward(x), expected, rtol=1e-12)


def test_feed_forward_drops_after_the_activation(rng):
    layer = in_float64(FeedForward(4, 6, rng, p_drop=0.5))
    x = rng.standard_normal((B, T, 4))
    keep = dropout_stream.keep((B, T, 6), 0.5, x)
    hidden = np.maximum(x @ layer.inner.weight.data + layer.inner.bias.data, 0) * keep
    dropout_stream.reseed(0, 0)
    found = layer.forward(x)
    assert_allclose(found, hidden @ layer.outer.weight.data + layer.outer.bias.data, rtol=1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_residual_is_the_formula_of_section_3_1(norm, rng):
    """LayerNorm(x + Dropout(Sublayer(x))), or x + Dropout(Sublayer(LayerNorm(x)))."""
    layer = in_float64(Residual(Linear(D, D, rng), D, 0.5, norm))
    x = rng.standard_normal((B, T, D))
    keep = dropout_stream.keep(x.shape, 0.5, x)
    sublayer, layer_norm = layer.sublayer.forward, layer.norm.forward
    if norm == "post":
        expected = layer_norm(x + keep * sublayer(x))
    else:
        expected = x + keep * sublayer(layer_norm(x))
    dropout_stream.reseed(0, 0)
    assert_allclose(layer.forward(x), expected, rtol=1e-12)


def test_a_norm_that_is_neither_post_nor_pre_is_refused(rng, complaint):
    assert "'mid'" in complaint(Residual, Linear(3, 3, rng), 3, norm="mid")


def test_a_mask_is_not_changed_once_it_is_made():
    """Several layers, and the backward of each, share it."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mask().allowed = None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mask_that_allows_everything_changes_no_bit(dtype, rng):
    scores = 0.1 * rng.standard_normal((4, 8)).astype(dtype)
    allowed = np.ones((4, 8), bool)
    assert_array_equal(softmax(scores, allowed), softmax(scores))


def test_no_ids_are_no_wrong_ids(rng):
    assert Embedding(5, 4, rng).forward(np.zeros((0, 3), int)).shape == (0, 3, 4)
