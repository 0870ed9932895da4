"""The masked language model sees both sides, leaves padding out, and is asked at some places."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.data import pad
from numformer.layer import inference, pack
from numformer.models import MaskedLanguageModel, model_of
from numformer.training import load_model, save_model

V, IDS = 9, np.array([[4, 7, 5, 8, 6], [5, 4, 4, 6, 7], [8, 8, 5, 4, 4]])
TARGETS = np.array([[0, 5, 0, 0, 8], [0, 0, 0, 0, 0], [4, 0, 0, 6, 0]])
TIGHT = dict(rtol=1e-10, atol=1e-12)

in_every_form = pytest.mark.parametrize(
    "form", [{}, dict(norm="pre"), dict(positions="rotary")], ids=str
)


def small(**changes) -> MaskedLanguageModel:
    """A small model in float64, its parameters shaken."""
    sizes = dict(vocabulary=V, d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0)
    model = MaskedLanguageModel(MaskedLanguageModel.Config(**(sizes | changes)))
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


@in_every_form
def test_every_position_sees_every_other(form):
    model, logits = small(**form), small(**form).forward(IDS)
    for t in range(5):
        changed = IDS.copy()
        changed[:, t] = 3
        assert (model.forward(changed) != logits).any(axis=-1).all()


def test_forwards_with_and_without_places_may_wait_for_their_backwards():
    model, alone, rng = small(), [], np.random.default_rng(3)
    forwards = [(IDS,), (IDS, np.array([3, 7]))]
    dlogits = [rng.standard_normal(model.forward(*inputs).shape) for inputs in forwards]
    model.clear_saved()
    for inputs, dy in zip(forwards, dlogits, strict=True):
        model.zero_grad()
        model.forward(*inputs)
        model.backward(dy)
        alone.append([p.grad.copy() for p in model.named_parameters().values()])
    model.zero_grad()
    for inputs in forwards:
        model.forward(*inputs)
    for dy in reversed(dlogits):
        model.backward(dy)
    both = [p.grad for p in model.named_parameters().values()]
    for found, *each in zip(both, *alone, strict=True):
        assert_allclose(found, sum(each), **TIGHT)


@in_every_form
def test_padding_changes_nothing(form):
    """Neither beside a sequence nor, where no position of a batch is padding, a mask."""
    model = small(**form)
    alone = model.forward(IDS[:1, :3])
    beside = model.forward(pad([IDS[0, :3].tolist(), IDS[1].tolist()]))
    assert_allclose(beside[:1, :3], alone, **TIGHT)


def test_only_the_places_that_are_asked_for_are_predicted():
    logits, targets = small().predictions(IDS, TARGETS)
    assert_array_equal(targets, [5, 8, 4, 6])
    assert_allclose(logits, small().forward(IDS)[[0, 0, 2, 2], [1, 4, 0, 3]], **TIGHT)


def test_the_gradient_is_that_of_the_whole_with_0_at_the_other_places():
    whole, asked = small(), small()
    logits, _ = asked.predictions(IDS, TARGETS)
    dlogits = np.random.default_rng(2).standard_normal(logits.shape)
    asked.backward(dlogits)
    whole.forward(IDS)
    everywhere = np.zeros((*IDS.shape, V))
    everywhere[TARGETS != 0] = dlogits
    whole.backward(everywhere)
    for (name, one), two in zip(
        asked.named_parameters().items(), whole.named_parameters().values(), strict=True
    ):
        assert_allclose(one.grad, two.grad, err_msg=name, **TIGHT)


def test_what_cannot_be_is_refused(complaint):
    assert "at least one place; received targets that are all padding" in complaint(
        small().predictions, IDS, 0 * TARGETS
    )
    for ids in (IDS[0], IDS[:0], IDS.tolist()):
        assert "ids are a NumPy array (B, T), neither of them 0" in complaint(small().forward, ids)


def test_the_output_is_the_embedding_and_the_seed_determines_the_weights():
    model = small()
    assert model.output.weight is model.input.embedding.weight
    weights = [pack(MaskedLanguageModel(model.config, *seed)).data for seed in ((), (0,), (3,))]
    assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


@pytest.mark.parametrize("changes", [{}, dict(positions="learned", max_length=7), dict(d_k=3)])
def test_the_least_parameters_of_a_config_are_the_entries_of_its_matrices(changes):
    model = small(**changes)
    matrices = [p.size for p in model.named_parameters().values() if len(p.shape) > 1]
    assert model.config.least_parameters == sum(matrices)


def test_a_saved_model_is_one_again(empty_folder):
    model = small()
    pack(model)
    save_model(Path("model.safetensors"), model)
    again, metadata = load_model(Path("model.safetensors"))
    assert metadata["model"] == "masked" and type(again) is MaskedLanguageModel
    assert model_of("masked") is MaskedLanguageModel
    with inference():
        assert_array_equal(again.forward(IDS), model.forward(IDS))
