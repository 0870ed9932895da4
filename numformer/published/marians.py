"""Readings and tables of Marian, of encoder-decoders with its array names, and of Whisper."""

from numformer.published.configs import ACTIVATIONS, ForeignConfig, end_ids, special_ids
from numformer.published.table import Table

# Marian, the paper's architecture: the translators of OPUS-MT (Tiedemann and Thottingal 2020).
# BART (Lewis et al. 2020), mBART (Liu et al. 2020), Pegasus (Zhang et al. 2020), M2M100 (Fan et al.
# 2021) and NLLB have its names; some have learned positions and further norms.


def read_marian(foreign: ForeignConfig) -> dict:
    # A translation starts with padding, unless the config says otherwise.
    padding, sinusoids = foreign["pad_token_id"], dict(positions="sinusoidal_halves")
    ours = _read_kin(foreign, sinusoids, decoder_start=padding, end=0)
    return ours | dict(unwritten=special_ids(foreign, [padding])["unwritten"])


def _read_kin(foreign: ForeignConfig, choices: dict, **ids: int) -> dict:
    """Marian and its kin. `choices` are those in which they differ, `ids` their default ids."""
    pre, learned = choices.get("norm") == "pre", choices["positions"] == "learned"
    foreign.require(normalize_before=pre, add_final_layer_norm=pre)
    foreign.require(normalize_embedding=choices.get("embedding_norm", False))
    heads = foreign.common("encoder_attention_heads", "decoder_attention_heads")
    foreign.require(static_position_embeddings=not learned, num_attention_heads=heads)
    if learned:
        choices = choices | dict(max_length=foreign["max_position_embeddings"])
    shared = foreign.get("share_encoder_decoder_embeddings", True)
    tied = foreign.get("tie_word_embeddings", True)
    if shared:
        foreign.require(tie_word_embeddings=True)
    size = foreign["vocab_size"]
    return dict(
        source_vocabulary=size,
        target_vocabulary=size if shared else foreign.get("decoder_vocab_size", size),
        tying="all" if shared else "target" if tied else "none",
        d_model=foreign["d_model"],
        d_ff=foreign.common("encoder_ffn_dim", "decoder_ffn_dim"),
        heads=heads,
        layers=foreign["encoder_layers"],
        decoder_layers=foreign["decoder_layers"],
        activation=foreign.choice("activation_function", ACTIVATIONS),
        attention_bias=True,
        # Some BARTs are published without their biases of the logits, which are zero.
        output_bias=not foreign.arrays or foreign.has("final_logits_bias"),
        embedding_scale=foreign.get("scale_embedding", False),
        p_drop=foreign.get("dropout", 0.1),
        attention_dropout=foreign.get("attention_dropout", 0.0),
        activation_dropout=foreign.get("activation_dropout", 0.0),
        **special_ids(foreign, (), **ids),
        **choices,
    )


def read_bart(foreign: ForeignConfig) -> dict:
    learned = dict(positions="learned", embedding_norm=True)
    return _read_kin(foreign, learned, padding=1, decoder_start=2, end=2)


def read_mbart(foreign: ForeignConfig) -> dict:
    learned = dict(positions="learned", embedding_norm=True, norm="pre")
    return _read_kin(foreign, learned, padding=1, start=0, end=2)


def read_pegasus(foreign: ForeignConfig) -> dict:
    sinusoids = dict(positions="sinusoidal_halves", norm="pre")
    return _read_kin(foreign, sinusoids, padding=0, decoder_start=0, end=1)


def read_m2m_100(foreign: ForeignConfig) -> dict:
    foreign.require(pad_token_id=1)  # whose positions come before those of symbols
    sinusoids = dict(positions="sinusoidal_fairseq", norm="pre")
    ours = _read_kin(foreign, sinusoids, padding=1, decoder_start=2, end=2)
    scale, p_drop = foreign.get("scale_embedding", True), foreign.get("attention_dropout", 0.1)
    return ours | dict(output_bias=False, embedding_scale=scale, attention_dropout=p_drop)


BARTS = {"bart": read_bart, "mbart": read_mbart, "pegasus": read_pegasus, "m2m_100": read_m2m_100}
"""The readings of Marian's kin by the model_type of a config.json."""

