"""Load a published model: its config, its weights and its text pipeline."""

import itertools
import math
import reprlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from numformer.errors import InputError
from numformer.generation.beam import LARGEST_ALPHA
from numformer.generation.text_pipeline import MAX_SYMBOLS, TextPipeline
from numformer.layer import pack
from numformer.models import LanguageModel, Model
from numformer.published.configs import ForeignConfig, with_generation_ids
from numformer.published.files import CONFIG, DTYPES, GENERATION, PREPROCESSOR, Arrays, read_json
from numformer.published.generation import notes
from numformer.published.kinds import KINDS, REFUSED, Kind, kind_of, name_of_class, reading
from numformer.published.sentences import MODULES
from numformer.published.table import Entry, Table
from numformer.published.vocabularies import M2M100, TOKENIZER

PUBLISHED_METADATA = "published", "generation", "pictures"
"""The names in a run's metadata under which a published model's JSON files are kept."""

TOKENIZER_FILES = TOKENIZER, "source.spm", "merges.txt", "vocab.txt", "spiece.model", M2M100[0]


INVALID = TypeError, ValueError, ArithmeticError, MemoryError, AttributeError, LookupError
"""What invalid values in JSON files raise."""


class Zeros(np.random.Generator):
    """A generator that returns zeros, at no cost, for weights that are overwritten later."""

    def uniform(self, low, high, size) -> Any:  # type: ignore[override]
        return np.broadcast_to(0.0, size)

    def normal(self, loc, scale, size) -> Any:  # type: ignore[override]
        return np.broadcast_to(0.0, size)


def load_published(folder: Path) -> tuple[Model, dict]:
    """Return a folder's model, on the host, and its JSON files and text pipeline as metadata.

    There is no pipeline if the folder has no tokenizer. Raises InputError for an incomplete folder
    and for parts that numformer lacks; warns about generation settings that it lacks.
    """
    kind, values = read_kind(folder / CONFIG)
    arrays = Arrays(folder)
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}

    def build_config():
        foreign = ForeignConfig(with_generation_ids(values, generation), arrays)
        return kind.model.Config(**_valid_ids(folder, kind.config(foreign)))

    config = require_valid(folder, build_config)
    _require_ids(folder, config)
    model = _model(folder, kind, config, arrays, values)
    metadata = {"published": {**values}}
    if generation:
        metadata["generation"] = generation
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        settings = {name: value for name, value in generation.items() if value is not None}
        foreign = ForeignConfig({**values, **settings})
        if hasattr(model, "step"):
            for note in notes(folder, foreign, generation, isinstance(model, LanguageModel)):
                warnings.warn(note, stacklevel=5)
        new_text = reading if (folder / MODULES).is_file() else kind.text
        if text := require_valid(folder, lambda: new_text(folder, config, foreign)):
            _require_limits(folder, text, config, foreign)
            metadata["text"] = text.description()
    if (folder / PREPROCESSOR).is_file():
        metadata["pictures"] = read_json(folder / PREPROCESSOR)
    return model, metadata


def read_kind(path: Path) -> tuple[Kind, dict[str, Any]]:
    """The kind of model and the content of a config.json. Raises InputError for an unknown kind."""
    values = read_json(path)
    name = values.setdefault("model_type", name_of_class(values.get("architectures")))
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(
            f"a published model is of a kind that numformer supports: {', '.join(KINDS)}",
            f"model_type {name!r} in {path}",
            REFUSED.get(str(name), "Name the folder of another model."),
        )
    if quantised := values.get("quantization_config"):
        raise InputError(
            f"published weights have one of the types {', '.join(DTYPES)}",
            f"{path} with the quantization_config {reprlib.repr(quantised)}",
            "Take the model without quantisation.",
        )
    return kind_of(values), values


def require_valid(folder: Path, build: Callable) -> Any:
    """Return build(). Raises InputError if the JSON files that it reads have invalid values."""
    try:
        return build()
    except InputError:
        raise
    except INVALID as problem:
        rule = "the .json files of a published model are unchanged"
        raise InputError(rule, f"{folder} ({problem})", "Download them again.") from None


