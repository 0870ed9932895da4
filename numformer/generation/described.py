"""What a model was trained to do with texts, from the description that is saved beside it."""

import base64
from collections.abc import Callable
from typing import Any

from numformer.data import Vocabulary
from numformer.data.subwords import Subwords
from numformer.errors import InputError
from numformer.generation.text import Text
from numformer.generation.texts import Continuation, Infilling, Transduction
from numformer.generation.translation import Translation

TEXTS: dict[str, Callable[..., Text]] = {
    each.__name__.lower(): each for each in (Transduction, Translation, Continuation, Infilling)
}


def text_of(described: Any, config) -> Text | None:
    """The Text of a description, if it is one and a model of this config fits it.

    Raises InputError where it needs a library that is not installed.
    """
    try:
        fields = dict(described)
        made = TEXTS[fields.pop("kind")]
        for name, value in fields.items():
            if isinstance(value, dict):
                fields[name] = _vocabulary(**value)
        text = made(**fields)
        return text if text.fits(config) else None
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
