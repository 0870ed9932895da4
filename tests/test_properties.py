"""Properties of the Transformer for any shapes, head counts, masks, configs and paddings.

hypothesis draws what the other tests fix, always the same examples. It draws sizes and choices;
the numbers come from a drawn seed. A failure prints the smallest Config and lengths that fail.
"""

import itertools
import zlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import dropout_stream
from numformer.data.batching import EpochBatches, PairBatch, pad
from numformer.data.vocabulary import END, PADDING, SPECIAL, START, UNKNOWN, Vocabulary
from numformer.generation import beam_search, greedy, length_penalty, log_probabilities
from numformer.gradient_check.cases import CASES
from numformer.gradient_check.cases.case import V
from numformer.gradient_check.gradients import check
from numformer.layer import Layer, Parameter, inference, pack
from numformer.layers import MIXERS
from numformer.layers.attention import MultiHeadAttention, ScaledDotProductAttention
from numformer.layers.cross_entropy import CrossEntropy
from numformer.layers.dropout import Dropout
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.softmax import Softmax
from numformer.models import Config, Objective, Transformer
from numformer.training.checkpoints import load_checkpoint, load_model, save_checkpoint, save_model
from numformer.training.optimizers import Adam, clip_global_norm
from numformer.training.parts import Parts

few, some, many = (settings(max_examples=count) for count in (15, 30, 100))
pytestmark = pytest.mark.filterwarnings("error")
seeds = st.integers(0, 2**32 - 1)
batches, heads, lengths, head_sizes = (st.integers(1, most) for most in (4, 4, 6, 5))
dtypes = st.sampled_from([np.float32, np.float64])


@dataclass(frozen=True)
class AttentionCase:
    """Sizes of an attention, the axes that its mask does not broadcast, how much it allows."""

    B: int
    H: int
    T: int
    S: int
    D: int
    d_k: int
    d_v: int
    bias: bool
    mask_axes: tuple[bool, bool, bool, bool]
    allowed: float
    dtype: type
    seed: int

    def mask(self, rng):
        """Rows with nothing allowed included; of the sizes (B, H, T, S), or 1 for some."""
        sizes = zip((self.B, self.H, self.T, self.S), self.mask_axes, strict=True)
        return rng.random([size if kept else 1 for size, kept in sizes]) < self.allowed

    def multi_head(self):
        """-> rng, layer, x (B, T, D), memory (B, S, D), mask."""
        rng = np.random.default_rng(self.seed)
        layer = MultiHeadAttention(self.D, self.H, rng, self.d_k, self.d_v, self.bias)
        shaken(layer, rng, self.dtype)
        x, memory = (
            rng.standard_normal((self.B, n, self.D)).astype(self.dtype) for n in (self.T, self.S)
        )
        return rng, layer, x, memory, self.mask(rng)


attention_cases = st.builds(
    AttentionCase,
    *(batches, heads, lengths, lengths, lengths, head_sizes, head_sizes),
    bias=st.booleans(),
    mask_axes=st.tuples(*[st.booleans()] * 4),
    allowed=st.sampled_from([0.6, 0.3, 0.9, 1.0, 0.0]),
    dtype=dtypes,
    seed=seeds,
)


@dataclass(frozen=True)
class Problem:
    """A model, the (source, target) lengths of a batch's rows, and the seed of all numbers."""

    config: Config
    lengths: list[tuple[int, int]]
    seed: int

    def build(self):
        """-> rng, model, source (B, S), target (B, T): float64, no dropout, padded on the right.

        A source that is not all padding ends with the end id.
        """
        rng = np.random.default_rng(self.seed)
        model = shaken(Transformer(self.config, self.seed), rng)
        sizes = self.config.source_vocabulary, self.config.target_vocabulary
        source, target = (
            padded(rng, row_lengths, size)
            for row_lengths, size in zip(zip(*self.lengths, strict=True), sizes, strict=True)
        )
        for row, (length, _) in zip(source, self.lengths, strict=True):
            row[max(length - 1, 0) : length] = END
        return rng, model, source, target


