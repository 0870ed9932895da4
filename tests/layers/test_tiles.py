"""Tiled attention equals the plain formula under a mask, for any pattern, bias, groups and reach.

Outputs, gradients, dropout masks and weights are compared, and the tiles are checked by hand.
"""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import to_host
from numformer.later import (
    ATTENTIONS,
    MIXERS,
    ALiBi,
    FullPattern,
    GlobalWindow,
    RelativePositions,
    Strided,
    TiledAttention,
    Window,
    attention_weights,
)
from numformer.later.attention import tiles
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.patterns import window_tiles
from numformer.later.attention.tiled_dropout import TiledDropoutMask
from numformer.layer import inference, pack
from numformer.models import TowerConfig
from numformer.paper import Reach, ReLU
from numformer.paper.attention import (
    CrossAttention,
    Heads,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.paper.linear import Linear
from numformer.paper.masks import ExplicitMask, Places
from numformer.paper.memory import Memory
from numformer.randomness import dropout_stream

B, T, S, H, K, V = 3, 11, 9, 4, 3, 5
LENGTHS = np.array([7, 11, 0])
PADDED = np.arange(T) < LENGTHS[:, None]
HOLES = np.random.default_rng(5).random((B, T)) < 0.6
AHEAD = np.arange(T) - np.arange(T)[:, None]
TIGHT = dict(rtol=1e-10, atol=1e-12)


def explicit_mask(xp, *shape):
    places = Places.without_padding(B, T)
    mask = np.random.default_rng(3).random(shape) < 0.5
    return ExplicitMask(xp.asarray(mask), places, places)


REACHES = {
    "all": lambda xp: Reach(Places.without_padding(B, T)),
    "causal": lambda xp: Reach(Places.without_padding(B, T), causal=True),
    "padded": lambda xp: Reach(Places(PADDED)),
    "padded, causal": lambda xp: Reach(Places(PADDED), causal=True),
    "rows": lambda xp: Reach(Places(PADDED, skip_padding=True), causal=True),
    "rows that see ahead": lambda xp: Reach(Places(PADDED, skip_padding=True)),
    "holes": lambda xp: Reach(Places(HOLES), causal=True),
    "fewer keys": lambda xp: Reach(Places.without_padding(B, T), Places(PADDED[:, :S])),
    "a mask": lambda xp: explicit_mask(xp, B, H, T, T),
    "a mask for all": lambda xp: explicit_mask(xp, 1, 1, T, T),
    "a mask of keys": lambda xp: explicit_mask(xp, B, 1, 1, T),
}


def global_window(window: int, first: int):
    seen = (abs(AHEAD) < window) | (np.arange(T) < first) | (np.arange(T)[:, None] < first)
    return GlobalWindow(window=window, global_tokens=first), seen


def strided(stride: int):
    near, far = abs(AHEAD) < stride, AHEAD % stride == 0
    return Strided(stride=stride), np.stack([near] * 2 + [far] * 2)


PATTERNS = {
    "everything": (FullPattern(), np.ones((T, T), bool)),
    **{f"window {n}": (Window(window=n), abs(AHEAD) < n) for n in (1, 2, 4, 50)},
    **{f"global window {n}": global_window(*n) for n in ((1, 1), (2, 3), (4, 2), (50, 1), (1, 50))},
    **{f"stride {n}": strided(n) for n in (1, 2, 3, 5, 50)},
}
BIASES = {
    "no bias": lambda: None,
    "alibi": lambda: ALiBi(H),
    "relative": lambda: RelativePositions(H, 6, 7, constant=ALiBi(H)),
}


def run_attention(
    reach, xp, in_tiles, pattern=None, bias=None, groups=H, p_drop=0.0, rows=3, heads=H
):
    """The output, the weights, all gradients, and the next dropout mask."""
    pattern = pattern or FullPattern()
    attention = TiledAttention(pattern, p_drop, bias, rows, least=0 if in_tiles else 10**9)
    flat = pack(attention, np.float64, xp)
    rng = np.random.default_rng(2)
    flat.data += xp.asarray(rng.standard_normal(flat.data.shape))
    longer = len(reach.keys.positions)
    shapes = (B, heads, T, K), (B, groups, longer, K), (B, groups, longer, V), (B, heads, T, V)
    *inputs, doutput = (xp.asarray(rng.standard_normal(shape)) for shape in shapes)
    dropout_stream.reseed(7, 0)
    dropout_stream.mask((3,), 0.5, np.zeros(1))  # something was drawn before
    output = attention.forward(*inputs, reach)
    assert ("arrays" in attention.saved[-1]) == in_tiles
    weights = attention.latest_weights()
    real = xp.ones((B, 1, T, 1))
    if reach.queries.skip_padding:  # rows that are left out look anywhere, and get no gradient
        real = xp.asarray(reach.queries.valid[:, None, :, None].astype(float))
    gradients = attention.backward(doutput * real)
    assert attention.pending() == 0
    arrays = output * real, weights * real, *gradients, flat.grad
    further = dropout_stream.mask((2,), 0.5, np.zeros(1))
    return [*map(to_host, arrays), further]


def assert_alike(found, expected):
    for ours, plain in zip(found, expected, strict=True):
        assert_allclose(ours, plain, **TIGHT)


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("bias", BIASES)
def test_tiles_equal_the_plain_formula(bias, reach, xp):
    """With the same dropout masks, in groups, and for each kind of pattern.

    Every second pattern has dropout; with the next reach the other patterns have it.
    """
    for number, (pattern, groups, rows) in enumerate(
        (
            (FullPattern(), 4, 3),
            (Window(window=3), 2, 4),
            (GlobalWindow(window=2, global_tokens=2), 1, 1),
            (Strided(stride=3), 4, 2),
            (Strided(stride=2), 1, 5),
        ),
        start=[*REACHES].index(reach),
    ):
        settings = dict(pattern=pattern, groups=groups, p_drop=0.3 * (number % 2))
        plain, ours = (
            run_attention(REACHES[reach](xp), xp, way, bias=BIASES[bias](), rows=rows, **settings)
            for way in (False, True)
        )
        assert_alike(ours, plain)
        assert ours[0].any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_attention_under_a_mask(name, causal, xp):
    """In tiles and whole; also under a mask of each head."""
    pattern, seen = PATTERNS[name]
    places = Places.without_padding(B, T)
    mask = np.random.default_rng(3).random((B, H, T, T)) < 0.5
    for reach, allowed in (
        (Reach(places, causal=causal), seen & ((AHEAD <= 0) | (not causal))),
        (ExplicitMask(xp.asarray(mask), places, places), mask & seen),
    ):
        under = ExplicitMask(xp.asarray(allowed), places, places)
        expected = run_attention(under, xp, False)
        for in_tiles in (True, False):
            assert_alike(run_attention(reach, xp, in_tiles, pattern), expected)


def test_heads_that_share_keys_are_heads_of_equal_keys(xp):
    """Query i has key i // (H / G), whose gradient is the sum over its group."""
    attention, plain = TiledAttention(rows=3, least=0), ScaledDotProductAttention()
    rng = np.random.default_rng(1)
    query, doutput = (xp.asarray(rng.standard_normal((B, 4, T, K))) for _ in range(2))
    key, value = (xp.asarray(rng.standard_normal((B, 2, T, K))) for _ in range(2))
    reach = Reach(Places.without_padding(B, T), causal=True)
    repeated = (xp.repeat(x, 2, axis=1) for x in (key, value))
    expected = plain.forward(query, *repeated, reach)
    assert_allclose(
        to_host(attention.forward(query, key, value, reach)), to_host(expected), **TIGHT
    )
    dquery, *gradients = plain.backward(doutput)
    of_groups = [dquery, *(x.reshape(B, 2, 2, T, K).sum(axis=2) for x in gradients)]
    assert_alike(map(to_host, attention.backward(doutput)), map(to_host, of_groups))


@pytest.mark.parametrize(("heads", "groups"), [(6, 3), (5, 5), (9, 3)])
def test_half_of_the_heads_may_end_within_a_group_or_be_one_more(xp, heads, groups):
    reach, settings = Reach(Places(HOLES), causal=True), dict(heads=heads, groups=groups)
    plain, ours = (
        run_attention(reach, xp, way, Strided(stride=3), **settings) for way in (False, True)
    )
    assert_alike(ours, plain)


def test_tiles_drop_nothing_in_inference_and_show_no_weights_that_are_not_there(rng):
    inputs = rng.standard_normal((3, B, H, T, K))
    with inference():
        dropping, plain = (TiledAttention(p_drop=p, rows=3, least=0) for p in (0.5, 0.0))
        assert_array_equal(dropping.forward(*inputs), plain.forward(*inputs))

    class Values(ReLU):
        def forward(self, query, key, value, mask):
            return super().forward(value)

    attention = TiledAttention(dense=Values())
    attention.forward(*inputs)
    assert attention.latest_weights() is None


def tile_bounds(pattern, reach, rows=4):
    attention = TiledAttention(pattern, rows=rows)
    batch, length = reach.queries.valid.shape
    query, key = np.zeros((batch, 1, length, 1)), np.zeros((batch, 1, length, 1))
    return [
        (part.queries[0].start, part.queries[2].start, part.keys[2].start, part.keys[2].stop)
        for part in attention.tiles(query, key, reach)
    ]


def test_keys_of_tiles_are_those_that_can_be_seen():
    """A causal tile has no later keys, a window no distant ones, and no tile has padding."""
    one, causal = Places.without_padding(1, 10), partial(Reach, causal=True)
    everything = partial(tile_bounds, FullPattern())
    near = partial(tile_bounds, Window(window=3))
    assert everything(causal(one)) == [(0, 0, 0, 4), (0, 4, 0, 8), (0, 8, 0, 10)]
    assert everything(Reach(one)) == [(0, 0, 0, 10), (0, 8, 0, 10)]  # twice as many rows
    assert near(causal(one)) == [(0, 0, 0, 4), (0, 4, 2, 8), (0, 8, 6, 10)]
    assert near(Reach(one), rows=2) == [(0, 0, 0, 6), (0, 4, 2, 10), (0, 8, 6, 10)]
    padded = Places(np.arange(10) < np.array([[3], [6], [0]]))
    assert everything(Reach(padded), rows=2)[:6] == [
        *((0, first, 0, 3) for first in (0, 4, 8)),
        *((1, first, 0, 6) for first in (0, 4, 8)),
    ]
    rows = Places(padded.valid, skip_padding=True)
    assert everything(Reach(rows), rows=2)[:3] == [(0, 0, 0, 3), (1, 0, 0, 6), (1, 4, 0, 6)]


def test_tiles_by_hand():
    one, two = (GlobalWindow(window=2, global_tokens=n) for n in (1, 2))

    def keys(pattern, causal, length=7):
        tiles_of_pattern = pattern.tiles(np.arange(length), np.arange(length), causal, H, 2)
        return [np.arange(length)[tile.keys].tolist() for tile in tiles_of_pattern]

    assert keys(one, True) == [[0, 1], [0, 1, 2, 3], [0, 3, 4, 5], [0, 5, 6]]
    assert keys(one, False) == [[*range(7)], [*range(5)], [0, 3, 4, 5, 6], [0, 5, 6]]
    assert keys(two, False) == [[*range(7)], [*range(5)], [0, 1, 3, 4, 5, 6], [0, 1, 5, 6]]
    assert one.mask(np.array([6]), np.arange(7)).tolist() == [[True] + [False] * 4 + [True] * 2]
    for start in (0, 1):
        later, all_keys = np.arange(start + 4, start + 6), np.arange(start, start + 6)
        near, *far = Strided(stride=3).tiles(later, all_keys, True, H, 4)
        assert (near.heads, near.rows, near.keys) == (slice(0, 2), slice(0, 2), slice(2, 6))
        assert [tile[:3] for tile in far] == [
            (slice(2, H), slice(0, 2, 3), slice(1, 6, 3)),
            (slice(2, H), slice(1, 2, 3), slice(2, 6, 3)),
        ]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 3, np.inf])
