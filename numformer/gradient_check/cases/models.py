"""Test cases for what a config builds: layers, stacks, mixers, and models with each choice."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from numformer.gradient_check.cases.case import B, Case, D, F, H, S, T, V
from numformer.later import MIXERS
from numformer.models import Objective, Transformer
from numformer.models.dual_encoder import DualEncoder
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from numformer.models.recurrent import RecurrentEncoderDecoder
from numformer.models.speech import SpeechTransformer
from numformer.models.vision import VisionTransformer
from numformer.paper.embedding import Embedding
from numformer.recurrence import CELLS
from numformer.recurrence.attention_decoder import AttentionDecoder

SIZES: dict[str, Any] = dict(d_model=D, d_ff=F, heads=H, layers=2, p_drop=0.2)
SMALL: dict[str, Any] = dict(source_vocabulary=V, target_vocabulary=V, **SIZES)

VARIATIONS: dict[str, dict[str, Any]] = {
    "post_norm": {},
    "pre_norm": dict(norm="pre"),
    "rms_norm": dict(norm="pre", normalization="rms"),
    "pre_norm_untied": dict(norm="pre", tying="none", source_vocabulary=V + 2),
    "target_tied": dict(tying="target", source_vocabulary=V + 2),
    "learned_positions": dict(positions="learned", max_length=6),
    "rotary_positions": dict(positions="rotary"),
    "sinusoids_and_rotary_positions": dict(positions="sinusoidal_rotary"),
    "alibi_positions": dict(positions="alibi"),
    "no_positions": dict(positions="none"),
    "sinusoids_in_halves": dict(positions="sinusoidal_halves"),
    "sinusoids_of_fairseq": dict(positions="sinusoidal_fairseq"),
    "rotary_base": dict(positions="rotary", rotary_base=50.0),
    "rotary_frequencies": dict(positions="rotary", rotary_frequencies=((1.0, 0.3), ())),
    "norms_of_outputs": dict(norm="output"),
    "norms_around_sublayers": dict(norm="sandwich", normalization="rms"),
    "layer_scale": dict(norm="pre_scaled"),
    "caps": dict(attention_cap=1.5, logit_cap=2.0, attention_bias=True),
    "bias_of_the_attention_output": dict(attention_output_bias=True),
    "gelu": dict(activation="gelu"),
    "gelu_tanh": dict(activation="gelu_tanh"),
    "swish": dict(activation="swish"),
    "quick_gelu": dict(activation="quick_gelu"),
    "geglu": dict(activation="geglu", feed_forward_bias=False),
    "swiglu": dict(activation="swiglu", feed_forward_bias=False),
    "attention_bias": dict(attention_bias=True),
    "keys_without_bias": dict(attention_bias=True, attention_key_bias=False),
    "d_k_and_d_v": dict(d_k=3, d_v=5),
    "odd_sizes": dict(d_model=11, heads=3, d_k=3, d_v=3),
    "all_dropouts": dict(attention_dropout=0.2, activation_dropout=0.2),
    "checkpointing": dict(checkpointing=True, attention_dropout=0.2),
    "epsilon": dict(epsilon=0.1, norm="pre"),
    "embedding_without_scale": dict(embedding_scale=False),
    "embedding_norm": dict(embedding_norm=True, epsilon=0.1, normalization="rms"),
    "output_bias": dict(output_bias=True, tying="none"),
    "fewer_decoder_layers": dict(decoder_layers=1),
    "experts": dict(feed_forwards="experts", experts=3, balance_weight=0.5),
    "experts_and_dense": dict(
        feed_forwards="experts,dense", experts=4, chosen_experts=3, activation_dropout=0.2
    ),
    # Special ids 4 and 5, which the batch contains; 0 is an ordinary symbol here.
    "other_special_ids": dict(padding_id=5, start_id=5, end_id=4),
    "without_padding": dict(padding_id=None),
}
# Settings for each mixer; windows and strides are so small that a position sees few others.
MIXER_SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {},
    "groups": dict(heads=4, key_value_heads=2, qk_norm="rms"),
    "joint_norms": dict(heads=4, key_value_heads=2, qk_norm="rms", qk_norm_width="heads"),
    "window": dict(mixers="window", window=2),
    "window_and_attention": dict(mixers="window,attention", window=2, key_value_heads=1),
    "global_window": dict(mixers="global_window", window=2, global_tokens=1),
    "global_window_and_window": dict(mixers="global_window,window", window=2, global_tokens=2),
    "strided": dict(mixers="strided", stride=2),
    "window_and_strided": dict(mixers="window,strided", window=2, stride=3),
    "relative": dict(mixers="relative", distance_buckets=5, farthest=4),
    "relative_apart": dict(mixers="relative", distance_buckets=5, farthest=4, own_distances=True),
    "relative_and_window": dict(mixers="relative,window,relative", layers=3, window=2),
    "linear": dict(mixers="linear"),
    "linear_and_attention": dict(mixers="linear,attention"),
    "state_space": dict(mixers="state_space", d_state=3),
    "attention_and_state_space": dict(mixers="attention,state_space", d_state=2, expansion=1),
}


def config_case(
    name: str, build: Callable, config, reference: str = "", composed: bool = False, **settings
) -> Case:
    """Return a case whose layer and inputs are built by build(config, generator)."""
    return Case(name, partial(build, config), reference, dict(config=config) | settings, composed)


def small(**changes):
    return Transformer.Config(**(SMALL | changes))


def language(**changes):
    sizes: dict[str, Any] = dict(vocabulary=V, d_model=D, d_ff=F, heads=H, layers=2, max_length=6)
    return LanguageModel.Config(**(sizes | dict(positions="learned") | changes))


# Each function builds a layer or a model from a config, and returns it with its inputs.


def input_embedding(config, g):
    return config.input_embedding(Embedding(V, D, g.rng), g.rng), [g.source]


def rich_input_embedding(config, g):
    layer = config.input_embedding(config.embedding(V, g.rng), g.rng, segments=3)
    return layer, [g.source, None, g.source % 3]


def encoder_layer(config, g):
    return config.encoder_layer(g.rng), [g.memory, g.encoder]


def decoder_layer(config, g):
    return config.decoder_layer(g.rng), [g.x, g.decoder, g.memory, g.cross]


def decoder_layer_with_masks(config, g):
    return config.decoder_layer(g.rng), [g.x, g.target_mask, g.memory, g.source_mask]


def encoder(config, g):
    return config.encoder(g.rng), [g.memory, g.source_mask]


def decoder(config, g):
    return config.decoder(g.rng), [g.x, g.decoder, g.memory, g.cross]


def causal_mixer(config, g):
    return config.self_attention(g.rng, causal=True), [g.x, g.decoder]


def mixer_looking_ahead(config, g):
    return config.self_attention(g.rng), [g.memory, g.encoder]


def transformer(config, g):
    return Transformer(config, int(g.rng.integers(100))), [g.source, g.target_in]


def language_model(config, g):
    return LanguageModel(config, 3), [g.target_in]


def masked(config, g):
    return MaskedLanguageModel(config, 3), [g.source]


def masked_at_some_places(config, g):
    return MaskedLanguageModel(config, 3), [g.source, g.some_places]


def vision(config, g):
    shape = (4, 6) if config.channels == 1 else (4, 6, config.channels)
    return VisionTransformer(config, 3), [g.normal(*shape)]


def dual_encoder(config, g):
    rows, ids = np.arange(g.B), g.source.copy()
    ids[rows, (2 * rows + 1) % g.S] = config.special.end
    return DualEncoder(config, 3), [g.normal(4, 6), ids]


def speech(config, g):
    return SpeechTransformer(config, 3), [g.normal(2 * g.S - 1, D), g.target_in]


def recurrent(config, g):
    return RecurrentEncoderDecoder(config, 3), [g.source, g.target_in]


def r_drop(config, g):
    """Return an objective with dropout, and inputs without padding (see `objective_case`)."""
    model = Transformer(config, int(g.rng.integers(100)))
    ids = (g.rng.integers(4, V, (B, length)) for length in (S, T, T))
    return Objective(model, 0.1, r_drop=3.0), [*ids]


def attention_decoder(cell, g):
    """Return a decoder whose states (B, 7) attend to a memory (B, S, D), and its inputs."""
    decoder = AttentionDecoder(CELLS[cell](7, g.rng), D, D, g.rng)
    return decoder, [g.x, g.lengths, g.normal(7), g.memory, g.source != 0]


def objective_case(
    name: str, build_model: Callable, config, smoothing=0.1, composed: bool = False, **settings
) -> Case:
    """Return a case of an objective without dropout.

    An objective skips padding, but the PyTorch version would draw dropout masks for it, too.
    """

    def build(config, g):
        model, inputs = build_model(config, g)
        return Objective(model, smoothing), [*inputs, g.target_out]

    settings |= dict(smoothing=smoothing)
    return config_case(name, build, config, "objective", composed, **settings)


def transformer_objective(name: str, smoothing=0.1, composed: bool = False, **changes) -> Case:
    config = small(**(changes | dict(p_drop=0.0)))
    return objective_case(name, transformer, config, smoothing, composed)


def experts_case(name: str, build: Callable, reference="experts_feed_forward", **changes) -> Case:
    experts_settings: dict[str, Any] = dict(feed_forwards="experts", experts=4, balance_weight=0.7)
    return replace(
        config_case(name, build, small(**(experts_settings | changes)), reference), waits=True
    )


def experts_with(*inputs: str) -> Callable:
    return lambda config, g: (config.feed_forward(g.rng), [getattr(g, name) for name in inputs])


def mixer_cases() -> list[Case]:
    """Return cases of each mixer: alone (causal and, if it can, looking ahead) and in models."""
    table = []
    for name, changes in MIXER_SETTINGS.items():
        names = changes.get("mixers", "attention").split(",")
        look_ahead = [MIXERS[mixer].looks_ahead for mixer in names]
        config, reference = small(**changes), f"{names[0]}_mixer"
        table.append(config_case(f"{name}_mixer", causal_mixer, config, reference))
        if look_ahead[0]:
            case = f"{name}_mixer_looking_ahead"
            table.append(config_case(case, mixer_looking_ahead, config, reference))
        if changes and all(look_ahead):
            rotary_config = small(**changes, positions="rotary", attention_dropout=0.2)
            table += [
                config_case(f"transformer_{name}", transformer, rotary_config, "transformer", True),
                transformer_objective(f"objective_{name}", 0.1, True, **changes),
            ]
        if changes:
            case, config = f"language_model_{name}", language(**changes)
            table.append(config_case(case, language_model, config, "language_model", True))
    return table


def recurrent_case(cell: str, context: str, p_drop: float = 0.0, objective=False) -> Case:
    sizes: dict[str, Any] = dict(source_vocabulary=V, target_vocabulary=V + 2, d_model=D)
    config = RecurrentEncoderDecoder.Config(**sizes, cell=cell, context=context, p_drop=p_drop)
    name, model = f"recurrent_{cell}_{context}", "recurrent_encoder_decoder"
    if objective:
        return objective_case(f"{name}_objective", recurrent, config, model=model)
    return config_case(name, recurrent, config, model)


MASKED = MaskedLanguageModel.Config(vocabulary=V, **SIZES)
MASKED_UNTIED = replace(MASKED, tied=False, embedding_scale=False, output_bias=True, padding_id=5)
IMAGES: dict[str, Any] = dict(height=4, width=6, classes=7, **SIZES)
GREY_IMAGES = VisionTransformer.Config(**IMAGES, channels=1)
COLOUR_IMAGES = VisionTransformer.Config(**IMAGES, channels=3, norm="pre", positions="sinusoidal")
DISTILLED = replace(
    GREY_IMAGES, distilled=True, distilled_head=True, patch_bias=False, embedding_norm=True
)
LATER_IMAGES = replace(COLOUR_IMAGES, norm="pre_scaled", mean_head=True, registers=2)
TOWERS: dict[str, Any] = dict(images=replace(GREY_IMAGES, classes=None, layers=1))
TOWERS |= dict(texts=LanguageModel.Config(vocabulary=V, head=False, **SIZES | dict(layers=1)))
DUAL = DualEncoder.Config(**TOWERS, width=5)
SPEECH = SpeechTransformer.Config(vocabulary=V, bands=D, frames=2 * S - 1, max_length=6, **SIZES)
OTHER_SPEECH = replace(
    SPEECH, norm="pre", attention_bias=True, attention_key_bias=False, decoder_layers=1
)
GATED: dict[str, Any] = dict(activation="swiglu", feed_forward_bias=False, chosen_experts=1)

MODELS = [
    *(
        config_case(f"{name}_{norm}_norm", build, small(norm=norm), reference)
        for norm in ("post", "pre")
        for name, build, reference in (
            ("input_embedding", input_embedding, "input_embedding"),
            ("encoder_layer", encoder_layer, "block"),
            ("decoder_layer", decoder_layer_with_masks, "block"),
            ("encoder", encoder, "tower"),
            ("decoder", decoder, "tower"),
        )
    ),
    config_case(
        "rich_input_embedding", rich_input_embedding, small(embedding_norm=True), "input_embedding"
    ),
    experts_case("experts", experts_with("memory")),
    experts_case("experts_with_padding", experts_with("memory", "encoder"), activation_dropout=0.3),
    experts_case("experts_with_gates", experts_with("x", "decoder"), **GATED),
    experts_case("experts_in_an_encoder_layer", encoder_layer, "block"),
    experts_case("experts_in_a_decoder_layer", decoder_layer, "block", norm="pre"),
    *mixer_cases(),
    *(
        config_case(
            f"transformer_{name}", transformer, small(**changes), "transformer", bool(changes)
        )
        for name, changes in VARIATIONS.items()
    ),
    config_case("language_model", language_model, language()),
    config_case(
        "language_model_untied",
        language_model,
        language(tied=False, embedding_norm=True, output_bias=True),
        "language_model",
        composed=True,
    ),
    config_case(
        "language_model_without_scale",
        language_model,
        language(embedding_scale=False),
        "language_model",
        composed=True,
    ),
    config_case(
        "language_model_without_head",
        language_model,
        language(head=False),
        "language_model",
        composed=True,
    ),
    *(
        config_case(
            f"language_model_{sublayers}",
            language_model,
            language(norm="pre", sublayers=sublayers, p_drop=0.2),
            "language_model",
            composed=True,
        )
        for sublayers in ("parallel", "parallel_one_norm")
    ),
    *(
        Case(
            f"attention_decoder_{cell}",
            partial(attention_decoder, cell),
            "attention_decoder",
            dict(cell=cell),
        )
        for cell in ("lstm", "gru")
    ),
    recurrent_case("rnn", "fixed", p_drop=0.2),
    recurrent_case("gru", "fixed"),
    recurrent_case("rnn", "attention"),
    recurrent_case("lstm", "attention", p_drop=0.2),
    recurrent_case("lstm", "fixed", objective=True),
    recurrent_case("gru", "attention", objective=True),
    config_case("masked", masked, MASKED),
    config_case("masked_at_some_places", masked_at_some_places, MASKED, "masked"),
    config_case("masked_otherwise", masked, MASKED_UNTIED, "masked", composed=True),
    config_case("vision", vision, GREY_IMAGES),
    config_case("vision_of_colours", vision, COLOUR_IMAGES, "vision"),
    config_case("vision_distilled", vision, DISTILLED, "vision"),
    config_case("vision_of_mean_heads", vision, LATER_IMAGES, "vision", composed=True),
    config_case("dual_encoder", dual_encoder, DUAL),
    config_case("speech", speech, SPEECH),
    config_case("speech_of_other_towers", speech, OTHER_SPEECH, "speech", composed=True),
    transformer_objective("objective"),
    transformer_objective("objective_experts", composed=True, **VARIATIONS["experts"]),
    transformer_objective(
        "objective_without_smoothing", 0.0, norm="pre", positions="learned", max_length=6
    ),
    config_case("objective_r_drop", r_drop, small(), smoothing=0.1, r_drop=3.0),
]
