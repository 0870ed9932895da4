"""Loads models published in Hugging Face's layout as numformer models, and exports ours.

`numformer.load(FOLDER)` reads such a folder with the modules of this package.
"""

from numformer.published.files import is_published

__all__ = ["is_published"]
