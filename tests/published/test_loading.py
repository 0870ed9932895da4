"""Which arrays of a published folder fill which parameters, and what is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest
from published_cases import CASES, RandomModel
from safetensors.numpy import load_file, save_file

import numformer as nf
from numformer.published.kinds import KINDS, REFUSED, name_of_class
from numformer.published.loading import load_published
from numformer.published.saving import save_published


def change(folder: Path, removed: tuple[str, ...] = (), added: dict | None = None) -> Path:
    path = folder / "model.safetensors"
    arrays = {name: array for name, array in load_file(path).items() if name not in removed}
    save_file(arrays | (added or {}), path)
    return folder


IGNORED = {
    "marian": ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"],
    "m2m_100": ["model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"],
    "gpt2": ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"],
    "llama": ["model.layers.1.self_attn.rotary_emb.inv_freq"],
    "t5": ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"],
    "bert": ["bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias"],
}
"""Arrays of files that transformers wrote, which hold nothing that our models lack."""
MODEL_NAMES = "transformer", "bert", "roberta", "distilbert", "electra", "mpnet", "vit", "albert"
MODEL_NAMES += "deit", "dinov2", "dinov2_with_registers", "gpt_neox", "model"
"""How the names of arrays begin, unless the file holds a model without its head."""


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_that_our_model_does_not_need_are_left_out(kind, tmp_path, complaint):
    """Even without the prefix of all names; elsewhere an array of the same name is refused."""
    example, array = RandomModel(kind, CASES[kind], np.float32), np.ones(3, np.float32)
    table = KINDS[kind].table_for(example.model.config, CASES[kind])
    expected, ignored = example.model.state_dict(), IGNORED.get(kind, [])
    first = table.rows[0][0].partition(".")[0]
    assert table.optional == (f"{first}." if first in MODEL_NAMES else "")
    for form in {"", table.optional}:
        folder = change(example.save(tmp_path), added=dict.fromkeys(ignored, array))
        path = folder / "model.safetensors"
        save_file({n.removeprefix(form): values for n, values in load_file(path).items()}, path)
        state = load_published(folder)[0].state_dict()
        assert state.keys() == expected.keys()
        assert all(np.allclose(state[name], expected[name], rtol=1e-6) for name in expected)
    for name in ignored:
        folder = change(example.save(tmp_path), added={f"other.{name}": array})
        assert f"received other.{name}, [3], which belongs to none" in complaint(
            load_published, folder
        )


@pytest.mark.parametrize(
    ("case", "name", "words"),
    [
        (
            "gpt2",
            "transformer.wte.weight",
            "no transformer.wte.weight or lm_head.weight, which is input.embedding.weight",
        ),
        (
            "llama",
            "model.layers.1.mlp.up_proj.weight",
            "no model.layers.1.mlp.gate_proj.weight + model.layers.1.mlp.up_proj.weight, "
            "which is tower.layers.1.feed_forward.sublayer.inner.weight",
        ),
        ("vit", "classifier.bias", "no classifier.bias, which is output.bias"),
        ("gpt2_untied", "transformer.wte.weight", "which is output.weight in numformer"),
    ],
)
def test_an_array_that_is_missing_is_named(case, name, words, tmp_path, complaint):
    """What was read as the embedding is not the output's, too."""
    folder = RandomModel(case, CASES[case], np.float32).save(tmp_path)
    array = load_file(folder / "model.safetensors")[name]
    folder = change(folder, removed=(name,), added={"other": array})
    assert words in complaint(load_published, folder)


def test_a_bart_may_lack_the_biases_of_its_logits(tmp_path):
    """As those that were published without a head, whose names have no prefix."""
    example = RandomModel("bart", CASES["bart"], np.float32)
    folder = change(example.save(tmp_path), removed=("final_logits_bias",))
    path = folder / "model.safetensors"
    save_file({n.removeprefix("model."): array for n, array in load_file(path).items()}, path)
    state, expected = load_published(folder)[0].state_dict(), example.model.state_dict()
    assert expected.keys() - state.keys() == {"output.bias"}
    assert all(np.allclose(array, expected[name]) for name, array in state.items())


LAYER = "tower.layers.0"


