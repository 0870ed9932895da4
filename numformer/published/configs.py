"""The configs of published models: what a config.json says, as one of ours."""

from collections.abc import Container, Mapping
from typing import Any

from numformer.errors import InputError

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
GATED = {"swish": "swiglu", "gelu_tanh": "geglu"}
GATES = {theirs: GATED[ours] for theirs, ours in ACTIVATIONS.items() if ours in GATED}


class Said:
    """What a config.json says; what is asked for and not there raises InputError.

    `arrays` are the names of the arrays beside it.
    """

    def __init__(self, values: Mapping[str, Any], arrays: Container[str] = ()):
        self.values, self.arrays = values, arrays

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            rule = "a config.json says how large the model is"
            raise InputError(rule, f"none that says {name}", "Take the one of the weights.")
        return self.values[name]

    def get(self, name: str, default: Any) -> Any:
        """What it says, or the default where that is nothing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def only(self, **usual: Any) -> None:
        """Raise InputError where a setting is not as usual, which numformer then does not have."""
        for name, value in usual.items():
            if (said := self.get(name, value)) != value:
                raise InputError(
                    f"a model of the kind {self.values['model_type']} has {name} {value!r}",
                    repr(said),
                    "numformer has no such part: name another model.",
                )

    def alike(self, *names: str) -> Any:
        """What several settings say, which must be the same."""
        values = {name: self[name] for name in names}
        if len({*map(str, values.values())}) > 1:
            rule = f"{' and '.join(names)} are the same"
            raise InputError(rule, f"{values}", "numformer has one for both: name another model.")
        return values[names[0]]

    def choice(self, name: str, known: Mapping[str, str]) -> str:
        """Our name for what it names."""
        if (said := self[name]) not in known:
            rule = f"{name} is one of {', '.join(known)}"
            raise InputError(rule, repr(said), "numformer has no other: name another model.")
        return known[said]


def _special(said: Said, unwritten: str = "", **usual: int) -> dict:
    """Their ids of padding, start and ends, the usual ones where nothing is said."""
    ends = ends_of(said, usual.get("end"))
    padding = said.get("pad_token_id", usual.get("padding"))
    start = said.get("bos_token_id", usual.get("start"))
    return dict(
        padding_id=padding,
        start_id=said.get("decoder_start_token_id", start),
        end_id=next(iter(ends), None),
        unwritten=unwritten,
        other_ends=",".join(map(str, ends[1:])),
    )


def ends_of(said: Said, usual: int | None = None) -> list[int]:
    """Their ids that end a text, of which the first one also closes what is read."""
    ends = said.get("eos_token_id", usual)
    return ends if isinstance(ends, list) else [n for n in [ends] if n is not None]


def with_ends(said: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the ends of the generation_config.json beside it, which go before its."""
    ends = generation.get("eos_token_id")
    return {**said} if ends is None else {**said, "eos_token_id": ends}


def marian(said: Said) -> dict:
    said.only(normalize_before=False, normalize_embedding=False, add_final_layer_norm=False)
    said.only(static_position_embeddings=True)
    shared = said.get("share_encoder_decoder_embeddings", True)
    tied = said.get("tie_word_embeddings", True)
    if shared:
        said.only(tie_word_embeddings=True)
    banned = [word[0] for word in said.get("bad_words_ids", []) if len(word) == 1]
    size = said["vocab_size"]
    return dict(
        source_vocabulary=size,
        target_vocabulary=size if shared else said.get("decoder_vocab_size", size),
        tying="all" if shared else "target" if tied else "none",
        d_model=said["d_model"],
        d_ff=said.alike("encoder_ffn_dim", "decoder_ffn_dim"),
        heads=said.alike("encoder_attention_heads", "decoder_attention_heads"),
        layers=said["encoder_layers"],
        decoder_layers=said["decoder_layers"],
        activation=said.choice("activation_function", ACTIVATIONS),
        attention_bias=True,
        output_bias=True,
        positions="sinusoidal_halves",
        embedding_scale=said.get("scale_embedding", False),
        p_drop=said.get("dropout", 0.1),
        attention_dropout=said.get("attention_dropout", 0.0),
        activation_dropout=said.get("activation_dropout", 0.0),
        # What it writes begins with padding, unless the config says otherwise.
        **_special(said, ",".join(map(str, {said["pad_token_id"], *banned})), end=0)
        | {"start_id": said.get("decoder_start_token_id", said["pad_token_id"])},
    )


