"""Splits sentences into tokens, and joins them again, by the rules of the Moses toolkit."""

import functools
import unicodedata
from typing import Any

from numformer.errors import InputError

JOINERS = "\u200c\u200d"  # used within words in Persian and in Indian scripts
YI = "".join(map(chr, range(0xA000, 0xA48D)))  # letters of the Yi script, which hardly any text has


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
    """Sentence -> its tokens in lower case, separated by spaces; such tokens stay unchanged.

    Quotation marks and dashes become plain keyboard characters, as in corpora. If the language
    is "", the only change is that words are separated by single spaces.

    Moses would split a word at its vowel signs, tone marks and joiners. NFC normalization leaves
    few of these in Latin script; unused letters take the place of the others while Moses runs.
    """
    if not language:
        return " ".join(sentence.split())
    plain, tokenizer, _ = _moses(language)
    sentence = unicodedata.normalize("NFC", detokenize(sentence.lower(), language))
    marks = {c for c in sentence if c in JOINERS or unicodedata.category(c)[0] == "M"}
    pairs = [*zip(sorted(marks), (c for c in YI if c not in sentence), strict=False)]
    sentence = plain.normalize(sentence.translate({ord(mark): letter for mark, letter in pairs}))
    tokens = tokenizer.tokenize(sentence, return_str=True)
    return tokens.translate({ord(letter): mark for mark, letter in pairs})


def detokenize(tokens: str, language: str) -> str:
    """Tokens separated by spaces -> the sentence; upper and lower case stay unchanged.

    Every XML escape is undone, even a double one (&amp;apos;). If the language is "", returns the
    tokens unchanged.
    """
    if not language:
        return tokens
    *_, detokenizer = _moses(language)
    while (plain := detokenizer.unescape_xml(tokens)) != tokens:
        tokens = plain
    return detokenizer.detokenize(tokens.split())
