"""Training: the loop over a task's batches, and the measures of the model."""

from numformer.training.average import average
from numformer.training.loop import Schedule, Task, train

__all__ = ["average", "Schedule", "Task", "train"]
