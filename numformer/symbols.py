"""The ids that mean something else than a symbol: padding, start, end and unknown."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PADDING, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<padding>", "<start>", "<end>", "<unknown>")


class Special(NamedTuple):
    """The ids that mean something else than a symbol, None where there is none; ours unless given.

    `unwritten` are those that no model writes, `other_ends` end a text as the end id does.
    """

    padding: int | None = PADDING
    start: int | None = START
    end: int | None = END
    unwritten: Sequence[int] = (PADDING, START, UNKNOWN)
    other_ends: Sequence[int] = ()

    @property
    def ends(self) -> list[int]:
        """All ids that end what a model writes."""
        return [*self.closing, *self.other_ends]

    @property
    def closing(self) -> list[int]:
        """What a sequence ends with: the end id, where there is one."""
        return [] if self.end is None else [self.end]

    def real(self, ids: np.ndarray) -> np.ndarray:
        """ids (B, T) -> which of them are no padding (B, T)."""
        real = ids != self.padding
        if self.start == self.padding:  # some models write the padding id first: it is real there
            real[:, :1] = True
        return real


OURS = Special()
