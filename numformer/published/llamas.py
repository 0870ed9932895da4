"""Llama and the language models that took over its names: fields and a table for each."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from numformer.errors import InputError
from numformer.published.configs import GATES, ForeignConfig, special_ids
from numformer.published.decoders import Decoder, activation, in_turn, rotary, times
from numformer.published.rope import rope
from numformer.published.table import Table, decoder_table

# Parts that several models have


def windows(foreign: ForeignConfig, window: int | None, types: Sequence[str]) -> dict:
    """The mixers of layers of these types, "full_attention" and "sliding_attention"."""
    types = foreign.get("layer_types", types)
    if len(types) != foreign["num_hidden_layers"]:
        rule, fix = "layer_types has one type for each layer", "Download config.json again."
        raise InputError(rule, f"{len(types)} types", fix)
    known = {"full_attention": "attention", "sliding_attention": "window"}
    mixers = [ForeignConfig({"layer_types": each}).choice("layer_types", known) for each in types]
    return dict(mixers=in_turn(mixers), window=window) if "window" in mixers else {}


def everywhere(window: int | None) -> dict:
    """The mixer of a model in which all layers have a window, or none."""
    return dict(mixers="window", window=window) if window else {}


def read(foreign: ForeignConfig, ids: dict, tied: bool = False, groups: int | None = None) -> dict:
    """The fields that most of these models share; `ids`, `tied` and `groups` are defaults."""
    heads, d_model = foreign["num_attention_heads"], foreign["hidden_size"]
    size = foreign.get("head_dim", d_model // heads)
    groups = foreign.get("num_key_value_heads", groups)
    return dict(
        vocabulary=foreign["vocab_size"],
        d_model=d_model,
        d_ff=foreign["intermediate_size"],
        heads=heads,
        d_k=size,
        d_v=size,
        layers=foreign["num_hidden_layers"],
        key_value_heads=None if groups == heads else groups,
        norm="pre",
        embedding_scale=False,
        tied=foreign.get("tie_word_embeddings", tied),
        p_drop=0.0,
        attention_dropout=foreign.get("attention_dropout", 0.0),
        **special_ids(foreign, **ids),
    )


def in_llama(foreign: ForeignConfig, epsilon: float = 1e-6) -> dict:
    """RMSNorm and a gated feed-forward network without biases."""
    epsilon = foreign.get("rms_norm_eps", epsilon)
    own = dict(normalization="rms", epsilon=epsilon, feed_forward_bias=False)
    return own | activation(foreign, "hidden_act", "silu", GATES)


_TABLE = """
    model.embed_tokens                    input.embedding                         table{embedding}
    lm_head                               input.embedding                         table{embedding}
    lm_head                               output                                  table
    lm_head.bias                          output.bias                             array

    model.layers.*                        tower.layers.*:
{norms}
{projections}
        self_attn.{output}                self_attention.sublayer.output          linear{outer}
        self_attn.{q_norm}                self_attention.sublayer.query.norm      norm{query_norm}
        self_attn.{k_norm}                self_attention.sublayer.key.norm        norm{key_norm}
        self_attn.rotary_emb.inv_freq                                             constant
{network}

    model.{final}                         tower.norm                              norm{final_norm}