_MARIAN = """
{embeddings}
    final_logits_bias                     output.bias                             array (1, V)
    model.encoder.embed_positions.weight                                          constant
    model.decoder.embed_positions.weight                                          constant
    model.encoder.embed_positions.weights                                         constant
    model.decoder.embed_positions.weights                                         constant
    model.encoder.layernorm_embedding     source.norm                             norm
    model.decoder.layernorm_embedding     target.norm                             norm
    model.encoder.layer_norm              encoder.norm                            norm
    model.decoder.layer_norm              decoder.norm                            norm

    model.encoder.layers.*                encoder.layers.*:
        self_attn.q_proj|k_proj|v_proj    self_attention.sublayer.query|key|value  linear
        self_attn.out_proj                self_attention.sublayer.output          linear
        self_attn_layer_norm              self_attention.norm                     norm
        fc1|fc2                           feed_forward.sublayer.inner|outer       linear
        final_layer_norm                  feed_forward.norm                       norm

    model.decoder.layers.*                decoder.layers.*:
        self_attn.q_proj|k_proj|v_proj    self_attention.sublayer.query|key|value  linear
        self_attn.out_proj                self_attention.sublayer.output          linear
        self_attn_layer_norm              self_attention.norm                     norm
        encoder_attn.q_proj|k_proj|v_proj  cross_attention.sublayer.query|key|value  linear
        encoder_attn.out_proj             cross_attention.sublayer.output         linear
        encoder_attn_layer_norm           cross_attention.norm                    norm
        fc1|fc2                           feed_forward.sublayer.inner|outer       linear
        final_layer_norm                  feed_forward.norm                       norm
"""
_ONE_EMBEDDING = """\
    model.shared                          source.embedding                        table
    model.encoder.embed_tokens            source.embedding                        table
    model.decoder.embed_tokens            source.embedding                        table
    lm_head                               source.embedding                        table"""
_TWO_EMBEDDINGS = """\
    model.encoder.embed_tokens            source.embedding                        table
    model.decoder.embed_tokens            target.embedding                        table
    lm_head                               target.embedding                        table
    lm_head                               output                                  table"""
_POSITIONS = """
    model.encoder.embed_positions         source.positions                        table, shifted
    model.decoder.embed_positions         target.positions                        table, shifted"""


def table(config) -> Table:
    """The table of Marian and its kin. Both languages have one embedding if all is tied."""
    embeddings = _ONE_EMBEDDING if config.tying == "all" else _TWO_EMBEDDINGS
    return Table(_MARIAN.format(embeddings=embeddings + _POSITIONS), optional="model.")


# Whisper (Radford et al. 2023): what Marian has, but for the first layers and the norms at the end.


def read_whisper(foreign: ForeignConfig) -> dict:
    foreign.require(scale_embedding=False, tie_word_embeddings=True)
    ends = end_ids(foreign, 50256)
    return dict(
        vocabulary=foreign["vocab_size"],
        bands=foreign.get("num_mel_bins", 80),
        frames=2 * foreign.get("max_source_positions", 1500),
        d_model=foreign["d_model"],
        d_ff=foreign.common("encoder_ffn_dim", "decoder_ffn_dim"),
        heads=foreign.common("encoder_attention_heads", "decoder_attention_heads"),
        layers=foreign["encoder_layers"],
        decoder_layers=foreign["decoder_layers"],
        norm="pre",
        activation=foreign.choice("activation_function", ACTIVATIONS),
        attention_bias=True,
        attention_key_bias=False,
        max_length=foreign.get("max_target_positions", 448),
        embedding_scale=False,
        p_drop=foreign.get("dropout", 0.0),
        attention_dropout=foreign.get("attention_dropout", 0.0),
        activation_dropout=foreign.get("activation_dropout", 0.0),
        padding_id=None,  # silence pads sounds, and the id of padding also ends a text
        start_id=foreign.get("decoder_start_token_id", 50257),
        end_id=next(iter(ends), None),
        unwritten=(),
        other_ends=tuple(ends[1:]),
    )


_WHISPER_INPUTS = """\
    model.encoder.conv1|conv2             source.layers.1|4                       filters
    model.encoder.embed_positions         source.layers.6                         table
    model.decoder.embed_tokens            target.embedding                        table
    proj_out                              target.embedding                        table
    model.decoder.embed_positions         target.positions                        table"""
WHISPER = Table(_MARIAN.format(embeddings=_WHISPER_INPUTS), optional="model.")
