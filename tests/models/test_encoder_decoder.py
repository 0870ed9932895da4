"""The whole Transformer: sizes, ties, masks, norms, dropout, decoding."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.backend import DropoutStream, dropout_stream
from numformer.gradient_check.gradients import GradientCheck
from numformer.layer import Parameter, inference, pack
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.positional import sinusoidal_table
from numformer.layers.reach import causal_mask, padding_mask
from numformer.models import Config, Objective, Tower, TowerConfig, Transformer

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
        return model.start(SOURCE, 1).past.of(model, dict)["memory"]


# Numbers of parameters.


@pytest.fixture
def without_memory(monkeypatch):
    """Parameters of any size that hold one number, so that the paper's models cost nothing."""

    class Zeros:
        def uniform(self, low, high, size):
            return np.broadcast_to(np.float32(0), size)

        normal = uniform

    def hold(parameter, data):
        parameter._data = parameter._grad = np.broadcast_to(np.float32(0), np.shape(data))

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Zeros())
    monkeypatch.setattr(Parameter, "__init__", hold)


def paper_count(**changes) -> int:
    """Parameters of a row of Table 3, with the vocabulary of 37,000 of section 5.1."""
    return Transformer(Config.base(37000, **changes)).parameter_counts()["total"]


@pytest.mark.parametrize(
    ("row", "millions"),
    [
        (dict(d_k=16), -7),
        (dict(d_k=32), -5),
        (dict(layers=2), -29),
        (dict(layers=4), -15),
        (dict(layers=8), +15),
        (dict(d_ff=4096), +25),
        (dict(heads=16, d_k=32, d_v=32), 0),
        (dict(heads=1, d_k=512, d_v=512), 0),
    ],
    ids=str,
)
def test_differences_between_rows_of_table_3(row, millions, without_memory):
    """The table prints millions; d_k 16 with d_v kept, layers and d_ff each have their own."""
    assert round((paper_count(**row) - paper_count()) / 1e6) == millions


def test_base_and_big_have_exactly_the_parts_of_section_3(without_memory):
    for config, d, f in ((Config.base(37000), 512, 2048), (Config.big(37000), 1024, 4096)):
        attention, network, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
        assert Transformer(config).parameter_counts() == {
            "embedding": 37000 * d,  # source, target and output are one
            "positions": 0,
            "attention": 6 * 3 * attention,  # one in an encoder layer, two in a decoder layer
            "feed_forward": 6 * 2 * network,
            "norm": 6 * 5 * norm,
            "total": 37000 * d + 18 * attention + 12 * network + 30 * norm,
        }


def test_counts_of_a_small_model_with_everything_switched_on():
    changes = dict(norm="pre", positions="learned", max_length=20, attention_bias=True)
    model = small(**changes, tying="none", d_k=3, d_v=5)
    counts = model.parameter_counts()
    attention = (2 * 3 + 5) * H * (D + 1) + (5 * H + 1) * D
    assert counts == {
        "embedding": 3 * V * D,
        "positions": 2 * 20 * D,
        "attention": 3 * N * attention,
        "feed_forward": 2 * N * (D * F + F + F * D + D),
        "norm": (5 * N + 2) * 2 * D,  # pre-norm ends each stack with one more
        "total": pack(model).data.size,
    }
    assert sum(counts.values()) == 2 * counts["total"]


@pytest.mark.parametrize("changes", [{}, dict(norm="pre"), dict(d_ff=3, layers=1)], ids=str)
def test_a_position_saves_no_less_than_is_said(changes, rng):
    """By it scripts refuse what memory cannot hold; what it can must not be refused."""
    config = TowerConfig(**(SMALL | dict(p_drop=0.0) | changes))
    assert config.least_saved == config.layers * (4 * D + config.d_ff)
    tower = Tower(config, rng)
    tower.forward(rng.standard_normal((3, 5, D)))
    saved = [x for part in tower.layers_within() for record in part.saved for x in record.values()]
    owners = [x if x.base is None else x.base for x in saved if isinstance(x, np.ndarray)]
    sizes = {id(owner): owner.size for owner in owners}
    assert config.least_saved <= sum(sizes.values()) / 15


# Ties.


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


# Masks: nothing leaks.


