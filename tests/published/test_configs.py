"""A config.json's settings and ours: every setting left out that may be, and every one given."""

import re
from typing import Any

import numpy as np
import pytest
from published_cases import CASES, GPT2, LLAMA, MARIAN, TWO, V

import numformer as nf
from numformer.published.configs import ForeignConfig
from numformer.published.decoders import in_turn, times
from numformer.published.kinds import KINDS, kind_of
from numformer.published.llamas import granite_factors
from numformer.published.saving import write_gpt2, write_marian

SIZES = {
    "marian": dict(source_vocabulary=V, d_model=16, d_ff=24, heads=2, layers=2, decoder_layers=2)
    | dict(attention_bias=True, output_bias=True, positions="sinusoidal_halves"),
    "gpt2": dict(vocabulary=V, d_model=16, heads=2, layers=2, norm="pre", attention_bias=True)
    | dict(positions="learned", max_length=24, embedding_scale=False),
    "llama": dict(vocabulary=V, d_model=16, d_ff=24, heads=4, layers=2, norm="pre")
    | dict(normalization="rms", positions="rotary", embedding_scale=False, p_drop=0.0),
    "t5": dict(source_vocabulary=V, target_vocabulary=V, d_model=16, d_ff=24, heads=2)
    | dict(d_k=6, d_v=6, layers=2, mixers="relative", norm="pre", normalization="rms")
    | dict(feed_forward_bias=False, positions="none", embedding_scale=False),
    "bert": dict(vocabulary=V, d_model=16, d_ff=24, heads=2, layers=2, attention_bias=True)
    | dict(positions="learned", max_length=24, transform=True, output_bias=True)
    | dict(embedding_scale=False, embedding_norm=True),
    "vit": dict(height=12, width=12, patch=4, d_model=16, d_ff=24, heads=2, layers=2)
    | dict(norm="pre", attention_bias=True),
    "whisper": dict(vocabulary=V, d_model=16, d_ff=24, heads=2, layers=2, decoder_layers=2)
    | dict(norm="pre", activation="gelu", attention_bias=True, attention_key_bias=False)
    | dict(embedding_scale=False),
}
"""What a config of published_cases says of the sizes and of the kind, in our settings."""
LEFT_OUT = {
    "marian": "scale_embedding bad_words_ids decoder_start_token_id eos_token_id",
    "gpt2": "bos_token_id eos_token_id",
    "llama": "num_key_value_heads rms_norm_eps bos_token_id eos_token_id",
    "t5": "num_decoder_layers relative_attention_num_buckets relative_attention_max_distance "
    "decoder_start_token_id pad_token_id eos_token_id",
    "bert": "pad_token_id",
    "vit": "num_channels id2label",
    "whisper": "num_mel_bins max_source_positions max_target_positions decoder_start_token_id "
    "eos_token_id",
}
"""The settings of published_cases that a config.json may lack."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "marian": dict(target_vocabulary=V, tying="all", activation="swish", embedding_scale=False)
    | dict(p_drop=0.1, attention_dropout=0.0, activation_dropout=0.0)
    | dict(padding_id=V - 1, start_id=V - 1, end_id=0, unwritten=(V - 1,), other_ends=()),
    "gpt2": dict(d_ff=64, activation="gelu_tanh", epsilon=1e-5, tied=True)
    | dict(p_drop=0.1, attention_dropout=0.1)
    | dict(padding_id=None, start_id=50256, end_id=50256, unwritten=(), other_ends=()),
    "llama": dict(d_k=4, d_v=4, key_value_heads=None, activation="swiglu", rotary_base=1e4)
    | dict(attention_bias=False, feed_forward_bias=False, epsilon=1e-6, tied=False)
    | dict(attention_dropout=0.0)
    | dict(padding_id=None, start_id=1, end_id=2, unwritten=(), other_ends=()),
    "t5": dict(tying="all", decoder_layers=2, distance_buckets=32, farthest=128)
    | dict(activation="relu", epsilon=1e-6)
    | dict(p_drop=0.1, attention_dropout=0.1, activation_dropout=0.1)
    | dict(padding_id=0, start_id=0, end_id=1, unwritten=(), other_ends=()),
    "bert": dict(activation="gelu", segments=2, relations=None, epsilon=1e-12, tied=True)
    | dict(p_drop=0.1, attention_dropout=0.1)
    | dict(padding_id=0, start_id=None, end_id=None, unwritten=(), other_ends=()),
    "vit": dict(channels=3, classes=2, activation="gelu", epsilon=1e-12)
    | dict(p_drop=0.0, attention_dropout=0.0),
    "whisper": dict(bands=80, frames=3000, max_length=448)
    | dict(p_drop=0.0, attention_dropout=0.0, activation_dropout=0.0)
    | dict(padding_id=None, start_id=50257, end_id=50256, unwritten=(), other_ends=()),
}
"""transformers' own defaults, in our settings."""
GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "marian": (
        TWO
        | dict(tie_word_embeddings=False, activation_function="gelu", scale_embedding=True)
        | dict(dropout=0.2, attention_dropout=0.3, activation_dropout=0.4)
        | dict(decoder_layers=1, decoder_start_token_id=7)
        | dict(eos_token_id=[4, 3], bad_words_ids=[[9], [8, 8], [5]], suppress_tokens=[6])
        | dict(normalize_embedding=False),
        dict(target_vocabulary=V + 7, tying="none", activation="gelu", embedding_scale=True)
        | dict(p_drop=0.2, attention_dropout=0.3, activation_dropout=0.4, decoder_layers=1)
        | dict(start_id=7, end_id=4, other_ends=(3,), unwritten=(5, 6, 9, V - 1)),
    ),
    "gpt2": (
        dict(n_inner=20, activation_function="relu", layer_norm_epsilon=1e-2, resid_pdrop=0.2)
        | dict(tie_word_embeddings=False, attn_pdrop=0.3, pad_token_id=5, bos_token_id=6)
        | dict(eos_token_id=None, bad_words_ids=[[2]]),
        dict(d_ff=20, activation="relu", epsilon=1e-2, p_drop=0.2, tied=False)
        | dict(attention_dropout=0.3, padding_id=5, start_id=6, end_id=None, unwritten=(2,)),
    ),
    "llama": (
        dict(num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-3, rope_theta=5e5)
        | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
        | dict(attention_dropout=0.3, pad_token_id=5, bos_token_id=None, eos_token_id=9)
        | dict(hidden_act="gelu_new"),
        dict(key_value_heads=2, d_k=6, d_v=6, epsilon=1e-3, rotary_base=5e5)
        | dict(attention_bias=True, feed_forward_bias=True, tied=True, activation="geglu")
        | dict(attention_dropout=0.3, padding_id=5, start_id=None, end_id=9),
    ),
    "t5": (
        dict(num_decoder_layers=1, relative_attention_num_buckets=8, tie_word_embeddings=False)
        | dict(relative_attention_max_distance=6, feed_forward_proj="gated-silu")
        | dict(layer_norm_epsilon=1e-3, dropout_rate=0.2, pad_token_id=5, eos_token_id=4),
        dict(decoder_layers=1, distance_buckets=8, farthest=6, tying="inputs")
        | dict(activation="swiglu", epsilon=1e-3, p_drop=0.2, attention_dropout=0.2)
        | dict(activation_dropout=0.2, padding_id=5, start_id=5, end_id=4),
    ),
    "bert": (
        dict(hidden_act="relu", type_vocab_size=3, layer_norm_eps=1e-3, pad_token_id=5)
        | dict(tie_word_embeddings=False, hidden_dropout_prob=0.2)
        | dict(attention_probs_dropout_prob=0.3),
        dict(activation="relu", segments=3, epsilon=1e-3, padding_id=5, tied=False)
        | dict(p_drop=0.2, attention_dropout=0.3),
    ),
    "vit": (
        dict(num_channels=1, id2label={"0": "a", "1": "b", "2": "c"}, layer_norm_eps=1e-3)
        | dict(hidden_act="relu", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3),
        dict(channels=1, classes=3, activation="relu", epsilon=1e-3, p_drop=0.2)
        | dict(attention_dropout=0.3),
    ),
    "whisper": (
        dict(num_mel_bins=5, max_source_positions=6, max_target_positions=20, dropout=0.2)
        | dict(attention_dropout=0.3, activation_dropout=0.4, activation_function="relu")
        | dict(decoder_start_token_id=3, eos_token_id=[4, 6, 5])
        | dict(pad_token_id=7, suppress_tokens=[8]),
        dict(bands=5, frames=12, max_length=20, p_drop=0.2, attention_dropout=0.3)
        | dict(activation_dropout=0.4, activation="relu")
        | dict(start_id=3, end_id=4, other_ends=(6, 5)),
    ),
}
"""Other values for settings of a config.json, and what they are in ours."""
UNSUPPORTED = {
    "marian": dict(normalize_before=True, normalize_embedding=True, add_final_layer_norm=True)
    | dict(static_position_embeddings=False, num_attention_heads=3, tie_word_embeddings=False)
    | dict(decoder_attention_heads=4, encoder_ffn_dim=8),
    "bart": dict(normalize_before=True, normalize_embedding=False, add_final_layer_norm=True)
    | dict(static_position_embeddings=True, tie_word_embeddings=False),
    "mbart": dict(normalize_before=False, normalize_embedding=False, add_final_layer_norm=False)
    | dict(static_position_embeddings=True),
    "pegasus": dict(normalize_before=False, normalize_embedding=True, add_final_layer_norm=False)
    | dict(static_position_embeddings=False),
    "m2m_100": dict(pad_token_id=0, normalize_embedding=True, static_position_embeddings=False),
    "gpt2": dict(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True)
    | dict(add_cross_attention=True, num_attention_heads=3, activation_function="mish"),
    "llama": dict(rope_scaling=dict(rope_type="spiral"), rope_parameters=dict(type="spiral"))
    | dict(hidden_act="relu"),
    "smollm3": dict(layer_types=["full_attention"]),
    "qwen2": dict(layer_types=["full_attention", "chunked_attention"]),
    "qwen3_moe": dict(norm_topk_prob=False, mlp_only_layers=[0], decoder_sparse_step=2)
    | dict(use_sliding_window=True),
    "stablelm": dict(qk_layernorm=True),
    "gemma": dict(use_bidirectional_attention=True),
    "gemma3_text": dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    "gpt_neo": dict(attention_types=[[["global"], 3]]),
    "opt": dict(do_layer_norm_before=False, _remove_final_layer_norm=True, word_embed_proj_dim=8),
    "bloom": dict(apply_residual_connection_post_layernorm=True),
    "falcon": dict(alibi=True),
    "gpt_bigcode": dict(scale_attn_weights=False, add_cross_attention=True),
    "t5": dict(is_decoder=True, dense_act_fn="gelu", is_gated_act=True, num_attention_heads=3)
    | dict(feed_forward_proj="gated-mish"),
    "bert": dict(position_embedding_type="relative_key", is_decoder=True)
    | dict(add_cross_attention=True, hidden_act="mish"),
    "albert": dict(num_hidden_groups=2, inner_group_num=2),
    "vit": dict(qkv_bias=False, hidden_act="mish"),
}


