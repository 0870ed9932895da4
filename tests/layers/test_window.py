"""Windows, by hand: attention under the mask of a band, and the ring of a past."""

import numpy as np
import pytest
from numformer.layers.window import Latest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.layer import pack
from numformer.layers import GroupedQueryAttention, WindowAttention
from numformer.models import TowerConfig
from numformer.paper import Memory, Places, Reach

B, D, H = 2, 8, 4


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 50])
def test_a_window_is_attention_under_a_mask_of_its_band(causal, window, rng):
    """And it looks there; one as long as the text is no window."""
    layer = WindowAttention(D, H, np.random.default_rng(1), window=window, key_value_heads=2)
    other = GroupedQueryAttention(D, H, np.random.default_rng(1), key_value_heads=2)
    for part in (layer, other):
        pack(part, np.float64)
    x, dy = rng.standard_normal((2, B, 7, D))
    ahead = np.arange(7) - np.arange(7)[:, None]
    band = (abs(ahead) < window) & ((ahead <= 0) | (not causal))
    for length in (5, 4):
        layer.forward(x[:, :length], Reach(Places.whole(B, length), causal=causal))
    y = layer.forward(x, Reach(Places.whole(B, 7), causal=causal))
    assert_allclose(y, other.forward(x, band), rtol=1e-12, atol=1e-13)
    assert_allclose(layer.looks(), other.looks(), rtol=1e-12, atol=1e-14)
    assert layer.looks().shape == other.looks().shape == (B, H, 7, 7)
    assert_allclose(layer.backward(dy), other.backward(dy), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("lasting", [0, 1, 4])
@pytest.mark.parametrize("lengths", [(5, 1, 1, 2, 1, 1, 1), (1,) * 12, (2, 1, 3, 1, 5)])
def test_a_ring_gives_what_later_positions_can_see(lasting, lengths, rng, xp):
    """Several at once, one by one, several again; of some rows, in another order."""
    memory = Memory(99)
    ring, keys = Latest(memory, 3, lasting), rng.standard_normal((B, H, 12, 2))
    values = rng.standard_normal((B, H, 12, 5))
    chosen = np.arange(B)
    for length in lengths:
        first = memory.length
        further = slice(first, first + length)
        key, value, positions = ring.append(*(xp.asarray(a[:, :, further]) for a in (keys, values)))
        near = range(max(0, first - 2), first + length)
        assert sorted(positions) == sorted({*range(min(lasting, first)), *near})
        for array, whole in ((key, keys), (value, values)):
            host = array if xp is np else array.get()
            assert_array_equal(host, whole[:, :, positions])
        memory.advance(length)
        chosen = np.array([1, 1])
        ring.choose(chosen)
        keys[:], values[:] = keys[chosen], values[chosen]


def test_groups_are_of_one_size(rng, complaint):
    sizes = dict(d_model=D, heads=H, key_value_heads=3)
    for refused in (
        lambda: GroupedQueryAttention(D, H, rng, 3),
        lambda: TowerConfig(**sizes, mixers="grouped"),
        lambda: TowerConfig(**sizes, mixers="attention,window"),
    ):
        assert "heads 4, key_value_heads 3" in complaint(refused)
    assert TowerConfig(**sizes).key_value_heads == 3  # which its mixers do not have
    assert GroupedQueryAttention(D, H, rng).heads_of_keys == H
    config = TowerConfig(d_model=D, heads=H, key_value_heads=2, d_k=3, d_v=5)
    assert GroupedQueryAttention.entries(config) == D * (4 + 2) * (3 + 5)
