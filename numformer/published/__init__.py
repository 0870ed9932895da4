"""Models that others have published, in Hugging Face's layout, as models of ours."""

from numformer.published.files import is_published
from numformer.published.loading import load_weights

__all__ = ["is_published", "load_weights"]