def read(kind: str, values: dict) -> dict:
    return KINDS[kind].config(ForeignConfig(values))


def smallest(kind: str) -> dict:
    return {n: value for n, value in CASES[kind].items() if n not in LEFT_OUT[kind].split()}


@pytest.mark.parametrize("kind", SIZES)
def test_a_setting_that_is_left_out_or_null_has_its_default(kind):
    expected = SIZES[kind] | DEFAULTS[kind]
    assert read(kind, smallest(kind)) == expected
    ids = {"bos_token_id", "eos_token_id"}  # whose null says that there is none
    nulls = dict.fromkeys({*GIVEN[kind][0]} - {*smallest(kind)} - ids)
    assert read(kind, nulls | smallest(kind)) == expected


@pytest.mark.parametrize("kind", SIZES)
def test_a_setting_that_is_given_is_read(kind):
    theirs, ours = GIVEN[kind]
    assert read(kind, smallest(kind) | theirs) == SIZES[kind] | DEFAULTS[kind] | ours


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in UNSUPPORTED for n in UNSUPPORTED[k]])
def test_a_setting_without_support_is_refused_by_its_name(kind, name, complaint):
    refusal = complaint(read, kind, CASES[kind] | {name: UNSUPPORTED[kind][name]})
    assert ("rope_scaling" if "rope" in name else name) in refusal
    assert re.search(r"\. (Choose|Download) |: choose another model\.", refusal)