def padded(rng, row_lengths, vocabulary: int):
    """Random ids (B, longest, at least 1), any but padding up to each row's length."""
    columns = np.arange(max(1, *row_lengths))
    ids = rng.integers(1, vocabulary, (len(row_lengths), len(columns)))
    return np.where(columns < np.array(row_lengths)[:, None], ids, PADDING)


@st.composite
def configs(draw, vocabularies=(11, 6, 300), **fixed) -> Config:
    """Any form of the model; 300 symbols are beyond the size at which scatter_add changes."""
    count, tying = draw(st.integers(1, 3)), draw(st.sampled_from(["all", "target", "none"]))
    vocabulary = draw(st.sampled_from(vocabularies))
    of_heads = draw(st.sampled_from([(None, None), (3, 2), (1, 5), (4, 1)]))
    return Config(
        **dict(
            source_vocabulary=vocabulary + 2 * (tying != "all"),
            target_vocabulary=vocabulary,
            d_model=count * draw(st.integers(2, 4)),
            d_ff=draw(st.integers(1, 9)),
            heads=count,
            d_k=of_heads[0],
            d_v=of_heads[1],
            layers=draw(st.integers(1, 2)),
            norm=draw(st.sampled_from(["post", "pre"])),
            attention_bias=draw(st.booleans()),
            positions=draw(st.sampled_from(["sinusoidal", "learned", "alibi", "none"])),
            mixers=draw(st.sampled_from([*MIXERS])),
            window=2,
            max_length=9,
            tying=tying,
            p_drop=0.0,
        )
        | fixed
    )


def problems(shortest: int = 0, **fixed):
    """Sources that are all padding included, and targets too unless `shortest` is above 0."""
    row = st.tuples(st.integers(0, 6), st.integers(shortest, 6))
    return st.builds(Problem, configs(**fixed), st.lists(row, min_size=1, max_size=4), seeds)


def shaken(layer: Layer, rng, dtype=np.float64) -> Layer:
    """The layer in `dtype`, no gamma at 1 and no bias at 0."""
    flat = pack(layer, dtype)
    flat.data += (0.3 * rng.standard_normal(flat.data.shape)).astype(dtype)
    return layer


def run(layer: Layer, inputs: list, upstream) -> tuple:
    """One forward and backward -> output, gradients of the inputs, gradients of parameters."""
    layer.zero_grad()
    dropout_stream.reseed(0, 0)
    output = np.asarray(layer.forward(*inputs))
    gradients = layer.backward(upstream)
    if not isinstance(gradients, tuple):
        gradients = () if gradients is None else (gradients,)
    return output, [*gradients], [p.grad.copy() for p in layer.named_parameters().values()]


def assert_close(found: list, expected: list, tolerance: float = 1e-12):
    """Within `tolerance` of the largest number of all (or of 1): float64 and rounding."""
    largest = max([1, *(abs(array).max(initial=0) for array in expected)])
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=0, atol=tolerance * largest)


def assert_same(found: list, expected: list):
    """Bit for bit (a zero may have either sign)."""
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other)


# Attention.


