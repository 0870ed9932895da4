"""The dictionary of lesson 3: its gradients, and what it shows about score functions."""

from types import SimpleNamespace

import numpy as np
import pytest

from lessons.lesson_03 import retrieval
from lessons.lesson_03.retrieval import RATES, SCORES, SET, Lookup, compare, draw, look
from numformer.gradient_check.gradients import GradientCheck


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


def test_what_is_looked_at_is_what_it_is_called(rng):
    """Row by row, with numerical gradients of each query's own mean squared error."""
    words, value = draw(rng, 3)
    model = Lookup(SCORES["dot product"](2, rng), 2, rng)
    query, key = (layer.forward(words) for layer in (model.query, model.key))
    scores = query @ key.swapaxes(1, 2)
    largest, lengths, right = [], [], []
    for n, wanted in np.ndindex(3, SET):
        row, values = scores[n, wanted].astype(float), value[n].astype(float)

        def error(row, values=values, wanted=wanted):
            weights = np.exp(row) / np.exp(row).sum()
            return ((weights @ values - values[wanted]) ** 2).mean()

        moved = [error(row + h) - error(row - h) for h in 1e-5 * np.eye(SET)]
        lengths.append(np.linalg.norm(moved) / 2e-5)
        largest.append((np.exp(row) / np.exp(row).sum()).max())
        right.append(row.argmax() == wanted)
    expected = scores.std(), np.median(largest), np.median(lengths), np.mean(right)
    assert 0.05 < np.mean(right) < 0.95
    np.testing.assert_allclose(look(model, words, value), expected, rtol=1e-3)


def test_of_the_rates_that_begin_well_the_one_with_the_lowest_last_losses_is_taken(monkeypatch):
    last = dict(zip(RATES, ([9, 1], [4, 3], [5, 2], [8.1, 1]), strict=True))  # of a seed, of all

    def trained(score, build, width, rate, seeds):
        wanted = last[rate][len(seeds) > 1]
        return SimpleNamespace(rate=rate, losses=np.repeat([10.0 - wanted, wanted], [90, 10]))

    monkeypatch.setattr(retrieval, "train", trained)
    assert [result.rate for result in compare((4,), (0, 1), {"any": None})] == [RATES[2]]