def test_a_tile_has_the_keys_that_one_of_its_queries_sees_and_knows_which_all_see(window, causal):
    """Exactly, wherever queries and keys begin and end; keys that all see are not masked."""
    for t, s in (range(4), range(9)), (range(2, 7), range(5)), (range(9, 12), range(3, 7)):
        t, s = np.array(t), np.array(s)
        ahead = s - t[:, None]
        seen = (abs(ahead) < window) & ((ahead <= 0) | (not causal))
        for tile in window_tiles(t, s, causal, H, 2, window):
            of_stretch = seen[tile.rows]
            assert_array_equal(s[tile.keys], s[of_stretch.any(axis=0)])
            assert_array_equal(s[tile.keys][tile.unmasked], s[of_stretch.all(axis=0)])


@pytest.mark.parametrize("causal", [True, False])
def test_scores_that_nobody_needs_are_not_computed(causal):
    def count(pattern, length, rows):
        """How many scores the tiles have, over two heads."""
        scores = np.zeros((2, length, length), int)
        places = np.arange(length)
        for tile in pattern.tiles(places, places, causal, 2, rows):
            scores[tile.heads, tile.rows, tile.keys] += 1
        assert scores.max() == 1
        return scores.sum()

    pattern = GlobalWindow(window=8, global_tokens=3)
    counts = [count(pattern, length, 8) for length in (256, 512, 1024)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])  # linear, after the first tiles
    assert counts[0] < 2 * 256 * (3 * 8 + 3 if not causal else 2 * 8 + 3) + 2 * 8 * 256
    strided_scores = count(Strided(stride=16), 256, 16)
    assert strided_scores <= 256 * (256 // 16) + 256 * 16 * (2 if causal else 3)


def test_the_dropout_mask_of_a_tile_is_a_part_of_the_whole_mask(xp):
    """For any length, although four entries share a random word."""
    for shape in ((2, 3, 5, 7), (2, 3, 5, 8), (1, 2, 1, 1), (1, 2, 3, 83)):
        dropout_stream.reseed(1, 2)
        later, like = TiledDropoutMask(shape, 0.3), xp.zeros(1, xp.float32)
        after = dropout_stream.mask((2,), 0.3, like)
        dropout_stream.reseed(1, 2)
        whole = to_host(dropout_stream.mask(shape, 0.3, like))
        assert_array_equal(to_host(after), to_host(dropout_stream.mask((2,), 0.3, like)))
        every = np.arange(shape[-1])
        for leading in ((slice(None), slice(None)), (slice(0, 1), slice(1, 2))):
            for rows in (slice(0, 5), slice(1, 3), slice(0, None, 2)):
                for columns in (every, every[2:6], every[::3], np.r_[every[:1], every[3:]]):
                    if len(columns):
                        tile = later.tile((*leading, rows), columns, like)
                        assert tile.dtype == np.float32
                        assert_array_equal(to_host(tile), whole[*leading, rows][..., columns])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [1, 300])
