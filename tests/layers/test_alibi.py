"""ALiBi: what is added to the scores of each head."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from numformer.layers import ALiBiAttention, ScaledDotProductAttention
from numformer.layers.alibi import alibi


def test_each_head_has_its_slope():
    """Of eight heads 1/2, 1/4, ... 1/256 (Press et al. 2022, section 3)."""
    found = alibi(8, np.array([2, 3]), np.arange(4))
    distances = [[2, 1, 0, 1], [3, 2, 1, 0]]
    assert_allclose(found, [-np.array(distances) / 2**head for head in range(1, 9)])
    assert_allclose(alibi(2, np.array([1]), np.arange(2))[:, 0, 0], [-1 / 16, -1 / 256])


def test_equal_scores_prefer_what_is_near_and_a_mask_holds(rng):
    query, value = np.zeros((1, 2, 3, 4)), rng.standard_normal((1, 2, 3, 4))
    layer = ALiBiAttention(ScaledDotProductAttention())
    mask = np.array([[True, True, False], [True, True, True], [False, False, False]])
    layer.forward(query, query, value, mask)
    (record,) = layer.attention.saved
    (weights,) = record["weights"]
    assert (np.diff(weights[:, 0, :2]) < 0).all() and (weights[:, 1, 1] > weights[:, 1, 0]).all()
    assert_array_equal(weights[:, ~mask], 0)
    assert_allclose(weights[:, 1, 0], weights[:, 1, 2])  # both directions count alike


def test_queries_stand_at_the_last_of_the_keys(rng):
    layer = ALiBiAttention(ScaledDotProductAttention())
    query, key, value = rng.standard_normal((3, 2, 3, 6, 4))
    whole = layer.forward(query, key, value)
    assert_allclose(layer.forward(query[:, :, 4:], key, value), whole[:, :, 4:], atol=1e-12)
    assert abs(layer.forward(query[:, :, :2], key, value) - whole[:, :, :2]).max() > 1e-3
