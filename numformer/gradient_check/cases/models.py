"""Cases of what a config builds: layers, stacks, mixers, and whole models with each choice."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from numformer.gradient_check.cases.case import B, Case, D, F, H, S, T, V
from numformer.later import MIXERS
from numformer.models import Objective, Transformer
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from numformer.models.recurrent import AttentionDecoder, RecurrentEncoderDecoder
from numformer.models.vision import VisionTransformer
from numformer.paper.embedding import Embedding
from numformer.recurrence import CELLS

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
    "rotary_base": dict(positions="rotary", rotary_base=50.0),
    "gelu": dict(activation="gelu"),
    "gelu_tanh": dict(activation="gelu_tanh"),
    "swish": dict(activation="swish"),
    "geglu": dict(activation="geglu", feed_forward_bias=False),
    "swiglu": dict(activation="swiglu", feed_forward_bias=False),
    "attention_bias": dict(attention_bias=True),
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
    # Ids that the batch has: 4 and 5 are special there, and 0 is an ordinary symbol.
    "other_special_ids": dict(padding_id=5, start_id=5, end_id=4),
    "without_padding": dict(padding_id=None),
}
# Each mixer, with settings under which a position sees few others.
MIXER_SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {},
    "groups": dict(heads=4, key_value_heads=2, qk_norm="rms"),
    "window": dict(mixers="window", window=2),
    "window_and_attention": dict(mixers="window,attention", window=2, key_value_heads=1),
    "global_window": dict(mixers="global_window", window=2, global_tokens=1),
    "global_window_and_window": dict(mixers="global_window,window", window=2, global_tokens=2),
    "strided": dict(mixers="strided", stride=2),
    "window_and_strided": dict(mixers="window,strided", window=2, stride=3),
    "relative": dict(mixers="relative", distance_buckets=5, farthest=4),
    "relative_and_window": dict(mixers="relative,window,relative", layers=3, window=2),
    "linear": dict(mixers="linear"),
    "linear_and_attention": dict(mixers="linear,attention"),
    "state_space": dict(mixers="state_space", d_state=3),
    "attention_and_state_space": dict(mixers="attention,state_space", d_state=2, expansion=1),
}


def config_case(name: str, reference: str, build: Callable, composed: bool = False, **changes):
    """The case of what `build(config, generator)` makes of the small config with `changes`."""
    config = Transformer.Config(**(SMALL | changes))
    return Case(name, partial(build, config), reference, dict(config=config), composed)


PARTS = [
    config_case(f"{name}_{norm}_norm", reference, build, norm=norm)
    for norm in ("post", "pre")
    for name, reference, build in [
        (
            "input_embedding",
            "input_embedding",
            lambda config, g: (config.input_embedding(Embedding(V, D, g.rng), g.rng), [g.source]),
        ),
        (
            "encoder_layer",
            "block",
            lambda config, g: (config.encoder_layer(g.rng), [g.memory, g.encoder]),
        ),
        (
            "decoder_layer",
            "block",
            lambda config, g: (
                config.decoder_layer(g.rng),
                [g.x, g.target_mask, g.memory, g.source_mask],
            ),
        ),
        ("encoder", "tower", lambda config, g: (config.encoder(g.rng), [g.memory, g.source_mask])),
        (
            "decoder",
            "tower",
            lambda config, g: (config.decoder(g.rng), [g.x, g.decoder, g.memory, g.cross]),
        ),
    ]
]


def experts_case(name: str, build: Callable, reference: str = "experts_feed_forward", **changes):
    some: dict[str, Any] = dict(feed_forwards="experts", experts=4, balance_weight=0.7)
    return replace(config_case(name, reference, build, **(some | changes)), waits=True)


SEGMENTS = config_case(
    "rich_input_embedding",
    "input_embedding",
    lambda config, g: (
        config.input_embedding(config.embedding(V, g.rng), g.rng, segments=3),
        [g.source, None, g.source % 3],
    ),
    embedding_norm=True,
)
GATED: dict[str, Any] = dict(activation="swiglu", feed_forward_bias=False, chosen_experts=1)
EXPERTS = [
    experts_case("experts", lambda config, g: (config.feed_forward(g.rng), [g.memory])),
    experts_case(
        "experts_with_padding",
        lambda config, g: (config.feed_forward(g.rng), [g.memory, g.encoder]),
        activation_dropout=0.3,
    ),
    experts_case(
        "experts_with_gates",
        lambda config, g: (config.feed_forward(g.rng), [g.x, g.decoder]),
        **GATED,
    ),
    experts_case(
        "experts_in_an_encoder_layer",
        lambda config, g: (config.encoder_layer(g.rng), [g.memory, g.encoder]),
        "block",
    ),
    experts_case(
        "experts_in_a_decoder_layer",
        lambda config, g: (config.decoder_layer(g.rng), [g.x, g.decoder, g.memory, g.cross]),
        "block",
        norm="pre",
    ),
]


def mixer(config, g):
    return config.self_attention(g.rng, causal=True), [g.x, g.decoder]


def mixer_looking_ahead(config, g):
    return config.self_attention(g.rng), [g.memory, g.encoder]


def language_model(changes: dict, g):
    config = LanguageModel.Config(**(LANGUAGE | changes))
    return LanguageModel(config, 3), [g.target_in]


LANGUAGE: dict[str, Any] = dict(
    vocabulary=V, d_model=D, d_ff=F, heads=H, layers=2, positions="learned"
) | dict(max_length=6)


def language_model_case(name: str, **changes) -> Case:
    config = LanguageModel.Config(**(LANGUAGE | changes))
    build = partial(language_model, changes)
    return Case(name, build, "language_model", dict(config=config), composed=bool(changes))


def transformer(config, g):
    return Transformer(config, int(g.rng.integers(100))), [g.source, g.target_in]


def objective_case(name: str, smoothing: float, composed: bool = False, **changes) -> Case:
    """An objective leaves padding out, so dropout's masks would differ: it has no dropout."""
    config = Transformer.Config(**(SMALL | changes | dict(p_drop=0.0)))

    def build(g):
        model = Transformer(config, int(g.rng.integers(100)))
        return Objective(model, smoothing), [g.source, g.target_in, g.target_out]

    return Case(name, build, "objective", dict(config=config, smoothing=smoothing), composed)


