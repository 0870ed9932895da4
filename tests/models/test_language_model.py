"""The language model looks back only, predicts what follows, and writes from its cache."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer import models
from numformer.generation import beam_search, greedy
from numformer.layer import inference, pack
from numformer.models import Transformer, model_of
from numformer.models.language_model import LanguageModel
from numformer.training import load_model, save_model

V, IDS = 9, np.array([[4, 7, 5, 8, 6], [5, 4, 4, 6, 7], [8, 8, 5, 4, 4]])

in_every_form = pytest.mark.parametrize(
    "form",
    [
        {},
        dict(norm="pre", activation="swiglu", normalization="rms"),
        dict(positions="learned", max_length=9),
        *(dict(positions=positions) for positions in ("rotary", "alibi", "none")),
    ],
    ids=str,
)


def small(**changes) -> LanguageModel:
    """A small model in float64, its parameters shaken."""
    sizes = dict(vocabulary=V, d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0)
    model = LanguageModel(LanguageModel.Config(**(sizes | changes)))
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


@in_every_form
def test_no_position_sees_the_future_and_every_one_sees_its_past(form):
    model, logits = small(**form), small(**form).forward(IDS)
    for t in range(5):
        changed = IDS.copy()
        changed[:, t] = 3
        found = model.forward(changed)
        assert_array_equal(found[:, :t], logits[:, :t])
        assert (found[:, t:] != logits[:, t:]).any(axis=-1).all()


@in_every_form
@pytest.mark.parametrize("beginning", [1, 2, 3])
def test_writing_from_the_cache_equals_reading_the_whole(form, beginning):
    """Also for rows that are chosen on the way."""
    model, chosen = small(**form), np.array([2, 2, 0])
    with inference():
        whole = model.forward(IDS)
        state = model.start(IDS[:, :beginning], 5 - beginning)
        assert_array_equal(state.ids, IDS[:, beginning - 1])
        for t in range(beginning - 1, 3):
            assert_allclose(model.step(IDS[:, t], state), whole[:, t], rtol=1e-10, atol=1e-12)
        state.choose(chosen)
        found = model.step(IDS[chosen, 3], state)
    assert_allclose(found, whole[chosen, 3], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("beginning", [1, 2, 3])
def test_there_is_room_for_what_was_asked_for_and_no_more(beginning, complaint):
    with inference():
        model, state = small(), small().start(IDS[:, :beginning], 2)
        assert state.cache.room == beginning + 1
        for _ in range(2):
            model.step(IDS[:, 3], state)
        assert "room" in complaint(model.step, IDS[:, 3], state)


def test_a_cache_that_is_filled_takes_one_position_at_a_time(complaint):
    with inference():
        model, state = small(), small().start(IDS[:, :3], 2)
        text = complaint(model.forward, IDS[:, 3:], state.cache)
    assert "received 2 after 2" in text


def test_predictions_are_those_of_every_position():
    logits, targets = small().predictions(IDS[:, :-1], IDS[:, 1:])
    assert_allclose(logits, small().forward(IDS)[:, :-1], rtol=1e-10, atol=1e-12)
    assert_array_equal(targets, IDS[:, 1:])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (), (2, 3, 4)])
def test_ids_that_are_no_batch_are_refused(shape, complaint):
    refusal = "ids are a NumPy array (B, T), neither of them 0; received"
    for read in (small().forward, lambda ids: small().start(ids, 3)):
        assert f"{refusal} shape {shape}" in complaint(read, np.ones(shape, int))
        assert f"{refusal} list" in complaint(read, [[4, 5]])


def test_the_output_is_the_embedding_and_the_seed_determines_the_weights():
    model = small()
    assert model.output.weight is model.input.embedding.weight
    weights = [pack(LanguageModel(model.config, *seed)).data for seed in ((), (0,), (3,))]
    assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


def test_greedy_and_beam_search_serve_it_and_a_beam_is_no_worse():
    model = small()

    def probability(rows):
        ids = np.array([[*row, *found] for row, found in zip(IDS[:, :2], rows, strict=True)])
        with inference():
            logits = model.forward(ids[:, :-1])
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return np.take_along_axis(log_p, ids[:, 1:, None], axis=-1)[:, 1:].sum(axis=(1, 2))

    model.output.weight.data[2] -= 9  # the end id is never written, so that all are of one length
    found = [search(model, IDS[:, :2], 3) for search in (greedy, beam_search)]
    assert all(len(ids) == 3 for rows in found for ids in rows)
    assert (probability(found[1]) >= probability(found[0]) - 1e-12).all()


@in_every_form
def test_a_saved_language_model_is_one_again(form, empty_folder):
    model = small(**form)
    pack(model)
    save_model(Path("model.safetensors"), model)
    again, metadata = load_model(Path("model.safetensors"))
    assert metadata["model"] == "language_model" and type(again) is LanguageModel
    assert_array_equal(again.forward(IDS), model.forward(IDS))


@pytest.mark.parametrize("changes", [{}, dict(positions="learned", max_length=7), dict(d_k=3)])
def test_the_least_parameters_of_a_config_are_the_entries_of_its_matrices(changes):
    model = small(**changes)
    matrices = [p.size for p in model.named_parameters().values() if len(p.shape) > 1]
    assert model.config.least_parameters == sum(matrices)


def test_a_model_may_be_a_variant_of_that_in_another_file(tmp_path, monkeypatch, complaint):
    """Then its file holds two."""
    text = "from numformer.models.encoder_decoder import Transformer\n\n\n"
    (tmp_path / "variant.py").write_text(text + "class Variant(Transformer):\n    pass\n")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    (tmp_path / "two.py").write_text(
        text + "class A(Transformer):\n    pass\n\n\nclass B(A):\n    pass\n"
    )
    for name in ("variant", "two"):
        monkeypatch.setattr(models, name, None, raising=False)  # what importing it leaves
    assert model_of("variant").__name__ == "Variant"
    assert "with that one model in it" in complaint(model_of, "two")  # which of the two?
    for name in ("variant", "two"):
        del sys.modules[f"numformer.models.{name}"]


def test_a_model_without_predictions_says_so():
    class Silent(models.Model):
        pass

    with pytest.raises(NotImplementedError, match="Silent has no predictions"):
        Silent().objective().forward(IDS)


def test_a_kind_names_a_file_with_a_model(complaint):
    assert LanguageModel.kind() == "language_model"
    assert model_of("language_model") is LanguageModel
    assert model_of("encoder_decoder") is Transformer
    for kind in ("none", "model", "block", "__init__", "", None, 3, ["model"]):
        assert f"with that one model in it; received {kind!r}" in complaint(model_of, kind)
