"""Patterns by hand: which tiles there are, and that they are attention under a mask."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.later.attention.alibi import alibi
from numformer.layer import pack
from numformer.layers import GlobalWindowAttention, StridedAttention, TiledAttention
from numformer.models import TowerConfig
from numformer.paper import Places, Reach, SelfAttention

B, D, H, T = 2, 12, 3, 9
TIGHT = dict(rtol=1e-11, atol=1e-13)
AHEAD = np.arange(T) - np.arange(T)[:, None]


def global_window(window: int, first: int):
    seen = (abs(AHEAD) < window) | (np.arange(T) < first) | (np.arange(T)[:, None] < first)
    settings = dict(window=window, global_tokens=first)
    return GlobalWindowAttention, settings, np.broadcast_to(seen, (H, T, T))


def strided(stride: int):
    near, far = abs(AHEAD) < stride, AHEAD % stride == 0
    return StridedAttention, dict(stride=stride), np.stack([near, near, far])


PATTERNS = [
    *(
        global_window(*sizes)
        for sizes in ((1, 1), (2, 1), (2, 3), (3, 2), (4, 6), (50, 1), (1, 50))
    ),
    *map(strided, (1, 2, 3, 5, 50)),
    (TiledAttention, {}, np.ones((H, T, T), bool)),
]


@pytest.mark.parametrize("bias", [None, alibi])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kind", "sizes", "seen"), PATTERNS)
def test_a_pattern_is_attention_under_a_mask(kind, sizes, seen, causal, bias, rng):
    """And looks there; also under a mask of each head that was drawn."""
    settings = dict(d_k=3, d_v=5, position_bias=bias)
    layer = kind(D, H, np.random.default_rng(1), **sizes, **settings)
    other = SelfAttention(D, H, np.random.default_rng(1), **settings)
    for part in (layer, other):
        pack(part, np.float64)
    x, dy = rng.standard_normal((2, B, T, D))
    mask = seen & (AHEAD <= 0) if causal else seen
    drawn = rng.random((B, H, T, T)) < 0.5
    for reach, expected in (
        (Reach(Places.whole(B, T), causal=causal), mask),
        (drawn, drawn & seen),
    ):
        for length in (5, 4):
            layer.forward(x[:, :length], Reach(Places.whole(B, length), causal=True))
        y = layer.forward(x, reach)
        assert_allclose(y, other.forward(x, expected), **TIGHT)
        assert_allclose(layer.looks(), other.looks(), **TIGHT)
        assert_allclose(layer.backward(dy), other.backward(dy), **TIGHT)
        layer.clear_saved()


def computed(layer, length: int, causal: bool) -> int:
    """How many scores the tiles have, over all heads."""
    scores = np.zeros((layer.heads, length, length), int)
    for tile in layer.tiles(Reach(Places.whole(1, length), causal=causal)):
        scores[tile.heads, tile.rows, tile.keys] += 1
    assert scores.max() == 1
    return scores.sum()


@pytest.mark.parametrize("causal", [True, False])
def test_scores_that_nobody_needs_are_not_computed(causal, rng):
    layer = GlobalWindowAttention(D, 2, rng, window=8, global_tokens=3)
    counts = [computed(layer, length, causal) for length in (256, 512, 1024)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])  # linear, after the first tiles
    assert counts[0] < 2 * 256 * (3 * 8 + 3 if not causal else 2 * 8 + 3) + 2 * 8 * 256
    layer = StridedAttention(D, 2, rng, stride=16)
    assert computed(layer, 256, causal) <= 256 * (256 // 16) + 256 * 16 * (2 if causal else 3)


def test_tiles_by_hand(rng):
    layer, two = (GlobalWindowAttention(D, H, rng, window=2, global_tokens=n) for n in (1, 2))

    def keys(layer, reach):
        indices = np.arange(len(reach.keys.positions))
        return [indices[tile.keys].tolist() for tile in layer.tiles(reach)]

    both, causal = (Reach(Places.whole(B, 7), causal=causal) for causal in (False, True))
    assert keys(layer, causal) == [[0, 1], [0, 1, 2, 3], [0, 3, 4, 5], [0, 5, 6]]
    assert keys(layer, both) == [[*range(7)], [*range(5)], [0, 3, 4, 5, 6], [0, 5, 6]]
    assert keys(two, both) == [[*range(7)], [*range(5)], [0, 1, 3, 4, 5, 6], [0, 1, 5, 6]]
    (one,) = layer.tiles(Reach(Places.whole(B, 1, first=6), Places.whole(B, 7), causal=True))
    assert one.pattern.tolist() == [[True, False, False, False, False, True, True]]
    layer = StridedAttention(D, H, rng, stride=3)
    for start in (0, 1):
        later = Reach(Places.whole(B, 2, start + 4), Places.whole(B, 6, start), causal=True)
        *near, first, second = layer.tiles(later)
        assert [(tile.rows, tile.keys) for tile in near] == [(slice(0, 2), slice(2, 6))]
        assert first == (slice(2, None), slice(0, None, 3), slice(1, None, 3), None)
        assert second == (slice(2, None), slice(1, None, 3), slice(2, None, 3), None)
        assert near[0].heads == slice(2)


def test_patterns_of_nothing_are_refused(rng, complaint):
    for name, values in (("window", [0, -1]), ("stride", [0, 2.0]), ("global_tokens", [0, -1])):
        for value in values:
            said = complaint(TowerConfig, **{name: value})
            assert f"{name} is an integer of at least 1; received {value}" in said
    for refused in (
        lambda: TowerConfig(d_model=D, heads=1, mixers="window,strided"),
        lambda: StridedAttention(D, 1, rng, stride=2),
    ):
        assert "at least 2 heads: one looks near, one in strides; received heads 1" in complaint(
            refused
        )
    TowerConfig(d_model=D, heads=1, mixers="window")
    TowerConfig(d_model=D, heads=2, mixers="strided")
