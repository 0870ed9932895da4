"""The objective: auxiliary losses of layers count in it, forward and backward."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import numformer as nf
from numformer.execution.in_turn import InTurn
from numformer.gradient_check import GradientCheck
from numformer.later import FEED_FORWARDS
from numformer.later.auxiliary import (
    add_auxiliary_loss,
    auxiliary_gradient,
    collect_auxiliary_losses,
    set_auxiliary_gradient,
)
from numformer.optimization.optimizers import Adam
from numformer.randomness import dropout_stream
from tests.gradient_check.test_contract import assert_gradients_agree

V = 11
SIZES = dict(d_model=8, d_ff=12, heads=2, layers=2)
SOURCE = np.array([[4, 5, 6, 7, 2], [8, 5, 2, 0, 0], [3, 2, 0, 0, 0]])
TARGET = np.array([[1, 9, 4, 5], [1, 9, 9, 0], [1, 7, 0, 0]])
FOLLOWING = np.array([[9, 4, 5, 2], [9, 9, 2, 0], [7, 2, 0, 0]])
BATCH = SOURCE, TARGET, FOLLOWING


class Squares(nf.FeedForward):
    """A feed-forward network that is to get small inputs: its auxiliary loss is the sum of x^2."""

    def forward(self, x):
        self.save(x=x)
        add_auxiliary_loss((x * x).sum())
        return super().forward(x)

    def backward(self, dy):
        dx = super().backward(dy)
        dx += auxiliary_gradient() * 2 * self.pop_saved()["x"]
        return dx


class OfSquares:
    """The choice "squares"; `shared` is one network for all layers."""

    shared: nf.Layer | None = None

    @classmethod
    def build(cls, config, rng):
        return cls.shared or Squares(config.d_model, config.d_ff, rng)

    @staticmethod
    def entries(config):
        return 0


@pytest.fixture
def squares(monkeypatch):
    monkeypatch.setitem(FEED_FORWARDS, "squares", OfSquares)
    return dict(feed_forwards="squares", **SIZES)


def worst(layer, inputs) -> float:
    """The largest error of a gradient along a random direction."""
    checked = GradientCheck(layer, inputs)
    return max(checked.row(name, directions=1).error for name in checked.tensors)


def losses(model, **settings) -> tuple[float, float]:
    """The objective's loss, and that of the predictions alone."""
    objective = model.objective(**settings)
    with nf.inference():
        return float(objective.forward(*BATCH)), float(objective.prediction_loss(*BATCH))


@pytest.mark.parametrize("changes", [{}, dict(checkpointing=True), dict(norm="pre")])
def test_auxiliary_losses_count_forward_and_backward(squares, changes):
    """Of every layer, those that are computed again included, and as often in an evaluation."""
    model = nf.Transformer(nf.Config.base(V, p_drop=0.0, **squares, **changes))
    objective = model.objective(0.1)
    assert_gradients_agree(GradientCheck(objective, BATCH))
    squared = sum(
        (record["x"] ** 2).sum()
        for layer in forwarded(model)
        for record in (layer.saved if isinstance(layer, Squares) else ())
    )
    whole, of_predictions = losses(model, label_smoothing=0.1)
    assert of_predictions > 1
    if not changes.get("checkpointing"):
        assert whole - of_predictions == pytest.approx(squared)
    assert whole == pytest.approx(float(objective.forward(*BATCH)))
    objective.clear_saved()
    assert objective.prediction_loss(*BATCH) == pytest.approx(of_predictions)
    assert objective.pending() == 0


def forwarded(model) -> list[nf.Layer]:
    """Its layers after a forward that saved."""
    model.clear_saved()
    model.predictions(*BATCH)
    return model.layers_within()


def test_one_layer_at_several_places_counts_at_each(squares, monkeypatch):
    monkeypatch.setattr(OfSquares, "shared", Squares(8, 12, np.random.default_rng(0)))
    model = nf.Transformer(nf.Config.base(V, p_drop=0.0, **squares))
    assert_gradients_agree(GradientCheck(model.objective(), BATCH))


def test_of_two_predictions_the_mean_counts(squares):
    model = nf.Transformer(nf.Config.base(V, p_drop=0.3, **squares))
    assert_gradients_agree(GradientCheck(model.objective(0.1, r_drop=2.0), BATCH))


