"""Export: write a model as a folder that Hugging Face's transformers opens."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from numformer.data.subwords import Subwords
from numformer.data.tokenizers import MarianVocabulary, Tokenizer
from numformer.errors import InputError
from numformer.generation.continuation import Continuation
from numformer.generation.reading import Reading
from numformer.generation.text_pipeline import TextPipeline
from numformer.generation.transduction import Transduction
from numformer.models import DualEncoder, LanguageModel, Model, Transformer
from numformer.published.configs import ACTIVATIONS, ForeignConfig, end_ids, with_generation_ids
from numformer.published.files import CONFIG, GENERATION, PREPROCESSOR, WEIGHTS
from numformer.published.kinds import Kind, kind_of
from numformer.published.sentences import POOLING, pooling_files
from numformer.published.vocabularies import TARGET_IDS, TOKENIZER
from numformer.runs.files import write_atomically

BIASES = "attention_bias", "output_bias", "feed_forward_bias"
"""Biases that the published kind always has; they are zero for a model of ours without them."""


def save_published(
    folder: Path, model: Model, metadata: dict, text: TextPipeline | None = None
) -> str:
    """Write a model in the layout of a published kind; return the name of the kind.

    A model loaded from a published folder keeps its kind and config.json, which is in `metadata`. A
    Transformer of ours is saved as a Marian, a LanguageModel as a GPT-2. Raises InputError for any
    other model, and for parts that the kind does not have.
    """
    config, generation = metadata.get("published") or _config(model), metadata.get("generation", {})
    kind, name = kind_of(config), config["model_type"]
    ours = _parameters(model, kind, with_generation_ids(config, generation))
    folder.mkdir(parents=True, exist_ok=True)
    arrays = kind.table_for(model.config, config).foreign_arrays(ours, model.config)
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    write_atomically(folder / WEIGHTS, safetensors.numpy.save(arrays, metadata={"format": "pt"}))
    _write_json(folder / CONFIG, config)
    if "pictures" in metadata:
        _write_json(folder / PREPROCESSOR, metadata["pictures"])
    if isinstance(text, Reading) and not isinstance(model, DualEncoder):
        (folder / POOLING).mkdir(exist_ok=True)
        for path, values in pooling_files(text, model.config.d_model).items():
            _write_json(folder / path, values)
    if text:
        _save_tokenizer(folder, text, config)
    if isinstance(text, Transduction):
        # max_length replaces max_new_tokens
        settings = {n: v for n, v in generation.items() if n != "max_new_tokens"}
        generation = settings | _generation(text, with_generation_ids(config, generation))
    if isinstance(text, Continuation) and text.temperature is not None:
        generation = generation | {"do_sample": text.temperature > 0}
        if text.temperature:  # transformers has a default top_k; 0 turns it off
            generation |= {"temperature": text.temperature, "top_k": 0}
    if generation:
        _write_json(folder / GENERATION, generation)
    return name


def _config(model: Model) -> dict:
    """Return the config.json for one of our models."""
    if type(model) not in WRITERS:
        names = " or a ".join(kind.__name__ for kind in WRITERS)
        rule = f"an exported model was loaded from a published folder, or is a {names}"
        raise InputError(rule, f"a {type(model).__name__}", "Name the run of such a model.")
    return WRITERS[type(model)](model.config)


def _parameters(model: Model, kind: Kind, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Our parameters by name, converted for a model of this config.json.

    Biases that only the published model has are zeros. Raises InputError for other differences,
    except for a few settings that need no conversion, such as dropout rates.
    """
    arrays = model.state_dict()
    entries = kind.table_for(model.config, values).written(arrays)
    names = [name for entry in entries for name in entry.foreign]
    config = kind.model.Config(**kind.config(ForeignConfig(values, names)))
    different = [
        field.name
        for field in fields(config)
        if getattr(config, field.name) != getattr(model.config, field.name)
    ]
    free = {"max_length", "checkpointing", "unwritten", "start_id", "decoder_layers"}
    if kind.model is LanguageModel:
        free |= {"padding_id", "end_id", "other_ends", "embedding_scale", "tied"}
    sinusoids = "sinusoidal", "sinusoidal_halves"
    received, requirements = [], []
    for name in different:
        ours, foreign = getattr(model.config, name), getattr(config, name)
        reordered = (ours, foreign) == sinusoids
        zero = name in BIASES and not ours
        if not (reordered or zero or name in free or "drop" in name):
            received.append(f"{name} {ours}")
            requirements.append(f"{name} {foreign}")
    if requirements:
        rule = f"a model exported as {values['model_type']} has {', '.join(requirements)}"
        fix = f"Train a model with {', '.join(requirements)}."
        raise InputError(rule, ", ".join(received), fix)
    if "positions" in different:
        arrays = {name: _sines_first(name, array) for name, array in arrays.items()}
    if "embedding_scale" in different:
        table = arrays["input.embedding.weight"]
        arrays = {"output.weight": table} | arrays
        arrays["input.embedding.weight"] = table * config.d_model**0.5
    parameters = kind.model(config).named_parameters()
    dtype = next(iter(arrays.values())).dtype
    return {
        name: arrays[name] if name in arrays else np.zeros(parameter.shape, dtype)
        for name, parameter in parameters.items()
    }


