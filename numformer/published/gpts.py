"""Language models with other array names than Llama's: GPT-2, Pythia, OPT, BLOOM and others."""

from typing import Any

from numformer.errors import InputError
from numformer.published.configs import ForeignConfig, special_ids
from numformer.published.decoders import Decoder, activation, in_turn, rotary, times
from numformer.published.table import Table, decoder_table


def read(foreign: ForeignConfig, ids: dict, tied: bool = True, **names: str) -> dict:
    """Return the fields that most of these models share: biases, a norm before each sublayer.

    `names` are the model's own names of settings, where they differ from GPT-2's.
    """
    names = dict(d_model="n_embd", layers="n_layer", heads="n_head", d_ff="n_inner") | names
    names = dict(dropout="resid_pdrop") | names
    d_model = foreign[names["d_model"]]
    return dict(
        vocabulary=foreign["vocab_size"],
        d_model=d_model,
        d_ff=foreign.get(names["d_ff"], 4 * d_model),
        heads=foreign[names["heads"]],
        layers=foreign[names["layers"]],
        norm="pre",
        attention_bias=True,
        embedding_scale=False,
        epsilon=foreign.get(names.get("epsilon", "layer_norm_epsilon"), 1e-5),
        tied=foreign.get("tie_word_embeddings", tied),
        p_drop=foreign.get(names["dropout"], 0.0),
        attention_dropout=foreign.get(names.get("attention_dropout", "attention_dropout"), 0.0),
        **special_ids(foreign, **ids),
    )


GPT2_ENDS = dict(start=50256, end=50256)
HIDDEN: dict[str, Any] = dict(
    d_model="hidden_size", layers="num_hidden_layers", heads="num_attention_heads"
)

# GPT-2 (Radford et al. 2019)


def read_gpt2(foreign: ForeignConfig, act: str = "gelu_new") -> dict:
    foreign.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    foreign.require(add_cross_attention=False, num_attention_heads=foreign["n_head"])
    ours: dict[str, Any] = read(foreign, GPT2_ENDS)
    ours |= activation(foreign, "activation_function", act)
    ours |= dict(p_drop=foreign.get("resid_pdrop", 0.1))
    ours |= dict(attention_dropout=foreign.get("attn_pdrop", 0.1))
    return ours | dict(positions="learned", max_length=foreign["n_positions"])


GPT2 = decoder_table(
    """
    transformer.wte                       input.embedding                         table
    lm_head                               input.embedding                         table
    lm_head                               output                                  table
    transformer.wpe                       input.positions                         table

    transformer.h.*                       tower.layers.*:
        ln_1                              self_attention.norm                     norm
        attn.c_attn|c_proj                self_attention.sublayer.query+key+value|output  matrix
        ln_2                              feed_forward.norm                       norm
        mlp.c_fc|c_proj                   feed_forward.sublayer.inner|outer       matrix
        attn.bias                                                                 constant
        attn.masked_bias                                                          constant

    transformer.ln_f                      tower.norm                              norm
""",
    "transformer.",
)

# GPT-NeoX (Black et al. 2022), of which Pythia is the best known: both sublayers read the same x


