"""Attention in blocks is the plain formula: outputs, gradients, dropout's masks, where it looks."""

import tracemalloc

import numpy as np
import pytest
from numformer.layers.blocks import BlockAttention, worth_blocks
from numformer.layers.dropout import KeepByTiles
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import to_host
from numformer.later import MIXERS, Rotary
from numformer.later.attention.alibi import alibi
from numformer.layer import inference, pack
from numformer.layers import attention, blocks
from numformer.paper import Memory, Places, Reach
from numformer.paper.masks import ExplicitMask
from numformer.randomness import dropout_stream

B, T, D, H = 3, 11, 8, 4
LENGTHS = np.array([7, 11, 0])
PADDED = np.arange(T) < LENGTHS[:, None]
HOLES = np.random.default_rng(5).random((B, T)) < 0.6
MIXER_SETTINGS = {
    "attention": {},
    "grouped": dict(key_value_heads=2),
    "window": dict(key_value_heads=2, window=4),
}


def drawn(xp, *shape):
    places = Places.whole(B, T)
    return ExplicitMask(xp.asarray(np.random.default_rng(3).random(shape) < 0.5), places, places)


REACHES = {
    "all": lambda xp: Reach(Places.whole(B, T)),
    "causal": lambda xp: Reach(Places.whole(B, T), causal=True),
    "padded": lambda xp: Reach(Places(PADDED)),
    "padded, causal": lambda xp: Reach(Places(PADDED), causal=True),
    "rows": lambda xp: Reach(Places(PADDED, skip_padding=True), causal=True),
    "rows that see ahead": lambda xp: Reach(Places(PADDED, skip_padding=True)),
    "holes": lambda xp: Reach(Places(HOLES), causal=True),
    "drawn": lambda xp: drawn(xp, B, H, T, T),
    "drawn for all": lambda xp: drawn(xp, 1, 1, T, T),
}


def computed(monkeypatch, in_blocks: bool, mixer, reach, p_drop, positions, xp, rows=3):
    """Outputs, gradients of x and of the parameters, where it looked."""
    monkeypatch.setattr(attention, "worth_blocks", lambda reach: in_blocks)
    layer = MIXERS[mixer](
        D, H, np.random.default_rng(1), p_drop=p_drop, **MIXER_SETTINGS[mixer], **positions
    )
    layer.in_blocks.rows = rows
    flat = pack(layer, np.float64, xp)
    rng = np.random.default_rng(2)
    shape = (len(reach.queries.real), D) if reach.queries.skip_padding else (B, T, D)
    x, dy = (xp.asarray(rng.standard_normal(shape)) for _ in range(2))
    dropout_stream.reseed(7, 0)
    dropout_stream.keep((3,), 0.5, np.zeros(1))  # something was drawn before
    y = layer.forward(x, reach)
    looks = layer.looks()
    dx = layer.backward(dy)
    further = dropout_stream.keep((2,), 0.5, np.zeros(1))
    return [to_host(array) for array in (y, looks, dx, flat.grad)], further, layer


@pytest.mark.parametrize("p_drop", [0, 0.3])
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("mixer", MIXER_SETTINGS)
def test_blocks_are_the_plain_formula(mixer, reach, p_drop, monkeypatch, xp):
    """With the same masks of dropout; with positions in attention, too."""
    for positions, rows in (
        ({}, 3),
        (dict(rotary=Rotary()), 4),
        (dict(position_bias=alibi), 1),
    ):
        settings = mixer, REACHES[reach](xp), p_drop, positions, xp
        plain, after_plain, _ = computed(monkeypatch, False, *settings)
        ours, after_blocks, layer = computed(monkeypatch, True, *settings, rows)
        skipped = settings[1].queries.skip_padding and ~PADDED[:, None, :, None]
        for looks in plain, ours:  # rows that are left out look anywhere
            looks[1] = np.where(skipped, 0, looks[1])
        for expected, array in zip(plain, ours, strict=True):
            assert_allclose(array, expected, rtol=1e-10, atol=1e-12)
        assert_array_equal(after_plain, after_blocks)
        assert layer.pending() == 0 and ours[0].any()