def test_scores_of_any_size(factor, dtype, rng, xp):
    """For small ones the highest is not computed; for large ones most weights are 0."""
    query, key, value = inputs = factor * rng.standard_normal((3, 2, H, T, 4)).astype(dtype)
    assert factor == 1 or abs(query @ key.swapaxes(2, 3)).max() > 1e5  # exp overflows beyond 710
    plain, ours = ScaledDotProductAttention(), TiledAttention(rows=4, least=0)
    reach = Reach(Places.without_padding(2, T), causal=True)
    on_device = [xp.asarray(x) for x in inputs]
    assert tiles.scores_are_small(*on_device[:2]) == (factor == 1 and xp is np)
    expected = plain.forward(query, key, value, reach)
    output = to_host(ours.forward(*on_device, reach))
    assert output.dtype == dtype and np.isfinite(output).all()
    tolerance = dict(rtol=100 * np.finfo(dtype).eps, atol=100 * factor * np.finfo(dtype).eps)
    assert_allclose(output, expected, **tolerance)
    tolerance["atol"] *= 30 * factor**2
    doutput = rng.standard_normal(output.shape).astype(dtype)
    gradients = ours.backward(xp.asarray(doutput)), plain.backward(doutput)
    for of_ours, of_plain in zip(*gradients, strict=True):
        assert of_ours.dtype == dtype
        assert_allclose(to_host(of_ours), of_plain, **tolerance)


