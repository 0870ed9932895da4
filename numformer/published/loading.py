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
from numformer.published.kinds import KINDS, REFUSED, Kind, kind_of, reading
from numformer.published.sentences import MODULES
from numformer.published.table import Entry, Table
from numformer.published.vocabularies import TOKENIZER

PUBLISHED_METADATA = "published", "generation", "pictures"
"""The names in a run's metadata under which a published model's JSON files are kept."""

TOKENIZER_FILES = TOKENIZER, "source.spm", "merges.txt", "vocab.txt", "spiece.model"

UNSUPPORTED: dict[str, Any] = dict(
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
    min_length=0,
    min_new_tokens=0,
    encoder_no_repeat_ngram_size=0,
    encoder_repetition_penalty=1.0,
    suppress_tokens=[],
    begin_suppress_tokens=[],
    forced_bos_token_id=None,
)
"""Settings of generation that numformer lacks, with the values that have no effect."""

CUTS = dict(top_k=(50, 0), top_p=(1.0, 1.0))
"""Settings that cut off improbable symbols, each with its default and the value with no effect."""


class _Zeros(np.random.Generator):
    """A generator that returns zeros, at no cost, for weights that are overwritten later."""

    def uniform(self, low, high, size) -> Any:  # type: ignore[override]
        return np.broadcast_to(0.0, size)

    def normal(self, loc, scale, size) -> Any:  # type: ignore[override]
        return np.broadcast_to(0.0, size)


def load_published(folder: Path) -> tuple[Model, dict]:
    """Return a folder's model, on the host, and its JSON files and text pipeline as metadata.

    There is no pipeline if the folder has no tokenizer. Raises InputError for an incomplete folder
    and for parts that numformer lacks; warns of generation settings that numformer lacks.
    """
    kind, values = _read_config(folder)
    arrays = Arrays(folder)
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}

    def build_config():
        foreign = ForeignConfig(with_generation_ids(values, generation), arrays)
        return kind.model.Config(**kind.config(foreign))

    config = _require_valid(folder, build_config)
    _require_ids(folder, config)
    model = _model(folder, kind, config, arrays, values)
    metadata = {"published": {**values}}
    if generation:
        metadata["generation"] = generation
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        settings = {name: value for name, value in generation.items() if value is not None}
        foreign = ForeignConfig({**values, **settings})
        _warn_of_unsupported(folder, model, foreign)
        new_text = reading if (folder / MODULES).is_file() else kind.text
        if text := _require_valid(folder, lambda: new_text(folder, config, foreign)):
            _require_limits(folder, text, config, foreign)
            metadata["text"] = text.description()
    if (folder / PREPROCESSOR).is_file():
        metadata["pictures"] = read_json(folder / PREPROCESSOR)
    return model, metadata


def _read_config(folder: Path) -> tuple[Kind, dict[str, Any]]:
    """The kind and the config.json of a folder. Raises InputError for an unknown kind."""
    values = read_json(folder / CONFIG)
    name = values.get("model_type")
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(
            f"a published model is of a kind that numformer supports: {', '.join(KINDS)}",
            f"model_type {name!r} in {folder / CONFIG}",
            REFUSED.get(str(name), "Name the folder of another model."),
        )
    if quantised := values.get("quantization_config"):
        raise InputError(
            f"published weights have one of the types {', '.join(DTYPES)}",
            f"{folder / CONFIG} with the quantization_config {reprlib.repr(quantised)}",
            "Take the model without quantisation.",
        )
    return kind_of(values), values


def _require_valid(folder: Path, build: Callable) -> Any:
    """Return build(). Raises InputError if the JSON files that it reads have invalid values."""
    try:
        return build()
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as problem:
        rule = "the .json files of a published model are unchanged"
        raise InputError(rule, f"{folder} ({problem})", "Download them again.") from None


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
        names = "num_beams", "max_length", "max_new_tokens", "length_penalty", "temperature"
        received = [f"{n} {foreign.values[n]!r}" for n in names if n in foreign.values]
        raise InputError(
            f"num_beams and max_new_tokens are from 1 to {MAX_SYMBOLS} (max_length is one more), "
            f"length_penalty from 0 to {LARGEST_ALPHA}, and temperature is at least 0",
            f"{', '.join(received)} in {folder}",
            f"Change {GENERATION}, or {CONFIG}.",
        )


def _warn_of_unsupported(folder: Path, model: Model, foreign: ForeignConfig) -> None:
    if not hasattr(model, "step"):
        return
    continues = isinstance(model, LanguageModel)  # the model continues texts
    unsupported = UNSUPPORTED | (dict(num_beams=1) if continues else dict(do_sample=False))
    settings = [
        f"{name} {reprlib.repr(value)}"
        for name, neutral in unsupported.items()
        if (value := foreign.get(name, neutral)) != neutral
    ]
    if several := [word for word in foreign.get("bad_words_ids", []) if len(word) > 1]:
        settings.append(f"bad_words_ids {reprlib.repr(several)}")
    messages: list[str] = []
    if continues and foreign.get("do_sample", False):
        cuts = [
            f"{name}={value}"
            for name, (default, none) in CUTS.items()
            if (value := foreign.get(name, default)) != none
        ]
        if cuts:
            messages.append(
                f"{folder} samples with {', '.join(cuts)}, which numformer ignores: pass "
                f"them with each text, as in trained(text, {', '.join(cuts)})"
            )
    if settings:
        messages.append(
            f"{folder} sets {', '.join(settings)}, which numformer lacks: texts will differ "
            "from those that the library transformers generates"
        )
    for message in messages:
        warnings.warn(message, stacklevel=6)


def _model(folder: Path, kind: Kind, config, arrays: Arrays, values: dict) -> Model:
    """Return a model of this config with the weights of a folder."""
    count = sum(math.prod(place.shape) for place in arrays.places.values())
    if config.least_parameters > count:
        raise InputError(
            "a published model has as many numbers as its config.json implies",
            f"{count:,} in {folder}, which are fewer",
            "Take the config.json that belongs to the weights.",
        )
    model = kind.model(config, _Zeros(np.random.PCG64()))  # type: ignore[arg-type]
    if arrays.dtype == np.float64:
        pack(model, np.float64)
    _fill(model, arrays, kind.table_for(config, values))
    return model


def _fill(model: Model, arrays: Arrays, table: Table) -> None:
    """Copy arrays into all parameters. Raises InputError for missing and for superfluous arrays."""
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