def mixer_cases() -> list[Case]:
    """Each mixer alone, causal and looking both ways, and in models with and without padding."""
    table = []
    for name, changes in MIXER_SETTINGS.items():
        mixer_of = changes.get("mixers", "attention").partition(",")[0]
        case: Callable = partial(config_case, reference=f"{mixer_of}_mixer", **changes)
        table.append(case(f"{name}_mixer", build=mixer))
        mixers = [MIXERS[mixer] for mixer in changes.get("mixers", "attention").split(",")]
        if mixers[0].looks_ahead:
            table.append(case(f"{name}_mixer_looking_ahead", build=mixer_looking_ahead))
            if changes and all(mixer.looks_ahead for mixer in mixers):
                more = changes | dict(positions="rotary", attention_dropout=0.2)
                table.append(
                    config_case(f"transformer_{name}", "transformer", transformer, True, **more)
                )
                table.append(objective_case(f"objective_{name}", 0.1, True, **changes))
        if changes:
            table.append(language_model_case(f"language_model_{name}", **changes))
    return table


def r_drop(g):
    """With dropout and so without padding, since an objective leaves padding out."""
    model = Transformer(Transformer.Config(**SMALL), int(g.rng.integers(100)))
    ids = (g.rng.integers(4, V, (B, length)) for length in (S, T, T))
    return Objective(model, 0.1, r_drop=3.0), [*ids]


def attention_decoder(cell, g):
    """A decoder whose states (B, 7) attend to a memory (B, S, D)."""
    decoder = AttentionDecoder(CELLS[cell](7, g.rng), D, D, g.rng)
    return decoder, [g.x, g.lengths, g.normal(7), g.memory, g.source != 0]


