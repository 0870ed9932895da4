"""How a gradient changes the weights (section 5.3): optimizers, clipping, and the recipe."""

from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.recipe import Recipe, linear_rate

__all__ = ["clip_global_norm", "Recipe", "linear_rate"]