def test_small_scores_have_a_finite_exponential():
    """The longest query and the longest key decide, and not how long they are on average."""
    query, key = np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 3, 4))
    query[..., 1, :] = 10  # of length 20
    for length, small in ((4.0, True), (4.1, False)):
        key[..., 2, :] = length / 2
        assert tiles.scores_are_small(query, key) == small


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_scores_give_the_mean_of_the_values_however_small_their_exponentials(dtype, rng):
    query, key = np.full((1, 1, 2, 4), 10, dtype), np.full((1, 1, 3, 4), -2, dtype)
    value = rng.standard_normal((1, 1, 3, 5)).astype(dtype)
    assert tiles.scores_are_small(query, key)  # they are -40
    output = TiledAttention(rows=1, least=0).forward(query, key, value)
    expected = value.mean(axis=2, keepdims=True)
    assert_allclose(output, expected.repeat(2, axis=2), rtol=1e-5, atol=1e-6)


def test_a_large_bias_does_not_overflow(rng):
    """However small the products of queries and keys are. A GPU is not asked for their size."""

    class Large:
        def forward(self, queries, keys, like):
            return (500 * (1 + (queries[:, None] + keys)[None] / T)).astype(like.dtype)

    query, key, value = rng.standard_normal((3, 1, H, T, 4)).astype(np.float32)
    expected = TiledAttention(bias=Large()).forward(query, key, value)
    output = TiledAttention(bias=Large(), rows=4, least=0).forward(query, key, value)
    assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def self_attention(mixer: str, d_model: int = 8, **changes):
    config = TowerConfig(d_model=d_model, heads=H, mixers=mixer, **changes)
    return config.self_attention(np.random.default_rng(1), causal=True)


