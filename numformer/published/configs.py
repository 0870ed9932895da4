"""Converts the config.json of a published model into a config of ours, and back."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numformer.errors import InputError
from numformer.models import LanguageModel, Transformer, VisionTransformer

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "silu": "swish",
    "swish": "swish",
    "quick_gelu": "quick_gelu",
}
"""Our name for each activation's name in a config.json; of several, the last is written."""
GATED = {"swish": "swiglu", "gelu_tanh": "geglu"}
"""The gated form of an activation."""
GATES = {foreign: GATED[ours] for foreign, ours in ACTIVATIONS.items() if ours in GATED}


class ForeignConfig:
    """The settings of a config.json; a missing setting that is required raises InputError.

    So does a size that no model has, as a list of so many layers would fill all memory. `arrays`
    are the names of the arrays in the same folder.
    """

    def __init__(self, values: Mapping[str, Any], arrays: Iterable[str] = ()):
        self.values, self.arrays = values, arrays
        for name, value in values.items():
            kind = re.search("(layer|size|head|dim|embe?d|inner|d_model|d_ff|d_kv)s?$", name)
            if kind is None or type(value) is not int:
                continue
            if value > (most := 10_000 if kind[1] == "layer" else 1 << 25):
                raise InputError(
                    f"in a config.json, {name} is at most {most:,}",
                    f"{value:,}",
                    "Use the config.json of these weights.",
                )

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            rule = "a config.json has the sizes of its model"
            raise InputError(rule, f"one without {name}", "Use the config.json of these weights.")
        return self.values[name]

    def get(self, name: str, default: Any) -> Any:
        """A setting, or the default if it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def has(self, *prefixes: str) -> bool:
        """Whether the name of any array begins with one of these prefixes."""
        return any(name.startswith(prefixes) for name in self.arrays)

    def require(self, **supported: Any) -> None:
        """Raise InputError for a setting whose value numformer does not support."""
        for name, value in supported.items():
            if (received := self.get(name, value)) != value:
                raise InputError(
                    f"a model of the kind {self.values['model_type']} has {name} {value!r}",
                    repr(received),
                    "numformer does not support this: choose another model.",
                )

    def common(self, *names: str) -> Any:
        """The value that several settings share. Raises InputError if they differ."""
        first, *others = values = [self[name] for name in names]
        if any(value != first for value in others):
            raise InputError(
                f"{' and '.join(names)} are equal",
                " and ".join(map(repr, values)),
                "Choose a model in which they are equal.",
            )
        return first

    def choice(self, name: str, known: Mapping[str, str]) -> str:
        """Our name for the value of a setting."""
        if (choice := self[name]) not in known:
            rule = f"{name} is one of {', '.join(known)}"
            raise InputError(rule, repr(choice), "Choose a model with one of these.")
        return known[choice]


def special_ids(foreign: ForeignConfig, unwritten: Iterable[int] = (), **defaults: int) -> dict:
    """The ids of padding, start and ends, and the ids never written, as config fields.

    `defaults` replace missing ids; a null start or end means that there is none. Entries of
    bad_words_ids that have a single id, unless it is an end, and suppress_tokens are added to
    `unwritten`.
    """
    ends = end_ids(foreign, defaults.get("end"))
    banned = [word[0] for word in foreign.get("bad_words_ids", []) if len(word) == 1]
    banned = [n for n in banned if n not in ends] + foreign.get("suppress_tokens", [])
    start = foreign.get("decoder_start_token_id", defaults.get("decoder_start"))
    if start is None:
        start = foreign.values.get("bos_token_id", defaults.get("start"))
    return dict(
        padding_id=foreign.get("pad_token_id", defaults.get("padding")),
        start_id=start,
        end_id=next(iter(ends), None),
        unwritten=tuple(sorted({*unwritten, *banned})),
        other_ends=tuple(ends[1:]),
    )


def end_ids(foreign: ForeignConfig, default: int | None = None) -> list[int]:
    """The ids that end a text, [] for null; the first also ends the texts that the model reads."""
    ends = foreign.values.get("eos_token_id", default)
    return ends if isinstance(ends, list) else [n for n in [ends] if n is not None]


def with_generation_ids(
    values: Mapping[str, Any], generation: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A config.json whose ids of start and ends, and of banned symbols, may be of another file."""
    names = "eos_token_id", "decoder_start_token_id", "bad_words_ids", "suppress_tokens"
    return {**values, **{n: generation[n] for n in names if generation.get(n) is not None}}