def gpt2(said: Said) -> dict:
    said.only(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    said.only(add_cross_attention=False)
    return dict(
        vocabulary=said["vocab_size"],
        d_model=said["n_embd"],
        d_ff=said.get("n_inner", 4 * said["n_embd"]),
        heads=said["n_head"],
        layers=said["n_layer"],
        norm="pre",
        activation=said.choice("activation_function", ACTIVATIONS),
        attention_bias=True,
        positions="learned",
        max_length=said["n_positions"],
        embedding_scale=False,
        epsilon=said.get("layer_norm_epsilon", 1e-5),
        tied=said.get("tie_word_embeddings", True),
        p_drop=said.get("resid_pdrop", 0.1),
        attention_dropout=said.get("attn_pdrop", 0.1),
        **_special(said, start=50256, end=50256),
    )


def llama(said: Said) -> dict:
    heads, d_model = said["num_attention_heads"], said["hidden_size"]
    groups = said.get("num_key_value_heads", heads)
    rope = said.get("rope_parameters", said.get("rope_scaling", {}))
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        rule, fix = "rotary positions are not scaled", "Name another model: numformer has no such."
        raise InputError(rule, f"rope_scaling {kind!r}", fix)
    size = said.get("head_dim", d_model // heads)
    return dict(
        vocabulary=said["vocab_size"],
        d_model=d_model,
        d_ff=said["intermediate_size"],
        heads=heads,
        d_k=size,
        d_v=size,
        layers=said["num_hidden_layers"],
        key_value_heads=None if groups == heads else groups,
        norm="pre",
        normalization="rms",
        activation=said.choice("hidden_act", GATES),
        attention_bias=said.get("attention_bias", False),
        feed_forward_bias=said.get("mlp_bias", False),
        positions="rotary",
        rotary_base=float(rope.get("rope_theta", said.get("rope_theta", 10000.0))),
        embedding_scale=False,
        epsilon=said.get("rms_norm_eps", 1e-6),
        tied=said.get("tie_word_embeddings", False),
        p_drop=0.0,
        attention_dropout=said.get("attention_dropout", 0.0),
        **_special(said, start=1, end=2),
    )


def t5(said: Said) -> dict:
    said.only(is_decoder=False)
    # A later form of this config names by the scale whether the output has weights of its own.
    tied = said.get("scale_decoder_outputs", said.get("tie_word_embeddings", True))
    size = said["vocab_size"]
    inner = said.get("feed_forward_proj", "relu")
    gated = inner.startswith("gated-")
    named = Said({"feed_forward_proj": inner.removeprefix("gated-")})
    # "gated-gelu" has always meant the approximation by tanh.
    act = "gelu_tanh" if inner == "gated-gelu" else named.choice("feed_forward_proj", ACTIVATIONS)
    return dict(
        source_vocabulary=size,
        target_vocabulary=size,
        tying="all" if tied else "inputs",
        d_model=said["d_model"],
        d_ff=said["d_ff"],
        heads=said["num_heads"],
        d_k=said["d_kv"],
        d_v=said["d_kv"],
        layers=said["num_layers"],
        decoder_layers=said.get("num_decoder_layers", said["num_layers"]),
        mixers="relative",
        distance_buckets=said.get("relative_attention_num_buckets", 32),
        farthest=said.get("relative_attention_max_distance", 128),
        norm="pre",
        normalization="rms",
        activation=GATED[act] if gated else act,
        feed_forward_bias=False,
        positions="none",
        embedding_scale=False,
        epsilon=said.get("layer_norm_epsilon", 1e-6),
        p_drop=said.get("dropout_rate", 0.1),
        attention_dropout=said.get("dropout_rate", 0.1),
        activation_dropout=said.get("dropout_rate", 0.1),
        **_special(said, padding=0, end=1)
        | {"start_id": said.get("decoder_start_token_id", said.get("pad_token_id", 0))},
    )


def bert(said: Said) -> dict:
    said.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return dict(
        vocabulary=said["vocab_size"],
        d_model=said["hidden_size"],
        d_ff=said["intermediate_size"],
        heads=said["num_attention_heads"],
        layers=said["num_hidden_layers"],
        activation=said.choice("hidden_act", ACTIVATIONS),
        attention_bias=True,
        positions="learned",
        max_length=said["max_position_embeddings"],
        segments=said.get("type_vocab_size", 2),
        relations=2 if "cls.seq_relationship.weight" in said.arrays else None,
        transform=True,
        output_bias=True,
        embedding_scale=False,
        embedding_norm=True,
        epsilon=said.get("layer_norm_eps", 1e-12),
        tied=said.get("tie_word_embeddings", True),
        p_drop=said.get("hidden_dropout_prob", 0.1),
        attention_dropout=said.get("attention_probs_dropout_prob", 0.1),
        **_special(said, padding=0),
    )


def vit(said: Said) -> dict:
    said.only(qkv_bias=True)
    return dict(
        height=said["image_size"],
        width=said["image_size"],
        channels=said.get("num_channels", 3),
        classes=len(said.get("id2label", {0: "", 1: ""})),
        patch=said["patch_size"],
        d_model=said["hidden_size"],
        d_ff=said["intermediate_size"],
        heads=said["num_attention_heads"],
        layers=said["num_hidden_layers"],
        norm="pre",
        activation=said.choice("hidden_act", ACTIVATIONS),
        attention_bias=True,
        epsilon=said.get("layer_norm_eps", 1e-12),
        p_drop=said.get("hidden_dropout_prob", 0.0),
        attention_dropout=said.get("attention_probs_dropout_prob", 0.0),
    )
