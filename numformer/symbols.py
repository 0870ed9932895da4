"""The special ids: padding, start, end, and unknown for symbols that the vocabulary lacks."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

PADDING, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<padding>", "<start>", "<end>", "<unknown>")


class SpecialIds(NamedTuple):
    """The special ids of a model; None for an id that it does not have.

    A model never writes the ids in `unwritten`. Like `end`, the ids in `other_ends` end a text.
    """

    padding: int | None = PADDING
    start: int | None = START
    end: int | None = END
    unwritten: Sequence[int] = (PADDING, START, UNKNOWN)
    other_ends: Sequence[int] = ()

    @property
    def ends(self) -> list[int]:
        """All ids that end a text."""
        return [*self.closing, *self.other_ends]

    def before_end(self, ids: list[int]) -> list[int]:
        """The ids before the first id that ends a text."""
        ends = self.ends
        return [*itertools.takewhile(lambda symbol: symbol not in ends, ids)]

    @property
    def closing(self) -> list[int]:
        """The ids to append to a sequence: the end id, if there is one."""
        return [] if self.end is None else [self.end]

    def real(self, ids: np.ndarray) -> np.ndarray:
        """ids (B, T) -> (B, T), boolean: False at padding."""
        real = ids != self.padding
        if self.start == self.padding:  # so in some models, whose first id is the start
            real[:, :1] = True
        return real


DEFAULT_IDS = SpecialIds()


def special_ids(model: Any) -> SpecialIds:
    """Return the special ids of a model's config, or else the default ones."""
    return getattr(getattr(model, "config", None), "special", DEFAULT_IDS)