def read_marian(foreign: ForeignConfig) -> dict:
    # A translation starts with padding, unless the config says otherwise.
    padding, sinusoids = foreign["pad_token_id"], dict(positions="sinusoidal_halves")
    ours = _read_encoder_decoder(foreign, sinusoids, decoder_start=padding, end=0)
    return ours | dict(unwritten=special_ids(foreign, [padding])["unwritten"])


def _read_encoder_decoder(foreign: ForeignConfig, choices: dict, **ids: int) -> dict:
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
    return _read_encoder_decoder(foreign, learned, padding=1, decoder_start=2, end=2)


def read_mbart(foreign: ForeignConfig) -> dict:
    learned = dict(positions="learned", embedding_norm=True, norm="pre")
    return _read_encoder_decoder(foreign, learned, padding=1, start=0, end=2)


def read_pegasus(foreign: ForeignConfig) -> dict:
    sinusoids = dict(positions="sinusoidal_halves", norm="pre")
    return _read_encoder_decoder(foreign, sinusoids, padding=0, decoder_start=0, end=1)


def read_m2m_100(foreign: ForeignConfig) -> dict:
    foreign.require(pad_token_id=1)  # whose positions come before those of symbols
    sinusoids = dict(positions="sinusoidal_fairseq", norm="pre")
    ours = _read_encoder_decoder(foreign, sinusoids, padding=1, decoder_start=2, end=2)
    scale, p_drop = foreign.get("scale_embedding", True), foreign.get("attention_dropout", 0.1)
    return ours | dict(output_bias=False, embedding_scale=scale, attention_dropout=p_drop)


def write_marian(config) -> dict:
    """Return the config.json that describes one of our Transformers as a Marian model."""
    sides: dict[str, Any] = {}
    for side, layers in (("encoder", config.layers), ("decoder", config.decoder_config.layers)):
        sizes = dict(layers=layers, attention_heads=config.heads, ffn_dim=config.d_ff)
        sides |= {f"{side}_{name}": number for name, number in sizes.items()}
    return dict(
        model_type="marian",
        architectures=["MarianMTModel"],
        vocab_size=config.source_vocabulary,
        decoder_vocab_size=config.target_vocabulary,
        d_model=config.d_model,
        **sides,
        activation_function=_foreign_activation(config),
        scale_embedding=config.embedding_scale,
        max_position_embeddings=1024,
        is_encoder_decoder=True,
        share_encoder_decoder_embeddings=config.tying == "all",
        tie_word_embeddings=config.tying != "none",
        **_dropouts(config, "dropout", "attention_dropout", "activation_dropout"),
        pad_token_id=config.padding_id,
        decoder_start_token_id=config.start_id,
        bos_token_id=None,
        eos_token_id=_foreign_end(config),
        forced_eos_token_id=None,
        bad_words_ids=[[n] for n in config.special.unwritten],
    )


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


WITH_HEAD = "lm_head.", "embed_out.", "model.", "transformer.", "gpt_neox."
"""How the names of a decoder's arrays begin, unless it is bare: those of its head or its stack."""


def or_bare(read: Callable[[ForeignConfig], dict]) -> Callable[[ForeignConfig], dict]:
    """Return a reading that is like `read`, but for a decoder without the head that it needs.

    A head that only shares the embedding needs no arrays, so it is always there.
    """

    def read_either(foreign: ForeignConfig) -> dict:
        ours = read(foreign)
        shares = ours["tied"] and not foreign.get("logits_scaling", None)  # of Granite
        if shares or not foreign.arrays or foreign.has(*WITH_HEAD):
            return ours
        return ours | dict(head=False, tied=True)

    return read_either


