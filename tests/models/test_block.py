"""What a config makes of a block: where positions come in."""

import pytest

from numformer.layers import ALiBiAttention, RotaryAttention, ScaledDotProductAttention
from numformer.models import Block, TowerConfig

SIZES = dict(d_model=8, d_ff=12, heads=2, layers=1, attention_dropout=0.25)
KINDS = {
    "rotary": RotaryAttention,
    "sinusoidal_rotary": RotaryAttention,
    "alibi": ALiBiAttention,
    "sinusoidal": None,
    "learned": None,
    "none": None,
}


@pytest.mark.parametrize("positions", KINDS)
def test_positions_within_attention_are_those_of_self_attention_alone(positions, rng):
    """A memory is another sequence."""
    block = Block(TowerConfig(**SIZES, positions=positions), rng, cross=True)
    own, cross = (each.sublayer.attention for each in (block.self_attention, block.cross_attention))
    if KINDS[positions]:
        assert type(own) is KINDS[positions]
        own = own.attention
    for attention in (own, cross):
        assert type(attention) is ScaledDotProductAttention and attention.dropout.p_drop == 0.25


@pytest.mark.parametrize(("sizes", "d_k"), [({}, 5), (dict(d_k=3), 3), (dict(d_k=3, d_v=4), 3)])
def test_rotary_positions_need_pairs(sizes, d_k, complaint):
    sizes = dict(d_model=10, heads=2) | sizes
    assert f"d_k is even; received d_k {d_k}" in complaint(TowerConfig, **sizes, positions="rotary")
    assert TowerConfig(**sizes, positions="alibi").heads == 2
    TowerConfig(**(sizes | dict(d_k=4)), positions="rotary")
    TowerConfig(d_model=8, heads=2, positions="rotary")
