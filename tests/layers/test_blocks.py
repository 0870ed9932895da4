"""Attention in blocks is the plain formula: outputs, gradients, dropout's masks, where it looks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import dropout_stream, to_host
from numformer.layer import pack
from numformer.layers import MIXERS, Places, Reach, Rotary, attention, blocks
from numformer.layers.alibi import alibi
from numformer.layers.reach import Drawn

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
    return Drawn(xp.asarray(np.random.default_rng(3).random(shape) < 0.5), places, places)


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
