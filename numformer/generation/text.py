"""What a model does with a text: how it is asked, and how its answer is read."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.models import Model
from numformer.plots import AttentionMaps

MOST = 4096  # symbols of a text: attention compares each with each
Symbols = Sequence[str]


@dataclass(frozen=True)
class Text(ABC):
    """What a model does with texts; a text is a sequence of symbols of `read`."""

    def description(self) -> dict:
        """JSON values from which `text_of` makes the same again."""
        fields = {name: _plain(value) for name, value in vars(self).items()}
        return {"kind": type(self).__name__.lower()} | fields

    @property
    @abstractmethod
    def read(self) -> Vocabulary:
        """The vocabulary of what the model is given."""

    def symbols(self, text: str) -> list[str]:
        """The symbols of a text. Raises InputError for no text and for one that is too long."""
        if not isinstance(text, str):
            raise InputError(
                "a text is a string",
                type(text).__name__,
                "Pass a string; to load(RUN)(...) also a list of strings.",
            )
        symbols = self.read.split(text)
        if not 1 <= len(symbols) <= MOST:
            raise InputError(
                f"a text has at least one symbol and at most {MOST}",
                f"{len(symbols)} symbols",
                "Give it another text.",
            )
        return symbols

    def notes(self, symbols: Symbols) -> list[str]:
        """What to know before trusting the answer to a text."""
        unseen = dict.fromkeys(s for s in symbols if self.read.encode([s]) == [self.read.unknown])
        return [f"training never saw {' '.join(map(repr, unseen))}"] if unseen else []

    @abstractmethod
    def write(
        self, model: Model, texts: Sequence[Symbols], *settings: Any, **how: Any
    ) -> list[list[str]]:
        """What the model writes for each text, as symbols."""

    @abstractmethod
    def join(self, symbols: Symbols) -> str:
        """The text of what was written."""

    @abstractmethod
    def maps(
        self, model: Model, asked: Symbols, written: Symbols | None = None
    ) -> tuple[Symbols, Symbols, list[AttentionMaps]]:
        """What is read, what is written, and where the model looks meanwhile.

        `written` is what the model is taken to write, its own answer unless given.
        """

    @abstractmethod
    def fits(self, config) -> bool:
        """Whether a model of this config knows these symbols, and lengths are lengths."""


def _plain(value):
    return value.description() if isinstance(value, Vocabulary) else value


def is_length(value) -> bool:
    """Whether a text may be so long."""
    return type(value) is int and 1 <= value <= MOST
