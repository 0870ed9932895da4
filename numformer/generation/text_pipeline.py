"""Pipelines that turn a text into ids, run a model, and turn its ids into a text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.generation.measures import Measure
from numformer.models import Model
from numformer.plots import AttentionMaps, attention_weights, by_kind

MAX_SYMBOLS = 4096
"""The most symbols that a text may have: attention compares every pair of them."""

Symbols = Sequence[str]


@dataclass(frozen=True)
class TextPipeline(ABC):
    """Turns texts into ids, runs a model on them, and turns the ids that it writes into texts.

    Its fields are saved beside the model, so that `numformer.load` can build it again.
    """

    has_right_answers: ClassVar = True
    """Whether the model writes answers that may be right or wrong."""

    def description(self) -> dict:
        """The kind and the fields as JSON values, which `pipeline_from` reads."""
        fields = {
            name: value.description() if isinstance(value, Vocabulary) else value
            for name, value in vars(self).items()
        }
        return {"kind": type(self).__name__.lower()} | fields

    @property
    @abstractmethod
    def input_vocabulary(self) -> Vocabulary:
        """The vocabulary of the texts that the model reads."""

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """The fields that are vocabularies, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Vocabulary)}

    def has_same_vocabularies(self, other: "TextPipeline") -> bool:
        """Whether another pipeline has the same symbols with the same ids."""

        def descriptions(pipeline: TextPipeline) -> dict[str, dict]:
            return {name: v.description() for name, v in pipeline.vocabularies.items()}

        return descriptions(self) == descriptions(other)

    def symbols(self, text: str) -> list[str]:
        """Split a text into symbols. Raises InputError if it is empty or too long."""
        if not isinstance(text, str):
            raise InputError(
                "a text is a string",
                type(text).__name__,
                "Pass a string; load(RUN)(...) also takes a list of strings.",
            )
        symbols = self.input_vocabulary.split(text)
        if not 1 <= len(symbols) <= MAX_SYMBOLS:
            raise InputError(
                f"a text has at least one symbol and at most {MAX_SYMBOLS}",
                f"{len(symbols)} symbols",
                "Pass another text.",
            )
        return symbols

    def unseen_symbols(self, symbols: Symbols) -> list[str]:
        """Return the symbols of a text that training never saw, each once."""
        vocabulary = self.input_vocabulary
        distinct = dict.fromkeys(symbols)
        return [s for s in distinct if vocabulary.encode([s]) == [vocabulary.unknown]]

    def notes(self, symbols: Symbols) -> list[str]:
        """Reasons not to trust the answer to a text, such as symbols that training never saw."""
        unseen = self.unseen_symbols(symbols)
        return [f"training never saw {' '.join(map(repr, unseen))}"] if unseen else []

    def join_source(self, symbols: Symbols) -> str:
        """Return the symbols of a source as text."""
        return self.input_vocabulary.join(symbols)

    @abstractmethod
    def write(
        self, model: Model, texts: Sequence[Symbols], *args: Any, **settings: Any
    ) -> list[list[str]]:
        """The symbols that the model writes for each text."""

    @abstractmethod
    def join(self, symbols: Symbols) -> str:
        """Return the text of symbols that the model wrote."""

    def answer_symbols(self, text: str) -> list[str]:
        """Split an answer into the symbols that `join` would join."""
        return self.input_vocabulary.split(text)

    def encode(self, written: Symbols) -> list[int]:
        """The ids of the symbols of an answer."""
        return self.input_vocabulary.encode(written)

    @abstractmethod
    def score(
        self, model: Model, texts: Sequence[Symbols], written: Sequence[Symbols]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log p (N,) of N answers to N texts, in nats, and the number (N,) of their symbols.

        The log p of an answer is the sum of the log p of its symbols.
        """

    def measures(
        self, texts: Sequence[Symbols], answers: Sequence[Symbols], right: Sequence[Symbols]
    ) -> dict[str, Measure]:
        """Compare the model's answers to N texts with the right ones -> measures by name."""
        return {}

    @abstractmethod
    def maps(
        self, model: Model, text: Symbols, written: Symbols | None = None
    ) -> tuple[Symbols, Symbols, list[AttentionMaps]]:
        """Return the symbols read, the symbols written, and the model's attention maps.

        `written` replaces the model's own answer.
        """

    @abstractmethod
    def fits(self, config) -> bool:
        """Whether the vocabularies fit a model of this config and the other fields are valid."""


class OneVocabulary(TextPipeline):
    """A pipeline that reads and writes symbols of one vocabulary, up to `context` at a time."""

    vocabulary: Vocabulary
    context: int

    @property
    def input_vocabulary(self) -> Vocabulary:
        return self.vocabulary

    def join(self, symbols: Symbols) -> str:
        return self.vocabulary.join(symbols)

    def first_ids(self, text: str) -> list[int]:
        """The ids of the first `context` symbols of a text. Raises InputError if there are none."""
        symbols = self.vocabulary.shorten(text, self.context) if isinstance(text, str) else []
        return self.vocabulary.encode(symbols or self.symbols(text))

    def fits(self, config) -> bool:
        size = getattr(config, "vocabulary", None)
        return len(self.vocabulary) == size and is_length(self.context)

    def self_attention_maps(self, model: Model, symbols: Symbols) -> list[AttentionMaps]:
        """The attention maps of a model that reads these symbols."""
        kinds = by_kind(attention_weights(model, np.array([self.vocabulary.encode(symbols)])))
        return [AttentionMaps(kind, maps[:, 0], symbols, symbols) for kind, maps in kinds.items()]


def is_length(value) -> bool:
    """Whether a value is a valid length of a text."""
    return type(value) is int and 1 <= value <= MAX_SYMBOLS
