"""The whole Transformer: sizes, ties, padding, where dropout is, first weights."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.layer import inference, pack
from numformer.models import Config, TowerConfig, Transformer
from numformer.randomness import DropoutStream

V, D, F, H, N = 11, 8, 12, 2, 2
SMALL = dict(d_model=D, d_ff=F, heads=H, layers=N)
SOURCE = np.array([[4, 5, 6, 7, 2], [8, 5, 2, 0, 0], [3, 2, 0, 0, 0]])
TARGET = np.array([[1, 9, 4, 5], [1, 9, 9, 8], [1, 7, 0, 0]])
CLOSE = dict(rtol=1e-10, atol=1e-12)


def small(**changes) -> Transformer:
    """A small model in float64, its parameters shaken, without dropout unless asked for."""
    model = Transformer(Config.base(V, **(SMALL | dict(p_drop=0.0) | changes)))
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


def memory_of(model) -> np.ndarray:
    """What the encoder makes of SOURCE."""
    with inference():
        return model.start(SOURCE, 1).past.state(model, dict)["memory"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(norm="pre"),
        dict(d_ff=3, layers=1),
        dict(d_ff=200),
        dict(checkpointing=True, layers=20),
        dict(checkpointing=True, d_ff=200),
    ],
    ids=str,
)
def test_a_position_saves_no_less_than_is_said_and_little_more(changes, rng):
    """By it scripts refuse what memory cannot hold; what it can must not be refused."""
    config = TowerConfig(**(SMALL | dict(p_drop=0.0) | changes))
    encoder = config.encoder(rng)
    encoder.forward(rng.standard_normal((3, 5, D)))
    if config.checkpointing:  # where backward begins
        encoder.layers[-1].recompute(encoder.layers[-1].saved[-1])
    records = [record for part in encoder.layers_within() for record in part.saved]
    records += [dict(enumerate(record.get("inputs", ()))) for record in records]
    saved = [x for record in records for x in record.values() if isinstance(x, np.ndarray)]
    owners = [x if x.base is None else x.base for x in saved]
    of_position = sum({id(owner): owner.size for owner in owners}.values()) / 15
    assert 0.4 * of_position < config.least_saved <= of_position


EXPERTS = dict(feed_forwards="experts", experts=3, chosen_experts=3)


@pytest.mark.parametrize(
    "changes", [*(dict(tying=tying) for tying in ("all", "inputs", "target", "none")), EXPERTS]
)
def test_the_least_parameters_have_each_table_once(changes, complaint):
    """A file with fewer numbers is refused, so one with as many must not be."""
    sizes = dict(d_model=8, d_ff=4, heads=2, layers=1)
    model = Transformer(Config.base(50, **sizes, **changes))
    matrices = [p.size for p in model.named_parameters().values() if p.data.ndim > 1]
    assert model.config.least_parameters == sum(matrices)
    too_many = EXPERTS | dict(chosen_experts=4)
    assert "experts 3, chosen_experts 4" in complaint(Config.base, 50, **too_many)


@pytest.mark.parametrize(
    ("tying", "source_is_target", "target_is_output"),
    [("all", True, True), ("target", False, True), ("none", False, False)],
)
def test_tying_shares_parameter_objects(tying, source_is_target, target_is_output):
    """Equal values are not enough: after one update they would part."""
    model = small(tying=tying)
    source, target = model.source.embedding.weight, model.target.embedding.weight
    assert (source is target) == source_is_target
    assert (target is model.output.weight) == target_is_output
    assert not (source is model.output.weight and not source_is_target)


def test_the_embedding_of_padding_changes_no_real_output():
    """Nor where padding stands in the middle of a target, where the causal mask lets it through."""
    model, target = small(tying="none"), TARGET.copy()
    target[0, 1] = 0
    logits, memory = model.forward(SOURCE, target), memory_of(model)
    for side in (model.source, model.target):
        side.embedding.weight.data[0] += 5
    assert_allclose(memory_of(model)[SOURCE > 0], memory[SOURCE > 0], **CLOSE)
    assert_allclose(model.forward(SOURCE, target)[target > 0], logits[target > 0], **CLOSE)


@pytest.fixture
def masks_drawn(monkeypatch):
    """The shape of every dropout mask that is drawn, in order."""
    shapes, mask = [], DropoutStream.mask

    def counted(stream, shape, p, like):
        shapes.append(tuple(shape))
        return mask(stream, shape, p, like)

    monkeypatch.setattr(DropoutStream, "mask", counted)
    return shapes


@pytest.mark.parametrize(
    ("dropout", "of_encoder", "decoder_table"),
    [
        ("p_drop", [(3, 5, D)] * (1 + 2 * N), [(3, 4, D)] * (1 + 3 * N)),
        ("attention_dropout", [(3, H, 5, 5)] * N, [(3, H, 4, 4), (3, H, 4, 5)] * N),
        ("activation_dropout", [(3, 5, F)] * N, [(3, 4, F)] * N),
    ],
)
def test_each_dropout_has_its_masks(dropout, of_encoder, decoder_table, masks_drawn):
    """Section 5.4 has those on embedding sums and sublayer outputs alone."""
    small(**{dropout: 0.1}).forward(SOURCE, TARGET)
    assert masks_drawn == of_encoder + decoder_table


def test_layers_of_a_stack_start_with_different_weights():
    """Layers made with one seed each are copies that stay alike in what they see."""
    model = Transformer(Config.base(V, **SMALL))
    matrices = [p.data for n, p in model.named_parameters().items() if "query.weight" in n]
    assert len({matrix.tobytes() for matrix in matrices}) == 3 * N


@pytest.mark.parametrize(("layers", "expected"), [(None, 2), (1, 1), (3, 3)])
def test_a_decoder_has_as_many_layers_as_the_encoder_unless_set(layers, expected):
    model = small(decoder_layers=layers)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (N, expected)