def read_gpt_neox(foreign: ForeignConfig) -> dict:
    names: dict[str, Any] = HIDDEN | dict(d_ff="intermediate_size", epsilon="layer_norm_eps")
    ours: dict[str, Any] = read(
        foreign, dict(start=0, end=2), False, dropout="hidden_dropout", **names
    )
    ours |= activation(foreign, "hidden_act", "gelu")
    ours |= dict(attention_bias=foreign.get("attention_bias", True))
    if foreign.get("use_parallel_residual", True):
        ours |= dict(sublayers="parallel")
    share, base = foreign.get("rotary_pct", 0.25), foreign.get("rotary_emb_base", 1e4)
    return ours | rotary(foreign, ours["d_model"] // ours["heads"], share, base)


GPT_NEOX = decoder_table(
    """
    gpt_neox.embed_in                     input.embedding                         table
    embed_out                             input.embedding                         table
    embed_out                             output                                  table

    gpt_neox.layers.*                     tower.layers.*:
        input_layernorm                   self_attention.norm                     norm
        attention.query_key_value         self_attention.sublayer.query+key+value  linear, fused
        attention.dense                   self_attention.sublayer.output          linear
        post_attention_layernorm          feed_forward.norm                       norm
        mlp.dense_h_to_4h                 feed_forward.sublayer.inner             linear
        mlp.dense_4h_to_h                 feed_forward.sublayer.outer             linear
        attention.bias                                                            constant
        attention.masked_bias                                                     constant
        attention.rotary_emb.inv_freq                                             constant

    gpt_neox.final_layer_norm             tower.norm                              norm
""",
    "gpt_neox.",
)

# GPT-J (Wang and Komatsuzaki 2021): one norm for both sublayers, no biases in attention


def read_gptj(foreign: ForeignConfig) -> dict:
    ours: dict[str, Any] = read(foreign, GPT2_ENDS, False, attention_dropout="attn_pdrop")
    ours |= activation(foreign, "activation_function", "gelu_new")
    ours |= dict(attention_bias=False, output_bias=True, sublayers="parallel_one_norm")
    size, width = ours["d_model"] // ours["heads"], foreign.get("rotary_dim", 64)
    return ours | rotary(foreign, size, share=width / size)


GPTJ = decoder_table(
    """
    transformer.wte                       input.embedding                         table
    lm_head                               input.embedding                         table
    lm_head                               output                                  table
    lm_head.bias                          output.bias                             array

    transformer.h.*                       tower.layers.*:
        ln_1                              self_attention.norm                     norm
        attn.q_proj|k_proj|v_proj         self_attention.sublayer.query|key|value  linear
        attn.out_proj                     self_attention.sublayer.output          linear
        mlp.fc_in|fc_out                  feed_forward.sublayer.inner|outer       linear
        attn.bias                                                                 constant
        attn.masked_bias                                                          constant
        attn.embed_positions                                                      constant

    transformer.ln_f                      tower.norm                              norm
""",
    "transformer.",
)

# GPT-Neo (Black et al. 2021): windows in every other layer, scores without a scale


def read_gpt_neo(foreign: ForeignConfig) -> dict:
    names: dict[str, Any] = dict(d_model="hidden_size", layers="num_layers", heads="num_heads")
    names |= dict(d_ff="intermediate_size", dropout="resid_dropout")
    ours: dict[str, Any] = read(foreign, GPT2_ENDS, **names) | activation(
        foreign, "activation_function", "gelu_new"
    )
    ours |= dict(attention_bias=False, attention_output_bias=True)
    types = foreign.get("attention_types", [[["global", "local"], 12]])
    most = ours["layers"] + 1  # a file may claim a billion
    kinds = [kind for names, count in types for _ in range(min(count, most)) for kind in names]
    known = {"global": "attention", "local": "window"}
    mixers = in_turn(
        [ForeignConfig({"attention_types": k}).choice("attention_types", known) for k in kinds]
    )
    if len(kinds) != ours["layers"]:
        rule, fix = "attention_types has one for each layer", "Download config.json again."
        raise InputError(rule, f"{len(kinds)} of {ours['layers']}", fix)
    if "window" in mixers:
        ours |= dict(mixers=mixers, window=foreign.get("window_size", 256))
    return ours | dict(positions="learned", max_length=foreign["max_position_embeddings"])


def gpt_neo(config) -> Table:
    return decoder_table(_GPT_NEO.format(query=times(config.key_size**0.5)), "transformer.")(config)


_GPT_NEO = """
    transformer.wte                       input.embedding                         table
    lm_head                               input.embedding                         table
    lm_head                               output                                  table
    transformer.wpe                       input.positions                         table

    transformer.h.*                       tower.layers.*:
        ln_1                              self_attention.norm                     norm
        attn.attention.q_proj             self_attention.sublayer.query           linear{query}
        attn.attention.k_proj|v_proj      self_attention.sublayer.key|value       linear
        attn.attention.out_proj           self_attention.sublayer.output          linear
        ln_2                              feed_forward.norm                       norm
        mlp.c_fc|c_proj                   feed_forward.sublayer.inner|outer       linear
        attn.attention.bias                                                       constant
        attn.attention.masked_bias                                                constant

    transformer.ln_f                      tower.norm                              norm
"""

# OPT (Zhang et al. 2022): GPT-2 with ReLU; the first position is the third of its table


def read_opt(foreign: ForeignConfig) -> dict:
    # The model of 350 million parameters has a norm after each sublayer, and projected embeddings.
    foreign.require(do_layer_norm_before=True, _remove_final_layer_norm=False)
    foreign.require(word_embed_proj_dim=foreign["hidden_size"])
    ours: dict[str, Any] = read(foreign, dict(padding=1, start=2, end=2), **HIDDEN)
    ours |= activation(foreign, "activation_function", "relu")
    ours |= dict(p_drop=foreign.get("dropout", 0.1), d_ff=foreign["ffn_dim"])
    ours |= dict.fromkeys(["attention_bias", "feed_forward_bias"], foreign.get("enable_bias", True))
    return ours | dict(positions="learned", max_length=foreign["max_position_embeddings"])


OPT = decoder_table(
    """
    model.decoder.embed_tokens            input.embedding                         table
    lm_head                               input.embedding                         table
    lm_head                               output                                  table
    model.decoder.embed_positions         input.positions                         table, shifted

    model.decoder.layers.*                tower.layers.*:
        self_attn_layer_norm              self_attention.norm                     norm
        self_attn.q_proj|k_proj|v_proj    self_attention.sublayer.query|key|value  linear
        self_attn.out_proj                self_attention.sublayer.output          linear
        final_layer_norm                  feed_forward.norm                       norm
        fc1|fc2                           feed_forward.sublayer.inner|outer       linear

    model.decoder.final_layer_norm        tower.norm                              norm
""",
    "model.",
)

# BLOOM (Scao et al. 2022): ALiBi, and a norm of the embeddings


def require_power_of_two(heads: int) -> None:
    """Raise InputError if ALiBi's slopes for these heads are not one geometric sequence."""
    if heads & (heads - 1):
        raise InputError(
            "a model with ALiBi has 1, 2, 4, 8 or another power of 2 of heads",
            f"{heads} heads",
            "Choose another model.",
        )


def read_bloom(foreign: ForeignConfig) -> dict:
    foreign.require(apply_residual_connection_post_layernorm=False)
    names: dict[str, Any] = dict(
        d_model="hidden_size" if "hidden_size" in foreign.values else "n_embed"
    )
    ours: dict[str, Any] = read(foreign, dict(start=1, end=2), dropout="hidden_dropout", **names)
    require_power_of_two(ours["heads"])
    return ours | dict(activation="gelu_tanh", embedding_norm=True, positions="alibi")


BLOOM = decoder_table(
    """
    transformer.word_embeddings           input.embedding                         table
    transformer.word_embeddings_layernorm  input.norm                             norm
    lm_head                               input.embedding                         table
    lm_head                               output                                  table

    transformer.h.*                       tower.layers.*:
        input_layernorm                   self_attention.norm                     norm
        self_attention.query_key_value    self_attention.sublayer.query+key+value  linear, fused
        self_attention.dense              self_attention.sublayer.output          linear
        post_attention_layernorm          feed_forward.norm                       norm
        mlp.dense_h_to_4h                 feed_forward.sublayer.inner             linear
        mlp.dense_4h_to_h                 feed_forward.sublayer.outer             linear

    transformer.ln_f                      tower.norm                              norm
""",
    "transformer.",
)

# Falcon (Almazrouei et al. 2023): parallel sublayers, queries in groups, no biases


def read_falcon(foreign: ForeignConfig) -> dict:
    foreign.require(alibi=False)  # its ALiBi is rounded to bfloat16
    ours: dict[str, Any] = read(foreign, dict(start=11, end=11), dropout="hidden_dropout", **HIDDEN)
    ours |= activation(foreign, "activation", "gelu")
    ours |= dict.fromkeys(["attention_bias", "feed_forward_bias"], foreign.get("bias", False))
    ours |= dict(d_ff=foreign.get("ffn_hidden_size", 4 * ours["d_model"]))
    new, heads = foreign.get("new_decoder_architecture", False), ours["heads"]
    groups = foreign.get("num_kv_heads", heads)
    groups = groups if new else 1 if foreign.get("multi_query", True) else heads
    ours |= dict(key_value_heads=None if groups == heads else groups)
    if new or foreign.get("parallel_attn", True):
        two = new and foreign.get("num_ln_in_parallel_attn", 2) == 2
        ours |= dict(sublayers="parallel" if two else "parallel_one_norm")
    return ours | rotary(foreign, ours["d_model"] // heads)


def falcon(config) -> Table:
    names: dict[str, Any] = dict(first="input_layernorm", second="post_attention_layernorm")
    if config.sublayers == "parallel":
        names = dict(first="ln_attn", second="ln_mlp")
    return decoder_table(_FALCON.format(**names), "transformer.")(config)


_FALCON = """
    transformer.word_embeddings           input.embedding                         table
    lm_head                               input.embedding                         table
    lm_head                               output                                  table

    transformer.h.*                       tower.layers.*:
        {first}                           self_attention.norm                     norm
        self_attention.query_key_value    self_attention.sublayer.query+key+value  linear, fused
        self_attention.dense              self_attention.sublayer.output          linear
        {second}                          feed_forward.norm                       norm
        mlp.dense_h_to_4h                 feed_forward.sublayer.inner             linear
        mlp.dense_4h_to_h                 feed_forward.sublayer.outer             linear
        self_attention.rotary_emb.inv_freq                                        constant

    transformer.ln_f                      tower.norm                              norm
"""


# StarCoder (Li et al. 2023): GPT-2 with one head of keys and values


def read_gpt_bigcode(foreign: ForeignConfig) -> dict:
    ours = read_gpt2(foreign, "gelu_pytorch_tanh")
    return ours | (dict(key_value_heads=1) if foreign.get("multi_query", True) else {})


GPT_BIGCODE = decoder_table(
    """
    transformer.wte                       input.embedding                         table
    lm_head                               input.embedding                         table
    lm_head                               output                                  table
    transformer.wpe                       input.positions                         table

    transformer.h.*                       tower.layers.*:
        ln_1                              self_attention.norm                     norm
        attn.c_attn                       self_attention.sublayer.query+key+value  linear, fused
        attn.c_proj                       self_attention.sublayer.output          linear
        ln_2                              feed_forward.norm                       norm
        mlp.c_fc|c_proj                   feed_forward.sublayer.inner|outer       linear
        attn.bias                                                                 constant
        attn.masked_bias                                                          constant

    transformer.ln_f                      tower.norm                              norm
""",
    "transformer.",
)

GPTS = {
    "gpt2": Decoder(read_gpt2, GPT2),
    "gpt_neox": Decoder(read_gpt_neox, GPT_NEOX),
    "gptj": Decoder(read_gptj, GPTJ),
    "gpt_neo": Decoder(read_gpt_neo, gpt_neo),
    "opt": Decoder(read_opt, OPT),
    "bloom": Decoder(read_bloom, BLOOM),
    "falcon": Decoder(read_falcon, falcon),
    "gpt_bigcode": Decoder(read_gpt_bigcode, GPT_BIGCODE),
}
"""The readings and tables by the model_type of a config.json."""