@many
@given(attention_cases, st.sampled_from([1, 100, 1e4]))
def test_weights_are_shares_of_what_the_mask_allows(case, size):
    """And so every output lies between the smallest and the largest value that is allowed."""
    rng, layer = np.random.default_rng(case.seed), ScaledDotProductAttention()
    shapes = (case.T, case.d_k), (case.S, case.d_k), (case.S, case.d_v)
    query, key, value = (
        rng.standard_normal((case.B, case.H, *shape)).astype(case.dtype) for shape in shapes
    )
    mask = case.mask(rng)
    output = layer.forward(query * case.dtype(size), key, value, mask)
    weights = layer.saved[0]["weights"]
    allowed = np.broadcast_to(mask, weights.shape)
    reached = allowed.any(axis=-1)
    rounding = 10 * np.finfo(case.dtype).eps
    assert_allclose(weights.sum(axis=-1), reached, rtol=0, atol=rounding)
    assert not weights[~allowed].any() and not output[~reached].any()
    assert ((weights >= 0) & (weights <= 1)).all()
    reach = np.where(allowed[..., None], value[:, :, None], np.nan)[reached]  # (N, S, d_v)
    lowest, highest = np.nanmin(reach, axis=1), np.nanmax(reach, axis=1)
    margin = rounding * abs(value).max()
    assert (output[reached] >= lowest - margin).all()
    assert (output[reached] <= highest + margin).all()


@many
@given(attention_cases)
def test_attention_knows_no_order(case):
    """Permuted queries permute the output; permuted keys, with their mask, leave it as it is."""
    rng, layer, x, memory, mask = case.multi_head()
    tolerance = 1e-13 if case.dtype == np.float64 else 1e-5
    mask = np.broadcast_to(mask, (case.B, case.H, case.T, case.S))
    of_queries, of_keys = rng.permutation(case.T), rng.permutation(case.S)
    upstream = rng.standard_normal(x.shape).astype(case.dtype)
    output, (dx, dmemory), gradients = run(layer, [x, memory, mask], upstream)
    moved = [x[:, of_queries], memory[:, of_keys], mask[:, :, of_queries][..., of_keys]]
    found, found_inputs, found_gradients = run(layer, moved, upstream[:, of_queries])
    assert_close([found], [output[:, of_queries]], tolerance)
    assert_close(found_inputs, [dx[:, of_queries], dmemory[:, of_keys]], tolerance)
    assert_close(found_gradients, gradients, tolerance)


# Nothing leaks.


@many
@given(attention_cases, st.data())
def test_a_query_sees_what_its_mask_allows_and_nothing_else(case, data):
    """Another vector at one position of the memory, even a huge one, is no bit to the others."""
    rng, layer, x, memory, mask = case.multi_head()
    position = data.draw(st.integers(0, case.S - 1), "position")
    mask = np.broadcast_to(mask, (case.B, case.H, case.T, case.S))
    sees = mask[..., position].any(axis=1)
    changed = memory.copy()
    changed[:, position] = data.draw(st.sampled_from([1, 1e30]), "size") * rng.standard_normal(
        (case.B, case.D)
    )
    upstream = rng.standard_normal(x.shape).astype(case.dtype)
    upstream[sees] = 0
    output, *gradients = run(layer, [x, memory, mask], upstream)
    found, *found_gradients = run(layer, [x, changed, mask], upstream)
    assert_same([found[~sees]], [output[~sees]])
    assert (found[sees] != output[sees]).any(axis=-1).all()
    for one, other in zip(found_gradients, gradients, strict=True):
        assert_same(one, other)


# Batches and padding.


def trimmed(ids):
    """A row's ids (1, T) without its padding; one position is left."""
    return ids[:, : max(1, np.count_nonzero(ids))]


def widened(ids, further: int):
    return np.pad(ids, ((0, 0), (0, further)))


@some
@given(problems(), st.integers(0, 3), st.integers(0, 3))
def test_each_row_alone_gives_what_it_gives_in_any_padded_batch(problem, further_s, further_t):
    """And the gradients of the batch are the sums of those of its rows."""
    rng, model, source, target = problem.build()
    wide = widened(target, further_t)
    upstream = rng.standard_normal((*wide.shape, model.config.target_vocabulary))
    upstream[wide == PADDING] = 0
    logits, _, gradients = run(model, [widened(source, further_s), wide], upstream)
    sums = [np.zeros_like(gradient) for gradient in gradients]
    for row in range(len(source)):
        alone = [trimmed(ids[row : row + 1]) for ids in (source, target)]
        length = np.count_nonzero(target[row])
        of_row = upstream[row : row + 1, : alone[1].shape[1]]
        found, _, found_gradients = run(model, alone, of_row)
        assert_close([found[0, :length]], [logits[row, :length]])
        sums = [a + b for a, b in zip(sums, found_gradients, strict=True)]
    assert_close(sums, gradients)