def test_a_layer_by_itself_is_checked_with_its_auxiliary_loss(monkeypatch):
    layer, x = (
        Squares(8, 12, np.random.default_rng(0)),
        np.random.default_rng(1).normal(size=(3, 8)),
    )
    assert worst(layer, [x]) < 1e-7
    monkeypatch.setattr(f"{__name__}.auxiliary_gradient", lambda: 0.0)
    assert worst(layer, [x]) > 0.1


def test_without_an_objective_there_is_none():
    layer, x = Squares(8, 12, np.random.default_rng(0)), np.ones((3, 8))
    y = layer.forward(x)
    plain = nf.FeedForward(8, 12, np.random.default_rng(0))
    assert (y == plain.forward(x)).all()
    assert (layer.backward(np.ones_like(y)) == plain.backward(np.ones_like(y))).all()


def test_of_a_batch_in_parts_each_part_counts_by_its_predictions(squares):
    model = nf.Transformer(nf.Config.base(V, p_drop=0.0, **squares))
    flat, batch = nf.pack(model, np.float64), nf.PairBatch(*BATCH)
    objective = model.objective()
    executor = InTurn(objective, Adam(flat), seed=0, parts=2)
    loss, gradient = executor.gradient(1, batch), flat.grad.copy()
    flat.zero_grad()
    expected = 0.0
    for part in batch.split(2):
        share = part.weight / batch.weight
        dropout_stream.reseed(0, 1)
        expected += share * objective.forward(*part.inputs)
        objective.backward(share)
    assert loss == pytest.approx(float(expected))
    assert_allclose(gradient, flat.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", FEED_FORWARDS)
@pytest.mark.parametrize("changes", [{}, dict(norm="pre", checkpointing=True)])
def test_padding_does_not_move_the_loss(name, changes):
    """Neither that of a masked model nor, with padding or without it, an encoder-decoder's."""
    kinds = nf.MaskedLanguageModel, nf.Transformer
    sizes = dict(feed_forwards=name, p_drop=0.0, **SIZES, **changes)
    configs = kinds[0].Config(vocabulary=V, **sizes), kinds[1].Config.base(V, **sizes)
    for kind, config, batch in zip(kinds, configs, ((SOURCE, SOURCE), BATCH), strict=True):
        model = kind(config)
        flat, objective = nf.pack(model, np.float64), model.objective()
        found = []
        for more in 0, 7:
            padded = [np.pad(ids, ((0, 0), (0, more))) for ids in batch]
            found.append((objective.forward(*padded), flat.grad))
            objective.backward()
            found[-1] = found[-1][0], flat.grad.copy()
            flat.zero_grad()
        (loss, gradient), (with_padding, with_padding_gradient) = found
        assert_allclose(with_padding, loss, rtol=1e-12)
        assert_allclose(with_padding_gradient, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_a_padded_batch_trains_as_one_without_padding(name):
    """An encoder-decoder that computes padding, too, has the loss of its real positions."""
    config = nf.Config.base(V, feed_forwards=name, p_drop=0.0, **SIZES)
    model = nf.Transformer(config)
    nf.pack(model, np.float64)

    class Padded(nf.Transformer):
        """One that computes padding too."""

        def predictions(self, source, target_in, target_out):
            return self.forward(source, target_in), target_out, target_out != 0

    padded = Padded(config)
    nf.pack(padded, np.float64)
    assert_allclose(padded.objective().forward(*BATCH), model.objective().forward(*BATCH))


def test_auxiliary_losses_and_their_gradient_belong_to_the_innermost_block():
    """After a block, those of the block around it hold again; outside there are none."""
    with collect_auxiliary_losses() as outer:
        with collect_auxiliary_losses() as inner:
            add_auxiliary_loss(1.0)
        add_auxiliary_loss(2.0)
        with set_auxiliary_gradient(0.5):
            with set_auxiliary_gradient(3.0):
                add_auxiliary_loss(4.0)
                assert auxiliary_gradient() == 3.0
            assert auxiliary_gradient() == 0.5
        add_auxiliary_loss(5.0)
    add_auxiliary_loss(6.0)
    assert (inner, outer, auxiliary_gradient()) == ([1.0], [2.0, 5.0], 0.0)