@pytest.mark.parametrize(
    ("case", "arrays", "received"),
    [
        (
            "llama",
            {f"model.layers.0.mlp.{name}_proj.weight": (20, 16) for name in ("gate", "up")},
            "model.layers.0.mlp.gate_proj.weight + model.layers.0.mlp.up_proj.weight "
            f"(20, 16) and (20, 16) for {LAYER}.feed_forward.sublayer.inner.weight (16, 48)",
        ),
        (
            "gpt2",
            {"transformer.h.0.attn.c_attn.bias": (47,)},
            "transformer.h.0.attn.c_attn.bias (47,) for "
            + " + ".join(
                f"{LAYER}.self_attention.sublayer.{name}.bias" for name in ("query", "key", "value")
            )
            + " (16,) and (16,) and (16,)",
        ),
        (
            "vit",
            {"vit.embeddings.position_embeddings": ()},
            "vit.embeddings.position_embeddings () for positions.weight (10, 16)",
        ),
        (
            "vit",
            {"vit.embeddings.patch_embeddings.projection.weight": (16, 48)},
            "vit.embeddings.patch_embeddings.projection.weight (16, 48) for "
            "embedding.weight (48, 16)",
        ),
        *(
            (
                "dinov2_with_registers",
                {"dinov2_with_registers.embeddings.register_tokens": shape},
                f"dinov2_with_registers.embeddings.register_tokens {shape} for "
                + " + ".join(f"registers.layers.{number}.token" for number in range(3))
                + " (16,) and (16,) and (16,)",
            )
            for shape in ((1, 3, 16, 1), (2, 3, 16), (3, 16), (1, 2, 16))
        ),
    ],
)
def test_an_array_of_another_shape_is_named(case, arrays, received, tmp_path, complaint):
    folder = RandomModel(case, CASES[case], np.float32).save(tmp_path)
    others = {name: np.ones(shape, np.float32) for name, shape in arrays.items()}
    others["other"] = np.ones(10_000, np.float32)  # as many numbers as the config.json implies
    message = complaint(load_published, change(folder, added=others))
    assert f"the shape that its config.json implies; received {received}. Take" in message


def logits(example: RandomModel, folder: Path) -> np.ndarray:
    example.model, _ = load_published(folder)
    with nf.inference():
        return example.model.forward(*example.inputs)


def test_an_output_of_t5_that_shares_the_embedding_need_not_be_scaled(tmp_path):
    """Newer files say both; the output is left out where it is the embedding."""
    name = "t5_untied_gated"
    example = RandomModel(name, CASES[name])
    folder = example.save(tmp_path)
    embedding = load_file(folder / "model.safetensors")["shared.weight"]
    expected = logits(example, change(folder, added={"lm_head.weight": embedding.copy()}))
    change(folder, removed=("lm_head.weight",))
    for said in (dict(scale_decoder_outputs=False), dict(tie_word_embeddings=False)):
        values = CASES[name] | dict(tie_word_embeddings=True) | said
        (folder / "config.json").write_text(json.dumps(values))
        assert np.allclose(logits(example, folder), expected)
        assert example.model.config.tying == "all"
        save_published(tmp_path / "again", example.model, {"published": values})
        assert np.allclose(logits(example, tmp_path / "again"), expected)


@pytest.mark.parametrize("name", ["bert_untied", "camembert"])
def test_an_output_of_its_own_has_its_bias_under_either_name(name, tmp_path):
    """Where both are there, the decoder's is read."""
    example = RandomModel(name, CASES[name])
    folder = example.save(tmp_path)
    expected, path = logits(example, folder), folder / "model.safetensors"
    arrays = load_file(path)
    (bias,) = (n for n in arrays if n.endswith("decoder.bias"))
    other = bias.replace("decoder.", "")
    assert other not in arrays
    change(folder, added={other: np.zeros_like(arrays[bias])})
    assert np.array_equal(logits(example, folder), expected)
    change(folder, removed=(bias,), added={other: arrays[bias]})
    assert np.array_equal(logits(example, folder), expected)


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("marian", "MarianMTModel"),
        ("gpt2", "GPT2LMHeadModel"),
        ("gpt2", "GPT2DoubleHeadsModel"),
        ("llama", "LlamaForCausalLM"),
        ("t5", "T5WithLMHeadModel"),
        ("t5", "T5EncoderModel"),
        ("bert", "BertModel"),
        ("xlm-roberta", "XLMRobertaForMaskedLM"),
        ("distilbert", "DistilBertForMaskedLM"),
        ("gpt_neox", "GPTNeoXForCausalLM"),
        ("vit", "ViTForImageClassification"),
        (None, "ResNetModel"),
    ],
)
def test_the_class_of_a_model_tells_its_kind(kind, architecture):
    assert name_of_class([architecture]) == kind and name_of_class(None) is None
    assert name_of_class(["Model", architecture]) == kind


def test_a_config_without_a_model_type_has_a_class(tmp_path, complaint):
    folder = RandomModel("bert", CASES["bert"]).save(tmp_path)
    values = {n: value for n, value in CASES["bert"].items() if n != "model_type"}
    values["architectures"] = ["BertForMaskedLM"]
    (folder / "config.json").write_text(json.dumps(values))
    assert load_published(folder)[1]["published"] == values | dict(model_type="bert")
    (folder / "config.json").write_text(json.dumps(values | dict(architectures=["Other"])))
    assert "received model_type None in" in complaint(load_published, folder)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_kind_without_support_is_refused_with_the_reason(kind, tmp_path, complaint):
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}', encoding="utf-8")
    message = complaint(load_published, tmp_path)
    assert f"received model_type '{kind}' in" in message and message.endswith(REFUSED[kind])