def test_a_config_that_leaves_open_whether_weights_of_experts_sum_to_1_is_refused(complaint):
    values = {n: value for n, value in CASES["qwen3_moe"].items() if n != "norm_topk_prob"}
    assert "one without norm_topk_prob" in complaint(read, "qwen3_moe", values)


def test_alibi_has_a_power_of_two_of_heads(complaint):
    """With others, published models have slopes of two sequences."""
    refusal = complaint(read, "bloom", CASES["bloom"] | dict(n_head=6, hidden_size=24))
    assert "power of 2 of heads; received 6 heads" in refusal


def test_two_rotary_settings_that_differ_are_refused(complaint):
    base = LLAMA | dict(rope_parameters=dict(rope_theta=5e5))
    assert read("llama", base)["rotary_base"] == 5e5
    assert read("llama", base | dict(rope_scaling=dict(rope_theta=5e5)))["rotary_base"] == 5e5
    assert "rope_theta" in complaint(read, "llama", base | dict(rope_theta=1e4))
    assert "rope_scaling" in complaint(read, "llama", base | dict(rope_scaling=dict(factor=1)))


EIGHTH = dict(rope_type="linear", factor=8.0, rope_theta=1e4)
FOLLOWING: list[tuple[str, dict, dict]] = [
    ("llama", dict(num_attention_heads=2), dict(d_k=8)),
    ("llama", dict(num_key_value_heads=None), dict(key_value_heads=None)),
    ("llama", dict(rope_scaling=dict(type="dynamic", factor=2)), dict(rotary_longest=2048)),
    ("marian", dict(decoder_vocab_size=V + 7), dict(target_vocabulary=V)),
    ("phi", dict(head_dim=16, partial_rotary_factor=0.3), dict(rotary_frequencies=((1, 0.01),))),
    ("stablelm", dict(use_qkv_bias=True), dict(attention_bias=True, attention_output_bias=False)),
    (
        "gemma3_text",
        dict(rope_scaling=EIGHTH, rope_theta=1e4, layer_types=["full_attention"] * 3),
        dict(rotary_frequencies=((1 / 8, 1e4 ** (-1 / 3) / 8, 1e4 ** (-2 / 3) / 8),)),
    ),
    ("gemma2", {}, dict(mixers=("window", "attention"))),
    ("qwen3", dict(head_dim=None), dict(d_k=128, d_v=128)),
    ("smollm3", dict(rope_theta=1e4), dict(rotary_frequencies=((1.0, 0.01), ()))),
    (
        "qwen2",
        dict(use_sliding_window=True, num_hidden_layers=30),
        dict(mixers=("attention",) * 28 + ("window",) * 2, window=4096),
    ),
    ("gptj", dict(rotary_dim=12), dict(rotary_frequencies=None)),
    (
        "gpt_neo",
        dict(attention_types=[[["global", "local"], 1]]),
        dict(mixers=("attention", "window")),
    ),
    ("gpt_neo", dict(attention_types=[[["local"], 2]]), dict(mixers=("window",))),
    ("bloom", dict(n_head=1), dict(heads=1)),
    ("bloom", dict(hidden_size=None, n_embed=32), dict(d_model=32)),
    (
        "falcon",
        dict(multi_query=False, new_decoder_architecture=False),
        dict(key_value_heads=None, rotary_frequencies=None),
    ),
    (
        "falcon",
        dict(new_decoder_architecture=True, parallel_attn=False),
        dict(sublayers="parallel"),
    ),
    (
        "falcon",
        dict(rope_scaling=EIGHTH, rope_theta=1e4, hidden_size=32),
        dict(rotary_frequencies=(tuple((1e4 ** (-np.arange(4) / 4) / 8).tolist()),)),
    ),
    (
        "gpt_neo",
        dict(num_layers=24, attention_types=None, window_size=None),
        dict(mixers=("attention", "window"), window=256),
    ),
    ("distilbert", {}, dict(epsilon=1e-12)),
    ("dinov2", dict(mlp_ratio=1.8), dict(d_ff=28)),
    ("dinov2_with_registers", dict(num_register_tokens=0), dict(registers=None)),
    ("dinov2", dict(mlp_ratio=None, use_swiglu_ffn=True), dict(d_ff=48, activation="swiglu")),
]
"""Settings of a kind, and what follows from them; None for a field that has its default."""