# Gradients.


def other_ids(name: str, number: int) -> dict:
    """Ids of other shapes and paddings for a case, drawn by its name: no other case changes them.

    Up to four pairs of up to six ids, one source and one target with some at least.
    """
    rng = np.random.default_rng([zlib.crc32(name.encode()), number])
    row_lengths = rng.integers(0, 7, (rng.integers(1, 5), 2))
    row_lengths[0] = np.maximum(row_lengths[0], 1)
    source, target = (padded(rng, of_side, V) for of_side in row_lengths.T)
    following = np.where(target, rng.integers(1, V, target.shape), PADDING)
    places = rng.permutation(len(source) * min(source.shape[1], target.shape[1]))[:5]
    return dict(
        source=source,
        target_in=target,
        target_out=following,
        lengths=np.count_nonzero(target, axis=1),
        some_places=places,
    )


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].composed])
def test_gradients_agree_with_numerical_ones_for_any_shape(name, number):
    rows = check(*CASES[name](**other_ids(name, number)), directions=1)
    assert not [str(row) for row in rows if not row.passed]


# Softmax, loss, norm and dropout.


@st.composite
def extreme_scores(draw):
    """float32 (B, T, V) up to +-1e4: spread widely or hardly, all equal, or one by far the highest.

    -> rng, scores.
    """
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
    weights, (dscores,), _ = run(Softmax(), [scores, mask], dweights)
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
    loss, (dlogits,), _ = run(CrossEntropy(smoothing), [logits, targets, real], 1.0)
    q = (1 - smoothing) * (np.arange(vocabulary) == targets[..., None]) + smoothing / vocabulary
    weight = real[..., None] / max(1, real.sum())
    log_p = log_softmax(logits)
    assert abs(loss - (-q * log_p * weight).sum()) <= 1e-6 * (1 + np.ptp(logits))
    assert_allclose(dlogits, (np.exp(log_p) - q) * weight, rtol=0, atol=1e-6)
    assert_allclose(dlogits.sum(axis=-1), 0, rtol=0, atol=1e-6)


@many
@given(array_shapes(max_dims=3, max_side=6), st.floats(-100, 100), st.floats(0.1, 100), seeds)
def test_a_norm_takes_away_shift_and_scale(shape, shift, scale, seed):
    """Forward each position has mean 0 and variance v / (v + epsilon); backward no shift passes."""
    rng, layer = np.random.default_rng(seed), LayerNorm(shape[-1])
    pack(layer, np.float64)
    x = scale * rng.standard_normal(shape) + shift
    y, (dx,), _ = run(layer, [x], rng.standard_normal(shape))
    variance = x.var(axis=-1)
    assert_allclose(y.mean(axis=-1), 0, rtol=0, atol=1e-8)
    assert_allclose(y.var(axis=-1), variance / (variance + layer.epsilon), rtol=0, atol=1e-8)
    assert_allclose(dx.sum(axis=-1), 0, rtol=0, atol=1e-8)


@many
@given(array_shapes(max_side=6), st.floats(0, 0.99), dtypes, seeds)
def test_dropout_drops_backward_what_it_dropped_forward(shape, p_drop, dtype, seed):
    """One scale for all that is kept, and the same masks again after the same reseeding."""
    layer, ones = Dropout(p_drop), np.ones(shape, dtype)
    masks = []
    for _ in range(2):
        dropout_stream.reseed(seed, 3)
        masks.append([layer.forward(ones), layer.forward(ones)])
    assert_same(masks[0], masks[1])
    assert_same([layer.backward(ones) for _ in range(4)], [*masks[1][::-1], *masks[0][::-1]])
    kept = masks[0][0][masks[0][0] != 0]
    assert_allclose(kept, 1 / (1 - p_drop), rtol=2e-3)


