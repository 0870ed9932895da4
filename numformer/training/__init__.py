"""Training: the loop over a task's batches, and its measures."""

from numformer.training.average import average
from numformer.training.loop import Schedule, Task, train

__all__ = ["average", "Schedule", "Task", "train"]
