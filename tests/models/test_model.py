"""What every model has: what it refuses, what it predicts, and what its parameters are for."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.backend import to_host
from numformer.later import BiasedHeads, RMSNorm
from numformer.later.divergence import Divergence
from numformer.later.mixers.mixer import Mixer
from numformer.layer import Parameter, mode
from numformer.models import Objective, Transformer
from numformer.models.kinds import model_kind
from numformer.models.model import Model
from numformer.paper import FeedForward, LayerNorm, LearnedPositions, Linear, SelfAttention
from numformer.paper.transformer import require_batch


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (2, 3, 4), None])
def test_what_is_no_batch_is_refused(shape, complaint):
    ids = np.ones(shape, int) if shape else [[1, 2]]
    received = f"shape {shape}" if shape else "list"
    text = complaint(require_batch, ids, "the rule", "The fix.")
    assert text == f"the rule, both at least 1; received {received}. The fix."
    require_batch(np.ones((1, 1), int), "the rule", "The fix.")


class Other(Mixer):
    """One that is no attention."""


class Mixed(Model):
    """One layer of each role, wherever it stands, and a weight of its own."""

    def __init__(self, rng):
        self.anything = [LayerNorm(4), RMSNorm(4), FeedForward(4, 3, rng)]
        parts = {name: BiasedHeads(4, 2, 2, rng) for name in ("query", "key", "value")}
        self.mixer = SelfAttention(4, 2, rng, **parts, output=Linear(4, 4, rng))
        self.where = LearnedPositions(5, 4, rng)
        self.table = Parameter(np.ones((7, 4)))
        self.again = self.anything[0]
        self.other = Other()
        self.other.decay = Parameter(np.ones(2))


class Several(Model):
    """Predictions without a parameter."""

    def predictions(self):
        return np.zeros((2, 3)), np.array([0, 2])


def test_parameters_are_counted_once_by_the_layer_that_they_are_in(rng):
    assert Mixed(rng).parameter_counts() == {
        "positions": 5 * 4,
        "attention": 4 * (4 * 4 + 4),
        "feed_forward": 4 * 3 + 3 + 3 * 4 + 4,
        "norm": 3 * 4,
        "embedding": 7 * 4,
        "mixer": 2,
        "total": 20 + 80 + 31 + 12 + 28 + 2,
    }


def test_a_model_without_predictions_says_so(rng):
    with pytest.raises(NotImplementedError, match="Mixed has no predictions"):
        Mixed(rng).predictions()
    assert model_kind(Mixed) == "Mixed"


def test_an_evaluation_predicts_once_with_r_drop_too():
    config = Transformer.Config.base(7, d_model=4, d_ff=4, heads=2, layers=1, p_drop=0.5)
    model, ids = Transformer(config), np.array([[4, 5, 2]])
    with mode(training=False):
        losses = [Objective(model, 0.1, r_drop).forward(ids, ids, ids) for r_drop in (0.0, 4.0)]
    assert losses[0] == losses[1] and len(model.output.saved) == 2


@pytest.mark.parametrize("r_drop", [0.0, 4.0])
def test_ten_forwards_without_a_backward_are_warned_of(r_drop):
    objective = Objective(Several(), r_drop=r_drop)
    for _ in range(Objective.MAX_PENDING - 1):
        objective.forward()
    with pytest.warns(UserWarning, match="backward"):
        objective.forward()


def test_the_divergence_is_the_mean_of_the_rows_that_count(rng, xp, complaint):
    layer, (first, second) = Divergence(), xp.asarray(rng.standard_normal((2, 3, 5)))
    apart = layer.forward(first, second, np.array([False, True, False]))
    one, _ = layer.backward()
    assert apart == layer.forward(first[1:2], second[1:2]) and not one[::2].any()
    assert_allclose(to_host(one[1:2]), to_host(layer.backward(1.0)[0]), rtol=1e-12)
    assert layer.forward(first, second, np.zeros(3, bool)) == 0
    assert not any(each.any() for each in layer.backward())
    message = complaint(layer.forward, np.zeros((2, 3)), np.zeros((3, 2)))
    assert "the same shape; received (2, 3) and (3, 2)" in message


def test_a_model_is_built_of_its_config_alone(complaint):
    received = {Transformer.Config: "the class numformer.models", 8: "an object of builtins.int"}
    for given, description in received.items():
        assert f"Transformer.Config(...); received {description}" in complaint(Transformer, given)
