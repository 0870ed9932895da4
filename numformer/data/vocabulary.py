"""Symbols and their ids; ids 0 to 3 mean padding, start, end and unknown in every vocabulary."""

import unicodedata
from collections.abc import Iterable, Sequence

from numformer.errors import InputError
from numformer.symbols import END, OURS, PADDING, SPECIAL, START, UNKNOWN, Special

__all__ = ["END", "OURS", "PADDING", "SPECIAL", "START", "UNKNOWN", "Special", "Vocabulary"]


class Vocabulary:
    """The symbols that sequences are made of. Raises InputError where one stands twice.

    In a text the symbols are its characters, or with a space as `separator` its words.
    len(vocabulary) counts the four special ids too: it is the V of a model.
    """

    unknown: int | None = UNKNOWN
    """The id of what is no symbol."""

    def __init__(self, symbols: Iterable[str], separator: str = ""):
        self.symbols, self.separator = list(symbols), separator
        self._ids = {symbol: len(SPECIAL) + i for i, symbol in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols):
            twice = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise InputError(
                "a vocabulary has each symbol once",
                f"{twice!r} twice",
                "Vocabulary.of(texts) takes each symbol of texts once.",
            )

    @classmethod
    def of(cls, texts: Iterable[str | Sequence[str]], separator: str = "") -> "Vocabulary":
        """Every symbol that occurs in texts or in sequences of symbols, sorted."""
        made = cls([], separator)
        sequences = (made.split(text) if isinstance(text, str) else text for text in texts)
        return cls(sorted({symbol for sequence in sequences for symbol in sequence}), separator)

    def description(self) -> dict:
        """JSON values from which the same is made again."""
        return {"symbols": self.symbols, "separator": self.separator}

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.symbols)

    def split(self, text: str) -> list[str]:
        """The symbols of a text, which is brought to Unicode's NFC: one character for a letter."""
        text = unicodedata.normalize("NFC", text)
        return text.split() if self.separator else list(text)

    def join(self, symbols: Iterable[str]) -> str:
        """The text of the symbols."""
        return self.separator.join(symbols)

    def encode(self, sequence: Iterable[str]) -> list[int]:
        """The ids of the symbols; UNKNOWN for a symbol that is not in the vocabulary."""
        return [self._ids.get(symbol, UNKNOWN) for symbol in sequence]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The symbols of the ids. Raises InputError for what is no id of this vocabulary."""
        names = dict(enumerate([*SPECIAL, *self.symbols]))
        try:
            return [names[i] for i in ids]
        except (KeyError, TypeError):
            raise InputError(
                f"decode takes one sequence of ids, each at least 0 and below {len(self)}",
                f"{ids!r:.200}",
                "Decode each row of a batch by itself, with the vocabulary that encoded.",
            ) from None
