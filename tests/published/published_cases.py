"""Small published models of every kind and option, with random weights and inputs.

Each is a model of ours and a folder that transformers opens, to compute logits and gradients in
float64.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import numformer as nf
from numformer.published.configs import ForeignConfig
from numformer.published.kinds import kind_of
from numformer.published.saving import save_published

V, B, S, T = 50, 3, 7, 6
MARIAN: dict[str, Any] = dict(
    model_type="marian", vocab_size=V, d_model=16, encoder_layers=2, decoder_layers=2
) | dict(
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    activation_function="swish",
    scale_embedding=True,
    max_position_embeddings=32,
    pad_token_id=V - 1,
    decoder_start_token_id=V - 1,
    eos_token_id=0,
    bad_words_ids=[[V - 1]],
    forced_eos_token_id=None,
)
BART = {n: value for n, value in MARIAN.items() if n != "bad_words_ids"}
BART |= dict(model_type="bart", activation_function="gelu", pad_token_id=1, eos_token_id=2)
BART |= dict(decoder_start_token_id=2, scale_embedding=False)
MBART = BART | dict(model_type="mbart", decoder_start_token_id=None, bos_token_id=0)
PEGASUS = BART | dict(model_type="pegasus", pad_token_id=0, decoder_start_token_id=0)
PEGASUS |= dict(eos_token_id=1, scale_embedding=True, activation_function="relu")
M2M_100 = BART | dict(model_type="m2m_100", scale_embedding=True, bad_words_ids=[[1]])
TWO = dict(decoder_vocab_size=V + 7, share_encoder_decoder_embeddings=False)
GPT2: dict[str, Any] = dict(
    model_type="gpt2", vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=24
) | dict(activation_function="gelu_new", bos_token_id=3, eos_token_id=3)
LLAMA: dict[str, Any] = dict(
    model_type="llama", vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=4
) | dict(num_key_value_heads=2, intermediate_size=24, hidden_act="silu", rms_norm_eps=1e-6)
LLAMA |= dict(bos_token_id=1, eos_token_id=2)
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": dict(factor=4.0, rope_theta=5e4),
    "dynamic": dict(factor=4.0),
    "llama3": dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    | dict(original_max_position_embeddings=64),
    "yarn": dict(factor=4.0, original_max_position_embeddings=32, beta_fast=2, beta_slow=0.2),
    "longrope": dict(short_factor=[1.0, 1.5, 2.5, 4.0], long_factor=[9.0, 9.0, 9.0, 9.0])
    | dict(original_max_position_embeddings=32, factor=4.0),
}
YARN = dict(rope_type="yarn", original_max_position_embeddings=4096, rope_theta=1e6, factor=4.0)
LONG: dict[str, Any] = dict(rope_type="longrope", rope_theta=1e4, factor=2.5)
LONG |= dict(short_factor=[1.0, 1.5, 2.5, 4.5], long_factor=[9.0] * 4)
LONG |= dict(original_max_position_embeddings=3000)
ROPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (dict(head_dim=24), dict(rope_type="default", rope_theta=5e4)),
    (dict(head_dim=10), dict(rope_type="default", rope_theta=5e4, partial_rotary_factor=0.5)),
    (dict(head_dim=24), dict(rope_type="linear", factor=4.0, rope_theta=5e4, attention_factor=2.0)),
    (dict(head_dim=24), dict(rope_type="dynamic", factor=4.0, rope_theta=5e4)),
    (dict(head_dim=128), SCALINGS["llama3"] | dict(rope_type="llama3", rope_theta=5e5)),
    (dict(head_dim=128), YARN),
    (dict(head_dim=128), YARN | dict(truncate=False, beta_fast=16, beta_slow=2)),
    (dict(head_dim=64, max_position_embeddings=40000), YARN | dict(factor=None)),
    (dict(head_dim=64), YARN | dict(factor=0.5)),
    (dict(head_dim=64), YARN | dict(factor=1.5, mscale=0.7, mscale_all_dim=2.0)),
    (dict(head_dim=64), YARN | dict(mscale=0.7)),
    (dict(head_dim=64), YARN | dict(attention_factor=1.7)),
    (dict(head_dim=6), YARN | dict(original_max_position_embeddings=150)),
    (dict(head_dim=6), YARN | dict(rope_theta=10.0, beta_fast=1000, beta_slow=1e-4)),
    (dict(head_dim=6), YARN | dict(beta_fast=800, beta_slow=700)),
    (dict(head_dim=128), YARN | dict(truncate=False)),
    (dict(head_dim=8), LONG),
    (dict(head_dim=8), LONG | dict(attention_factor=1.7)),
    (dict(head_dim=8), LONG | dict(factor=0.8)),
    (dict(head_dim=8, max_position_embeddings=24000), LONG | dict(factor=None)),
]
"""Settings of a model, and its rope_parameters."""
QWEN2 = LLAMA | dict(model_type="qwen2", bos_token_id=None)
QWEN3_MOE = QWEN2 | dict(model_type="qwen3_moe", moe_intermediate_size=20, num_experts=3)
QWEN3_MOE |= dict(num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=0.0, head_dim=6)
SMOLLM3 = dict(model_type="smollm3", num_hidden_layers=3, no_rope_layer_interval=2, pad_token_id=0)
GRANITE = dict(model_type="granite", embedding_multiplier=3.0, logits_scaling=2.0)
GRANITE |= dict(residual_multiplier=0.5, attention_multiplier=0.7)
PHI3 = LLAMA | dict(model_type="phi3", pad_token_id=0)
GEMMA = LLAMA | dict(model_type="gemma", head_dim=6, hidden_act="gelu_pytorch_tanh", pad_token_id=0)
GEMMA2 = GEMMA | dict(model_type="gemma2", sliding_window=3, query_pre_attn_scalar=9)
GEMMA2 |= dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
GEMMA3 = GEMMA | dict(model_type="gemma3_text", sliding_window=3, query_pre_attn_scalar=9)
GEMMA3 |= dict(num_hidden_layers=3, sliding_window_pattern=3)
NEOX = LLAMA | dict(model_type="gpt_neox", hidden_size=32, hidden_act="gelu")
GPTJ = GPT2 | dict(model_type="gptj", rotary_dim=4, n_embd=24, tie_word_embeddings=False)
GPT_NEO: dict[str, Any] = dict(
    model_type="gpt_neo", vocab_size=V, hidden_size=16, num_layers=2, num_heads=2
) | dict(attention_types=[[["global", "local"], 1]], window_size=3, max_position_embeddings=24)
GPT_NEO |= dict(activation_function="gelu_new", bos_token_id=3, eos_token_id=3)
OPT: dict[str, Any] = dict(
    model_type="opt", vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
) | dict(ffn_dim=24, max_position_embeddings=24, pad_token_id=1, eos_token_id=2)
OPT |= dict(word_embed_proj_dim=16)
BLOOM: dict[str, Any] = dict(model_type="bloom", vocab_size=V, hidden_size=16, n_layer=2, n_head=4)
BLOOM |= dict(eos_token_id=2)
FALCON: dict[str, Any] = dict(
    model_type="falcon", vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=4
) | dict(eos_token_id=2)
T5: dict[str, Any] = dict(
    model_type="t5", vocab_size=V, d_model=16, num_layers=2, num_decoder_layers=2, num_heads=2
) | dict(d_kv=6, d_ff=24, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=6)
BERT: dict[str, Any] = dict(
    model_type="bert", vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
) | dict(intermediate_size=24, max_position_embeddings=24, hidden_act="gelu", pad_token_id=0)
ROBERTA = BERT | dict(model_type="roberta", type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
MPNET = {n: value for n, value in ROBERTA.items() if n != "type_vocab_size"}
MPNET |= dict(model_type="mpnet", hidden_act="gelu")
DISTILBERT: dict[str, Any] = dict(
    model_type="distilbert", vocab_size=V, dim=16, n_layers=2, n_heads=2, hidden_dim=24
) | dict(max_position_embeddings=24, activation="gelu", pad_token_id=0)
WHISPER: dict[str, Any] = dict(
    model_type="whisper", vocab_size=V, d_model=16, encoder_layers=2, decoder_layers=2
) | dict(
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    num_mel_bins=5,
    max_source_positions=6,
    max_target_positions=20,
    decoder_start_token_id=3,
    eos_token_id=2,
    pad_token_id=2,
    bos_token_id=2,
    activation_function="gelu",
    begin_suppress_tokens=None,
)
VIT: dict[str, Any] = dict(
    model_type="vit", hidden_size=16, num_hidden_layers=2, num_attention_heads=2
) | dict(intermediate_size=24, image_size=12, patch_size=4, num_channels=3, hidden_act="gelu")
VIT |= dict(id2label={str(n): str(n) for n in range(5)})
DEIT = VIT | dict(model_type="deit")
DINOV2 = {n: value for n, value in VIT.items() if n != "intermediate_size"}
DINOV2 |= dict(model_type="dinov2", mlp_ratio=2)
TOWER = dict(num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
CLIP: dict[str, Any] = dict(
    model_type="clip",
    text_config=TOWER
    | dict(vocab_size=V, hidden_size=12, max_position_embeddings=8, eos_token_id=V - 3),
    vision_config=TOWER | dict(hidden_size=16, image_size=12, patch_size=4),
    projection_dim=10,
)
OTHER_CLIP = CLIP | dict(
    text_config=CLIP["text_config"] | dict(eos_token_id=2, hidden_act="gelu", num_hidden_layers=1),
    vision_config=CLIP["vision_config"]
    | dict(patch_size=6, num_channels=1, layer_norm_eps=1e-3, hidden_act="relu"),
)

CASES: dict[str, dict[str, Any]] = {
    "marian": MARIAN,
    "marian_of_unequal_towers": MARIAN | dict(decoder_layers=1, activation_function="relu"),
    "marian_without_scale": MARIAN | dict(scale_embedding=False, activation_function="gelu"),
    "marian_of_two_vocabularies": MARIAN | TWO,
    "marian_of_two_vocabularies_untied": MARIAN | TWO | dict(tie_word_embeddings=False),
    "bart": BART,
    "bart_of_unequal_towers": BART
    | dict(decoder_layers=1, scale_embedding=True, activation_function="relu", d_model=12),
    "mbart": MBART,
    "mbart_of_languages": MBART
    | dict(decoder_start_token_id=2, scale_embedding=True, encoder_layers=3),
    "pegasus": PEGASUS,
    "pegasus_of_unequal_towers": PEGASUS | dict(decoder_layers=3, d_model=12),
    "m2m_100": M2M_100,
    "m2m_100_without_scale": M2M_100
    | dict(scale_embedding=False, activation_function="relu", d_model=12, encoder_layers=1),
    "gpt2": GPT2,
    "gpt2_untied": GPT2 | dict(tie_word_embeddings=False, n_inner=20),
    "gpt2_of_another_epsilon": GPT2 | dict(layer_norm_epsilon=1e-2, activation_function="relu"),
    "llama": LLAMA,
    "llama_tied": LLAMA | dict(tie_word_embeddings=True, num_key_value_heads=4),
    "llama_with_biases": LLAMA | dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1),
    "llama_of_long_texts": LLAMA
    | dict(rope_parameters=dict(rope_theta=5e5, rope_type="default"), head_dim=6),
    "llama_of_several_ends": LLAMA | dict(eos_token_id=[2, 4, 8, 24, 25]),
    **{
        f"llama_of_{kind}": LLAMA | dict(head_dim=8, rope_parameters=dict(rope_type=kind) | said)
        for kind, said in SCALINGS.items()
    },
    "mistral": LLAMA | dict(model_type="mistral", sliding_window=3),
    "mistral_without_window": LLAMA | dict(model_type="mistral", sliding_window=None, head_dim=6),
    "qwen2": QWEN2,
    "qwen2_tied_with_windows": QWEN2
    | dict(
        use_sliding_window=True, max_window_layers=1, sliding_window=2, tie_word_embeddings=True
    ),
    "qwen3": QWEN2 | dict(model_type="qwen3", head_dim=6),
    "qwen3_yarn": QWEN2
    | dict(model_type="qwen3", head_dim=8, attention_bias=True, max_window_layers=1)
    | dict(rope_parameters=dict(rope_type="yarn") | SCALINGS["yarn"]),
    "smollm3": LLAMA | SMOLLM3,
    "smollm3_with_windows": LLAMA
    | SMOLLM3
    | dict(use_sliding_window=True, sliding_window=2, no_rope_layers=[0, 1, 1], layer_types=None),
    "granite": LLAMA | GRANITE,
    "granite_tied": LLAMA | GRANITE | dict(tie_word_embeddings=True, attention_bias=True),
    "olmo2": LLAMA | dict(model_type="olmo2", pad_token_id=1),
    "olmo2_tied": LLAMA
    | dict(model_type="olmo2", attention_bias=True, tie_word_embeddings=True, pad_token_id=1),
    "stablelm": LLAMA
    | dict(model_type="stablelm", head_dim=None, hidden_size=32, use_qkv_bias=True),
    "stablelm_parallel": LLAMA
    | dict(model_type="stablelm", partial_rotary_factor=0.5, use_parallel_residual=True),
    "phi": LLAMA | dict(model_type="phi", hidden_act="gelu_new", layer_norm_eps=1e-3),
    "phi_with_norms_of_queries": LLAMA
    | dict(model_type="phi", hidden_act="gelu_new", hidden_size=32, qk_layernorm=True)
    | dict(num_key_value_heads=4),
    "phi3": PHI3,
    "phi3_of_long_texts": PHI3
    | dict(partial_rotary_factor=0.5, max_position_embeddings=128, hidden_size=32)
    | dict(original_max_position_embeddings=32, num_key_value_heads=4, sliding_window=3)
    | dict(rope_parameters=dict(rope_type="longrope", short_factor=[1.5, 2], long_factor=[9.0, 9])),
    "gemma": GEMMA,
    "gemma_untied": GEMMA | dict(attention_bias=True, hidden_act="gelu", tie_word_embeddings=False),
    "gemma2": GEMMA2,
    "gemma2_without_caps": GEMMA2
    | dict(attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True)
    | dict(layer_types=["full_attention", "sliding_attention"]),
    "gemma3_text": GEMMA3,
    "gemma3_text_linear": GEMMA3
    | dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"])
    | dict(
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=5e5),
            sliding_attention=dict(rope_type="default", rope_theta=2e4),
        )
    ),
    "starcoder2": LLAMA | dict(model_type="starcoder2", hidden_act="gelu_pytorch_tanh"),
    "starcoder2_without_biases": LLAMA
    | dict(model_type="starcoder2", use_bias=False, sliding_window=3, tie_word_embeddings=False)
    | dict(norm_epsilon=1e-3),
    "mixtral": LLAMA | dict(model_type="mixtral", num_local_experts=3, router_aux_loss_coef=0.0),
    "mixtral_with_windows": LLAMA
    | dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=3, sliding_window=3)
    | dict(router_aux_loss_coef=0.0, tie_word_embeddings=True),
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe_with_biases": QWEN3_MOE
    | dict(attention_bias=True, num_experts=4, num_experts_per_tok=3),
    "gpt_neox": NEOX,
    "gpt_neox_in_turn": NEOX
    | dict(use_parallel_residual=False, attention_bias=False, rope_parameters=dict(rope_theta=2e4))
    | dict(tie_word_embeddings=True, rotary_pct=0.5),
    "gptj": GPTJ,
    "gptj_wide": GPTJ | dict(rotary_dim=8, n_inner=20, activation_function="relu"),
    "gpt_neo": GPT_NEO,
    "gpt_neo_untied": GPT_NEO
    | dict(tie_word_embeddings=False, attention_types=[[["local"], 2], [["global"], 1]])
    | dict(num_layers=3, intermediate_size=20),
    "opt": OPT,
    "opt_untied": OPT
    | dict(tie_word_embeddings=False, activation_function="gelu", enable_bias=False),
    "bloom": BLOOM,
    "bloom_untied": BLOOM | dict(tie_word_embeddings=False, n_head=2, layer_norm_epsilon=1e-2),
    "falcon": FALCON,
    "falcon_of_groups": FALCON
    | dict(new_decoder_architecture=True, num_kv_heads=2, bias=True, tie_word_embeddings=False),
    "falcon_in_turn": FALCON | dict(parallel_attn=False, multi_query=False, ffn_hidden_size=20),
    "falcon_of_one_norm": FALCON
    | dict(new_decoder_architecture=True, num_kv_heads=4, num_ln_in_parallel_attn=1),
    "gpt_bigcode": GPT2 | dict(model_type="gpt_bigcode"),
    "gpt_bigcode_of_all_heads": GPT2
    | dict(model_type="gpt_bigcode", multi_query=False, tie_word_embeddings=False, n_inner=20),
    "llama_bare": LLAMA | dict(architectures=["LlamaModel"]),
    "granite_bare": LLAMA
    | GRANITE
    | dict(architectures=["GraniteModel"], tie_word_embeddings=True),
    "gemma2_bare": GEMMA2 | dict(architectures=["Gemma2Model"], tie_word_embeddings=False),
    "gpt_neox_bare": NEOX | dict(architectures=["GPTNeoXModel"]),
    "gptj_bare": GPTJ | dict(architectures=["GPTJModel"]),
    "t5": T5,
    "t5_untied_gated": T5 | dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu"),
    "t5_of_unequal_towers": T5 | dict(num_decoder_layers=1, layer_norm_epsilon=1e-3),
    "t5_encoder": T5 | dict(architectures=["T5EncoderModel"]),
    "t5_encoder_gated": T5
    | dict(architectures=["T5EncoderModel"], feed_forward_proj="gated-gelu", num_layers=3),
    "mt5": T5 | dict(model_type="mt5", tie_word_embeddings=False),
    "mt5_relu": T5 | dict(model_type="mt5", feed_forward_proj="relu", num_heads=4, d_kv=4),
    "umt5": T5 | dict(model_type="umt5"),
    "umt5_untied": T5
    | dict(model_type="umt5", tie_word_embeddings=False, num_layers=3, num_decoder_layers=1),
    "umt5_encoder_of_another_size": T5
    | dict(model_type="umt5", architectures=["UMT5EncoderModel"], num_layers=3, num_heads=4),
    "umt5_encoder": T5 | dict(model_type="umt5", architectures=["UMT5EncoderModel"]),
    "bert": BERT,
    "bert_relu": BERT | dict(hidden_act="relu", layer_norm_eps=1e-3, type_vocab_size=3),
    "bert_that_relates": BERT | dict(architectures=["BertForPreTraining"]),
    "bert_bare": BERT | dict(architectures=["BertModel"]),
    "bert_untied": BERT | dict(tie_word_embeddings=False),
    "roberta": ROBERTA,
    "roberta_bare": ROBERTA | dict(architectures=["RobertaModel"], num_attention_heads=4),
    "xlm-roberta": ROBERTA | dict(model_type="xlm-roberta", pad_token_id=3),
    "camembert": ROBERTA | dict(model_type="camembert", tie_word_embeddings=False),
    "distilbert": DISTILBERT,
    "distilbert_bare": DISTILBERT
    | dict(architectures=["DistilBertModel"], activation="relu", n_heads=4),
    "electra": BERT | dict(model_type="electra", embedding_size=8),
    "electra_bare": BERT
    | dict(model_type="electra", embedding_size=10, architectures=["ElectraModel"]),
    "electra_wide": BERT | dict(model_type="electra", embedding_size=16, tie_word_embeddings=False),
    "albert": BERT
    | dict(model_type="albert", embedding_size=8, num_hidden_layers=3, hidden_act="gelu_new"),
    "albert_bare": BERT
    | dict(
        model_type="albert", embedding_size=16, architectures=["AlbertModel"], hidden_act="relu"
    ),
    "mpnet": MPNET,
    "mpnet_bare": MPNET | dict(architectures=["MPNetModel"], num_attention_heads=4),
    "whisper": WHISPER,
    "whisper_of_unequal_towers": WHISPER
    | dict(decoder_layers=1, activation_function="relu", num_mel_bins=4, d_model=24),
    "vit": VIT,
    "vit_bare": VIT | dict(architectures=["ViTModel"]),
    "vit_bare_grey": VIT
    | dict(architectures=["ViTModel"], num_channels=1, patch_size=6, num_attention_heads=4),
    "vit_grey": VIT | dict(num_channels=1, patch_size=6, layer_norm_eps=1e-3),
    "deit": DEIT | dict(architectures=["DeiTForImageClassificationWithTeacher"]),
    "deit_of_one_head": DEIT
    | dict(architectures=["DeiTForImageClassification"], num_channels=1, hidden_act="relu"),
    "deit_bare": DEIT | dict(architectures=["DeiTModel"], patch_size=6, num_attention_heads=4),
    "dinov2": DINOV2,
    "dinov2_gated": DINOV2
    | dict(use_swiglu_ffn=True, layer_norm_eps=1e-3, num_channels=1, mlp_ratio=3),
    "dinov2_bare": DINOV2 | dict(architectures=["Dinov2Model"], mlp_ratio=3, hidden_act="relu"),
    "dinov2_with_registers": DINOV2
    | dict(model_type="dinov2_with_registers", num_register_tokens=3),
    "dinov2_with_registers_bare": DINOV2
    | dict(model_type="dinov2_with_registers", num_register_tokens=1, num_channels=1)
    | dict(architectures=["Dinov2WithRegistersModel"]),
    "clip": CLIP,
    "clip_of_early_files": OTHER_CLIP,
}


CLASSIFIERS: dict[str, dict[str, Any]] = {
    "Bert": BERT,
    "Roberta": ROBERTA,
    "DistilBert": DISTILBERT,
    "Electra": CASES["electra"],
    "Albert": CASES["albert"],
    "MPNet": MPNET,
}
LABELS = dict(id2label={str(n): f"label {n}" for n in range(3)})
TASKS = "SequenceClassification", "TokenClassification", "QuestionAnswering"
CASES |= {
    f"{values['model_type']}_for_{task}": values
    | dict(architectures=[f"{name}For{task}"])
    | ({} if task == "QuestionAnswering" else LABELS)
    for name, values in CLASSIFIERS.items()
    for task in TASKS
}
SMALLER = dict(hidden_size=8, num_hidden_layers=1, dim=8, n_layers=1)
SMALLER |= dict(id2label={str(n): f"label {n}" for n in range(2)})
CASES |= {
    f"{values['model_type']}_of_another_size": values
    | {n: value for n, value in SMALLER.items() if n in values or n == "id2label"}
    | dict(architectures=[f"{name}For{task}"])
    for (name, values), task in zip(CLASSIFIERS.items(), [*TASKS, *TASKS], strict=True)
}

HEADS = {
    "Model": ["embeddings.word_embeddings.weight"],
    "ForPreTraining": ["cls.predictions.bias", "cls.seq_relationship.weight"],
    "ForImageClassification": ["classifier.weight"],
}
"""Names of arrays that show which heads a kind of architecture has; other kinds fill holes."""


@dataclass
class RandomModel:
    """A model of ours for a config.json, with random weights, inputs and dlogits.

    `values` is the content of the config.json, `foreign_inputs` are the inputs for transformers.
    """

    name: str
    values: dict[str, Any]
    dtype: type = np.float64
    foreign_inputs: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        kind, rng = kind_of(self.values), np.random.default_rng(7)
        (architecture,) = self.values.get("architectures", [""])
        head = next((head for head in HEADS if architecture.endswith(head)), "")
        self.is_bare, self.has_relations = head == "Model", head == "ForPreTraining"
        foreign = ForeignConfig(self.values, HEADS.get(head, ()))
        self.kind, config = kind, kind.model.Config(**kind.config(foreign))
        self.model: Any = kind.model(config, 1)
        nf.pack(self.model, self.dtype)
        for name, parameter in self.model.named_parameters().items():
            centre = float(name.endswith("gamma"))
            parameter.data[...] = centre + 0.3 * rng.standard_normal(parameter.shape)
        inputs: dict[type, Any] = {nf.Transformer: self._pairs, nf.LanguageModel: self._inputs}
        inputs |= {nf.MaskedLanguageModel: self._bert_inputs, nf.VisionTransformer: self._images}
        inputs |= {nf.SpeechTransformer: self._sounds, nf.DualEncoder: self._images_and_texts}
        self.inputs = inputs[kind.model](rng)
        with nf.inference():
            shapes = {name: forward().shape for name, (forward, _) in self.heads().items()}
        self.upstream = {
            name: rng.standard_normal(shape).astype(self.dtype) for name, shape in shapes.items()
        }
        self.upstream = {name: self.counted(array) for name, array in self.upstream.items()}

    def counted(self, output: np.ndarray) -> np.ndarray:
        """An output with zeros where a model that sees both sides computed it for padding."""
        if len(self.inputs) < 3 or output.ndim < 3:
            return output
        return output * self.foreign_inputs["attention_mask"][:, :, None].astype(output.dtype)

    def heads(self) -> dict[str, tuple[Callable, Callable]]:
        """The functions that compute the outputs, and the backward of each."""
        model = self.model
        if self.is_bare and isinstance(model, nf.VisionTransformer):
            hidden = lambda: model.hidden(*self.inputs)  # noqa: E731
            return {"logits": (hidden, model.hidden_backward)}
        if self.is_bare and isinstance(model, nf.MaskedLanguageModel):
            ids, _, segments = self.inputs
            places = nf.Places(self.foreign_inputs["attention_mask"] == 1)
            backward = lambda d: model.input.backward(model.tower.backward(d))  # noqa: E731
            return {"logits": (lambda: model.hidden(ids, places, segments), backward)}
        if "ForSequence" in str(self.values.get("architectures")):
            logits = lambda: model.relation_logits(*self.inputs[::2])  # noqa: E731
            return {"logits": (logits, model.relation_logits_backward)}
        heads = {"logits": (lambda: model.forward(*self.inputs), model.backward)}
        if self.has_relations:
            related = lambda: model.relation_logits(*self.inputs[::2])  # noqa: E731
            heads["relations"] = related, model.relation_logits_backward
        return heads

    def _pairs(self, rng) -> list[np.ndarray]:
        padding, _, end, *_ = self.model.config.special
        source, target = rng.integers(4, V - 2, (B, S)), rng.integers(4, V - 2, (B, T))
        source[:, -1], target[:, 0] = end, self.model.config.special.start
        source[1, 4:], source[1, 3] = padding, end
        self.foreign_inputs = dict(input_ids=source, decoder_input_ids=target)
        self.foreign_inputs["attention_mask"] = (source != padding).astype(int)
        return [source, target]

    def _sounds(self, rng) -> list[np.ndarray]:
        sounds = rng.standard_normal((B, self.model.config.frames, self.values["num_mel_bins"]))
        target = rng.integers(4, V, (B, T))
        self.foreign_inputs = dict(input_features=sounds.swapaxes(1, 2), decoder_input_ids=target)
        return [sounds, target]

    def _inputs(self, rng) -> list[np.ndarray]:
        ids = rng.integers(0, V, (B, T))
        self.foreign_inputs = dict(input_ids=ids)
        return [ids]

    def _bert_inputs(self, rng) -> list[Any]:
        ids, kinds = rng.integers(4, V, (B, T)), self.model.config.segments
        segments = rng.integers(0, min(kinds, 2), (B, T)) if kinds else None
        ids[1, 4:] = self.values["pad_token_id"]
        self.foreign_inputs = dict(input_ids=ids)
        if kinds:
            self.foreign_inputs["token_type_ids"] = segments
        self.foreign_inputs["attention_mask"] = (ids != self.values["pad_token_id"]).astype(int)
        return [ids, None, segments]

    def _images_and_texts(self, rng) -> list[np.ndarray]:
        images = self._images(rng)
        ids, end = rng.integers(4, V - 3, (B + 1, T)), self.model.config.special.end
        ids[:, -1] = ids[1, 3:] = end
        self.foreign_inputs |= dict(input_ids=ids)
        return [*images, ids]

    def _images(self, rng) -> list[np.ndarray]:
        config = getattr(self.model.config, "images", self.model.config)
        images = rng.standard_normal((B, config.height, config.width, config.channels))
        self.foreign_inputs = dict(pixel_values=images.transpose(0, 3, 1, 2))
        return [images]

    def save(self, folder: Path) -> Path:
        """Write the folder as it would be published."""
        save_published(folder, self.model, {"published": self.values})
        return folder

    def results(self) -> dict[str, np.ndarray]:
        """Outputs, and the gradient of every parameter that has one, by our names."""
        self.model.zero_grad()
        results = {}
        with nf.mode(training=False):
            for name, (forward, backward) in self.heads().items():
                results[name] = self.counted(forward())
                backward(self.upstream[name].copy())
        return results | {n: p.grad for n, p in self.model.named_parameters().items()}


class WritingModel(RandomModel):
    """A RandomModel whose texts end early or after `length` ids."""

    length = 12

    def __post_init__(self):
        super().__post_init__()
        output = self.model.output.weight.data
        output[self.model.config.special.end] = 1.5 * output[7]  # or few texts would end
