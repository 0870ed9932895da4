"""Builds text pipelines from the descriptions that are saved with models."""

import base64
import dataclasses
from collections.abc import Callable
from typing import Any

from numformer.data import Vocabulary
from numformer.data.subwords import Subwords
from numformer.data.tokenizers import published_vocabulary
from numformer.errors import InputError
from numformer.generation.continuation import Continuation
from numformer.generation.infilling import Infilling
from numformer.generation.labelling import Labelling
from numformer.generation.listening import Listening
from numformer.generation.parsing import Parsing
from numformer.generation.reading import Reading
from numformer.generation.text_pipeline import TextPipeline
from numformer.generation.transduction import Transduction
from numformer.generation.translation import Translation

PIPELINES: dict[str, Callable[..., TextPipeline]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Transduction, Translation, Parsing, Continuation),
        *(Infilling, Reading, Labelling, Listening),
    )
}


def pipeline_from(description: Any, config) -> TextPipeline | None:
    """Return the pipeline described; None if the description is invalid or does not fit the config.

    Raises InputError for an invalid vocabulary, and if a required library is not installed.
    """
    try:
        fields = dict(description)
        kind = PIPELINES[fields.pop("kind")]
        for name, value in fields.items():
            if isinstance(value, dict):
                fields[name] = published_vocabulary(value) or _vocabulary(**value)
        pipeline = kind(**fields)
        has_vocabularies = all(
            isinstance(getattr(pipeline, field.name), Vocabulary)
            for field in dataclasses.fields(pipeline)
            if field.type is Vocabulary
        )
        return pipeline if has_vocabularies and pipeline.fits(config) else None
    except InputError:
        raise
    except (KeyError, TypeError, ValueError):
        return None


def _vocabulary(symbols=(), separator=" ", sentencepiece: str = "") -> Vocabulary:
    if sentencepiece:
        return Subwords(base64.b64decode(sentencepiece))
    if not all(isinstance(symbol, str) for symbol in symbols) or separator not in ("", " "):
        raise ValueError("not a vocabulary")
    return Vocabulary(symbols, separator)