@pytest.mark.parametrize(("kind", "changes", "ours"), FOLLOWING)
def test_settings_that_follow_from_others(kind, changes, ours):
    values = dict(max_position_embeddings=2048) | CASES[kind] | changes
    config = read(kind, {name: value for name, value in values.items() if value is not None})
    for name, value in ours.items():
        assert config.get(name) == value


def test_the_towers_of_clip():
    sizes = dict(d_ff=24, layers=2, norm="pre", activation="quick_gelu", attention_bias=True)
    sizes |= dict(heads=2, epsilon=1e-3, p_drop=0.0, attention_dropout=0.3)
    texts = dict(vocabulary=V, d_model=12, end_id=V - 3, head=False, positions="learned")
    images = dict(height=12, width=12, channels=3, patch=4, classes=None, d_model=16)
    given, values = dict(attention_dropout=0.3, layer_norm_eps=1e-3), CASES["clip"]
    towers = {name: values[name] | given for name in ("text_config", "vision_config")}
    assert read("clip", values | towers) == dict(
        texts=nf.LanguageModel.Config(**texts, **sizes, max_length=8, embedding_scale=False),
        images=nf.VisionTransformer.Config(
            **images, **sizes, patch_bias=False, embedding_norm=True
        ),
        width=10,
    )


