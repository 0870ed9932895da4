"""The former module of TextPipeline; it can still be imported, and warns."""

import warnings

from numformer.generation.text_pipeline import TextPipeline


def __getattr__(name: str):
    if name != "Text":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    now = "numformer.TextPipeline"
    warnings.warn(f"{__name__}.Text is now {now}", DeprecationWarning, stacklevel=2)
    return TextPipeline