# Decoding.


# Few symbols, so that hypotheses end early and late.
decoding_problems = problems(vocabularies=[5, 6], d_model=12)


def next_log_probabilities(model, row, prefixes):
    """Log probabilities (N, V) of what follows each prefix (N, T), by a forward of the whole."""
    source = np.repeat(row[None], len(prefixes), axis=0)
    with inference():
        return log_probabilities(model.forward(source, np.array(prefixes))[:, -1])


@some
@given(decoding_problems, st.integers(1, 8))
def test_greedy_takes_the_most_probable_symbol_at_every_position(problem, max_length):
    _, model, source, _ = problem.build()
    for row, found in zip(source, greedy(model, source, max_length), strict=True):
        assert END not in found and len(found) <= max_length
        symbols = found if len(found) == max_length else [*found, END]
        for t, symbol in enumerate(symbols):
            log_p = next_log_probabilities(model, row, [[START, *symbols[:t]]])[0]
            assert log_p[symbol] >= log_p.max() - 1e-9


@some
@given(decoding_problems, st.integers(1, 8), st.floats(0, 2))
def test_a_beam_of_1_is_greedy(problem, max_length, alpha):
    _, model, source, _ = problem.build()
    assert beam_search(model, source, max_length, 1, alpha) == greedy(model, source, max_length)


@many
@given(decoding_problems, st.integers(1, 8), st.integers(1, 5))
def test_each_row_alone_is_decoded_as_in_a_batch(problem, max_length, beam):
    _, model, source, _ = problem.build()
    together = beam_search(model, source, max_length, beam)
    rows = [trimmed(source[row : row + 1]) for row in range(len(source))]
    assert [beam_search(model, row, max_length, beam)[0] for row in rows] == together


def score_of_every_sequence(model, row, max_length: int, alpha: float) -> dict:
    """Log probability / length penalty of all that ends within max_length or has that length."""
    symbols = [END, *range(END + 1, model.config.target_vocabulary)]
    scores, going_on = {}, {(): 0.0}
    for length in range(1, max_length + 1):
        log_p = next_log_probabilities(model, row, [[START, *ids] for ids in going_on])
        totals = {
            (*ids, symbol): total + of_symbol[symbol]
            for (ids, total), of_symbol in zip(going_on.items(), log_p, strict=True)
            for symbol in symbols
        }
        going_on = {ids: total for ids, total in totals.items() if ids[-1] != END}
        ended = {ids[:-1]: total for ids, total in totals.items() if ids[-1] == END}
        if length == max_length:
            ended |= going_on
        scores |= {ids: total / length_penalty(length, alpha) for ids, total in ended.items()}
    return scores


@many
@given(decoding_problems, st.integers(1, 4), st.floats(0, 2))
def test_a_beam_as_large_as_all_hypotheses_finds_the_best_of_all(problem, max_length, alpha):
    _, model, source, _ = problem.build()
    beam = (model.config.target_vocabulary - END - 1) ** max_length
    found = beam_search(model, source, max_length, beam, alpha)
    for row, ids in zip(source, found, strict=True):
        scores = score_of_every_sequence(model, row, max_length, alpha)
        assert scores[tuple(ids)] >= max(scores.values()) - 1e-9


# Training.


class Several(Layer):
    """Nothing but parameters, of the given shapes."""

    def __init__(self, shapes, rng):
        self.parameters = [Parameter(rng.standard_normal(shape)) for shape in shapes]


