"""How gradients update the weights: optimizers, clipping, and the training recipe (section 5.3)."""

from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.recipe import Recipe, linear_rate

__all__ = ["clip_global_norm", "Recipe", "linear_rate"]