def test_the_kind_of_an_encoder_is_told_by_its_class():
    values = dict(model_type="t5", architectures=["T5EncoderModel"])
    assert kind_of(values) is KINDS["t5"].encoder
    other = dict(architectures=["T5ForConditionalGeneration"], _name_or_path="T5EncoderModel")
    assert kind_of(values | other) is kind_of(dict(model_type="t5")) is KINDS["t5"]


def test_a_size_that_no_model_has_is_refused(complaint):
    for name, most in ("num_layers", 10_000), ("hidden_size", 1 << 25), ("heads", 1 << 25):
        assert ForeignConfig({name: most})[name] == most
        message = complaint(ForeignConfig, {name: most + 1})
        assert f"{name} is at most {most:,}; received {most + 1:,}" in message
    assert ForeignConfig(dict(hidden_size=1e9, seed=1 << 40, bos_token_id=1))
    types = dict(attention_types=[[["global"], 10**7]])
    assert "3 of 2" in complaint(read, "gpt_neo", CASES["gpt_neo"] | types)


def test_the_output_of_a_bare_encoder_shares_the_embedding():
    values = CASES["bert"] | dict(tie_word_embeddings=False)
    arrays = {"embeddings.word_embeddings.weight": (), "lm_head.bias": ()}
    assert KINDS["bert"].config(ForeignConfig(values, [*arrays][:1]))["tied"]
    assert not KINDS["bert"].config(ForeignConfig(values, arrays))["tied"]


