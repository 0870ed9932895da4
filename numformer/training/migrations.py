"""Checkpoints of earlier formats, brought to today's: one function for each step."""

import numpy as np

FORMAT = 4  # counts up when what a checkpoint holds changes its name or its meaning

Checkpoint = tuple[dict[str, np.ndarray], dict]
"""Arrays by name and JSON metadata."""


def from_1(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 1 knew one model and one optimizer, and had a model's and a run's settings in one."""
    config = dict(metadata["config"])
    of_recipe = (
        "label_smoothing",
        "beta1",
        "beta2",
        "adam_epsilon",
        "warmup",
        "factor",
        "decay",
        "clip_norm",
    )
    recipe = {name: config.pop(name) for name in of_recipe}
    prefixes = {
        "encoder.embedding.": "source.embedding.",
        "encoder.positions.": "source.positions.",
        "decoder.embedding.": "target.embedding.",
        "decoder.positions.": "target.positions.",
        "adam.": "optimizer.",
    }

    def renamed(name: str) -> str:
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        return prefixes.get(old, "") + name.removeprefix(old)

    tensors = {renamed(name): array for name, array in tensors.items()}
    added = {"model": "encoder_decoder", "recipe": recipe, "threads": None}
    return tensors, metadata | {"config": config} | added


def from_2(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 2 had no `text`: vocabularies stood in the task, differently in each of them."""
    task = metadata.get("task")
    task = dict(task) if isinstance(task, dict) else {}
    text = None
    if task.keys() >= {"characters", "phonemes", "max_length"}:  # pronounce, by beam search
        text = _transduction(task.pop("characters"), task.pop("phonemes"), " ")
        text |= {"max_length": task.pop("max_length"), "beam": 5}
        task = {"name": "pronounce"} | task
    elif task.keys() >= {"symbols", "context"}:  # write
        vocabulary = {"symbols": task.pop("symbols"), "separator": ""}
        text = {"kind": "continuation", "vocabulary": vocabulary, "context": task["context"]}
    elif isinstance(task.get("symbols"), str):  # a rule, whose targets had at most 16 symbols
        text = _transduction(task["symbols"], task["symbols"], "") | {"max_length": 32}
    return tensors, metadata | {"task": task or metadata.get("task"), "text": text}


def _transduction(source, target, separator: str) -> dict:
    vocabularies = {"source": {"symbols": source, "separator": ""}}
    vocabularies["target"] = {"symbols": target, "separator": separator}
    return {"kind": "transduction"} | vocabularies


def from_3(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 3 named what a block has for self-attention after the only one there was."""
    renamed = {name.replace(".self_attention.", ".mixer."): tensors[name] for name in tensors}
    return renamed, metadata


MIGRATIONS = {1: from_1, 2: from_2, 3: from_3}


def migrated(tensors: dict[str, np.ndarray], metadata: dict) -> Checkpoint:
    """A checkpoint of any earlier format as one of this format."""
    for number in range(metadata["format"], FORMAT):
        tensors, metadata = MIGRATIONS[number](tensors, metadata)
    return tensors, metadata | {"format": FORMAT}
