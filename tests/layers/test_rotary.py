"""Rotary positions: turned pairs, and scores that know how far apart two positions are."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.layers import RotaryAttention, ScaledDotProductAttention
from numformer.layers.rotary import rotary, rotary_turns

B, H, T, K = 2, 3, 6, 4


def test_each_pair_is_turned_by_its_position_times_its_own_angle(rng):
    x = rng.standard_normal((B, H, T, K))
    found = rotary(x, rotary_turns(T, K))
    for position in range(T):
        for pair in range(K // 2):
            angle = position * 10000 ** (-2 * pair / K)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            both = slice(2 * pair, 2 * pair + 2)
            assert_allclose(found[..., position, both], x[..., position, both] @ turn.T, atol=1e-12)


def test_a_score_depends_on_how_far_apart_query_and_key_are(rng):
    query, key = rng.standard_normal((2, K))

    def score(t, s):
        turns = rotary_turns(10**3, K)[[t, s]]
        return np.prod([rotary(np.stack([query, key]), turns)], axis=0).prod(axis=0).sum()

    assert_allclose(score(7, 3), score(104, 100))
    assert abs(score(7, 3) - score(3, 7)) > 1e-3


@pytest.mark.parametrize("count", [T, 70])
def test_queries_stand_at_the_last_of_the_keys(count, rng):
    """As they do after the keys of a cache, also of more than a first table of turns is for."""

    def attend(*inputs):
        return RotaryAttention(ScaledDotProductAttention()).forward(*inputs)

    query, key, value = rng.standard_normal((3, B, H, count, K))
    whole = attend(query, key, value)
    assert_allclose(attend(query[:, :, -2:], key, value), whole[:, :, -2:], atol=1e-12)
    assert_allclose(attend(query[0, :, -2:], key[0], value[0]), whole[0, :, -2:], atol=1e-12)
    assert abs(attend(query[:, :, :2], key, value) - whole[:, :, :2]).max() > 1e-3


def test_what_has_no_pairs_cannot_be_turned(rng, complaint):
    x = rng.standard_normal((B, H, T, 3))
    attention = RotaryAttention(ScaledDotProductAttention())
    assert "so d_k is even; received d_k 3" in complaint(attention.forward, x, x, x)
