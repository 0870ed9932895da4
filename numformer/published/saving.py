"""A model of ours as it would be published: a folder that Hugging Face's transformers opens."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from numformer.data.subwords import Subwords
from numformer.data.tokenizers import Pieces, Tokenizer
from numformer.errors import InputError
from numformer.generation.text import Text
from numformer.generation.transduction import Transduction
from numformer.models import LanguageModel, Model, Transformer
from numformer.published.configs import ACTIVATIONS, Said, ends_of, with_ends
from numformer.published.files import CONFIG, ONE
from numformer.published.kinds import KINDS, Kind
from numformer.published.loading import GENERATION, PICTURES, their_arrays
from numformer.published.vocabularies import TARGET_IDS, TOKENIZER
from numformer.runs.files import write_atomically

ADDED = "attention_bias", "output_bias", "feed_forward_bias"
"""What their model always has; ours gets zeros for it where it has none."""


def _dropouts(config, *names: str) -> dict:
    rates = config.p_drop, config.attention_dropout, config.activation_dropout
    return dict(zip(names, rates, strict=False))


def as_marian(config) -> dict:
    """What Marian's config.json says of such a Transformer."""
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
        activation_function=_their_activation(config),
        scale_embedding=config.embedding_scale,
        max_position_embeddings=1024,
        is_encoder_decoder=True,
        share_encoder_decoder_embeddings=config.tying == "all",
        tie_word_embeddings=config.tying != "none",
        **_dropouts(config, "dropout", "attention_dropout", "activation_dropout"),
        pad_token_id=config.padding_id,
        decoder_start_token_id=config.start_id,
        bos_token_id=None,
        eos_token_id=_their_end(config),
        forced_eos_token_id=None,
        bad_words_ids=[[n] for n in config.special.unwritten],
    )


def as_gpt2(config) -> dict:
    """What GPT-2's config.json says of such a language model."""
    return dict(
        model_type="gpt2",
        architectures=["GPT2LMHeadModel"],
        vocab_size=config.vocabulary,
        n_embd=config.d_model,
        n_inner=config.d_ff,
        n_head=config.heads,
        n_layer=config.layers,
        n_positions=config.max_length,
        activation_function=_their_activation(config),
        layer_norm_epsilon=config.epsilon,
        # Where ours multiplies what it looks up by sqrt(d_model), theirs has two tables.
        tie_word_embeddings=config.tied and not config.embedding_scale,
        **_dropouts(config, "resid_pdrop", "attn_pdrop") | {"embd_pdrop": config.p_drop},
        bos_token_id=config.start_id,
        eos_token_id=_their_end(config),
    )


def _their_end(config) -> int | list[int] | None:
    ends = config.special.ends
    return ends if len(ends) > 1 else config.end_id


def _their_activation(config) -> str:
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if config.activation not in names:
        rule = f"a model is written whose activation is {', '.join(names)}"
        raise InputError(rule, config.activation, "Train with --activation relu.")
    return names[config.activation]


WRITTEN = {Transformer: as_marian, LanguageModel: as_gpt2}
"""As what our own models are written."""


def save_published(folder: Path, model: Model, metadata: dict, text: Text | None = None) -> str:
    """Write a model as its kind is published; the kind that it becomes.

    What was published is written as it was, by the config.json in its `metadata`; a Transformer of
    ours becomes a Marian, a language model a GPT-2. Raises InputError for another, and for a model
    that the kind has no room for.
    """
    said, generation = metadata.get("published") or _said(model), metadata.get("generation", {})
    kind = KINDS[said["model_type"]]
    arrays = _arrays(model, kind, with_ends(said, generation))
    folder.mkdir(parents=True, exist_ok=True)
    made = their_arrays(model, kind, arrays)
    made = {name: np.ascontiguousarray(array) for name, array in made.items()}
    write_atomically(folder / ONE, safetensors.numpy.save(made, metadata={"format": "pt"}))
    _write(folder / CONFIG, said)
    if "pictures" in metadata:
        _write(folder / PICTURES, metadata["pictures"])
    if text:
        _save_tokenizer(folder, text, said)
    if isinstance(text, Transduction):
        how = {n: v for n, v in generation.items() if n != "max_new_tokens"}  # but max_length
        generation = how | _generation(text, with_ends(said, generation))
    if generation:
        _write(folder / GENERATION, generation)
    return said["model_type"]


def _said(model: Model) -> dict:
    """The config.json of a model of ours."""
    as_theirs = next((of for kind, of in WRITTEN.items() if type(model) is kind), None)
    if as_theirs is None:
        names = " or a ".join(kind.__name__ for kind in WRITTEN)
        rule = f"what is written as a published model is one that was published, or a {names}"
        raise InputError(rule, f"a {type(model).__name__}", "Name the run of such a model.")
    return as_theirs(model.config)