def test_keys_of_tiles_are_those_that_can_be_seen(monkeypatch):
    """A causal block computes nothing later, a window nothing far, nobody padding."""

    def stretches_of(reach, rows=4):
        batch, length = reach.queries.valid.shape
        tiles = blocks.Tiles(rows, reach, None, None).of(np.zeros((batch, 1, length, 1)))
        return [
            (tile.queries[0], tile.queries[-2].start, tile.keys[-2].start, tile.keys[-2].stop)
            for tile in tiles
        ]

    one = Places.whole(1, 10)
    assert stretches_of(Reach(one)) == [(0, 0, 0, 10), (0, 4, 0, 10), (0, 8, 0, 10)]
    assert stretches_of(Reach(one, causal=True)) == [(0, 0, 0, 4), (0, 4, 0, 8), (0, 8, 0, 10)]
    near = Reach(one, causal=True, window=3)
    assert stretches_of(near) == [(0, 0, 0, 4), (0, 4, 2, 8), (0, 8, 6, 10)]
    assert stretches_of(Reach(one, window=3)) == [(0, 0, 0, 6), (0, 4, 2, 10), (0, 8, 6, 10)]
    padded = Places(np.arange(10) < np.array([[3], [6], [0]]))
    assert stretches_of(Reach(padded)) == [
        *((0, first, 0, 3) for first in (0, 4, 8)),
        *((1, first, 0, 6) for first in (0, 4, 8)),
    ]
    rows = Places(padded.valid, skip_padding=True)
    assert stretches_of(Reach(rows)) == [(0, 0, 0, 3), (1, 0, 0, 6), (1, 4, 0, 6)]
    for causal, rows in (True, 4), (False, 8):
        layer = BlockAttention(rows=4)
        layer.forward(*np.zeros((3, 1, 1, 10, 2)), Reach(one, causal=causal))
        assert layer.saved[-1]["tiles"].rows == rows


def test_a_mask_of_any_tile_is_that_of_the_whole(xp):
    """Whatever the lengths: four entries share a random word."""
    for shape in ((2, 3, 5, 7), (2, 3, 5, 8), (1, 2, 1, 1), (1, 2, 3, 83)):
        dropout_stream.reseed(1, 2)
        later, like = KeepByTiles(shape, 0.3), xp.zeros(1, xp.float32)
        after = dropout_stream.keep((2,), 0.3, like)
        dropout_stream.reseed(1, 2)
        whole = to_host(dropout_stream.keep(shape, 0.3, like))
        assert_array_equal(to_host(after), to_host(dropout_stream.keep((2,), 0.3, like)))
        for leading in ((slice(None), slice(None)), (0, 1), (slice(0, 1), slice(1, 2))):
            for rows, columns in ((slice(0, 5), slice(0, 83)), (slice(1, 3), slice(2, 6))):
                columns = slice(*columns.indices(shape[-1])[:2])
                tile = later.tile(leading, slice(*rows.indices(shape[-2])[:2]), columns, like)
                assert tile.dtype == np.float32
                assert_array_equal(to_host(tile), whole[*leading, rows, columns])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [1, 300])
def test_scores_are_as_large_as_they_like(factor, dtype, rng, xp):
    """Of small ones the highest is not looked for; of large ones only few weights are not 0."""
    query, key, value = inputs = factor * rng.standard_normal((3, 2, H, T, 4)).astype(dtype)
    assert factor == 1 or abs(query @ key.swapaxes(2, 3)).max() > 1e5  # exp overflows beyond 710
    plain, ours = attention.ScaledDotProductAttention(), BlockAttention(rows=4)
    reach = Reach(Places.whole(2, T), causal=True)
    on_device = [xp.asarray(x) for x in inputs]
    assert blocks.scores_are_small(*on_device[:2]) == (factor == 1 and xp is np)
    expected = plain.forward(query, key, value, reach.dense())
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


