"""The dictionary of lesson 3: its gradients, and what it shows about score functions."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lessons.lesson_03.retrieval import SCORES, SET, WORDS, Lookup, compare, draw
from numformer.gradient_check import GradientCheck


@pytest.mark.parametrize("score", SCORES)
def test_gradients_agree_with_numerical_ones(score, rng):
    """With more keys than queries, and with words that occur twice."""
    query, key = rng.integers(0, 6, (3, 4)), rng.integers(0, 6, (3, 5))
    layer = Lookup(SCORES[score](4, rng), 4, rng)
    checked = GradientCheck(layer, [query, key, rng.standard_normal((3, 5, 2))])
    assert len(checked.tensors) == 1 + len(layer.named_parameters())
    for name in checked.tensors:
        row = checked.row(name, directions=1)
        assert row.passed, str(row)


def test_the_words_of_a_set_are_different_and_all_words_occur(rng):
    words, value = draw(rng, 50)
    assert words.shape == value.shape[:2] == (50, SET)
    assert {len(set(row)) for row in words.tolist()} == {SET}
    assert set(words.ravel().tolist()) == set(range(WORDS))


def test_without_the_scale_only_dot_products_get_worse_with_the_width():
    narrow, wide = 4, 128
    results = {(each.score, each.width): each for each in compare((narrow, wide), seeds=(0,))}
    assert len(results) == 2 * len(SCORES)

    def of(width, what):
        return {score: getattr(results[score, width], what) for score in SCORES}

    assert min(of(narrow, "accuracy").values()) > 0.9
    accuracy, largest, gradient = (of(wide, what) for what in ("accuracy", "largest", "gradient"))
    for score in ("scaled dot product", "additive"):
        assert accuracy[score] > 0.99 and largest[score] < 0.5
    for score in ("dot product", "multiplicative"):
        assert accuracy[score] < 0.95 and largest[score] > 0.95
        assert gradient[score] < 0.1 * gradient["scaled dot product"]
        assert results[score, narrow].gradient > 0.9 * gradient["scaled dot product"]


def test_the_same_seeds_give_the_same_numbers():
    one, other = (compare((4,), (1, 2), {"any": SCORES["dot product"]})[0] for _ in range(2))
    assert_array_equal(one.losses, other.losses)
    assert_array_equal(one.accuracy, other.accuracy)
    assert len(one.accuracy) == 2 and one.losses[0] > 5 * one.losses[-1]
    assert np.isfinite(one.losses).all()