MIXERS_IN_TILES = {
    "attention": dict(attention_function="tiled", key_value_heads=2),
    "window": dict(window=4, key_value_heads=2),
    "global_window": dict(window=4),
    "strided": dict(stride=6),
    "relative": {},
}


def test_long_sequences_take_tiles_and_short_ones_the_plain_formula(rng):
    def reach(length, longer=None, causal=True):
        return Reach(
            Places.without_padding(1, length),
            Places.without_padding(1, longer or length),
            causal=causal,
        )

    takes = TiledAttention().uses_tiles
    assert not takes(reach(128, 9999))  # one tile
    for causal, least in (True, 128), (False, 256):
        assert takes(reach(512, least, causal))
        assert not takes(reach(512, least - 1, causal))
    assert not takes(reach(1, 1 << 20))
    for mixer, changes in MIXERS_IN_TILES.items():
        layer = self_attention(mixer, **changes)
        x = rng.standard_normal((1, 400, 8)).astype(np.float32)
        layer.forward(x, reach(400))
        layer.forward(x[:, :9], reach(9))
        assert ["arrays" in saved for saved in layer.attention.saved] == [True, False]
        assert attention_weights(layer).shape == (1, H, 9, 9)
        layer.backward(x[:, :9])
        assert attention_weights(layer).shape == (1, H, 400, 400)
        assert_allclose(attention_weights(layer).sum(axis=-1), 1, rtol=1e-5)
        layer.backward(x)


def test_steps_after_a_long_prefix_equal_the_whole_sequence(rng):
    """Memory does not depend on tiles."""
    for mixer, changes in MIXERS_IN_TILES.items():
        flat = pack(layer := self_attention(mixer, **changes), np.float64)
        flat.data += rng.standard_normal(flat.data.shape)
        x = rng.standard_normal((1, 400, 8))
        with inference():
            whole = layer.forward(x, Reach(Places.without_padding(1, 400), causal=True))
            past = Memory(400)
            for first, last in ((0, 390), (390, 399), (399, 400)):
                places = Places.without_padding(1, last - first, first)
                y = layer.forward(x[:, first:last], Reach(places, causal=True), past)
                past.advance(last - first)
                assert_allclose(y, whole[:, first:last], rtol=1e-9, atol=1e-12)


