"""A published model's weights into our parameters, and ours into a folder as it is published."""

import itertools
import reprlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from numformer.errors import InputError
from numformer.layer import pack
from numformer.models import Model
from numformer.published.configs import Said, with_ends
from numformer.published.files import CONFIG, DTYPES, Arrays, read_json
from numformer.published.kinds import KINDS, Kind
from numformer.published.rows import Table
from numformer.published.vocabularies import TOKENIZER

PICTURES, GENERATION = "preprocessor_config.json", "generation_config.json"
KEPT = "published", "generation", "pictures"
"""What a run keeps of a published model beside its weights and its text: its JSON files."""

OF_TEXTS = TOKENIZER, "source.spm", "merges.txt", "vocab.txt", "spiece.model"
"""Files that say what the symbols of a model are."""

WRITTEN_OTHERWISE = dict(
    no_repeat_ngram_size=0, repetition_penalty=1.0, min_length=0, min_new_tokens=0
)
"""Settings of their writing that ours has not, with what changes nothing."""


class _Zeros(np.random.Generator):
    """Draws zeros, which take no time and no memory: for weights that are read afterwards."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = ()) -> Any:
        return np.broadcast_to(np.float32(0), size)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = ()) -> Any:
        return np.broadcast_to(np.float32(0), size)


def kind_of(folder: Path) -> tuple[Kind, Said]:
    """The kind of a published model, and its config. Raises InputError for an unknown kind."""
    told = read_json(folder / CONFIG)
    name = told.get("model_type") if isinstance(told, dict) else None
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(
            f"a published model is of a kind that numformer has: {', '.join(KINDS)}",
            f"model_type {name!r} in {folder / CONFIG}",
            "Name the folder of another model.",
        )
    if quantised := told.get("quantization_config"):
        raise InputError(
            f"published weights are numbers of the kinds {', '.join(DTYPES)}",
            f"{folder / CONFIG} with the quantization_config {reprlib.repr(quantised)}",
            "Take the model as it was before it was quantised.",
        )
    return KINDS[name], Said(told)


def load_published(folder: Path) -> tuple[Model, dict]:
    """The model of a folder on the host, and as metadata its JSON files and what its text is.

    The text is absent where the folder has no tokenizer. Raises InputError where the folder is not
    whole, or where numformer lacks a part of the model; warns where it lacks a way of writing.
    """
    kind, said = kind_of(folder)
    arrays = Arrays(folder)
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    config = _config(folder, kind, generation, Said(said.values, arrays))
    model = _weights(folder, kind, config, arrays)
    metadata = {"published": {**said.values}}
    if generation:
        metadata["generation"] = generation
    if any((folder / name).is_file() for name in OF_TEXTS):
        more = {name: value for name, value in generation.items() if value is not None}
        told = Said({**said.values, **more})
        _warn_of_other_texts(folder, model, told)
        if text := _read(folder, lambda: kind.text(folder, config, told)):
            metadata["text"] = text.description()
    if (folder / PICTURES).is_file():
        metadata["pictures"] = read_json(folder / PICTURES)
    return model, metadata


def _warn_of_other_texts(folder: Path, model: Model, told: Said) -> None:
    other = {name: told.get(name, usual) for name, usual in WRITTEN_OTHERWISE.items()}
    other = {name: value for name, value in other.items() if value != WRITTEN_OTHERWISE[name]}
    if other and hasattr(model, "step"):
        settings = ", ".join(f"{name} {reprlib.repr(value)}" for name, value in other.items())
        warnings.warn(
            f"{folder} asks for {settings}, which numformer has not: its texts are others than "
            "those of transformers",
            stacklevel=6,
        )


def _read(folder: Path, make: Callable) -> Any:
    """What is made of what a folder says. Raises InputError where it says what cannot be."""
    try:
        return make()
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as problem:
        rule = "the .json files of a published model are as they were published"
        raise InputError(rule, f"{folder} ({problem})", "Download them again.") from None


def _config(folder: Path, kind: Kind, generation: dict, said: Said):
    def make():
        told = Said(with_ends(said.values, generation), said.arrays)
        return kind.model.Config(**kind.config(told))

    config = _read(folder, make)
    _require_ids(folder, config)
    return config


def _require_ids(folder: Path, config) -> None:
    """Raise InputError where a special id is none of the vocabulary."""
    padding, start, end, *others = config.special
    read, written = [padding, end], [padding, start, end, *itertools.chain(*others)]
    for name, ids in (("source_", read), ("target_", written), ("", written)):
        size = getattr(config, f"{name}vocabulary", None)
        if beyond := [n for n in ids if n is not None and size and n >= size]:
            raise InputError(
                f"special ids are below the size of the vocabulary, {size}",
                f"{beyond[0]} in {folder / CONFIG}",
                "Take the config.json that belongs to the weights.",
            )


def _weights(folder: Path, kind: Kind, config, arrays: Arrays) -> Model:
    """A model of the config with the weights of a folder."""
    table = kind.table(config)
    held = sum(int(np.prod(place.shape)) for place in arrays.places.values())
    if config.least_parameters > held:
        raise InputError(
            "a published model holds as many numbers as its config.json asks for",
            f"{held:,} in {folder}, which are fewer",
            "Take the config.json that belongs to the weights.",
        )
    model = kind.model(config, _Zeros())  # type: ignore[arg-type]
    if arrays.dtype == np.float64:
        pack(model, np.float64)
    _fill(model, arrays, table)
    return model


def _fill(model: Model, arrays: Arrays, table: Table) -> None:
    """Write their arrays into our parameters, each of both once."""
    parameters = model.named_parameters()
    cut = not any(name.startswith(table.optional) for name in arrays)
    entries = [*table.entries(parameters, cut)]
    filled: dict[str, tuple[str, ...]] = {}
    read: set[str] = set()
    for entry in entries:
        taken = entry.ours[0] in filled or read & {*entry.theirs}
        if taken or not all(name in arrays for name in entry.theirs):
            continue
        for place in (arrays.places[name] for name in entry.theirs):
            _require_numbers(entry.theirs[0], place)
        targets = [parameters[name] for name in entry.ours]
        read_arrays = [arrays[name] for name in entry.theirs]
        made = entry.here(read_arrays, [target.shape for target in targets], model.config)
        for name, target, values in zip(entry.ours, targets, made, strict=True):
            target.data[...] = values
            filled[name] = entry.theirs
        read |= {*entry.theirs}
    if lacking := [name for name in parameters if name not in filled]:
        known = [" + ".join(e.theirs) for e in entries if lacking[0] in e.ours]
        raise InputError(
            "a published model has all arrays that its config.json asks for",
            f"no {' or '.join(known) or 'array'}, which is {lacking[0]} here",
            "Download the whole folder, or take the config.json that belongs to the weights.",
        )
    for name in arrays:
        if name not in read and not table.leaves_out(name):
            _require_copy(name, arrays, entries, parameters, model.config)


def _require_numbers(name: str, place) -> None:
    if place.dtype not in DTYPES:
        raise InputError(
            f"published weights are numbers of the kinds {', '.join(DTYPES)}",
            f"{name} of the kind {place.dtype}",
            "Take the model in one of these, not a quantised one.",
        )


def _require_copy(name: str, arrays: Arrays, entries, parameters, config) -> None:
    """Raise InputError unless an array that was not read holds what another one did."""
    for entry in entries:
        if entry.theirs == (name,):
            _require_numbers(name, arrays.places[name])
            shapes = [parameters[n].shape for n in entry.ours]
            made = entry.here([arrays[name]], shapes, config)
            pairs = zip(entry.ours, made, strict=True)
            if all(np.array_equal(parameters[n].data, values) for n, values in pairs):
                return
    raise InputError(
        "every array of a published model has its place here",
        f"{name}, {arrays.places[name].shape}, which has none",
        "Take the model as it was published, without the head of another task.",
    )


def their_arrays(model: Model, kind: Kind, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our arrays (by our names) as they are called and laid out there."""
    written: dict[str, np.ndarray] = {}
    known: set[str] = set()
    for entry in kind.table(model.config).entries(arrays):
        if entry.ours[0] not in known and not written.keys() & {*entry.theirs}:
            made = entry.there([arrays[name] for name in entry.ours], model.config)
            written |= zip(entry.theirs, made, strict=True)
            known |= {*entry.ours}
    return written