def _arrays(model: Model, kind: Kind, said: dict) -> dict[str, np.ndarray]:
    """Our arrays by name, with zeros for the biases that their model has and ours has not.

    Raises InputError where something else is not as their model has it.
    """
    relates = getattr(model.config, "relations", None)
    beside = ["cls.seq_relationship.weight"] * bool(relates)
    config = kind.model.Config(**kind.config(Said(said, beside)))
    arrays = model.state_dict()
    different = [
        field.name
        for field in fields(config)
        if getattr(config, field.name) != getattr(model.config, field.name)
    ]
    free = {"max_length", "checkpointing", "unwritten", "start_id", "decoder_layers"}
    if kind.model is LanguageModel:
        free |= {"padding_id", "end_id", "other_ends", "embedding_scale", "tied"}
    places = ("sinusoidal", "sinusoidal_halves")
    for name in different:
        ours, theirs = getattr(model.config, name), getattr(config, name)
        turned = name == "positions" and (ours, theirs) == places
        added = name in ADDED and not ours
        if not (turned or added or name in free or "drop" in name):
            raise InputError(
                f"a model is written as {said['model_type']} with {name} {theirs}",
                str(ours),
                f"Train a model with {name} {theirs}.",
            )
    if "positions" in different and model.config.positions == places[0]:
        arrays = {name: _sines_first(name, array) for name, array in arrays.items()}
    if "embedding_scale" in different:
        table = arrays["input.embedding.weight"]
        arrays = {"output.weight": table} | arrays
        arrays["input.embedding.weight"] = table * np.sqrt(config.d_model, dtype=table.dtype)
    twin = kind.model(config).named_parameters()
    dtype = next(iter(arrays.values())).dtype
    return {
        name: arrays[name] if name in arrays else np.zeros(parameter.shape, dtype)
        for name, parameter in twin.items()
    }


def _sines_first(name: str, array: np.ndarray) -> np.ndarray:
    """An array of a model with sinusoids, for one that has all sines before all cosines.

    Its dimensions have another order then, in all that a residual connection joins.
    """
    *_, part, what = name.split(".")
    if part in ("query", "key", "value", "inner"):  # from those dimensions
        return np.concatenate([array[::2], array[1::2]]) if what == "weight" else array
    if name == "output.bias":
        return array
    return np.concatenate([array[..., ::2], array[..., 1::2]], axis=-1)


def _save_tokenizer(folder: Path, text: Text, said: dict) -> None:
    """The files of the tokenizer."""
    vocabulary = text.read
    if isinstance(vocabulary, Tokenizer):
        write_atomically(folder / TOKENIZER, vocabulary.model)
    sides: tuple[Any, Any] = vocabulary, getattr(text, "target", vocabulary)
    cut = all(isinstance(side, Subwords | Pieces) for side in sides)
    if cut and said["model_type"] == "marian":
        for name, side in zip(("source", "target"), sides, strict=True):
            write_atomically(folder / f"{name}.spm", side.model)
        _write(folder / "vocab.json", _ids(vocabulary))
        separate = not said.get("share_encoder_decoder_embeddings", True)
        if separate:
            _write(folder / TARGET_IDS, _ids(sides[1]))
        marks = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
        marks |= _marks(*sides, said)
        _write(folder / "tokenizer_config.json", marks)


def _generation(text: Transduction, said: dict) -> dict[str, Any]:
    """How a model writes, as generation_config.json says it."""
    names = "bad_words_ids", "decoder_start_token_id", "eos_token_id", "pad_token_id"
    told = {name: said[name] for name in names if said.get(name) is not None}
    told |= dict(max_length=text.max_length + 1, num_beams=text.beam)
    return told | (dict(length_penalty=text.length_penalty) if text.beam > 1 else {})


def _ids(vocabulary) -> dict[str, int]:
    if isinstance(vocabulary, Pieces):
        return vocabulary.ids
    return {name: n for n, name in enumerate(vocabulary.decode(range(len(vocabulary))))}


def _marks(vocabulary, target, said: dict[str, Any]) -> dict[str, str]:
    names = {n: name for side in (target, vocabulary) for name, n in _ids(side).items()}
    end = ends_of(Said(said))[0]
    unknown = vocabulary.unknown if vocabulary.unknown is not None else end
    ids = {"eos": end, "pad": said["pad_token_id"]}
    ids |= {"unk": unknown, "bos": said["decoder_start_token_id"]}
    return {f"{mark}_token": names[n] for mark, n in ids.items()}


def _write(path: Path, told: dict) -> None:
    write_atomically(path, json.dumps(told, indent=1).encode() + b"\n")