def recurrent_case(cell: str, context: str, p_drop: float, smoothing: float | None = None) -> Case:
    """A recurrent encoder-decoder, or with `smoothing` its objective, which leaves padding out."""
    sizes: dict[str, Any] = dict(source_vocabulary=V, target_vocabulary=V + 2, d_model=D)
    config = RecurrentEncoderDecoder.Config(**sizes, cell=cell, context=context, p_drop=p_drop)

    def build(g):
        model = RecurrentEncoderDecoder(config, 3)
        if smoothing is None:
            return model, [g.source, g.target_in]
        return Objective(model, smoothing), [g.source, g.target_in, g.target_out]

    name = f"recurrent_{cell}_{context}"
    settings: dict[str, Any] = dict(config=config)
    if smoothing is None:
        return Case(name, build, "recurrent_encoder_decoder", settings)
    settings |= dict(smoothing=smoothing, model="recurrent_encoder_decoder")
    return Case(f"{name}_objective", build, "objective", settings)


MASKED = MaskedLanguageModel.Config(vocabulary=V, **SIZES)
MASKED_UNTIED = replace(MASKED, tied=False, embedding_scale=False, output_bias=True, padding_id=5)
IMAGE_SIZES: dict[str, Any] = dict(height=4, width=6, classes=7, **SIZES)
GREY_IMAGES = VisionTransformer.Config(**IMAGE_SIZES, channels=1)
COLOUR_IMAGES = VisionTransformer.Config(
    **IMAGE_SIZES, channels=3, norm="pre", positions="sinusoidal"
)


def vision(config, g):
    shape = (4, 6) if config.channels == 1 else (4, 6, config.channels)
    return VisionTransformer(config, 3), [g.normal(*shape)]


MODELS = [
    *PARTS,
    SEGMENTS,
    *EXPERTS,
    *mixer_cases(),
    *(
        config_case(f"transformer_{name}", "transformer", transformer, bool(changes), **changes)
        for name, changes in VARIATIONS.items()
    ),
    language_model_case("language_model"),
    language_model_case("language_model_untied", tied=False, embedding_norm=True, output_bias=True),
    language_model_case("language_model_without_scale", embedding_scale=False),
    *(
        Case(
            f"attention_decoder_{cell}",
            partial(attention_decoder, cell),
            "attention_decoder",
            dict(cell=cell),
        )
        for cell in ("lstm", "gru")
    ),
    recurrent_case("rnn", "fixed", 0.2),
    recurrent_case("gru", "fixed", 0.0),
    recurrent_case("rnn", "attention", 0.0),
    recurrent_case("lstm", "attention", 0.2),
    recurrent_case("lstm", "fixed", 0.0, smoothing=0.1),
    recurrent_case("gru", "attention", 0.0, smoothing=0.1),
    Case(
        "masked",
        lambda g: (MaskedLanguageModel(MASKED, 3), [g.source]),
        settings=dict(config=MASKED),
    ),
    Case(
        "masked_at_some_places",
        lambda g: (MaskedLanguageModel(MASKED, 3), [g.source, g.some_places]),
        "masked",
        dict(config=MASKED),
    ),
    Case(
        "masked_otherwise",
        lambda g: (MaskedLanguageModel(MASKED_UNTIED, 3), [g.source]),
        "masked",
        dict(config=MASKED_UNTIED),
        composed=True,
    ),
    Case("vision", partial(vision, GREY_IMAGES), settings=dict(config=GREY_IMAGES)),
    Case("vision_of_colours", partial(vision, COLOUR_IMAGES), "vision", dict(config=COLOUR_IMAGES)),
    objective_case("objective", 0.1),
    objective_case("objective_experts", 0.1, True, **VARIATIONS["experts"]),
    objective_case(
        "objective_without_smoothing", 0.0, norm="pre", positions="learned", max_length=6
    ),
    Case(
        "objective_r_drop",
        r_drop,
        settings=dict(config=Transformer.Config(**SMALL), smoothing=0.1, r_drop=3.0),
    ),
]
