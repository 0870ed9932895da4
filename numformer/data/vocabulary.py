"""Symbols and their ids; ids 0 to 3 are padding, start, end and unknown."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from numformer.errors import InputError
from numformer.symbols import DEFAULT_IDS, END, PADDING, SPECIAL, START, UNKNOWN, SpecialIds

__all__ = [
    "DEFAULT_IDS",
    "END",
    "PADDING",
    "SPECIAL",
    "START",
    "UNKNOWN",
    "SpecialIds",
    "Vocabulary",
]


def split_words(text: str) -> list[str]:
    """Split a text into words at spaces, tabs and ends of lines.

    Characters such as U+2028 and the no-break space are part of a word.
    """
    return re.findall(r"\S+", text, re.ASCII)


class Vocabulary:
    """The symbols of sequences, and their ids. Raises InputError if a symbol occurs twice.

    The symbols of a text are its characters or, if `separator` is a space, its words.
    len(vocabulary), the V of a model, includes the four special ids.
    """

    unknown: int | None = UNKNOWN
    """The id of every symbol that is not in the vocabulary."""

    def __init__(self, symbols: Iterable[str], separator: str = ""):
        self.symbols, self.separator = list(symbols), separator
        self._ids = {symbol: len(SPECIAL) + i for i, symbol in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols):
            repeated = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise InputError(
                "a vocabulary has each symbol once",
                f"{repeated!r} twice",
                "Vocabulary.of(texts) takes each symbol of texts once.",
            )

    @classmethod
    def of(cls, texts: Iterable[str | Sequence[str]], separator: str = "") -> "Vocabulary":
        """Make a vocabulary of all symbols that occur in texts or sequences of symbols, sorted."""
        empty = cls([], separator)
        sequences = (empty.split(text) if isinstance(text, str) else text for text in texts)
        return cls(sorted({symbol for sequence in sequences for symbol in sequence}), separator)

    def description(self) -> dict:
        """Return JSON values from which the vocabulary can be built again."""
        return {"symbols": self.symbols, "separator": self.separator}

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.symbols)

    def split(self, text: str) -> list[str]:
        """Return a text's symbols after NFC normalization: an accented letter is one character."""
        text = unicodedata.normalize("NFC", text)
        return split_words(text) if self.separator else list(text)

    def shorten(self, text: str, longest: int) -> list[str]:
        """Return the first symbols of a text, at most `longest`."""
        return self.split(text)[:longest]

    def join(self, symbols: Iterable[str]) -> str:
        """Join symbols into a text."""
        return self.separator.join(symbols)

    def encode(self, sequence: Iterable[str]) -> list[int]:
        """Return the ids of symbols; UNKNOWN for a symbol that is not in the vocabulary."""
        return [self._ids.get(symbol, UNKNOWN) for symbol in sequence]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Return the symbols of ids. Raises InputError for an id outside this vocabulary."""
        names = dict(enumerate([*SPECIAL, *self.symbols]))
        try:
            return [names[i] for i in ids]
        except (KeyError, TypeError):
            raise InputError(
                f"decode takes one sequence of ids, each at least 0 and below {len(self)}",
                f"{ids!r:.200}",
                "Decode each row of a batch separately, with the vocabulary that encoded it.",
            ) from None
