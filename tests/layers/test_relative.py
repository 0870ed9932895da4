"""Relative positions: T5's buckets, and attention with what they add to its scores."""

import numpy as np
import pytest
from numformer.layers.relative import buckets_of
from numpy.testing import assert_allclose, assert_array_equal

from numformer.later.attention.alibi import alibi
from numformer.layer import inference, pack
from numformer.layers import RelativeAttention, RelativePositions
from numformer.models import LanguageModel, Tower, TowerConfig
from numformer.paper import Memory, Places, Reach
from numformer.paper.attention import SelfAttention
from numformer.randomness import dropout_stream

B, D, H = 2, 8, 2
SIZES = dict(d_model=D, heads=H, d_ff=12)


def bucket(near: int, buckets: int, farthest: int) -> int:
    """In whole numbers: of n later ones the i-th begins at single (farthest / single)^(i / n)."""
    single = buckets // 2
    later = buckets - single
    begun = (near**later >= single ** (later - i) * farthest**i for i in range(1, later))
    return near if near < single else single + sum(begun)


@pytest.mark.parametrize(
    ("buckets", "farthest"),
    [(4, 3), (5, 9), (8, 20), (8, 64), (32, 128), (33, 800), (64, 256), (128, 100), (16, 1024)],
)
def test_buckets_grow_like_the_logarithm_of_the_distance(buckets, farthest):
    """Where it is a whole number, a bucket begins; each direction has half of them, or one all."""
    distance = np.arange(-1000, 1001)
    found = buckets_of(distance[None], buckets, farthest, both_ways=False)
    assert_array_equal(found, [[bucket(max(0, -n), buckets, farthest) for n in range(-1000, 1001)]])
    half = buckets // 2
    found = buckets_of(distance, buckets, farthest, both_ways=True)
    near = np.array([bucket(abs(n), half, farthest) for n in range(-1000, 1001)])
    assert_array_equal(found, half * (distance > 0) + near)
    assert found.max() < buckets


def test_rounding_decides_as_in_t5_s_own_code():
    """`T5Attention._relative_position_bucket` of transformers 5; exactly it would be 11 and 14."""
    for buckets, farthest, distance, expected in (
        (17, 343, [-27, -28, -29, -98, -99], [10, 10, 11, 13, 14]),
        (24, 889, [-620, -621], [22, 23]),
        (55, 75, [-45, -46], [40, 41]),
    ):
        found = buckets_of(np.array(distance), buckets, farthest, both_ways=False)
        assert found.tolist() == expected


@pytest.mark.parametrize("length", [7, 300])  # of the latter other attention takes blocks
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("others", [{}, dict(position_bias=alibi)])
def test_it_is_attention_with_a_bias_that_is_trained(length, causal, others, rng, xp):
    """The same outputs, gradients, masks of dropout and looks, of padded rows, too."""
    places = Places(np.arange(length) < np.array([[length], [length - 3]]), skip_padding=True)
    reach, settings = Reach(places, causal=causal), dict(p_drop=0.3)
    layer = RelativeAttention(
        D, H, np.random.default_rng(1), 6, 20, not causal, **settings, **others
    )
    pack(layer, np.float64, xp)
    table = rng.standard_normal((6, H))
    layer.distances.table.data[...] = xp.asarray(table)

    def bias(heads, queries, keys):
        queries, keys = (x if xp is np else x.get() for x in (queries, keys))
        buckets = buckets_of(keys - queries[:, None], 6, 20, not causal)
        added = alibi(heads, queries, keys) if others else 0
        return xp.asarray(table.T[:, buckets] + added)

    plain = SelfAttention(D, H, np.random.default_rng(1), position_bias=bias, **settings)
    pack(plain, np.float64, xp)
    x, dy = (xp.asarray(rng.standard_normal((len(places.real), D))) for _ in range(2))
    results = []
    for attention in layer, plain:
        dropout_stream.reseed(3, 1)
        arrays = attention.forward(x, reach), attention.looks(), attention.backward(dy)
        weights = [p.grad for n, p in attention.named_parameters().items() if "table" not in n]
        results.append([a if xp is np else a.get() for a in (*arrays, *weights)])
        results[-1][1][1, :, length - 3 :] = 0  # rows that are left out look anywhere
    for found, expected in zip(*results, strict=True):
        assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_steps_after_a_long_beginning_are_the_whole(rng):
    layer = RelativeAttention(D, H, rng, both_ways=False)
    flat = pack(layer, np.float64)
    flat.data += rng.standard_normal(flat.data.shape)
    x = rng.standard_normal((1, 300, D))
    with inference():
        whole = layer.forward(x, Reach(Places.whole(1, 300), causal=True))
        past = Memory(300)
        for first, last in ((0, 290), (290, 299), (299, 300)):
            places = Places.whole(1, last - first, first)
            y = layer.forward(x[:, first:last], Reach(places, causal=True), past)
            past.advance(last - first)
            assert_allclose(y, whole[:, first:last], rtol=1e-9, atol=1e-12)


def test_the_layers_of_a_tower_share_one_table(rng):
    """Also where others stand between them; it begins without any preference."""
    config = TowerConfig(**SIZES, layers=5, mixers="window,relative", distance_buckets=8)
    for causal in (True, False):
        tower = Tower(config, rng, causal=causal)
        first, second = (tower.layers[n].self_attention.sublayer.distances for n in (1, 3))
        assert first.table is second.table and first is not second
        assert first.both_ways == second.both_ways == (not causal)
        assert first.farthest == 128
        names = [name for name in tower.named_parameters() if "distances" in name]
        assert names == ["layers.1.self_attention.sublayer.distances.table"]
        assert first.table.shape == (8, H) and not first.table.data.any()
    two = [
        LanguageModel(LanguageModel.Config(vocabulary=9, **SIZES, mixers="relative"), 1)
        for _ in "ab"
    ]
    tables = [model.tower.layers[0].self_attention.sublayer.distances.table for model in two]
    assert tables[0] is not tables[1]


@pytest.mark.parametrize(("buckets", "farthest"), [(3, 128), (4, 2), (9, 4), (32, 16)])
def test_buckets_can_be_halved_twice_and_distances_go_beyond_the_first(
    buckets, farthest, complaint
):
    said = complaint(RelativePositions, H, buckets, farthest)
    own = dict(distance_buckets=buckets, farthest=farthest)
    assert said == complaint(TowerConfig, **SIZES, mixers="attention,relative", **own)
    assert f"received distance_buckets {buckets}, farthest {farthest}. Change" in said
    TowerConfig(**SIZES, **own)
    RelativePositions(H, 4, 3)
