"""A training run on disk: its checkpoints, and the folder from which it is resumed."""

from numformer.runs.checkpoints import load_model, save_model
from numformer.runs.run_folder import draw_losses

__all__ = ["load_model", "save_model", "draw_losses"]
