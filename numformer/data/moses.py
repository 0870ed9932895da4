"""Splits sentences into tokens, and joins tokens again, by Moses's rules."""

import functools
from typing import Any

from numformer.errors import InputError


@functools.cache
def _moses(language: str) -> tuple[Any, Any, Any]:
    try:
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise InputError(
            "sentences are split into tokens by the library sacremoses",
            "an installation without it",
            "Install the extra: pip install 'numformer[translate]'",
        ) from None
    plain = MosesPunctNormalizer(language, norm_quote_commas=False)
    return plain, MosesTokenizer(language), MosesDetokenizer(language)


def tokenize(sentence: str, language: str) -> str:
    """Sentence -> its tokens in lower case, separated by spaces; tokens -> the same tokens.

    Quotation marks and dashes become the ones on a keyboard, as in corpora. If the language is "",
    only white space changes: to one space between words.
    """
    if not language:
        return " ".join(sentence.split())
    plain, tokenizer, _ = _moses(language)
    sentence = plain.normalize(detokenize(sentence.lower(), language))
    return tokenizer.tokenize(sentence, return_str=True)


def detokenize(tokens: str, language: str) -> str:
    """Tokens separated by spaces -> the sentence, in the same case.

    Every escape is undone, even a double one (&amp;apos;). If the language is "", returns the
    tokens unchanged.
    """
    if not language:
        return tokens
    *_, detokenizer = _moses(language)
    while (plain := detokenizer.unescape_xml(tokens)) != tokens:
        tokens = plain
    return detokenizer.detokenize(tokens.split())