def test_memory_grows_with_the_length(rng):
    """And not with its square. A length of 1,024 takes less than a quarter of the plain memory."""

    def peak(layer, length, *reach):
        x = rng.standard_normal((3, 1, 1, length, 8)).astype(np.float32)
        tracemalloc.start()
        layer.backward(layer.forward(*x, *reach))
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    plain = peak(ScaledDotProductAttention(), 1024)
    for bias in (None, RelativePositions(1)):
        ours = TiledAttention(bias=bias)
        peaks = [
            peak(ours, n, Reach(Places.without_padding(1, n), causal=True)) for n in (1024, 2048)
        ]
        assert peaks[1] < 2.2 * peaks[0]
        assert peaks[0] < plain / 4 or bias


def test_a_default_config_makes_the_paper_s_classes():
    config, rng = TowerConfig(d_model=8, heads=H), np.random.default_rng(0)
    for layer, kind in (
        (config.self_attention(rng), SelfAttention),
        (config.cross_attention(rng), CrossAttention),
    ):
        parts = layer.query, layer.key, layer.value, layer.output, layer.attention
        kinds = Heads, Heads, Heads, Linear, ScaledDotProductAttention
        assert type(layer) is kind and tuple(map(type, parts)) == kinds


def test_a_custom_attention_gets_all_scores(rng, monkeypatch):
    """It gets a mask and the bias, if there is one, and is built with p_drop."""
    given = []

    class Own(BiasedAttention):
        def forward(self, query, key, value, mask, *bias):
            given.append((mask.shape, *(x.shape for x in bias)))
            return super().forward(query, key, value, mask, *bias)

    monkeypatch.setitem(ATTENTIONS, "own", Own)
    own = dict(attention_function="own", attention_dropout=0.2)
    x = rng.standard_normal((1, 400, 8)).astype(np.float32)
    reach = Reach(Places.without_padding(1, 400), causal=True)
    layer = self_attention("window,attention", window=4, **own)
    layer.forward(x, reach)
    assert type(layer.attention.dense) is Own and layer.attention.dense.dropout.p_drop == 0.2
    assert attention_weights(layer).shape == (1, H, 400, 400)
    self_attention("window,attention", window=4, positions="alibi", **own).forward(x, reach)
    assert given == [((1, 1, 400, 400),), ((1, 1, 400, 400), (H, 400, 400))]


def test_a_custom_attention_without_a_bias_gradient_is_refused(rng, complaint, monkeypatch):
    class Own(BiasedAttention):
        def backward(self, doutput):
            return super().backward(doutput)[:3]

    monkeypatch.setitem(ATTENTIONS, "own", Own)
    layer = self_attention("relative,attention", attention_function="own")
    x = rng.standard_normal((1, 4, 8)).astype(np.float32)
    layer.forward(x)
    assert "returns dquery, dkey, dvalue, dbias; received 3 gradients from Own" in complaint(
        layer.backward, x
    )


def test_patterns_of_size_0_are_refused(complaint):
    for kind, name in ((Window, "window"), (Strided, "stride"), (GlobalWindow, "global_tokens")):
        for value in (0, -1, 2.0):
            message = f"{name} is an integer of at least 1; received {value}"
            assert message in complaint(kind, **{name: value})
    small = dict(d_model=8, heads=1)
    assert "2 heads: one for near keys, one for distant keys; received heads 1" in complaint(
        TowerConfig, **small, mixers="window,strided"
    )
    TowerConfig(**small, mixers="window")


def test_groups_have_equal_sizes(complaint):
    sizes = dict(d_model=8, heads=4)
    assert "heads 4, key_value_heads 3" in complaint(TowerConfig, **sizes, key_value_heads=3)
    config = TowerConfig(**sizes, key_value_heads=2, d_k=3, d_v=5)
    for mixer in ("attention", "window", "strided"):
        assert MIXERS[mixer].entries(config) == 8 * (4 + 2) * (3 + 5)
