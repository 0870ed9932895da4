"""What BERT has besides: segments, a layer before the output, and how two segments relate."""

import re

import numpy as np
import pytest

import numformer as nf
from numformer.gradient_check import GradientCheck
from tests.gradient_check.test_contract import assert_gradients_agree

IDS = np.array([[4, 5, 6, 7, 8], [9, 6, 4, 0, 0], [5, 5, 7, 9, 0]])
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0]])


class Relating(nf.Layer):
    """ids, segments (B, T) -> logits (B, relations)."""

    def __init__(self, model):
        self.model = model

    def forward(self, ids, segments):
        return self.model.relation_logits(ids, segments)

    def backward(self, dlogits):
        return self.model.relation_logits_backward(dlogits)


class Segmented(Relating):
    """ids, segments (B, T) -> logits (B, T, V)."""

    def forward(self, ids, segments):
        return self.model.forward(ids, None, segments)

    def backward(self, dlogits):
        return self.model.backward(dlogits)


def bert(**changes):
    sizes = dict(vocabulary=11, d_model=8, d_ff=12, heads=2, layers=2, segments=2, relations=3)
    how = dict(transform=True, embedding_norm=True, output_bias=True, activation="gelu", p_drop=0.0)
    model = nf.MaskedLanguageModel(nf.MaskedLanguageModel.Config(**(sizes | how | changes)), 3)
    nf.pack(model, np.float64)
    rng = np.random.default_rng(5)
    for parameter in model.named_parameters().values():
        parameter.data[...] += 0.3 * rng.standard_normal(parameter.shape)
    return model


NARROW_OR_NOT = [{}, dict(embedding_size=5), dict(segments=None, tied=False)]
NARROW_OR_NOT += [dict(embedding_size=5, segments=None, embedding_norm=False)]


@pytest.mark.parametrize("layer", [Relating, Segmented])
@pytest.mark.parametrize("changes", NARROW_OR_NOT)
def test_gradients_of_what_bert_has_besides(layer, changes):
    inputs = [IDS, None if "segments" in changes else SEGMENTS]
    assert_gradients_agree(checked := GradientCheck(layer(bert(**changes)), inputs))
    names = " ".join(checked.tensors)
    assert ("segments" in names) != ("segments" in changes)
    assert ("projection" in names) == ("embedding_size" in changes)
    assert ("input.norm" in names) == changes.get("embedding_norm", True)
    assert "relation" in names or layer is Segmented


def test_what_bert_has_besides_by_hand(complaint):
    model = bert()
    with nf.inference():
        x = model.tower.forward(model.input.forward(IDS, None, SEGMENTS))
        related = model.relation_logits(IDS, SEGMENTS)
        logits = model.forward(IDS, None, SEGMENTS)
        unsaid, zeros = (model.forward(IDS, None, s) for s in (None, np.zeros_like(IDS)))
        x_padded = model.tower.forward(
            model.input.forward(IDS, None, SEGMENTS), nf.Reach(nf.Places(IDS != 0))
        )
    pooled = np.tanh(x_padded[:, 0] @ model.pooler.weight.data + model.pooler.bias.data)
    expected = pooled @ model.relation.weight.data + model.relation.bias.data
    assert np.allclose(related, expected) and related.shape == (3, 3)
    hidden = x[0] @ model.transform.weight.data + model.transform.bias.data
    hidden = model.norm.forward(nf.GELU().forward(hidden))
    output = hidden @ model.output.weight.data.T + model.output.bias.data
    assert np.allclose(logits[0], output)  # the first sequence has no padding
    assert np.array_equal(unsaid, zeros) and not np.allclose(unsaid, logits)
    without = bert(relations=None, transform=False)
    assert "`relations` in its config" in complaint(without.relation_logits, IDS)
    assert without.transform is without.norm is None


@pytest.mark.parametrize("mixers", ["attention", "relative"])
def test_layers_that_share_their_parameters(mixers, complaint):
    """The gradient of a shared parameter is the sum of those in a model of equal layers."""
    changes = dict(mixers=mixers, layers=3, segments=None, relations=None)
    shared, equal = bert(shared_layers=True, **changes), bert(own_distances=False, **changes)
    state = shared.state_dict()
    names = {name: re.sub(r"layers\.\d", "layers.0", name) for name in equal.state_dict()}
    assert {*names.values()} == {*state} and len(state) < len(names)
    equal.load_state_dict({name: state[first] for name, first in names.items()})
    dlogits = np.random.default_rng(1).standard_normal((*IDS.shape, 11))
    for model in (shared, equal):
        model.zero_grad()
        with nf.mode(training=False):
            logits = model.forward(IDS)
            model.backward(dlogits.copy())
    assert np.allclose(logits, shared.forward(IDS))
    sums = dict.fromkeys(state, 0)
    for name, parameter in equal.named_parameters().items():
        sums[names[name]] = sums[names[name]] + parameter.grad
    for name, parameter in shared.named_parameters().items():
        assert np.allclose(parameter.grad, sums[name]), name
    maps = [nf.plots.attention_weights(model, IDS) for model in (shared, equal)]
    assert {*maps[0]} == {*maps[1]} and len(maps[0]) == 3  # each layer attends for itself
    count = sum(parameter.size for parameter in shared.named_parameters().values())
    assert 0.5 * count < shared.config.least_parameters < count
    message = complaint(bert, shared_layers=True, mixers="window,attention", window=2)
    assert "layers that share parameters have the same parts; received 2 in turn" in message


def test_narrow_embeddings_by_hand():
    """As wide as the logits' vectors; a matrix maps them to d_model after norm and dropout."""
    model = bert(
        embedding_size=5, max_length=6, positions="learned", vocabulary=1000, output_bias=False
    )
    shapes = {name: parameter.shape for name, parameter in model.named_parameters().items()}
    narrow = dict(embedding=(1000, 5), segments=(2, 5), positions=(6, 5), projection=(5, 8))
    assert all(shapes[f"input.{name}.weight"] == shape for name, shape in narrow.items())
    assert shapes["transform.weight"] == (8, 5) and shapes["norm.gamma"] == (5,)
    count = sum(parameter.size for parameter in model.named_parameters().values())
    assert 0.9 * count < model.config.least_parameters < count
    with nf.inference():
        x = model.input.embedding.forward(IDS) + model.input.segments.forward(SEGMENTS)
        x = model.input.norm.forward(x + model.input.positions.weight.data[:5])
        expected = x @ model.input.projection.weight.data + model.input.projection.bias.data
        assert np.allclose(model.input.forward(IDS, None, SEGMENTS), expected)
