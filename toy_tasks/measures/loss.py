"""The mean loss of a model on batches."""

from collections.abc import Sequence

import numpy as np

from numformer.data import Batch
from numformer.layer import inference
from numformer.models import Model


def mean_loss(model: Model, batches: Sequence[Batch]) -> float:
    """The mean loss of a prediction, in nats, without label smoothing or dropout."""
    objective = model.objective()
    with inference():
        losses = [float(objective.prediction_loss(*batch.inputs)) for batch in batches]
    return float(np.average(losses, weights=[batch.weight for batch in batches]))
