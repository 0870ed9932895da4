"""Who may see whom, skipping padding, positions within attention, and memory."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import to_host
from numformer.later import BiasedAttention, TiledAttention
from numformer.later.attention.rotary import Rotary, rotary, rotary_backward, rotary_turns
from numformer.layer import inference, pack
from numformer.models import TowerConfig
from numformer.paper import CrossAttention, Memory, Places, Reach, SelfAttention, Softmax
from numformer.paper.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from numformer.paper.masks import ExplicitMask, as_mask, as_reach, causal_mask, padding_mask
from numformer.paper.softmax import softmax

B, T, D, H = 2, 5, 8, 2
VALID = np.array([[True, True, False], [True, False, False]])
OTHERS = np.array([[False, True, True], [False, False, True]])


def test_masks_by_hand():
    assert_array_equal(padding_mask(VALID)[0], [[[True, True, False]]])
    assert_array_equal(causal_mask(3)[0, 0], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert padding_mask(VALID).shape == (2, 1, 1, 3) and causal_mask(3).shape == (1, 1, 3, 3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_the_mask_of_a_reach_follows_its_rules(causal, first, xp):
    """Also if the queries come after the keys. An explicit mask is returned unchanged."""
    queries, keys = Places.without_padding(2, 3, first), Places(VALID)
    expected = np.zeros((2, 3, 3), bool)
    for row, t, s in np.ndindex(2, 3, 3):
        expected[row, t, s] = VALID[row, s] and not (causal and s > t + first)
    explicit = ExplicitMask(xp.asarray(expected[:, None]), queries, keys)
    for reach in (Reach(queries, keys, causal), explicit):
        mask = reach.mask(xp)
        assert type(mask) is xp.ndarray
        assert_array_equal(np.broadcast_to(to_host(mask), (2, 1, 3, 3))[:, 0], expected)
        assert as_mask(reach, xp) is reach.mask(xp)  # made once


def test_places_without_padding_need_no_search():
    places = Places.without_padding(2, 3)
    assert not places.skip_padding and vars(places)["all_valid"]
    assert_array_equal(vars(places)["real"], np.arange(6))


def test_where_all_see_all_there_is_no_mask():
    """One query after all keys, as in decoding, is such a case."""
    unpadded = Places.without_padding(2, 3)
    assert Reach(unpadded).mask() is None and as_mask(None) is None
    assert Reach(Places.without_padding(2, 1, first=2), unpadded, causal=True).mask() is None
    step = Reach(Places.without_padding(2, 1, first=4), causal=True)
    assert step.with_keys(np.arange(5)).mask() is None
    assert step.with_keys(np.arange(7)).mask().tolist() == [[[[True] * 5 + [False] * 2]]]
    ring = step.with_keys(np.array([5, 3, 4]))  # as one that keeps the latest has them
    assert ring.mask().tolist() == [[[[False, True, True]]]]
    assert step.with_keys(np.arange(5)) is step.with_keys(np.arange(5)) is not ring


def test_rows_spread_to_their_places_with_zeros_at_padding(rng, xp):
    """The zeros matter to a mixer that uses no mask, such as a running sum."""
    ids = np.array([[5, 6, 0, 0], [7, 8, 9, 4], [0, 0, 0, 0], [5, 0, 0, 0]])
    real, rows = ids != 0, rng.standard_normal((7, 6))
    places, padded = Places(real, skip_padding=True), np.zeros((4, 4, 6))
    padded[real] = rows
    for heads in (3, 2):
        spread = split_heads(xp.asarray(rows), heads, places)
        assert spread.shape == (4, heads, 4, 6 // heads)
        assert_array_equal(to_host(spread), split_heads(padded, heads))
        assert_array_equal(to_host(merge_heads(spread, places)), rows)
    assert_array_equal(places.row_positions, [0, 1, 0, 1, 2, 3, 0])
    assert_array_equal(places.pick(ids), [5, 6, 7, 8, 9, 4, 5])
    assert len(Places(0 * real, skip_padding=True).pick(ids)) == 1  # some products need a row
    unpadded = Places(real)
    assert_array_equal(unpadded.row_positions, range(4))
    assert unpadded.pick(ids) is ids and not unpadded.all_valid
    later = Places(real[:2], skip_padding=True, positions=np.arange(3, 7))
    assert_array_equal(later.row_positions, [3, 4, 3, 4, 5, 6])


@pytest.mark.parametrize("mask", [np.ones((2, 1, 3, 3), int), np.zeros((3, 3)), [[True]]])
def test_a_mask_of_numbers_is_refused(mask, rng, complaint):
    """0 and 1 added to scores are a mask that hides nothing."""
    x = rng.standard_normal((2, 3, D))
    for call in (
        lambda: SelfAttention(D, H, rng).forward(x, mask),
        lambda: Softmax().forward(np.zeros((2, H, 3, 3)), mask),
    ):
        words = complaint(call)
        assert "a mask is a boolean array, True = may attend; received" in words
        assert "mask != 0 if 0 means masked, mask == 0 if -inf does" in words
    assert as_reach(None, x, x).mask() is None
    queries = as_reach(None, x, x).queries
    assert (queries.valid.shape, [*queries.positions]) == ((2, 3), [0, 1, 2])
    assert "received" in complaint(as_reach, mask, x, x)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize(("queries", "keys"), [(3, 0), (0, 3), (0, 0)])
def test_attention_over_no_keys_is_0(queries, keys, rows, rng, xp):
    """As of a row that sees nothing. Nor need there be queries, or sequences."""
    query, key = (xp.asarray(rng.standard_normal((2, H, n, 4))) for n in (queries, keys))
    for attention in ScaledDotProductAttention(), TiledAttention(rows=rows, least=0):
        output = attention.forward(query, key, key)
        assert output.shape == query.shape and (keys or not to_host(output).any())
        for gradient, x in zip(attention.backward(output), (query, key, key), strict=True):
            assert gradient.shape == x.shape and not to_host(gradient).any()
    assert softmax(query[..., :0]).shape == (2, H, queries, 0)
    layer = MultiHeadAttention(D, H, rng)
    x, memory = (rng.standard_normal((2, n, D)) for n in (queries, keys))
    assert layer.forward(x, memory).shape == x.shape
    assert layer.forward(x[:0], memory[:0]).shape == x[:0].shape
    assert [dx.shape for dx in layer.backward(x[:0])] == [x[:0].shape, memory[:0].shape]
    skipping = [Places.without_padding(2, n, skip_padding=True) for n in (queries, keys)]
    flat = layer.forward(x.reshape(-1, D), memory.reshape(-1, D), Reach(*skipping))
    assert_array_equal(flat, layer.forward(x, memory).reshape(-1, D))


def test_an_explicit_mask_is_not_changed(rng):
    """Whatever axes it has. Tiles with padding hold one sequence each."""
    x, memory = rng.standard_normal((2, 4, D)), rng.standard_normal((2, 6, D))
    query, key, value = (rng.standard_normal((2, H, n, 3)) for n in (4, 6, 6))
    for shape in ((4, 6), (1, 6), (4, 1), (6,), (1, H, 4, 6), (2, 1, 4, 6), (2, H, 1, 1)):
        mask = rng.random(shape) < 0.5
        reach = as_reach(mask, x, memory, first=3)
        assert [*reach.queries.positions] == [3, 4, 5, 6] and len(reach.keys.positions) == 6
        assert reach.mask().ndim == 4
        whole = np.broadcast_to(mask, (2, H, 4, 6))
        assert_array_equal(np.broadcast_to(reach.mask(), whole.shape), whole)
        further = reach.with_keys(np.arange(9))
        assert_array_equal(further.mask(), reach.mask())
        assert len(further.keys.positions) == 9
        padded = Places(np.arange(6) < [[4], [6]])
        for explicit in (reach, ExplicitMask(reach.array, reach.queries, padded)):
            y = TiledAttention(rows=3, least=0).forward(query, key, value, explicit)
            expected, _ = scaled_dot_product_attention(query, key, value, whole)
            assert_allclose(y, expected, rtol=1e-12, atol=1e-13)


# Positions within attention.


def test_rotary_of_an_array_that_is_not_contiguous(rng):
    x, layer, turns = rng.standard_normal((3, 6, 4)), Rotary(), rotary_turns(6, 4)
    strange = x.swapaxes(1, 2).copy().swapaxes(1, 2)
    assert_array_equal(layer.forward(strange), rotary(x, turns))
    assert_array_equal(layer.backward(strange), rotary_backward(x, turns))


def test_the_rotary_table_covers_every_position():
    """Consecutive positions take a slice of the table; others are looked up one by one."""
    x = np.ones((2, 4))
    for positions in ([62, 63], [63, 64], [128, 129], [5, 3], [3, 3], [0, 9]):
        turned = Rotary().forward(x, np.array(positions))
        assert_allclose(turned, rotary(x, rotary_turns(max(positions) + 1, 4)[positions]))


def test_rotary_refuses_an_odd_size(complaint):
    message = complaint(Rotary().forward, np.zeros((2, 3, 3)))
    assert "so d_k is even; received d_k 3" in message


# Memory. tests/models compares steps with whole sequences.


def test_a_full_memory_refuses_further_positions(rng, complaint):
    """Assigning beyond the end would write nothing and lose the position silently."""
    layer, past = SelfAttention(D, H, rng), Memory(2)
    x = rng.standard_normal((2, 1, D)).astype(np.float32)
    assert "inference" in complaint(layer.forward, x, None, past)
    with inference():
        for _ in range(2):
            layer.forward(x, None, past)
            past.advance(1)
        text = complaint(layer.forward, x, None, past)
    assert "room for 2 positions" in text and "position 3" in text
    assert past.length == 2


def test_cross_attention_computes_keys_and_values_of_the_memory_once(rng, monkeypatch):
    layer = CrossAttention(D, H, rng)
    pack(layer, np.float64)
    x, memory = rng.standard_normal((2, 3, D)), rng.standard_normal((2, 3, D))
    calls = []
    for part in (layer.key, layer.value):
        project = part.forward
        monkeypatch.setattr(part, "forward", lambda *given, f=project: calls.append(1) or f(*given))
    reach = Reach(Places.without_padding(2, 1), Places(VALID))
    with inference():
        whole = layer.forward(x, memory, Reach(Places.without_padding(2, 3), Places(VALID)))
        calls.clear()
        past = Memory(3)
        steps = [layer.forward(x[:, t : t + 1], memory, reach, past) for t in range(3)]
    assert len(calls) == 2 and past.length == 0
    assert_allclose(np.concatenate(steps, axis=1), whole, rtol=1e-12, atol=1e-13)


def test_cross_attention_decodes_without_a_reach(rng):
    layer = CrossAttention(D, H, rng)
    x, memory = (rng.standard_normal((B, n, D)).astype(np.float32) for n in (1, T))
    with inference():
        assert_array_equal(layer.forward(x, memory, None, Memory(1)), layer.forward(x, memory))


def test_attention_needs_no_axis_for_heads(rng):
    """(B, T, K) is one head, also with dropout."""
    query, key, value = (rng.standard_normal((B, n, 3)) for n in (4, T, T))
    reach = np.arange(T) < np.array([[[3]], [[T]]])  # (B, 1, T)
    for layer in (ScaledDotProductAttention(), BiasedAttention(0.4)):
        assert layer.forward(query, key, value, reach).shape == (B, 4, 3)
        weights = layer.saved[-1]["weights"]
        assert weights.shape == (B, 4, T)
        assert_array_equal(weights > 0, np.broadcast_to(reach, weights.shape))
    assert layer.saved[-1]["keep"].shape == (B, 4, T)


@pytest.mark.parametrize("explicit", [False, True])
def test_self_attention_continues_a_past_without_a_reach(explicit, rng):
    """Its positions continue, and an explicit mask covers all keys so far."""
    config = TowerConfig(d_model=D, heads=H, positions="rotary")
    layer = config.self_attention(rng)
    pack(layer, np.float64)
    x = rng.standard_normal((B, T, D))
    mask = np.array([[True, False, True, True, True]]) if explicit else None
    with inference():
        whole = layer.forward(x, mask)
        past = Memory(T)
        layer.forward(x[:, :-1], None, past)
        past.advance(T - 1)
        last = layer.forward(x[:, -1:], mask, past)
    assert_allclose(last, whole[:, -1:], rtol=1e-12, atol=1e-13)
