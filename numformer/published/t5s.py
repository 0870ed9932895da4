"""T5 and its kin: readings and tables, for the whole model and for its encoder alone."""

from collections.abc import Callable

from numformer.published.configs import ACTIVATIONS, GATED, GATES, ForeignConfig, special_ids
from numformer.published.table import Table

# T5 (Raffel et al. 2020): relative positions; the weights include the scale of the scores.


def factors(foreign: ForeignConfig) -> dict:
    # In newer files, tie_word_embeddings does not say it.
    tied = foreign.get("tie_word_embeddings", True)
    return dict(scaled=foreign.get("scale_decoder_outputs", tied))


def read_t5(foreign: ForeignConfig) -> dict:
    return _read(foreign, "relu", factors(foreign)["scaled"])


def _read(foreign: ForeignConfig, inner: str, tied: bool) -> dict:
    """T5 and its kin; `inner` is the default of the feed-forward network."""
    foreign.require(is_decoder=False)
    if foreign.arrays and not foreign.has("lm_head."):
        tied = True
    size = foreign["vocab_size"]
    inner = foreign.get("feed_forward_proj", inner)
    gated = inner.startswith("gated-")
    # "gated-gelu" means the approximation by tanh.
    dense = "gelu_new" if inner == "gated-gelu" else inner.removeprefix("gated-")
    known = GATES if gated else ACTIVATIONS
    act = ForeignConfig({"feed_forward_proj": dense}).choice("feed_forward_proj", known)
    heads, rates = foreign["num_heads"], ("p_drop", "attention_dropout", "activation_dropout")
    foreign.require(dense_act_fn=dense, is_gated_act=gated, num_attention_heads=heads)
    return dict(
        source_vocabulary=size,
        target_vocabulary=size,
        tying="all" if tied else "inputs",
        d_model=foreign["d_model"],
        d_ff=foreign["d_ff"],
        heads=heads,
        d_k=foreign["d_kv"],
        d_v=foreign["d_kv"],
        layers=foreign["num_layers"],
        decoder_layers=foreign.get("num_decoder_layers", foreign["num_layers"]),
        mixers="relative",
        distance_buckets=foreign.get("relative_attention_num_buckets", 32),
        farthest=foreign.get("relative_attention_max_distance", 128),
        norm="pre",
        normalization="rms",
        activation=act,
        feed_forward_bias=False,
        positions="none",
        embedding_scale=False,
        epsilon=foreign.get("layer_norm_epsilon", 1e-6),
        **dict.fromkeys(rates, foreign.get("dropout_rate", 0.1)),
        **special_ids(foreign, padding=0, decoder_start=foreign.get("pad_token_id", 0), end=1),
    )


def read_mt5(foreign: ForeignConfig) -> dict:
    # Whatever a file says, the output has its own weights, and the logits no factor.
    return _read(foreign, "gated-gelu", tied=False)


def read_umt5(foreign: ForeignConfig) -> dict:
    return _read(foreign, "gated-gelu", factors(foreign)["scaled"]) | dict(own_distances=True)


def encoder_of(read: Callable[[ForeignConfig], dict]) -> Callable[[ForeignConfig], dict]:
    """Return the reading of the encoder alone, given that of an encoder-decoder."""

    def read_encoder(foreign: ForeignConfig) -> dict:
        ours = read(foreign)
        vocabulary = dict(vocabulary=ours.pop("source_vocabulary"))
        pairs = "target_vocabulary", "tying", "decoder_layers"
        return vocabulary | {n: value for n, value in ours.items() if n not in pairs}

    return read_encoder


_ENCODER = """
    shared                                {embedding}                        table
    encoder.embed_tokens                  {embedding}                        table

    encoder.block.*                       {stack}.layers.*:
        layer.0.layer_norm                self_attention.norm                     norm
        layer.0.SelfAttention.q           self_attention.sublayer.query           linear{query}
        layer.0.SelfAttention.k|v|o       self_attention.sublayer.key|value|output  linear
        layer.0.SelfAttention.relative_attention_bias  self_attention.sublayer.attention.bias  bias
        layer.1.layer_norm                feed_forward.norm                       norm
        layer.1.DenseReluDense.{inner}    feed_forward.sublayer.inner             linear
        layer.1.DenseReluDense.wo         feed_forward.sublayer.outer             linear

    encoder.final_layer_norm              {stack}.norm                            norm
"""
_DECODER = """
    decoder.embed_tokens                  source.embedding                        table
    lm_head                               source.embedding                        table
    lm_head                               output                                  table

    decoder.block.*                       decoder.layers.*:
        layer.0.layer_norm                self_attention.norm                     norm
        layer.0.SelfAttention.q           self_attention.sublayer.query           linear{query}
        layer.0.SelfAttention.k|v|o       self_attention.sublayer.key|value|output  linear
        layer.0.SelfAttention.relative_attention_bias  self_attention.sublayer.attention.bias  bias
        layer.1.layer_norm                cross_attention.norm                    norm
        layer.1.EncDecAttention.q         cross_attention.sublayer.query          linear{query}
        layer.1.EncDecAttention.k|v|o     cross_attention.sublayer.key|value|output  linear
        layer.1.EncDecAttention.relative_attention_bias.weight                    unused
        layer.2.layer_norm                feed_forward.norm                       norm
        layer.2.DenseReluDense.{inner}    feed_forward.sublayer.inner             linear
        layer.2.DenseReluDense.wo         feed_forward.sublayer.outer             linear

    decoder.final_layer_norm              decoder.norm                            {final}
"""


def table(config, scaled: bool) -> Table:
    """T5's table. If `scaled`, logits are divided by sqrt(d_model)."""
    final = f"norm, times {config.d_model**-0.5}" if scaled else "norm"
    names: dict[str, str] = dict(embedding="source.embedding", stack="encoder", final=final)
    return Table((_ENCODER + _DECODER).format(**names, **_parts(config)))


def encoder_table(config) -> Table:
    """The table of T5's encoder alone."""
    names = dict(embedding="input.embedding", stack="tower")
    return Table(_ENCODER.format(**names, **_parts(config)))


def _parts(config) -> dict[str, str]:
    gated = config.activation in GATED.values()
    return dict(inner="wi_0+wi_1" if gated else "wi", query=f", times {config.key_size**0.5}")


T5S = {
    "t5": (read_t5, factors),
    "mt5": (read_mt5, lambda foreign: dict(scaled=False)),
    "umt5": (read_umt5, factors),
}
"""The readings and what finds the table's arguments, by the model_type of a config.json."""