@many
@given(st.lists(array_shapes(max_side=5), min_size=1, max_size=4), dtypes, seeds, st.data())
def test_adam_on_one_vector_is_adam_on_each_parameter(shapes, dtype, seed, data):
    """And on any stretches of the vector, in any order: to the bit, for each number is alone."""
    layer, same = (Several(shapes, np.random.default_rng(seed)) for _ in range(2))
    together, in_stretches = (Adam(pack(part, dtype)) for part in (layer, same))
    alone = [Several([shape], np.random.default_rng(seed)) for shape in shapes]
    each = [Adam(pack(part, dtype)) for part in alone]
    for part, parameter in zip(alone, layer.parameters, strict=True):
        part.parameters[0].data[...] = parameter.data
    rng, size = np.random.default_rng(seed), len(together.parameters.data)
    cut = data.draw(st.integers(0, size), "cut")
    for step in range(1, 4):
        for part, parameter in zip(alone, layer.parameters, strict=True):
            parameter.grad[...] = 10.0 ** rng.integers(-4, 4) * rng.standard_normal(parameter.shape)
            part.parameters[0].grad[...] = parameter.grad
        for optimizer in (together, *each):
            optimizer.step(0.1 / step)
        for stretch in (slice(cut, size), slice(0, cut)):
            in_stretches.update(together.parameters.grad, step, 0.1 / step, stretch)
    assert_same([in_stretches.parameters.data], [together.parameters.data])
    for part, parameter in zip(alone, layer.parameters, strict=True):
        assert_same([part.parameters[0].data], [parameter.data])


@many
@given(st.integers(1, 50), st.integers(-6, 6), st.integers(-6, 6), dtypes, seeds)
def test_clipping_never_lengthens_and_keeps_the_direction(size, power, max_power, dtype, seed):
    grad = (10.0**power * np.random.default_rng(seed).standard_normal(size)).astype(dtype)
    before, max_norm = grad.copy(), 10.0**max_power
    rounding = 10 * float(np.finfo(dtype).eps)
    norm = clip_global_norm(grad, max_norm)
    assert norm == pytest.approx(np.linalg.norm(before), rel=rounding)
    assert np.linalg.norm(grad) <= min(norm, max_norm) * (1 + rounding)
    assert_allclose(grad, before * min(1, max_norm / norm), rtol=rounding)


@few
@given(problems(shortest=1), st.integers(1, 5), st.sampled_from([0.0, 0.1]))
def test_the_parts_of_any_batch_sum_to_the_whole(problem, count, smoothing):
    """Their losses weighted by their targets, however unevenly those are dealt out."""
    rng, model, source, target = problem.build()
    following = np.where(target, rng.integers(1, model.config.target_vocabulary, target.shape), 0)
    batch, results = PairBatch(source, target, following), []
    optimizer = Adam(pack(model, np.float64))
    for parts in (1, count):
        loss = Parts(Objective(model, smoothing), optimizer, 0, parts).gradient(1, batch)
        results.append([loss, optimizer.parameters.grad.copy()])
    assert_close(results[1], results[0])


# Batching.

some_ids = st.lists(st.integers(3, 9), max_size=6)
some_pairs = st.lists(st.tuples(some_ids, some_ids), min_size=1, max_size=12)


