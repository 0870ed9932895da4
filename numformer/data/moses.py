"""Sentences as people write them, and as tokens with spaces between: Moses's rules."""

import functools
from typing import Any

from numformer.errors import InputError


@functools.cache
def _moses(language: str) -> tuple[Any, Any, Any]:
    try:
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise InputError(
            "sentences are cut into tokens by the library sacremoses",
            "an installation without it",
            "Install the extra: pip install 'numformer[translate]'",
        ) from None
    plain = MosesPunctNormalizer(language, norm_quote_commas=False)
    return plain, MosesTokenizer(language), MosesDetokenizer(language)


def tokenized(sentence: str, language: str) -> str:
    """A sentence in lower case, its tokens with spaces between; one that was so stays as it is.

    Quotation marks and dashes become those of a keyboard, as corpora have them. Where the language
    is empty there are no rules: the sentence stays as it is written, with one space between words.
    """
    if not language:
        return " ".join(sentence.split())
    plain, tokenizer, _ = _moses(language)
    sentence = plain.normalize(detokenized(sentence.lower(), language))
    return tokenizer.tokenize(sentence, return_str=True)


def detokenized(tokens: str, language: str) -> str:
    """Tokens with spaces between -> the sentence as people write it, its case as it was.

    Nothing stays escaped, of text either that was escaped twice (&amp;apos;). Where the language is
    empty they are the sentence.
    """
    if not language:
        return tokens
    *_, detokenizer = _moses(language)
    while (plain := detokenizer.unescape_xml(tokens)) != tokens:
        tokens = plain
    return detokenizer.detokenize(tokens.split())
