"""What BERT has besides: segments, a layer before the output, and how two segments relate."""

import numpy as np
import pytest

import numformer as nf
from numformer.gradient_check import check

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


@pytest.mark.parametrize("layer", [Relating, Segmented])
def test_gradients_of_what_bert_has_besides(layer):
    rows = [*check(layer(bert()), [IDS, SEGMENTS])]
    assert rows and all(row.passed for row in rows)
    names = " ".join(row.name for row in rows)
    assert "segments" in names and ("relation" in names or layer is Segmented)


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