def test_small_scores_are_those_whose_exponential_is_a_number():
    query = np.full((1, 1, 2, 4), 10.0)  # of length 20
    for length, small in ((4.0, True), (4.1, False)):
        assert blocks.scores_are_small(query, np.full((1, 1, 3, 4), length / 2)) == small


def test_a_large_bias_overflows_nothing(rng):
    """However small the products of queries and keys are; a GPU is not asked for their size."""
    query, key, value = rng.standard_normal((3, 1, H, T, 4)).astype(np.float32)

    def bias(queries, keys):
        return 500 * (1 + (queries[:, None] + keys)[None] / T)

    plain, ours = attention.ScaledDotProductAttention(), BlockAttention(rows=4)
    expected = plain.forward(query, key, value, None, bias(np.arange(T), np.arange(T)))
    output = ours.forward(query, key, value, Reach(Places.whole(1, T)), bias)
    assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_long_sequences_take_blocks_and_short_ones_the_plain_formula(rng):
    def reach(length, longer=None, causal=True):
        return Reach(Places.whole(1, length), Places.whole(1, longer or length), causal=causal)

    assert not worth_blocks(reach(128, 9999))  # one block
    for causal, least in (True, 128), (False, 256):
        assert worth_blocks(reach(512, least, causal))
        assert not worth_blocks(reach(512, least - 1, causal))
    assert not worth_blocks(reach(1, 1 << 20))
    for mixer, settings in MIXER_SETTINGS.items():
        layer = MIXERS[mixer](D, H, rng, **settings)
        x = rng.standard_normal((1, 400, D)).astype(np.float32)
        layer.forward(x, reach(400))
        layer.forward(x[:, :9], reach(9))
        pending = [part.pending() for part in (layer.in_blocks, layer.attention)]
        assert pending == [1, 1]
        assert layer.looks().shape == (1, H, 9, 9)
        layer.backward(x[:, :9])
        assert layer.looks().shape == (1, H, 400, 400)
        assert_allclose(layer.looks().sum(axis=-1), 1, rtol=1e-5)
        layer.backward(x)


def test_an_attention_of_ones_own_meets_its_scores_whole(rng):
    class Other(attention.ScaledDotProductAttention):
        pass

    layer = MIXERS["window"](D, H, rng, window=4, attention=Other)
    x = rng.standard_normal((1, 400, D)).astype(np.float32)
    layer.forward(x, Reach(Places.whole(1, 400), causal=True))
    assert layer.in_blocks is None and layer.attention.pending() == 1
    assert layer.looks().shape == (1, H, 400, 400)


def test_steps_after_a_long_beginning_are_the_whole(rng):
    """What is remembered is none of the blocks' business."""
    for mixer, settings in MIXER_SETTINGS.items():
        layer = MIXERS[mixer](D, H, rng, **settings)
        pack(layer, np.float64)
        x = rng.standard_normal((1, 400, D))
        with inference():
            whole = layer.forward(x, Reach(Places.whole(1, 400), causal=True))
            past = Memory(400)
            for first, last in ((0, 390), (390, 399), (399, 400)):
                places = Places.whole(1, last - first, first)
                y = layer.forward(x[:, first:last], Reach(places, causal=True), past)
                past.advance(last - first)
                assert_allclose(y, whole[:, first:last], rtol=1e-9, atol=1e-12)


def test_memory_grows_with_the_length(rng):
    """At 2,048 it is less than a quarter of the plain formula's."""

    def peak(layer, length, *reach):
        x = rng.standard_normal((3, 1, 1, length, 8)).astype(np.float32)
        tracemalloc.start()
        layer.backward(layer.forward(*x, *reach))
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    plain, ours = attention.ScaledDotProductAttention(), BlockAttention()
    peaks = [peak(ours, n, Reach(Places.whole(1, n), causal=True)) for n in (2048, 4096)]
    assert peaks[1] < 2.2 * peaks[0]
    assert peaks[0] < peak(plain, 2048) / 4
