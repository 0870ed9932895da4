"""Relative positions: T5's buckets, and attention with this bias."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.later import ALiBi, RelativePositions, TiledAttention
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.relative import position_buckets
from numformer.layer import pack
from numformer.models import TowerConfig
from numformer.paper import Reach
from numformer.paper.masks import Places

B, D, H = 2, 8, 2
SIZES = dict(d_model=D, heads=H, d_ff=12)


def bucket(near: int, buckets: int, farthest: int) -> int:
    """In integers: of the n later buckets the i-th begins at single (farthest / single)^(i / n)."""
    single = buckets // 2
    later = buckets - single
    begun = (near**later >= single ** (later - i) * farthest**i for i in range(1, later))
    return near if near < single else single + sum(begun)


@pytest.mark.parametrize(
    ("buckets", "farthest"),
    [(4, 3), (5, 9), (8, 20), (8, 64), (32, 128), (33, 800), (64, 256), (128, 100), (16, 1024)],
)
def test_buckets_grow_like_the_logarithm_of_the_distance(buckets, farthest):
    """Each direction has half of the buckets, or a single direction all of them."""
    distance = np.arange(-1000, 1001)
    found = position_buckets(distance[None], buckets, farthest, both_ways=False)
    assert_array_equal(found, [[bucket(max(0, -n), buckets, farthest) for n in range(-1000, 1001)]])
    half = buckets // 2
    found = position_buckets(distance, buckets, farthest, both_ways=True)
    near = np.array([bucket(abs(n), half, farthest) for n in range(-1000, 1001)])
    assert_array_equal(found, half * (distance > 0) + near)
    assert found.max() < buckets


def test_rounding_follows_t5_s_own_code():
    """`T5Attention._relative_position_bucket` of transformers 5; exact: 11 and 14."""
    for buckets, farthest, distance, expected in (
        (17, 343, [-27, -28, -29, -98, -99], [10, 10, 11, 13, 14]),
        (24, 889, [-620, -621], [22, 23]),
        (55, 75, [-45, -46], [40, 41]),
    ):
        found = position_buckets(np.array(distance), buckets, farthest, both_ways=False)
        assert found.tolist() == expected


@pytest.mark.parametrize("length", [7, 40])  # a length of 40 takes tiles
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("constant", [None, ALiBi(H)])
def test_relative_positions_are_a_bias_of_scores_with_its_gradient(length, causal, constant, rng):
    places = Places(np.arange(length) < np.array([[length], [length - 3]]))
    layer = RelativePositions(H, 6, 20, not causal, constant)
    flat = pack(attention := TiledAttention(bias=layer, rows=8, least=0), np.float64)
    flat.data += rng.standard_normal(flat.data.shape)
    query, key, value, doutput = rng.standard_normal((4, B, H, length, D))
    distance = np.arange(length) - np.arange(length)[:, None]
    buckets = position_buckets(distance, 6, 20, not causal)
    bias = layer.table.data.T[:, buckets]
    if constant:
        bias = bias - np.array([[[2**-4]], [[2**-8]]]) * abs(distance)
    plain, reach = BiasedAttention(), Reach(places, causal=causal)
    expected = plain.forward(query, key, value, reach.mask(), bias)
    assert_allclose(attention.forward(query, key, value, reach), expected, rtol=1e-10)
    assert ("arrays" in attention.saved[-1]) == (length > 7)
    *gradients, dbias = plain.backward(doutput)
    for found, expected_gradient in zip(attention.backward(doutput), gradients, strict=True):
        assert_allclose(found, expected_gradient, rtol=1e-9, atol=1e-12)
    expected_table_gradient = [dbias[:, buckets == n].sum(axis=1) for n in range(6)]
    assert_allclose(layer.table.grad, expected_table_gradient, rtol=1e-9, atol=1e-12)


def test_the_layers_of_a_stack_share_one_table(rng):
    """Even with other layers between them. The table starts at 0."""
    config = TowerConfig(**SIZES, layers=5, mixers="window,relative", distance_buckets=8)
    for causal in (True, False):
        stack = config.encoder(rng, causal)
        first, second = (stack.layers[n].self_attention.sublayer.attention.bias for n in (1, 3))
        assert first.table is second.table and first is not second
        assert first.both_ways == second.both_ways == (not causal)
        assert first.farthest == 128
        names = [name for name in stack.named_parameters() if "bias.table" in name]
        assert names == ["layers.1.self_attention.sublayer.attention.bias.table"]
        assert first.table.shape == (8, H) and not first.table.data.any()
    apart = TowerConfig(**SIZES, layers=3, mixers="relative", own_distances=True).encoder(rng)
    assert len([name for name in apart.named_parameters() if "bias.table" in name]) == 3
    stacks = [TowerConfig(**SIZES, mixers="relative").encoder(rng) for _ in "ab"]
    tables = [stack.layers[0].self_attention.sublayer.attention.bias.table for stack in stacks]
    assert tables[0] is not tables[1]


@pytest.mark.parametrize(("buckets", "farthest"), [(3, 128), (4, 2), (9, 4), (32, 16)])
def test_numbers_of_buckets_that_do_not_fit_are_refused(buckets, farthest, complaint):
    message = complaint(RelativePositions, H, buckets, farthest)
    own = dict(distance_buckets=buckets, farthest=farthest)
    assert message == complaint(TowerConfig, **SIZES, mixers="attention,relative", **own)
    assert f"received distance_buckets {buckets}, farthest {farthest}. Change" in message
    RelativePositions(H, 4, 3)