def read_gpt2(foreign: ForeignConfig) -> dict:
    foreign.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    foreign.require(add_cross_attention=False, num_attention_heads=foreign["n_head"])
    return dict(
        vocabulary=foreign["vocab_size"],
        d_model=foreign["n_embd"],
        d_ff=foreign.get("n_inner", 4 * foreign["n_embd"]),
        heads=foreign["n_head"],
        layers=foreign["n_layer"],
        norm="pre",
        activation=foreign.choice("activation_function", ACTIVATIONS),
        attention_bias=True,
        positions="learned",
        max_length=foreign["n_positions"],
        embedding_scale=False,
        epsilon=foreign.get("layer_norm_epsilon", 1e-5),
        tied=foreign.get("tie_word_embeddings", True),
        p_drop=foreign.get("resid_pdrop", 0.1),
        attention_dropout=foreign.get("attn_pdrop", 0.1),
        **special_ids(foreign, start=50256, end=50256),
    )


def write_gpt2(config) -> dict:
    """Return the config.json that describes one of our language models as a GPT-2."""
    return dict(
        model_type="gpt2",
        architectures=["GPT2LMHeadModel"],
        vocab_size=config.vocabulary,
        n_embd=config.d_model,
        n_inner=config.d_ff,
        n_head=config.heads,
        n_layer=config.layers,
        n_positions=config.max_length,
        activation_function=_foreign_activation(config),
        layer_norm_epsilon=config.epsilon,
        # GPT-2 does not scale embeddings, so scaled ones cannot share a table with the output.
        tie_word_embeddings=config.tied and not config.embedding_scale,
        **_dropouts(config, "resid_pdrop", "attn_pdrop") | {"embd_pdrop": config.p_drop},
        bos_token_id=config.start_id,
        eos_token_id=_foreign_end(config),
    )


def t5_factors(foreign: ForeignConfig) -> dict:
    # In newer files, tie_word_embeddings does not say it.
    tied = foreign.get("tie_word_embeddings", True)
    return dict(scaled=foreign.get("scale_decoder_outputs", tied))


def read_t5(foreign: ForeignConfig) -> dict:
    return _read_t5(foreign, "relu", t5_factors(foreign)["scaled"])


def _read_t5(foreign: ForeignConfig, inner: str, tied: bool) -> dict:
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
    heads = foreign["num_heads"]
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
        p_drop=foreign.get("dropout_rate", 0.1),
        attention_dropout=foreign.get("dropout_rate", 0.1),
        activation_dropout=foreign.get("dropout_rate", 0.1),
        **special_ids(foreign, padding=0, decoder_start=foreign.get("pad_token_id", 0), end=1),
    )


def read_mt5(foreign: ForeignConfig) -> dict:
    # Whatever a file says, the output has its own weights, and the logits no factor.
    return _read_t5(foreign, "gated-gelu", tied=False)


def read_umt5(foreign: ForeignConfig) -> dict:
    return _read_t5(foreign, "gated-gelu", t5_factors(foreign)["scaled"]) | dict(own_distances=True)


def encoder_of(read: Callable[[ForeignConfig], dict]) -> Callable[[ForeignConfig], dict]:
    """Return the reading of the encoder alone, given that of an encoder-decoder."""

    def read_encoder(foreign: ForeignConfig) -> dict:
        ours = read(foreign)
        vocabulary = dict(vocabulary=ours.pop("source_vocabulary"))
        pairs = "target_vocabulary", "tying", "decoder_layers"
        return vocabulary | {n: value for n, value in ours.items() if n not in pairs}

    return read_encoder


MASKED = "cls.predictions.", "lm_head.", "vocab_", "generator_", "predictions."
"""How the names of the arrays begin that only a model that fills holes has."""


def task_of(foreign: ForeignConfig) -> dict[str, str]:
    """What an encoder's head does, as its architectures say; "symbols" for the usual ones."""
    classes = str(foreign.get("architectures", ""))
    return dict(task=next((task for name, task in TASKS.items() if name in classes), "symbols"))


TASKS = {
    "ForSequenceClassification": "texts",
    "ForTokenClassification": "positions",
    "ForQuestionAnswering": "spans",
}
"""What the heads of these architectures classify."""


