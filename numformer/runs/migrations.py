"""Migrates checkpoints to the present format; each function converts a format to the next."""

from collections.abc import Mapping
from typing import Any

import numpy as np

FORMAT = 5  # goes up when a name or a meaning in a checkpoint changes

Checkpoint = tuple[dict[str, np.ndarray], dict]
"""Arrays by name, and JSON metadata."""


def from_1(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 1 had one kind of model, one optimizer, and the recipe's settings in the config."""
    config = dict(metadata["config"])
    recipe_fields = (
        "label_smoothing",
        "beta1",
        "beta2",
        "adam_epsilon",
        "warmup",
        "factor",
        "decay",
        "clip_norm",
    )
    recipe = {name: config.pop(name) for name in recipe_fields}
    prefixes = {
        "encoder.embedding.": "source.embedding.",
        "encoder.positions.": "source.positions.",
        "decoder.embedding.": "target.embedding.",
        "decoder.positions.": "target.positions.",
        "adam.": "optimizer.",
    }

    def rename(name: str) -> str:
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        return prefixes.get(old, "") + name.removeprefix(old)

    tensors = {rename(name): array for name, array in tensors.items()}
    added = {"model": "encoder_decoder", "recipe": recipe, "threads": None}
    return tensors, metadata | {"config": config} | added


def from_2(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 2 had no `text`: each task described its vocabularies in its own way."""
    task = metadata.get("task")
    task = dict(task) if isinstance(task, dict) else {}
    text = None
    if task.keys() >= {"characters", "phonemes", "max_length"}:  # the task pronounce
        text = _transduction(task.pop("characters"), task.pop("phonemes"), " ")
        text |= {"max_length": task.pop("max_length"), "beam": 5}
        task = {"name": "pronounce"} | task
    elif task.keys() >= {"symbols", "context"}:  # the task write
        vocabulary = {"symbols": task.pop("symbols"), "separator": ""}
        text = {"kind": "continuation", "vocabulary": vocabulary, "context": task["context"]}
    elif isinstance(task.get("symbols"), str):  # such as reverse: targets have at most 16 symbols
        text = _transduction(task["symbols"], task["symbols"], "") | {"max_length": 32}
    return tensors, metadata | {"task": task or metadata.get("task"), "text": text}


def _transduction(source, target, separator: str) -> dict:
    vocabularies = {"source": {"symbols": source, "separator": ""}}
    vocabularies["target"] = {"symbols": target, "separator": separator}
    return {"kind": "transduction"} | vocabularies


def from_3(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 3 had `self_attention` in the names of parameters, where format 4 has `mixer`."""
    tensors = {name.replace(".self_attention.", ".mixer."): tensors[name] for name in tensors}
    return tensors, metadata


def from_4(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 4 had `mixer` for `self_attention` in names, and saved settings without effect."""
    names = {".mixer.": ".self_attention.", ".distances.table": ".attention.bias.table"}

    def rename(name: str) -> str:
        for old, new in names.items():
            name = name.replace(old, new)
        return name

    tensors = {rename(name): array for name, array in tensors.items()}
    changed = {
        name: settings_from_4(metadata[name]) for name in ("config", "recipe") if name in metadata
    }
    return tensors, metadata | changed


OWNERS_4 = {
    "max_length": ("positions", ["learned"]),
    "rotary_base": ("positions", ["rotary", "sinusoidal_rotary"]),
    "key_value_heads": ("mixers", ["grouped", "window"]),
    "window": ("mixers", ["window", "global_window"]),
    "global_tokens": ("mixers", ["global_window"]),
    "stride": ("mixers", ["strided"]),
    "distance_buckets": ("mixers", ["relative"]),
    "farthest": ("mixers", ["relative"]),
    "d_state": ("mixers", ["state_space"]),
    "expansion": ("mixers", ["state_space"]),
    "weight_decay": ("optimizer", ["adamw"]),
}
"""For each setting of format 4, the field and the choices that gave the setting an effect."""


def settings_from_4(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a config, recipe or flags from format 4 to 5; drop settings that had no effect.

    In format 4, only the mixers "grouped" and "window" could share keys and values; in format 5
    every attention can. `attention_function` did not yet choose the method for long sequences, so
    its former default, "scaled_dot_product", is dropped.
    """
    new = dict(values)
    for name, (owner, choices) in OWNERS_4.items():
        if owner in values and not {*choices} & {*str(values[owner]).split(",")}:
            new.pop(name, None)
    if new.get("attention_function") == "scaled_dot_product":
        del new["attention_function"]
    if isinstance(mixers := new.get("mixers"), str):
        if groups := new.get("key_value_heads"):
            not_shared = "attention", "global_window", "strided", "relative"
            counts = [new["heads"] if m in not_shared else groups for m in mixers.split(",")]
            new["key_value_heads"] = ",".join(map(str, counts)) if len({*counts}) > 1 else groups
        new["mixers"] = ",".join("attention" if m == "grouped" else m for m in mixers.split(","))
    return new


MIGRATIONS = {1: from_1, 2: from_2, 3: from_3, 4: from_4}


def migrate(tensors: dict[str, np.ndarray], metadata: dict) -> Checkpoint:
    """Return a checkpoint of any format in the present format."""
    for number in range(metadata["format"], FORMAT):
        tensors, metadata = MIGRATIONS[number](tensors, metadata)
    return tensors, metadata | {"format": FORMAT}
