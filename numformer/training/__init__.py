"""Training: the recipe, the loop, and runs that can be left alone."""

from numformer.training.average import average
from numformer.training.optimizers import clip_global_norm
from numformer.training.recipe import Recipe, linear_rate
from numformer.training.checkpoints import load_model, save_model
from numformer.training.loop import Schedule, Task, train

__all__ = [
    "average",
    "clip_global_norm",
    "Recipe",
    "linear_rate",
    "load_model",
    "save_model",
    "Schedule",
    "Task",
    "train",
]