def _sines_first(name: str, array: np.ndarray) -> np.ndarray:
    """Reorder a parameter of a model whose positions alternate sines and cosines: sines first.

    Residual connections add up all layers' outputs, so every axis of size d_model is reordered.
    """
    *_, part, kind = name.split(".")
    if part in ("query", "key", "value", "inner"):  # their inputs are reordered
        return np.concatenate([array[::2], array[1::2]]) if kind == "weight" else array
    if name == "output.bias":
        return array
    return np.concatenate([array[..., ::2], array[..., 1::2]], axis=-1)


def _save_tokenizer(folder: Path, text: TextPipeline, config: dict) -> None:
    """Write the tokenizer files that this kind of model has for these vocabularies, if any."""
    source: Any = text.input_vocabulary
    target = getattr(text, "target", source)
    if isinstance(source, Tokenizer):
        write_atomically(folder / TOKENIZER, source.model)
    by_sentencepiece = all(isinstance(v, Subwords | MarianVocabulary) for v in (source, target))
    if by_sentencepiece and config["model_type"] == "marian":
        write_atomically(folder / "source.spm", source.model)
        write_atomically(folder / "target.spm", target.model)
        _write_json(folder / "vocab.json", _ids(source))
        separate = not config.get("share_encoder_decoder_embeddings", True)
        if separate:
            _write_json(folder / TARGET_IDS, _ids(target))
        settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
        _write_json(folder / "tokenizer_config.json", settings | _marks(source, target, config))


def _generation(text: Transduction, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pipeline for generation_config.json."""
    names = "bad_words_ids", "decoder_start_token_id", "eos_token_id", "pad_token_id"
    settings = {name: config[name] for name in names if config.get(name) is not None}
    settings |= dict(max_length=text.max_length + 1, num_beams=text.beam)
    return settings | (dict(length_penalty=text.length_penalty) if text.beam > 1 else {})


def _ids(vocabulary) -> dict[str, int]:
    if isinstance(vocabulary, MarianVocabulary):
        return vocabulary.ids
    return {name: n for n, name in enumerate(vocabulary.decode(range(len(vocabulary))))}


def _marks(source, target, config: dict[str, Any]) -> dict[str, str]:
    """The symbols of the special ids by name, such as "eos_token"."""
    names = {n: name for side in (target, source) for name, n in _ids(side).items()}
    end = end_ids(ForeignConfig(config))[0]
    unknown = source.unknown if source.unknown is not None else end
    ids = {"eos": end, "pad": config["pad_token_id"]}
    ids |= {"unk": unknown, "bos": config["decoder_start_token_id"]}
    return {f"{mark}_token": names[n] for mark, n in ids.items()}


def _write_json(path: Path, values: Mapping[str, Any] | list) -> None:
    write_atomically(path, json.dumps(values, indent=1).encode() + b"\n")


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