def test_the_embedding_of_padding_changes_no_real_output():
    """Nor where padding stands in the middle of a target, where the causal mask lets it through."""
    model, target = small(tying="none"), TARGET.copy()
    target[0, 1] = 0
    logits, memory = model.forward(SOURCE, target), memory_of(model)
    for side in (model.source, model.target):
        side.embedding.weight.data[0] += 5
    assert_allclose(memory_of(model)[SOURCE > 0], memory[SOURCE > 0], **CLOSE)
    assert_allclose(model.forward(SOURCE, target)[target > 0], logits[target > 0], **CLOSE)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_source_of_nothing_but_padding_stays_finite(dtype):
    """Every score of its row is masked; a softmax without care gives NaN everywhere."""
    model = small()
    flat = pack(model, dtype)
    source = SOURCE.copy()
    source[1] = 0
    logits = model.forward(source, TARGET)
    model.backward(np.ones_like(logits))
    assert np.isfinite(logits).all() and np.isfinite(flat.grad).all() and flat.grad.any()


# Norms and dropout stand where the paper puts them.


@pytest.mark.parametrize(("norm", "final"), [("post", 0), ("pre", 2)])
def test_only_pre_norm_has_final_norms(norm, final):
    model = Transformer(Config.base(V, **SMALL, norm=norm))
    norms = [part for part in model.layers_within() if isinstance(part, LayerNorm)]
    assert len(norms) == 5 * N + final
    for stack in (model.encoder, model.decoder):
        assert isinstance(stack.norm, LayerNorm) == bool(final)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_stacks_end_with_normalised_vectors(norm):
    """With gamma 1 and beta 0 as at the start: mean 0 and variance 1 at every position."""
    model = Transformer(Config.base(V, **SMALL, norm=norm))
    pack(model, np.float64)
    with inference():
        memory = memory_of(model)
        embedded, mask = model.target.forward(TARGET), padding_mask(SOURCE != 0)
        ends = [memory, model.decoder.forward(embedded, causal_mask(4), memory, mask)]
    for end in ends:
        assert_allclose(end.mean(axis=-1), 0, atol=1e-12)
        assert_allclose(end.var(axis=-1), 1, rtol=1e-3)


def test_gradients_without_padding_with_every_dropout():
    changes = dict(p_drop=0.3, attention_dropout=0.2, activation_dropout=0.2)
    layer = Objective(Transformer(Config.base(V, **(SMALL | changes))), 0.1)
    next_target = np.where(TARGET != 0, 7, 0)
    checked = GradientCheck(layer, [SOURCE, TARGET, next_target])
    for name in checked.tensors:
        row = checked.row(name, directions=1)
        assert row.passed, str(row)


@pytest.fixture
def masks_drawn(monkeypatch):
    """The shape of every dropout mask that is drawn, in order."""
    shapes, keep = [], DropoutStream.keep

    def counted(stream, shape, p, like):
        shapes.append(tuple(shape))
        return keep(stream, shape, p, like)

    monkeypatch.setattr(DropoutStream, "keep", counted)
    return shapes


def test_dropout_is_on_embedding_sums_and_sublayer_outputs_only(masks_drawn):
    """Section 5.4 names these two; attention weights are not among them."""
    small(p_drop=0.1).forward(SOURCE, TARGET)
    assert masks_drawn == [(3, 5, D)] * (1 + 2 * N) + [(3, 4, D)] * (1 + 3 * N)


def test_optional_dropouts_add_their_masks(masks_drawn):
    small(attention_dropout=0.1).forward(SOURCE, TARGET)
    of_decoder = [(3, H, 4, 4), (3, H, 4, 5)] * N
    assert masks_drawn == [(3, H, 5, 5)] * N + of_decoder
    masks_drawn.clear()
    small(activation_dropout=0.1).forward(SOURCE, TARGET)
    assert masks_drawn == [(3, 5, F)] * N + [(3, 4, F)] * N


def test_no_mask_is_drawn_outside_training(masks_drawn):
    with inference():
        small(p_drop=0.1, attention_dropout=0.1, activation_dropout=0.1).forward(SOURCE, TARGET)
    assert not masks_drawn


def test_the_first_dropout_is_on_the_sum_of_embedding_and_position():
    model = small(p_drop=0.5)
    keep = dropout_stream.keep((3, 5, D), 0.5, np.zeros(0))
    embedded = model.source.embedding.weight.data[SOURCE] * math.sqrt(D)
    dropout_stream.reseed(0, 0)
    expected = keep * (embedded + sinusoidal_table(5, D))
    assert_allclose(model.source.forward(SOURCE), expected, **CLOSE)


# Initial weights and decoding.


def test_layers_of_a_stack_start_with_different_weights():
    """Layers made with one seed each are copies that stay alike in what they see."""
    model = Transformer(Config.base(V, **SMALL))
    matrices = [p.data for n, p in model.named_parameters().items() if "query.weight" in n]
    assert len({matrix.tobytes() for matrix in matrices}) == 3 * N
