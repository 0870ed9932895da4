"""What is written of a model, and what a published kind cannot hold."""

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors
from published_cases import CASES, RandomModel
from safetensors.numpy import load_file

import numformer as nf
from numformer.published.loading import load_published
from numformer.published.saving import save_published


def test_the_files_are_those_that_transformers_opens(tmp_path):
    """It opens no file of arrays without a format."""
    RandomModel("gpt2", CASES["gpt2"]).save(tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
    content = (tmp_path / "config.json").read_text()
    assert content.startswith('{\n "model_type": "gpt2",\n "') and content.endswith("\n}\n")


@pytest.mark.parametrize(
    ("kind", "changes", "requirements", "received"),
    [
        ("llama", dict(attention_bias=True), "attention_bias False", "attention_bias True"),
        ("bert", dict(embedding_norm=False), "embedding_norm True", "embedding_norm False"),
        (
            "gpt2",
            dict(norm="post", activation="relu"),
            "norm pre, activation gelu_tanh",
            "norm post, activation relu",
        ),
        ("llama", dict(p_drop=0.2, attention_dropout=0.3), "", ""),
        ("bert", dict(p_drop=0.2, attention_dropout=0.3, max_length=24), "", ""),
    ],
)
def test_a_model_is_published_again_if_its_kind_has_all_its_parts(
    kind, changes, requirements, received, tmp_path, complaint
):
    """Dropout rates are not parts."""
    model = RandomModel(kind, CASES[kind], np.float32).model
    other = type(model)(replace(model.config, **changes), 1)
    if requirements:
        message = complaint(save_published, tmp_path, other, {"published": CASES[kind]})
        rule = f"a model exported as {kind} has {requirements}; received {received}."
        assert message == f"{rule} Train a model with {requirements}."
    else:
        save_published(tmp_path, other, {"published": CASES[kind]})
        state, expected = load_published(tmp_path)[0].state_dict(), other.state_dict()
        assert all(np.allclose(state[name], expected[name], rtol=1e-6) for name in expected)


def test_only_some_models_of_ours_become_published_ones(tmp_path, complaint):
    model = RandomModel("vit", CASES["vit"]).model
    message = complaint(save_published, tmp_path, model, {})
    assert "or is a Transformer or a LanguageModel; received a VisionTransformer." in message


def test_a_vocabulary_of_letters_has_no_files_there(tmp_path):
    letters = nf.Vocabulary("abcdefghijklmnop")
    sizes = dict(d_model=8, d_ff=8, heads=2, layers=1)
    model = nf.Transformer(nf.Config.base(len(letters), **sizes))
    save_published(tmp_path, model, {}, nf.Transduction(letters, letters, 12))
    names = ["config.json", "generation_config.json", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert json.loads((tmp_path / names[1]).read_text())["max_length"] == 13


def test_a_number_is_written_without_axes(tmp_path):
    RandomModel("clip", CASES["clip"], np.float32).save(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["logit_scale"].shape == ()
