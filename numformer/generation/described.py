"""What a model was trained to do with texts, from the description that is saved beside it."""

import base64
import dataclasses
from collections.abc import Callable
from typing import Any

from numformer.data import Vocabulary
from numformer.data.subwords import Subwords
from numformer.data.tokenizers import vocabulary_of
from numformer.errors import InputError
from numformer.generation.continuation import Continuation
from numformer.generation.infilling import Infilling
from numformer.generation.parsing import Parsing
from numformer.generation.text import Text
from numformer.generation.transduction import Transduction
from numformer.generation.translation import Translation

TEXTS: dict[str, Callable[..., Text]] = {
    kind.__name__.lower(): kind
    for kind in (Transduction, Translation, Parsing, Continuation, Infilling)
}


def text_of(described: Any, config) -> Text | None:
    """The Text of a description, if it is one and a model of this config fits it.

    Raises InputError where it needs a library that is not installed, and for a vocabulary that is
    refused.
    """
    try:
        fields = dict(described)
        made = TEXTS[fields.pop("kind")]
        for name, value in fields.items():
            if isinstance(value, dict):
                fields[name] = vocabulary_of(value) or _vocabulary(**value)
        text = made(**fields)
        known = all(
            isinstance(getattr(text, field.name), Vocabulary)
            for field in dataclasses.fields(text)
            if field.type is Vocabulary
        )
        return text if known and text.fits(config) else None
    except InputError:
        raise
    except (KeyError, TypeError, ValueError):
        return None


def _vocabulary(symbols=(), separator=" ", sentencepiece: str = "") -> Vocabulary:
    if sentencepiece:
        return Subwords(base64.b64decode(sentencepiece))
    if not all(isinstance(symbol, str) for symbol in symbols) or separator not in ("", " "):
        raise ValueError("no vocabulary")
    return Vocabulary(symbols, separator)
