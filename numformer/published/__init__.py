"""Models that others have published, in Hugging Face's layout, as models of ours.

`numformer.load(FOLDER)` takes such a folder; this is what it reads it by.
"""

from numformer.published.files import is_published

__all__ = ["is_published"]