def test_choices_of_layers_repeat_after_the_shortest_period():
    for values in ("a", "aa", "aba", "abab", "abb", "aab"):
        shortest = {"aa": "a", "aba": "ab", "abab": "ab"}
        assert in_turn([*values]) == (*shortest.get(values, values),)
    assert in_turn([]) == ()


def test_factors_stand_in_the_table_unless_they_are_1():
    assert (times(1.0), times(2.0), times(0.5, "turned times")) == (
        "",
        ", times 2.0",
        ", turned times 0.5",
    )
    granite = dict(hidden_size=48, num_attention_heads=3, attention_multiplier=0.5)
    assert granite_factors(ForeignConfig(granite))["scores"] == 2.0
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=1e4)
    for kind in ("mistral", "granite", "gemma2"):
        values = CASES[kind] | dict(rope_parameters=yarn, max_position_embeddings=256)
        factors = KINDS[kind].factors(ForeignConfig(values))
        assert abs(factors["turned"] - (1 + 0.1 * np.log(4)) ** 2) < 1e-12


def test_the_config_of_a_written_marian():
    sizes = dict(d_model=16, d_ff=24, heads=2, layers=2, decoder_layers=1, activation="swish")
    rates = dict(p_drop=0.2, attention_dropout=0.3, activation_dropout=0.4)
    ids = dict(padding_id=5, start_id=6, end_id=4, other_ends=(3,), unwritten=(9, 5))
    for tying in ("all", "none"):
        ours = nf.Transformer.Config(
            source_vocabulary=V, target_vocabulary=V, **sizes, **rates, **ids, tying=tying
        )
        theirs = MARIAN | TWO | dict(architectures=["MarianMTModel"], decoder_vocab_size=V)
        theirs |= dict(tie_word_embeddings=tying == "all", decoder_layers=1, bos_token_id=None)
        theirs |= dict(share_encoder_decoder_embeddings=tying == "all", is_encoder_decoder=True)
        theirs |= dict(dropout=0.2, attention_dropout=0.3, activation_dropout=0.4)
        theirs |= dict(pad_token_id=5, decoder_start_token_id=6, eos_token_id=[4, 3])
        theirs |= dict(bad_words_ids=[[9], [5]], max_position_embeddings=1024)
        assert write_marian(ours) == theirs


def test_the_config_of_a_written_gpt2():
    sizes = dict(
        d_model=16, d_ff=20, heads=2, layers=2, activation="gelu_tanh", positions="learned"
    )
    rates = dict(p_drop=0.2, attention_dropout=0.3, epsilon=1e-2)
    for tied, scaled in ((True, False), (True, True), (False, False)):
        ours = nf.LanguageModel.Config(
            vocabulary=V,
            **sizes,
            **rates,
            max_length=24,
            start_id=6,
            end_id=4,
            tied=tied,
            embedding_scale=scaled,
        )
        theirs = GPT2 | dict(architectures=["GPT2LMHeadModel"], n_inner=20, bos_token_id=6)
        theirs |= dict(eos_token_id=4, tie_word_embeddings=tied and not scaled)
        theirs |= dict(resid_pdrop=0.2, attn_pdrop=0.3, embd_pdrop=0.2, layer_norm_epsilon=1e-2)
        assert write_gpt2(ours) == theirs


def test_an_activation_without_a_name_there_is_not_written(complaint):
    config = nf.LanguageModel.Config(vocabulary=V, activation="swiglu")
    assert "is one of relu, gelu, gelu_tanh, swish, quick_gelu; received swiglu" in complaint(
        write_gpt2, config
    )
