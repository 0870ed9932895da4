"""Positions within attention, masks of many shapes, and a past without a Reach."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.gradient_check.gradients import check
from numformer.layer import inference, pack
from numformer.layers import Memory, Places, Reach, ScaledDotProductAttention, SelfAttention
from numformer.layers.alibi import alibi
from numformer.layers.attention import scaled_dot_product_attention, split_heads
from numformer.layers.rotary import Rotary, rotary, rotary_turns
from numformer.models import Block, TowerConfig

B, T, D, H = 2, 5, 8, 2
EVERY = {
    "rotary": dict(rotary=Rotary()),
    "alibi": dict(position_bias=alibi),
}


@pytest.mark.parametrize("name", EVERY)
def test_positions_within_self_attention_are_those_of_query_and_key(name, rng):
    """As if queries and keys were turned, or scores lowered, by hand; also of a later stretch."""
    layer = SelfAttention(D, H, rng, **EVERY[name])
    pack(layer, np.float64)
    x, places = rng.standard_normal((B, T, D)), Places.whole(B, T, first=3)
    y = layer.forward(x, Reach(places, causal=True))
    query, key, value = (
        split_heads(part.forward(x), H) for part in (layer.query, layer.key, layer.value)
    )
    bias, turns = None, rotary_turns(T + 3, D // H)[3:]
    if name == "rotary":
        query, key = rotary(query, turns), rotary(key, turns)
    else:
        bias = alibi(H, places.positions, places.positions)
    mask = np.tril(np.ones((T, T), bool))
    heads, *_ = scaled_dot_product_attention(query, key, value, mask, None, bias)
    flat = heads.swapaxes(1, 2).reshape(B, T, D)
    assert_allclose(y, layer.output.forward(flat), rtol=1e-12, atol=1e-13)
    rows = check(SelfAttention(D, H, rng, **EVERY[name]), [x, mask], directions=1)
    assert all(row.passed for row in rows)


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_a_config_has_positions_in_self_attention(positions, rng):
    block = Block(TowerConfig(d_model=D, d_ff=4, heads=H, positions=positions), rng)
    layer = block.mixer.sublayer
    assert (layer.rotary is not None) == (positions == "rotary")
    assert (layer.position_bias is alibi) == (positions == "alibi")


def test_attention_needs_no_axis_for_heads(rng):
    """(B, T, K) is one head, with dropout, too."""
    layer = ScaledDotProductAttention(0.4)
    inputs = [rng.standard_normal((B, n, 3)) for n in (4, T, T)]
    assert layer.forward(*inputs).shape == (B, 4, 3)
    assert layer.saved[-1]["keep"].shape == (B, 4, T)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_past_goes_on_without_a_reach(drawn, rng):
    """With positions that count on, and a mask of all keys so far where one is drawn."""
    layer = SelfAttention(D, H, rng, rotary=Rotary())
    pack(layer, np.float64)
    x = rng.standard_normal((B, T, D))
    mask = np.array([[True, False, True, True, True]]) if drawn else None
    with inference():
        whole = layer.forward(x, mask)
        past = Memory(T)
        layer.forward(x[:, :-1], None, past)
        past.advance(T - 1)
        last = layer.forward(x[:, -1:], mask, past)
    assert_allclose(last, whole[:, -1:], rtol=1e-12, atol=1e-13)
