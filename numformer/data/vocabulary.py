"""Symbols and their ids; ids 0 to 3 mean padding, start, end and unknown in every vocabulary."""

from collections.abc import Iterable, Sequence

from numformer.errors import InputError

PADDING, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<padding>", "<start>", "<end>", "<unknown>")


class Vocabulary:
    """The symbols that sequences are made of. `symbols` is a list without repetition.

    len(vocabulary) counts the four special ids too: it is the V of a model.
    """

    def __init__(self, symbols: Iterable[str]):
        self.symbols = list(symbols)
        self._ids = {symbol: len(SPECIAL) + i for i, symbol in enumerate(self.symbols)}

    @classmethod
    def of(cls, sequences: Iterable[Iterable[str]]) -> "Vocabulary":
        """Every symbol that occurs in `sequences`, sorted."""
        return cls(sorted({symbol for sequence in sequences for symbol in sequence}))

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.symbols)

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
