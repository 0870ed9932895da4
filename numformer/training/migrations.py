"""Checkpoints of earlier formats, brought to today's: one function for each step."""

import numpy as np

FORMAT = 2  # counts up when what a checkpoint holds changes its name or its meaning

Checkpoint = tuple[dict[str, np.ndarray], dict]
"""Arrays by name and JSON metadata."""


def from_1(tensors: dict, metadata: dict) -> Checkpoint:
    """Format 1 knew one model and one optimizer, and had a model's and a run's settings in one."""
    config = dict(metadata["config"])
    of_recipe = ("label_smoothing", "beta1", "beta2", "adam_epsilon", "warmup", "factor", "decay",
                 "clip_norm")  # fmt: skip
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


MIGRATIONS = {1: from_1}


def migrated(tensors: dict[str, np.ndarray], metadata: dict) -> Checkpoint:
    """A checkpoint of any earlier format as one of this format."""
    for number in range(metadata["format"], FORMAT):
        tensors, metadata = MIGRATIONS[number](tensors, metadata)
    return tensors, metadata | {"format": FORMAT}