def _heads(foreign: ForeignConfig, activation: str = "tanh") -> dict:
    """The head on an encoder's stack, which its architectures and its arrays' names tell.

    Nothing in a bare model; its output then shares the embedding, as it has no weights of its own.
    `activation` is the one in the head of a classifier of texts.
    """
    task, classes = task_of(foreign)["task"], len(foreign.get("id2label", ["", ""]))
    if task == "texts":
        return dict(relations=classes, relation_activation=activation)
    if task != "symbols":
        return dict(labels=classes, output_bias=True)
    fills = not foreign.arrays or foreign.has(*MASKED)
    return dict(
        transform=fills,
        output_bias=fills,
        tied=not fills or foreign.get("tie_word_embeddings", True),
        relations=2 if foreign.has("cls.seq_relationship.weight") else None,
    )


def read_bert(foreign: ForeignConfig, activation: str = "tanh") -> dict:
    foreign.require(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return dict(
        vocabulary=foreign["vocab_size"],
        d_model=foreign["hidden_size"],
        d_ff=foreign["intermediate_size"],
        heads=foreign["num_attention_heads"],
        layers=foreign["num_hidden_layers"],
        activation=foreign.choice("hidden_act", ACTIVATIONS),
        attention_bias=True,
        positions="learned",
        max_length=foreign["max_position_embeddings"],
        segments=foreign.get("type_vocab_size", 2),
        embedding_scale=False,
        embedding_norm=True,
        epsilon=foreign.get("layer_norm_eps", 1e-12),
        **_heads(foreign, activation),
        p_drop=foreign.get("hidden_dropout_prob", 0.1),
        attention_dropout=foreign.get("attention_probs_dropout_prob", 0.1),
        **special_ids(foreign, padding=0),
    )


def read_roberta(foreign: ForeignConfig) -> dict:
    foreign.require(hidden_act="gelu")  # its head has no other
    padding = foreign.get("pad_token_id", 1)
    return read_bert(foreign) | dict(
        # A text's first position is padding + 1.
        max_length=foreign["max_position_embeddings"] - padding - 1,
        **special_ids(foreign, padding=1, start=0, end=2),
    )


def read_electra(foreign: ForeignConfig) -> dict:
    foreign.require(hidden_act="gelu")  # its head has no other
    size = foreign.get("embedding_size", 128)
    return read_bert(foreign, "gelu") | dict(
        embedding_size=None if size == foreign["hidden_size"] else size
    )


def read_albert(foreign: ForeignConfig) -> dict:
    foreign.require(num_hidden_groups=1, inner_group_num=1)
    return read_bert(foreign) | dict(
        embedding_size=foreign.get("embedding_size", 128),
        shared_layers=True,
        p_drop=foreign.get("hidden_dropout_prob", 0.0),
        attention_dropout=foreign.get("attention_probs_dropout_prob", 0.0),
        **special_ids(foreign, padding=0, start=2, end=3),
    )


def read_mpnet(foreign: ForeignConfig) -> dict:
    foreign.require(relative_attention_num_buckets=32, pad_token_id=1)  # whatever a file says
    relative = dict(mixers="relative", distance_buckets=32, farthest=128, segments=None)
    return read_roberta(foreign) | relative


def read_distilbert(foreign: ForeignConfig) -> dict:
    return dict(
        vocabulary=foreign["vocab_size"],
        d_model=foreign["dim"],
        d_ff=foreign["hidden_dim"],
        heads=foreign["n_heads"],
        layers=foreign["n_layers"],
        activation=foreign.choice("activation", ACTIVATIONS),
        attention_bias=True,
        positions="learned",
        max_length=foreign["max_position_embeddings"],
        embedding_scale=False,
        embedding_norm=True,
        epsilon=1e-12,
        **_heads(foreign, "relu"),
        p_drop=foreign.get("dropout", 0.1),
        attention_dropout=foreign.get("attention_dropout", 0.1),
        **special_ids(foreign, padding=0),
    )


def read_vit(foreign: ForeignConfig, inner: int | None = None, epsilon: float = 1e-12) -> dict:
    foreign.require(qkv_bias=True)
    is_bare = foreign.arrays and not foreign.has("classifier.", "cls_classifier.")
    return dict(
        height=foreign["image_size"],
        width=foreign["image_size"],
        channels=foreign.get("num_channels", 3),
        classes=None if is_bare else len(foreign.get("id2label", ["", ""])),
        patch=foreign["patch_size"],
        d_model=foreign["hidden_size"],
        d_ff=foreign["intermediate_size"] if inner is None else inner,
        heads=foreign["num_attention_heads"],
        layers=foreign["num_hidden_layers"],
        norm="pre",
        activation=foreign.choice("hidden_act", ACTIVATIONS),
        attention_bias=True,
        epsilon=foreign.get("layer_norm_eps", epsilon),
        p_drop=foreign.get("hidden_dropout_prob", 0.0),
        attention_dropout=foreign.get("attention_probs_dropout_prob", 0.0),
    )


def read_deit(foreign: ForeignConfig) -> dict:
    has_both = not foreign.arrays or foreign.has("distillation_classifier.")
    return read_vit(foreign) | dict(distilled=True, distilled_head=has_both)


def read_dinov2(foreign: ForeignConfig) -> dict:
    inner = int(foreign["hidden_size"] * foreign.get("mlp_ratio", 4))
    gated = foreign.get("use_swiglu_ffn", False)
    inner = (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner
    ours = read_vit(foreign, inner, 1e-6) | dict(norm="pre_scaled", mean_head=True)
    return ours | (dict(activation="swiglu") if gated else {})


CLIP_TEXT = dict(vocab_size=49408, hidden_size=512, intermediate_size=2048, num_hidden_layers=12)
CLIP_TEXT |= dict(num_attention_heads=8, max_position_embeddings=77, eos_token_id=49407)
CLIP_VISION = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12)
CLIP_VISION |= dict(num_attention_heads=12, image_size=224, patch_size=32)


def read_clip(foreign: ForeignConfig) -> dict:
    def tower(name: str, defaults: dict) -> ForeignConfig:
        values = foreign.get(f"{name}_config", {}) | foreign.get(f"{name}_config_dict", {})
        return ForeignConfig(dict(hidden_act="quick_gelu") | defaults | values)

    text, image = tower("text", CLIP_TEXT), tower("vision", CLIP_VISION)
    size, end = text["vocab_size"], text["eos_token_id"]
    texts = dict(
        vocabulary=size,
        d_model=text["hidden_size"],
        d_ff=text["intermediate_size"],
        heads=text["num_attention_heads"],
        layers=text["num_hidden_layers"],
        norm="pre",
        activation=text.choice("hidden_act", ACTIVATIONS),
        attention_bias=True,
        positions="learned",
        max_length=text["max_position_embeddings"],
        embedding_scale=False,
        epsilon=text.get("layer_norm_eps", 1e-5),
        head=False,
        p_drop=0.0,
        attention_dropout=text.get("attention_dropout", 0.0),
        end_id=size - 1 if end == 2 else end,  # the first files say 2, but mean the last id
    )
    images = read_vit(image, epsilon=1e-5) | dict(
        classes=None,
        patch_bias=False,
        embedding_norm=True,
        attention_dropout=image.get("attention_dropout", 0.0),
    )
    towers = dict(texts=LanguageModel.Config(**texts), images=VisionTransformer.Config(**images))
    return towers | dict(width=foreign.get("projection_dim", 512))


def _dropouts(config, *names: str) -> dict:
    rates = config.p_drop, config.attention_dropout, config.activation_dropout
    return dict(zip(names, rates, strict=False))


def _foreign_end(config) -> int | list[int] | None:
    ends = config.special.ends
    return ends if len(ends) > 1 else config.end_id


def _foreign_activation(config) -> str:
    names = {ours: foreign for foreign, ours in ACTIVATIONS.items()}
    if config.activation not in names:
        rule = f"the activation of an exported model is one of {', '.join(names)}"
        raise InputError(rule, config.activation, "Train with --activation relu.")
    return names[config.activation]


WRITERS = {Transformer: write_marian, LanguageModel: write_gpt2}
"""Our models that can be exported, each with the function that writes its config.json."""