"""
_PRE = """\
        input_layernorm                   self_attention.norm                     norm{norm}
        post_attention_layernorm          feed_forward.norm                       norm{norm}"""
_OUTPUT = """\
        post_attention_layernorm          self_attention.norm                     norm{norm}
        post_feedforward_layernorm        feed_forward.norm                       norm{norm}"""
_SANDWICH = """\
        input_layernorm                   self_attention.norm                     norm{norm}
        post_attention_layernorm          self_attention.output_norm              norm{norm}
        pre_feedforward_layernorm         feed_forward.norm                       norm{norm}
        post_feedforward_layernorm        feed_forward.output_norm                norm{norm}"""
_APART = """\
        self_attn.q_proj                  self_attention.sublayer.query           linear{query}
        self_attn.k_proj                  self_attention.sublayer.key             linear, in halves
        self_attn.v_proj                  self_attention.sublayer.value           linear"""
_JOINED = """\
        self_attn.qkv_proj  self_attention.sublayer.query+key+value  linear, joined{turned}"""
_GATED = """\
        mlp.{gates}                       feed_forward.sublayer.inner             linear
        mlp.down_proj                     feed_forward.sublayer.outer             linear{outer}"""
_EXPERTS = """\
        {experts}.gate                    feed_forward.sublayer.router            linear
        {experts}.experts.*.{gates}       feed_forward.sublayer.experts.*.inner   linear
        {experts}.experts.*.{down}        feed_forward.sublayer.experts.*.outer   linear"""
_DENSE = """\
        mlp.{inner}                       feed_forward.sublayer.inner             linear
        mlp.{second}                      feed_forward.sublayer.outer             linear"""


def table(
    config,
    norms: str = _PRE,
    projections: str = _APART,
    network: str = _GATED,
    norm: str = "",
    scores: float = 1.0,
    turned: float = 1.0,
    **changes: Any,
) -> Table:
    """The table of Llama, with changes. `scores` and `turned` multiply the scores of attention.

    Both multiply the queries, or their norm if there is one; `turned` multiplies only the values
    that positions turn.
    """
    factor = times(turned, "turned times") + times(scores)
    has_norm = config.qk_norm != "none"
    row: dict[str, Any] = dict(embedding="", outer="", output="o_proj", final="norm")
    row |= dict(query=", in halves" + factor * (not has_norm), gates="gate_proj+up_proj")
    row |= dict(q_norm="q_norm", k_norm="k_norm", key_norm=norm + ", in halves")
    row |= dict(query_norm=row["key_norm"] + factor, final_norm=norm)
    row |= dict(norm=norm, turned=times(turned**0.5, "queries and keys times")) | changes
    if not config.head:  # the factor of the logits
        row |= dict(final_norm=norm)
    for name, text in dict(norms=norms, projections=projections, network=network).items():
        row[name] = text.format(**row)
    return decoder_table(_TABLE.format(**row), "model.")(config)


def turned(foreign: ForeignConfig) -> dict[str, float]:
    """The factor of the scores: the queries' factor times the keys' factor."""
    return dict(turned=rope(foreign, 2, 1e4).factor ** 2)


# Llama (Touvron et al. 2023): RMSNorm, SwiGLU, rotary positions, grouped queries


ENDS = dict(start=1, end=2)


def read_llama(foreign: ForeignConfig, base: float = 1e4, **defaults: Any) -> dict:
    ids = defaults.pop("ids", ENDS)
    ours: dict[str, Any] = read(foreign, ids, **defaults) | in_llama(foreign)
    ours |= dict(attention_bias=foreign.get("attention_bias", False))
    ours |= dict(feed_forward_bias=foreign.get("mlp_bias", False))
    return ours | rotary(foreign, ours["d_k"], base=base)


# Mistral (Jiang et al. 2023): a window in every layer


def read_mistral(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, ENDS, groups=8) | in_llama(foreign)
    window = foreign.values.get("sliding_window", 4096)  # null says that there is none
    return ours | rotary(foreign, ours["d_k"]) | everywhere(window)


# Qwen 2 (Yang et al. 2024): biases of queries, keys and values; windows in the last layers


def latest_windows(foreign: ForeignConfig) -> dict:
    """The windows of the layers from max_window_layers on, if use_sliding_window."""
    layers, window = foreign["num_hidden_layers"], foreign.get("sliding_window", 4096)
    used = foreign.get("use_sliding_window", False)
    full = min(layers, foreign.get("max_window_layers", 28)) if used else layers
    types = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    return windows(foreign, window, types)


def read_qwen2(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, {}) | in_llama(foreign)
    ours |= dict(attention_bias=True, attention_output_bias=False)
    return ours | rotary(foreign, ours["d_k"]) | latest_windows(foreign)


# Qwen 3 (Yang et al. 2025): a norm of each head's queries and keys


def read_qwen3(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, {}) | in_llama(foreign)
    ours |= dict(attention_bias=foreign.get("attention_bias", False), qk_norm="rms")
    ours |= dict.fromkeys(["d_k", "d_v"], foreign.get("head_dim", 128))
    return ours | rotary(foreign, ours["d_k"]) | latest_windows(foreign)


# SmolLM 3 (Bakouch et al. 2025): every fourth layer without positions


def read_smollm3(foreign: ForeignConfig) -> dict:
    ids = dict(padding=128004, start=128000, end=128001)
    ours: dict[str, Any] = read_llama(foreign, 2e6, ids=ids, tied=True, groups=4)
    layers, every = range(ours["layers"]), foreign.get("no_rope_layer_interval", 4)
    turning = foreign.get("no_rope_layers", [(n + 1) % every != 0 for n in layers])
    frequencies = rope(foreign, ours["d_k"], ours["rotary_base"]).frequencies
    ours |= dict(rotary_frequencies=in_turn([frequencies if turns else () for turns in turning]))
    used = foreign.get("use_sliding_window", False)
    types = ["full_attention" if turns or not used else "sliding_attention" for turns in turning]
    return ours | windows(foreign, foreign.get("sliding_window", None), types)


# Granite (Mishra et al. 2024): Llama with four factors, which the parameters take up


def granite_factors(foreign: ForeignConfig) -> dict:
    """The factors of embeddings, scores, sublayers and logits."""
    embedding = foreign.get("embedding_multiplier", 1.0)
    size = foreign["hidden_size"] // foreign["num_attention_heads"]
    scores = foreign.get("attention_multiplier", 1.0) * size**0.5
    logits = foreign.get("logits_scaling", 1.0)
    if foreign.get("tie_word_embeddings", False):  # the output has the factor of the embedding
        logits *= embedding
    factors = dict(embedding=embedding, outer=foreign.get("residual_multiplier", 1.0))
    factors |= dict(final_norm=1 / logits)
    return {name: times(factor) for name, factor in factors.items()} | dict(scores=scores)


# OLMo 2 (OLMo Team 2024): norms of what sublayers add, and of all queries and all keys


def read_olmo2(foreign: ForeignConfig) -> dict:
    ids = dict(padding=1, end=50279)
    ours: dict[str, Any] = read(foreign, ids) | in_llama(foreign, epsilon=1e-5)
    ours |= dict(attention_bias=foreign.get("attention_bias", False), norm="output")
    ours |= dict(qk_norm="rms", qk_norm_width="heads")
    return ours | rotary(foreign, ours["d_k"])


# StableLM (Bellagamba et al. 2024): LayerNorm, a quarter of each head turns


def read_stablelm(foreign: ForeignConfig) -> dict:
    foreign.require(qk_layernorm=False)  # a norm for each head, in one model of the family
    ours: dict[str, Any] = read(foreign, dict(start=0, end=0))
    ours |= activation(foreign, "hidden_act", "silu", GATES)
    ours |= dict(attention_bias=foreign.get("use_qkv_bias", False), attention_output_bias=False)
    ours |= dict(feed_forward_bias=False)
    ours |= dict(epsilon=foreign.get("layer_norm_eps", 1e-5))
    ours |= dict(p_drop=foreign.get("hidden_dropout", 0.0))
    if foreign.get("use_parallel_residual", False):
        ours |= dict(sublayers="parallel_one_norm")
    return ours | rotary(foreign, ours["d_k"], share=0.25)


# Phi 1 and 2 (Gunasekar et al. 2023): both sublayers of one norm, biases everywhere


def read_phi(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, ENDS) | dict(
        sublayers="parallel_one_norm", attention_bias=True
    )
    ours |= activation(foreign, "hidden_act", "gelu_new") | dict(output_bias=True)
    ours |= dict(epsilon=foreign.get("layer_norm_eps", 1e-5))
    ours |= dict(p_drop=foreign.get("resid_pdrop", 0.0))
    ours |= dict(qk_norm="layer") if foreign.get("qk_layernorm", False) else {}
    return ours | rotary(foreign, ours["d_k"], share=0.5)


PHI: dict[str, Any] = dict(network=_DENSE, inner="fc1", second="fc2", output="dense")
PHI |= dict(q_norm="q_layernorm", k_norm="k_layernorm", final="final_layernorm")

# Phi 3 and 4 (Abdin et al. 2024): the matrices of Llama, joined


def read_phi3(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, dict(padding=32000, start=1, end=32000)) | in_llama(
        foreign, epsilon=1e-5
    )
    ours |= dict(p_drop=foreign.get("resid_pdrop", 0.0))
    window = foreign.get("sliding_window", None)
    return ours | rotary(foreign, ours["d_k"]) | everywhere(window)


# Gemma (Gemma Team 2024): embeddings times sqrt(d_model), norms with a gain of 1 + gamma


def read_gemma(foreign: ForeignConfig, act: str = "hidden_act", groups: int = 16) -> dict:
    foreign.require(use_bidirectional_attention=False)
    ids = dict(padding=0, start=2, end=1)
    ours: dict[str, Any] = read(foreign, ids, tied=True, groups=groups)
    ours |= dict(normalization="rms", epsilon=foreign.get("rms_norm_eps", 1e-6))
    # Gemma's first files say "gelu", but mean the approximation.
    ours |= activation(foreign, act, "gelu_pytorch_tanh", GATES | {"gelu": "geglu"})
    ours |= dict(
        feed_forward_bias=False,
        attention_bias=foreign.get("attention_bias", False),
        embedding_scale=True,
    )
    ours |= dict.fromkeys(["d_k", "d_v"], foreign.get("head_dim", 256))
    return ours | rotary(foreign, ours["d_k"])


# Gemma 2: norms before and after sublayers, caps, windows in every other layer


def read_gemma2(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read_gemma(foreign, "hidden_activation", 4) | dict(norm="sandwich")
    caps = dict(attention_cap=("attn_logit_softcapping", 50.0))
    caps |= dict(logit_cap=("final_logit_softcapping", 30.0))
    ours |= {cap: foreign.values.get(*setting) for cap, setting in caps.items()}
    types = ["full_attention" if n % 2 else "sliding_attention" for n in range(ours["layers"])]
    return ours | windows(foreign, foreign.get("sliding_window", 4096), types)


# Gemma 3: norms of queries and keys; layers with a window turn faster than the others


def read_gemma3(foreign: ForeignConfig) -> dict:
    rotations = foreign.get("rope_parameters", {})
    old = dict(rope_theta=foreign.get("rope_theta", 1e6)) | foreign.get("rope_scaling", {})
    local = dict(rope_theta=foreign.get("rope_local_base_freq", 1e4))
    rotations = dict(full_attention=old, sliding_attention=local) | rotations
    ours: dict[str, Any] = read_gemma(foreign, "hidden_activation", 4)
    foreign.require(attn_logit_softcapping=None, final_logit_softcapping=None)
    ours |= dict(norm="sandwich", qk_norm="rms")
    every, layers = foreign.get("sliding_window_pattern", 6), range(ours["layers"])
    types = ["sliding_attention" if (n + 1) % every else "full_attention" for n in layers]
    types = foreign.get("layer_types", types)
    frequencies = {
        kind: rope(foreign, ours["d_k"], scaling["rope_theta"], scaling).frequencies
        for kind, scaling in rotations.items()
    }
    ours |= dict(rotary_frequencies=in_turn([frequencies[kind] for kind in types]))
    return ours | windows(foreign, foreign.get("sliding_window", 4096), types)


GEMMA2 = partial(table, norms=_SANDWICH, norm=", plus one")


def gemma2_factors(foreign: ForeignConfig) -> dict:
    size = foreign.get("head_dim", 256)
    return dict(scores=(size / foreign.get("query_pre_attn_scalar", 256)) ** 0.5)


# StarCoder 2 (Lozhkov et al. 2024): LayerNorm, biases everywhere, no gates


def read_starcoder2(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, dict(start=50256, end=50256), tied=True, groups=2)
    ours |= activation(foreign, "hidden_act", "gelu_pytorch_tanh")
    ours |= dict.fromkeys(["attention_bias", "feed_forward_bias"], foreign.get("use_bias", True))
    ours |= dict(epsilon=foreign.get("norm_epsilon", 1e-5))
    ours |= dict(p_drop=foreign.get("residual_dropout", 0.0))
    window = foreign.get("sliding_window", None)
    return ours | rotary(foreign, ours["d_k"]) | everywhere(window)


STARCODER2: dict[str, Any] = dict(network=_DENSE, inner="c_fc", second="c_proj")


# Mixtral (Jiang et al. 2024) and Qwen 3 with experts


def experts(foreign: ForeignConfig, name: str, default: int, chosen: int) -> dict:
    count = foreign.get("num_local_experts", foreign.get(name, default))
    ours: dict[str, Any] = dict(feed_forwards="experts", experts=count)
    ours |= dict(chosen_experts=foreign.get("num_experts_per_tok", chosen))
    return ours | dict(balance_weight=foreign.get("router_aux_loss_coef", 0.001))


def read_mixtral(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, ENDS, groups=8) | in_llama(foreign, 1e-5)
    ours |= experts(foreign, "num_local_experts", 8, 2)
    window = foreign.get("sliding_window", None)
    return ours | rotary(foreign, ours["d_k"], base=1e6) | everywhere(window)


def read_qwen3_moe(foreign: ForeignConfig) -> dict:
    _ = foreign["norm_topk_prob"]  # without it, weights of experts do not sum to 1
    foreign.require(norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)
    foreign.require(use_sliding_window=False)
    ours: dict[str, Any] = read(foreign, {}, groups=4) | in_llama(foreign)
    ours |= dict(attention_bias=foreign.get("attention_bias", False), qk_norm="rms")
    ours |= dict(d_ff=foreign.get("moe_intermediate_size", 768))
    return ours | experts(foreign, "num_experts", 128, 8) | rotary(foreign, ours["d_k"])


MIXTRAL: dict[str, Any] = dict(experts="block_sparse_moe", gates="w1+w3", down="w2")
QWEN3_MOE: dict[str, Any] = dict(experts="mlp", down="down_proj")


LLAMAS = {
    "llama": Decoder(read_llama, table, turned),
    "mistral": Decoder(read_mistral, table, turned),
    "qwen2": Decoder(read_qwen2, table, turned),
    "qwen3": Decoder(read_qwen3, table, turned),
    "smollm3": Decoder(read_smollm3, table, turned),
    "granite": Decoder(read_llama, table, lambda f: turned(f) | granite_factors(f)),
    "olmo2": Decoder(read_olmo2, partial(table, norms=_OUTPUT), turned),
    "stablelm": Decoder(read_stablelm, table, turned),
    "phi": Decoder(read_phi, partial(table, **PHI), turned),
    "phi3": Decoder(read_phi3, partial(table, projections=_JOINED, gates="gate_up_proj"), turned),
    "gemma": Decoder(read_gemma, partial(table, norm=", plus one"), turned),
    "gemma2": Decoder(read_gemma2, GEMMA2, lambda f: turned(f) | gemma2_factors(f)),
    "gemma3_text": Decoder(read_gemma3, GEMMA2, gemma2_factors),
    "mixtral": Decoder(read_mixtral, partial(table, network=_EXPERTS, **MIXTRAL), turned),
    "qwen3_moe": Decoder(read_qwen3_moe, partial(table, network=_EXPERTS, **QWEN3_MOE), turned),
    "starcoder2": Decoder(read_starcoder2, partial(table, **STARCODER2), turned),
}
"""The readings and tables by the model_type of a config.json."""
