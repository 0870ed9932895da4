"""What a config composes: blocks, towers, each choice in the whole model, and the other models."""

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
    # The ids 4 and 5 of the batch: what stands first is real, and 0 is a symbol.
    "other_special_ids": dict(padding_id=5, start_id=5, end_id=4),
    "without_padding": dict(padding_id=None),
}
# What may stand where attention stands, each with settings by which little is seen.
MIXED: dict[str, dict[str, Any]] = {
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


def of_config(name: str, reference: str, build: Callable, composed: bool = False, **changes):
    """The case of what the small config with `changes` composes: build(config, given)."""
    config = Transformer.Config(**(SMALL | changes))
    return Case(name, reference, partial(build, config), dict(config=config), composed)


PARTS = [
    of_config(f"{name}_{norm}_norm", reference, build, norm=norm)
    for norm in ("post", "pre")
    for name, reference, build in [
        (
            "input_embedding",
            "input_embedding",
            lambda config, g: (
                config.input_embedding(Embedding(V, D, g.rng), g.rng),
                [g.source],
            ),
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
            lambda config, g: (
                config.decoder(g.rng),
                [g.x, g.decoder, g.memory, g.cross],
            ),
        ),
    ]
]


def experts(name: str, build: Callable, reference: str = "experts_feed_forward", **changes):
    some: dict[str, Any] = dict(feed_forwards="experts", experts=4, balance_weight=0.7)
    return replace(of_config(name, reference, build, **(some | changes)), waits=True)


SEGMENTS = of_config(
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
    experts("experts", lambda config, g: (config.feed_forward(g.rng), [g.memory])),
    experts(
        "experts_with_padding",
        lambda config, g: (config.feed_forward(g.rng), [g.memory, g.encoder]),
        activation_dropout=0.3,
    ),
    experts(
        "experts_with_gates",
        lambda config, g: (config.feed_forward(g.rng), [g.x, g.decoder]),
        **GATED,
    ),
    experts(
        "experts_in_an_encoder_layer",
        lambda config, g: (config.encoder_layer(g.rng), [g.memory, g.encoder]),
        "block",
    ),
    experts(
        "experts_in_a_decoder_layer",
        lambda config, g: (config.decoder_layer(g.rng), [g.x, g.decoder, g.memory, g.cross]),
        "block",
        norm="pre",
    ),
]


def mixer(config, g):
    return config.self_attention(g.rng, causal=True), [g.x, g.decoder]


def mixer_that_looks_ahead(config, g):
    return config.self_attention(g.rng), [g.memory, g.encoder]


def language_model(changes: dict, g):
    config = LanguageModel.Config(**(LANGUAGE | changes))
    return LanguageModel(config, 3), [g.target_in]


LANGUAGE: dict[str, Any] = dict(
    vocabulary=V, d_model=D, d_ff=F, heads=H, layers=2, positions="learned"
) | dict(max_length=6)


def of_language_model(name: str, **changes) -> Case:
    config = LanguageModel.Config(**(LANGUAGE | changes))
    build = partial(language_model, changes)
    return Case(name, "language_model", build, dict(config=config), composed=bool(changes))


def transformer(config, g):
    return Transformer(config, int(g.rng.integers(100))), [g.source, g.target_in]


def of_objective(name: str, smoothing: float, composed: bool = False, **changes) -> Case:
    """Without dropout, for padding is left out there, and its masks have other shapes."""
    config = Transformer.Config(**(SMALL | changes | dict(p_drop=0.0)))

    def build(g):
        model = Transformer(config, int(g.rng.integers(100)))
        return Objective(model, smoothing), [g.source, g.target_in, g.target_out]

    return Case(name, "objective", build, dict(config=config, smoothing=smoothing), composed)


def mixed() -> list[Case]:
    """Each mixer alone, looking back and both ways, and in models, with padding and without."""
    table = []
    for name, changes in MIXED.items():
        mixer_of = changes.get("mixers", "attention").partition(",")[0]
        case: Callable = partial(of_config, reference=f"{mixer_of}_mixer", **changes)
        table.append(case(f"{name}_mixer", build=mixer))
        mixers = [MIXERS[mixer] for mixer in changes.get("mixers", "attention").split(",")]
        if mixers[0].looks_ahead:
            table.append(case(f"{name}_mixer_looking_ahead", build=mixer_that_looks_ahead))
            if changes and all(mixer.looks_ahead for mixer in mixers):
                more = changes | dict(positions="rotary", attention_dropout=0.2)
                table.append(
                    of_config(f"transformer_{name}", "transformer", transformer, True, **more)
                )
                table.append(of_objective(f"objective_{name}", 0.1, True, **changes))
        if changes:
            table.append(of_language_model(f"language_model_{name}", **changes))
    return table


def r_drop(g):
    """With dropout, so without padding: its masks have other shapes where that is left out."""
    model = Transformer(Transformer.Config(**SMALL), int(g.rng.integers(100)))
    ids = (g.rng.integers(4, V, (B, length)) for length in (S, T, T))
    return Objective(model, 0.1, r_drop=3.0), [*ids]


def attention_decoder(cell, g):
    """States (B, 7) that look at a memory (B, S, D)."""
    decoder = AttentionDecoder(CELLS[cell](7, g.rng), D, D, g.rng)
    return decoder, [g.x, g.lengths, g.normal(7), g.memory, g.source != 0]


def recurrent(cell: str, context: str, p_drop: float, smoothing: float | None = None) -> Case:
    """A recurrent encoder-decoder; with `smoothing` its objective, where padding is left out."""
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
        return Case(name, "recurrent_encoder_decoder", build, settings)
    settings |= dict(smoothing=smoothing, model="recurrent_encoder_decoder")
    return Case(f"{name}_objective", "objective", build, settings)


MASKED = MaskedLanguageModel.Config(vocabulary=V, **SIZES)
MASKED_OTHERWISE = replace(
    MASKED, tied=False, embedding_scale=False, output_bias=True, padding_id=5
)
OF_IMAGES: dict[str, Any] = dict(height=4, width=6, classes=7, **SIZES)
GREY = VisionTransformer.Config(**OF_IMAGES, channels=1)
COLOURED = VisionTransformer.Config(**OF_IMAGES, channels=3, norm="pre", positions="sinusoidal")


def vision(config, g):
    shape = (4, 6) if config.channels == 1 else (4, 6, config.channels)
    return VisionTransformer(config, 3), [g.normal(*shape)]


MODELS = [
    *PARTS,
    SEGMENTS,
    *EXPERTS,
    *mixed(),
    *(
        of_config(f"transformer_{name}", "transformer", transformer, bool(changes), **changes)
        for name, changes in VARIATIONS.items()
    ),
    of_language_model("language_model"),
    of_language_model("language_model_untied", tied=False, embedding_norm=True, output_bias=True),
    of_language_model("language_model_without_scale", embedding_scale=False),
    *(
        Case(
            f"attention_decoder_{cell}",
            "attention_decoder",
            partial(attention_decoder, cell),
            dict(cell=cell),
        )
        for cell in ("lstm", "gru")
    ),
    recurrent("rnn", "fixed", 0.2),
    recurrent("gru", "fixed", 0.0),
    recurrent("rnn", "attention", 0.0),
    recurrent("lstm", "attention", 0.2),
    recurrent("lstm", "fixed", 0.0, smoothing=0.1),
    recurrent("gru", "attention", 0.0, smoothing=0.1),
    Case(
        "masked",
        "masked",
        lambda g: (MaskedLanguageModel(MASKED, 3), [g.source]),
        dict(config=MASKED),
    ),
    Case(
        "masked_at_some_places",
        "masked",
        lambda g: (MaskedLanguageModel(MASKED, 3), [g.source, g.some_places]),
        dict(config=MASKED),
    ),
    Case(
        "masked_otherwise",
        "masked",
        lambda g: (MaskedLanguageModel(MASKED_OTHERWISE, 3), [g.source]),
        dict(config=MASKED_OTHERWISE),
        composed=True,
    ),
    Case("vision", "vision", partial(vision, GREY), dict(config=GREY)),
    Case("vision_of_colours", "vision", partial(vision, COLOURED), dict(config=COLOURED)),
    of_objective("objective", 0.1),
    of_objective("objective_experts", 0.1, True, **VARIATIONS["experts"]),
    of_objective("objective_without_smoothing", 0.0, norm="pre", positions="learned", max_length=6),
    Case(
        "objective_r_drop",
        "objective_r_drop",
        r_drop,
        dict(config=Transformer.Config(**SMALL), smoothing=0.1, r_drop=3.0),
    ),
]