def unpadded(batch: PairBatch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch; checks what was added to them."""
    pairs = []
    for rows in zip(*vars(batch).values(), strict=True):
        source, target_in, target_out = (trimmed(ids[None])[0].tolist() for ids in rows)
        assert source.pop() == END and target_in.pop(0) == START and target_out.pop() == END
        assert target_in == target_out
        pairs.append((source, target_in))
    return pairs


@many
@given(st.lists(some_ids, min_size=1, max_size=6))
def test_padding_is_on_the_right_and_no_wider_than_the_longest(sequences):
    padded_ids = pad(sequences)
    assert padded_ids.shape == (len(sequences), max(map(len, sequences)))
    for row, sequence in zip(padded_ids, sequences, strict=True):
        assert row[: len(sequence)].tolist() == sequence and not row[len(sequence) :].any()


@many
@given(some_pairs, st.integers(1, 14))
def test_batches_and_their_parts_hold_every_pair(pairs, count):
    """The parts, dealt out in turn, reassemble; none has a column of nothing but padding."""
    batch = PairBatch.of(pairs)
    assert unpadded(batch) == pairs
    parts = batch.split(count)
    reassembled = [None] * len(pairs)
    for first, part in enumerate(parts):
        reassembled[first::count] = unpadded(part)
        assert all(ids.any(axis=0).all() for ids in vars(part).values())
    assert reassembled == pairs


@many
@given(some_pairs, st.integers(1, 5), st.integers(1, 3), st.integers(0, 9), st.data())
def test_an_epoch_holds_every_pair_once_and_its_steps_come_in_any_order(
    pairs, batch_size, pool, seed, data
):
    batches = EpochBatches(pairs, batch_size, seed, pool)
    steps = range(1, 3 * batches.count() + 1)
    in_order = [unpadded(batches(step)) for step in steps]
    for epoch in range(3):
        of_epoch = in_order[epoch * batches.count() :][: batches.count()]
        found = Counter(map(str, itertools.chain(*of_epoch)))
        assert found == Counter(map(str, pairs))
        assert max(map(len, of_epoch)) <= batch_size
    again = EpochBatches(pairs, batch_size, seed, pool)
    for step in data.draw(st.lists(st.sampled_from(steps), max_size=6), "steps"):
        assert unpadded(again(step)) == in_order[step - 1]


# Round trips.

texts = st.text("aB<>\0 \n\u0303ʁ😀", max_size=4)  # of all Unicode drawing is slow
symbols = texts | st.sampled_from(SPECIAL)


@many
@given(st.lists(symbols, unique=True), st.lists(st.lists(symbols), max_size=4))
def test_a_vocabulary_gives_back_what_it_knows(known, sequences):
    """All of the symbols may be anything, the written names of the special ids included."""
    vocabulary = Vocabulary(known)
    ids = vocabulary.encode(known)
    assert ids == list(range(len(SPECIAL), len(vocabulary)))
    assert vocabulary.decode(ids) == known
    for sequence in sequences:
        expected = [ids[known.index(s)] if s in known else UNKNOWN for s in sequence]
        assert vocabulary.encode(sequence) == expected
    of_sequences = Vocabulary.of(sequences)
    assert of_sequences.symbols == Vocabulary.of([*map(reversed, sequences[::-1])]).symbols
    for sequence in sequences:
        assert of_sequences.decode(of_sequences.encode(sequence)) == sequence


tensors_of = {
    dtype: st.dictionaries(
        texts,
        arrays(
            dtype,
            array_shapes(min_dims=0, min_side=0, max_side=4),
            elements=st.floats(width=width, allow_nan=False, allow_infinity=False),
        ),
        max_size=3,
    )
    for dtype, width in ((np.float32, 32), (np.float64, 64))
}
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
metadata = st.dictionaries(texts, scalars | st.lists(scalars) | st.dictionaries(texts, scalars))


@some
@given(st.data(), dtypes, metadata)
def test_a_checkpoint_gives_back_every_bit(tmp_path_factory, data, dtype, task):
    path = tmp_path_factory.getbasetemp() / "properties.safetensors"
    tensors = data.draw(tensors_of[dtype], "tensors")
    save_checkpoint(path, tensors, {"task": task})
    found, said = load_checkpoint(path, dtype)
    assert said["task"] == task and found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@few
@given(problems())
def test_a_saved_model_gives_back_its_config_and_every_bit(tmp_path_factory, problem):
    path = tmp_path_factory.getbasetemp() / "properties_model.safetensors"
    _, model, source, target = problem.build()
    pack(model, np.float32)
    save_model(path, model)
    again, _ = load_model(path)
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    assert_same(again.state_dict().values(), model.state_dict().values())
    with inference():
        assert_same([again.forward(source, target)], [model.forward(source, target)])
