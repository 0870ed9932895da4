"""A training run on disk: checkpoints, and the folder that it writes to and resumes from."""

from numformer.runs.checkpoints import load_model, save_model

__all__ = ["load_model", "save_model"]
