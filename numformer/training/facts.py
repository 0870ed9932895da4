"""What must be the same wherever parts of a run are computed."""

from typing import Any

import numpy as np

from numformer.backend import to_host
from numformer.runs.checkpoints import checksum
from numformer.training.trainer import Trainer
from numformer.version import __version__


def facts_of(trainer: Trainer) -> dict[str, Any]:
    """Version, settings, and checksums of the data and of the weights of a run, by name."""
    settings, batch = trainer.settings(), trainer.task.batch(1)
    batches = batch if isinstance(batch, list) else [batch]
    first = [array for batch in batches for array in getattr(batch, "inputs", ())]
    arrays = {str(number): np.ascontiguousarray(array) for number, array in enumerate(first)}
    weights = {"": to_host(trainer.parameters.data)}
    return {
        "version": __version__,
        **settings.pop("config"),
        **settings.pop("recipe"),
        **settings,
        "the first batch's checksum": checksum(arrays, {}),
        "the initial weights' checksum": checksum(weights, {}),
    }