def _valid_ids(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config, less any end id outside the vocabulary; a warning names one.

    A start id outside the vocabulary is left out, too, unless a decoder begins with it.
    """
    size = fields.get("target_vocabulary", fields.get("vocabulary"))
    ends = [fields.get("end_id"), *fields.get("other_ends", ())]
    starts = [] if "decoder_layers" in fields else [fields.get("start_id")]
    for name, verb, ids in ("start_id", "starts", starts), ("end_id", "ends", ends):
        if outside := [n for n in ids if n is not None and n >= size]:
            words = f"{folder} {verb} a text with {outside[0]}, which is not an id below {size}"
            warnings.warn(f"{words}: it is ignored", stacklevel=8)
            first, *others = [n for n in ids if n not in outside] or [None]
            fields = fields | {name: first} | (dict(other_ends=others) if ids is ends else {})
    return fields


def _require_ids(folder: Path, config) -> None:
    """Raise InputError for a special id outside the vocabulary."""
    padding, start, end, *others = config.special
    source, target = [padding, end], [padding, start, end, *itertools.chain(*others)]
    for name, ids in (("source_", source), ("target_", target), ("", target)):
        size = getattr(config, f"{name}vocabulary", None)
        if outside := [n for n in ids if n is not None and size and n >= size]:
            raise InputError(
                f"special ids are below the size of the vocabulary, {size}",
                f"{outside[0]} in {folder / CONFIG}",
                "Take the config.json that belongs to the weights.",
            )


def _require_limits(folder: Path, text: TextPipeline, config, foreign: ForeignConfig) -> None:
    """Raise InputError for settings of generation that a pipeline cannot have."""
    if not text.fits(config):
        names = ["num_beams", "max_length", "max_new_tokens", "length_penalty", "temperature"]
        names.append("early_stopping")
        received = [f"{n} {foreign.values[n]!r}" for n in names if n in foreign.values]
        raise InputError(
            f"num_beams and max_new_tokens are from 1 to {MAX_SYMBOLS} (max_length is one more), "
            f"length_penalty from 0 to {LARGEST_ALPHA}, temperature is at least 0, and "
            'early_stopping is true, false or "never"',
            f"{', '.join(received)} in {folder}",
            f"Change {GENERATION}, or {CONFIG}.",
        )


def _model(folder: Path, kind: Kind, config, arrays: Arrays, values: dict) -> Model:
    """Return a model of this config with the weights of a folder."""
    count = sum(math.prod(place.shape) for place in arrays.places.values())
    if config.least_parameters > count:
        raise InputError(
            "a published model has as many numbers as its config.json implies",
            f"{count:,} in {folder}, which are fewer",
            "Take the config.json that belongs to the weights.",
        )
    model = kind.model(config, Zeros(np.random.PCG64()))  # type: ignore[arg-type]
    if arrays.dtype == np.float64:
        pack(model, np.float64)
    _fill(model, arrays, kind.table_for(config, values))
    return model


def _fill(model: Model, arrays: Arrays, table: Table) -> None:
    """Copy arrays into all parameters. Raises InputError if arrays are missing or left over."""
    parameters = model.named_parameters()
    without_prefix = not any(name.startswith(table.optional) for name in arrays)
    entries = [*table.entries(parameters, without_prefix)]
    filled: set[str] = set()
    read: set[str] = set()
    for entry in entries:
        done = entry.ours[0] in filled or read & {*entry.foreign}
        if not done and all(name in arrays for name in entry.foreign):
            for name, values in _read_entry(entry, arrays, parameters, model.config).items():
                parameters[name].data[...] = values
            filled |= {*entry.ours}
            read |= {*entry.foreign}
    if missing := [name for name in parameters if name not in filled]:
        names = [" + ".join(e.foreign) for e in entries if missing[0] in e.ours]
        raise InputError(
            "a published model has all arrays that its config.json implies",
            f"no {' or '.join(names)}, which is {missing[0]} in numformer",
            "Download the whole folder, or take the config.json that belongs to the weights.",
        )
    for name in arrays:
        if name not in read and not table.ignores(name):
            _require_copy(name, arrays, entries, parameters, model.config)


def _read_entry(entry: Entry, arrays: Arrays, parameters, config) -> dict[str, np.ndarray]:
    """Return the values of an entry's parameters, by name. Raises InputError for other dtypes."""
    for name in entry.foreign:
        if (dtype := arrays.places[name].dtype) not in DTYPES:
            raise InputError(
                f"published weights have one of the types {', '.join(DTYPES)}",
                f"{name} of the type {dtype}",
                "Take the model in one of these types, without quantisation.",
            )
    shapes = [parameters[name].shape for name in entry.ours]
    values = entry.read([arrays[name] for name in entry.foreign], shapes, config)
    return dict(zip(entry.ours, values, strict=True))


def _require_copy(name: str, arrays: Arrays, entries, parameters, config) -> None:
    """Raise InputError unless an array that was not read equals one that was read."""
    for entry in entries:
        if entry.foreign == (name,):
            values = _read_entry(entry, arrays, parameters, config)
            if all(np.array_equal(parameters[n].data, array) for n, array in values.items()):
                return
    raise InputError(
        "every array of a published model belongs to a parameter",
        f"{name}, {arrays.places[name].shape}, which belongs to none",
        "Take the model as it was published, without the head of another task.",
    )
