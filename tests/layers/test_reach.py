"""Who may see whom, and how padding is left out; positions within attention; what is remembered."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import to_host
from numformer.later.attention.rotary import Rotary, rotary, rotary_backward, rotary_turns
from numformer.layer import inference, pack
from numformer.paper import CrossAttention, Memory, Places, Reach, SelfAttention, Softmax
from numformer.paper.attention import ScaledDotProductAttention, merge_heads, split_heads
from numformer.paper.masks import ExplicitMask, as_reach, causal_mask, padding_mask

B, T, D, H = 2, 5, 8, 2
VALID = np.array([[True, True, False], [True, False, False]])
OTHERS = np.array([[False, True, True], [False, False, True]])


def test_masks_by_hand():
    assert_array_equal(padding_mask(VALID)[0], [[[True, True, False]]])
    assert_array_equal(causal_mask(3)[0, 0], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert padding_mask(VALID).shape == (2, 1, 1, 3) and causal_mask(3).shape == (1, 1, 3, 3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2])
@pytest.mark.parametrize("first", [0, 2])
def test_a_reach_is_its_rules_position_by_position(causal, window, first, xp):
    """Also of tiles; of queries that come after keys; and narrowed where somebody drew it."""
    queries, keys = Places.whole(2, 3, first), Places(VALID)
    reach = Reach(queries, keys, causal, window)
    expected = np.zeros((2, 3, 3), bool)
    for row, t, s in np.ndindex(2, 3, 3):
        ahead = s - (t + first)
        expected[row, t, s] = VALID[row, s] and not (causal and ahead > 0)
        expected[row, t, s] &= window is None or abs(ahead) < window
    drawn = ExplicitMask(xp.asarray(expected[:, None]), queries, keys)
    wide = Reach(queries, keys, causal)
    for form in (reach, drawn, wide if window is None else wide.within(window)):
        dense = form.dense(xp)
        assert type(dense) is xp.ndarray
        assert_array_equal(np.broadcast_to(to_host(dense), (2, 1, 3, 3))[:, 0], expected)
        tile = to_host(form.tile(slice(1, 3), slice(0, 2)).dense(xp))
        assert_array_equal(np.broadcast_to(tile, (2, 1, 2, 2))[:, 0], expected[:, 1:3, :2])
    narrow = to_host(drawn.within(1).dense(xp))[:, 0]
    near = np.arange(3) == np.arange(3)[:, None] + first
    assert_array_equal(narrow, expected & near)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_which_keys_some_query_of_a_stretch_sees_and_which_all_do(causal, window, rng):
    """As the mask has it, which some blocks are computed without; where there is padding, too."""
    for length, longer, first in ((4, 9, 0), (5, 5, 2), (3, 7, 9), (6, 4, 1)):
        valid = np.arange(longer) < rng.integers(1, longer + 1, (2, 1))
        keys = Places(valid)
        reach = Reach(Places.whole(2, length, first), keys, causal, window)
        mask = reach.dense()
        allowed = np.broadcast_to(True if mask is None else mask, (2, 1, length, longer))
        for start in range(length):
            some, whole = reach.seen(slice(start, start + 2))
            of_stretch = allowed[:, 0, start : start + 2]
            assert_array_equal(of_stretch.any((0, 1)).nonzero()[0], np.arange(longer)[some])
            within = np.arange(longer)[whole]
            assert_array_equal(of_stretch.all((0, 1)).nonzero()[0], within)


def test_a_drawn_reach_of_some_sequences(rng):
    whole = Places.whole(2, 3)
    for rows in (1, 2):
        mask = rng.random((rows, 1, 3, 3)) < 0.5
        reach = ExplicitMask(mask, whole, whole).of(slice(1, 2))
        assert_array_equal(reach.dense(), mask[-1:])
        assert len(reach.queries.valid) == len(reach.keys.valid) == 1
        assert reach.seen(slice(0, 1)) == (slice(0, 3), slice(0, 0))
    places = Places.at(np.arange(3), 2)
    assert not places.skip_padding and vars(places)["all_valid"]  # known without a look
    assert_array_equal(vars(places)["real"], np.arange(6))


def test_where_all_see_all_there_is_no_mask():
    """And no work: one query after all keys, as in decoding, is such a case."""
    whole = Places.whole(2, 3)
    assert Reach(whole).dense() is None and Reach(whole, window=3).dense() is None
    assert Reach(Places.whole(2, 1, first=2), whole, causal=True).dense() is None
    assert Reach(Places.whole(2, 1, first=4)).over(np.arange(5)).dense() is None
    step = Reach(Places.whole(2, 1, first=4), causal=True)
    assert step.over(np.arange(5)) is step.over(np.arange(5)) is not step.over(np.arange(4))
    assert ExplicitMask(np.ones((1, 1, 1, 3), bool), whole, whole).within(3).dense().all()
    mask = np.ones((2, 1, 3, 1), bool)
    assert ExplicitMask(mask, whole, whole).tile(slice(1), slice(2)).dense().shape == (2, 1, 1, 1)
    pair = Places.whole(2, 2)
    tile = ExplicitMask(np.eye(2, dtype=bool), pair, pair).tile(slice(1, 2), slice(1))
    assert tile.dense().tolist() == [[[[False]]]]


def test_rows_of_real_positions_stand_at_their_places_and_zeros_at_padding(rng, xp):
    """What stands at padding matters to a mixer that is not told: a recurrence, a sum."""
    ids = np.array([[5, 6, 0, 0], [7, 8, 9, 4], [0, 0, 0, 0], [5, 0, 0, 0]])
    real, rows = ids != 0, rng.standard_normal((7, 6))
    places, padded = Places(real, skip_padding=True), np.zeros((4, 4, 6))
    padded[real] = rows
    for heads in (3, 2):
        of_heads = split_heads(xp.asarray(rows), heads, places)
        assert of_heads.shape == (4, heads, 4, 6 // heads)
        assert_array_equal(to_host(of_heads), split_heads(padded, heads))
        assert_array_equal(to_host(merge_heads(of_heads, places)), rows)
    assert_array_equal(places.of_rows, [0, 1, 0, 1, 2, 3, 0])
    assert_array_equal(places.pick(ids), [5, 6, 7, 8, 9, 4, 5])
    assert len(Places(0 * real, skip_padding=True).pick(ids)) == 1  # some products need a row
    whole = Places(real)
    assert_array_equal(whole.of_rows, range(4))
    assert whole.pick(ids) is ids and not whole.all_valid
    assert_array_equal(whole[1:3].positions, [1, 2])
    assert_array_equal(whole[1:3].valid, real[:, 1:3])


@pytest.mark.parametrize("mask", [np.ones((2, 1, 3, 3), int), np.zeros((3, 3)), [[True]]])
def test_a_mask_of_numbers_is_refused(mask, rng, complaint):
    """0 and 1 added to scores are a mask that hides nothing."""
    x = rng.standard_normal((2, 3, D))
    for call in (
        lambda: SelfAttention(D, H, rng).forward(x, mask),
        lambda: Softmax().forward(np.zeros((2, H, 3, 3)), mask),
    ):
        assert "a mask is a boolean array, True = may attend; received" in complaint(call)
    assert as_reach(None, x, x).dense() is None
    queries = as_reach(None, x, x).queries
    assert (queries.valid.shape, [*queries.positions]) == ((2, 3), [0, 1, 2])
    assert "received" in complaint(as_reach, mask, x, x)


def test_what_was_drawn_stays_what_it_is(rng):
    """Cut into tiles where it has an axis, narrowed, of queries and keys of their own lengths."""
    x, memory = rng.standard_normal((2, 4, D)), rng.standard_normal((2, 6, D))
    for shape in ((4, 6), (1, 6), (4, 1), (2, 1, 4, 6), (2, H, 1, 1)):
        mask = rng.random(shape) < 0.5
        reach = as_reach(mask, x, memory, first=3)
        assert [*reach.queries.positions] == [3, 4, 5, 6] and len(reach.keys.positions) == 6
        whole = np.broadcast_to(mask, (2, H, 4, 6))
        tile = reach.tile(slice(1, 3), slice(2, 6)).dense()
        assert tile.ndim == 4
        assert_array_equal(np.broadcast_to(tile, (2, H, 2, 4)), whole[:, :, 1:3, 2:6])
        near = abs(np.arange(6) - np.arange(4)[:, None]) < 2
        narrow = np.broadcast_to(reach.within(2).dense(), (2, H, 4, 6))
        assert_array_equal(narrow, whole & near)


# Positions within attention.


def test_pairs_are_turned_where_they_do_not_lie_side_by_side(rng):
    x, layer, turns = rng.standard_normal((3, 6, 4)), Rotary(), rotary_turns(6, 4)
    strange = x.swapaxes(1, 2).copy().swapaxes(1, 2)
    assert_array_equal(layer.forward(strange), rotary(x, turns))
    assert_array_equal(layer.backward(strange), rotary_backward(x, turns))


def test_a_table_of_turns_is_long_enough_for_every_position():
    x = np.ones((1, 4))
    for position in (63, 64, 128):
        turned = Rotary().forward(x, np.array([position]))
        assert_allclose(turned, rotary(x, rotary_turns(position + 1, 4)[-1:]))


def test_what_has_no_pairs_cannot_be_turned(complaint):
    said = complaint(Rotary().forward, np.zeros((2, 3, 3)))
    assert "so d_k is even; received d_k 3" in said


# What is remembered. That steps are the whole is tested of models.


def test_there_is_no_room_beyond_what_was_asked_for(rng, complaint):
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
        monkeypatch.setattr(part, "forward", lambda m, f=project: calls.append(1) or f(m))
    reach = Reach(Places.whole(2, 1), Places(VALID))
    with inference():
        whole = layer.forward(x, memory, Reach(Places.whole(2, 3), Places(VALID)))
        calls.clear()
        past = Memory(3)
        steps = [layer.forward(x[:, t : t + 1], memory, reach, past) for t in range(3)]
    assert len(calls) == 2 and past.length == 0
    assert_allclose(np.concatenate(steps, axis=1), whole, rtol=1e-12, atol=1e-13)


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
