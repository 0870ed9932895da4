"""Where the positions of a padded batch stand, which of them are real, and how padding is left out.

Positions meet in attention and other mixers alone. All else treats each by itself.
"""

from functools import cached_property

import numpy as np

from numformer.backend import array_module


class Places:
    """The places of a batch of B sequences: `valid` (B, T), a host array, False at padding.

    With `skip_padding` layers work on rows (N, D), those of the real positions; `real` (N,) are
    their indices among the B T places. Without it a batch keeps its shape (B, T, D). `positions`
    (T,) say where in a sequence the places are: 0 to T - 1 unless given.
    """

    def __init__(
        self, valid: np.ndarray, skip_padding: bool = False, positions: np.ndarray | None = None
    ):
        self.valid, self.skip_padding = valid, skip_padding
        self.positions = np.arange(valid.shape[1]) if positions is None else positions
        self._indices: dict[tuple, tuple] = {}

    @classmethod
    def whole(cls, batch: int, length: int, first: int = 0, skip_padding: bool = False) -> "Places":
        """Those of `batch` sequences without padding, at `length` positions from `first` on."""
        return cls.at(np.arange(first, first + length), batch, skip_padding)

    @classmethod
    def at(cls, positions: np.ndarray, batch: int, skip_padding: bool = False) -> "Places":
        """Those of `batch` sequences without padding, at `positions` (T,)."""
        valid = np.ones((batch, len(positions)), dtype=bool)
        places = cls(valid, skip_padding, positions)
        places.all_valid, places.real = True, np.arange(valid.size)
        return places

    def __getitem__(self, stretch: slice) -> "Places":
        """The places of some positions."""
        return Places(self.valid[:, stretch], positions=self.positions[stretch])

    def of(self, sequences: slice) -> "Places":
        """The places of some sequences."""
        return Places(self.valid[sequences], self.skip_padding, self.positions)

    @cached_property
    def ends(self) -> tuple[int, int]:
        """Up to where every sequence is real, and beyond where none is."""
        padded, real = (np.flatnonzero(some.any(axis=0)) for some in (~self.valid, self.valid))
        length = self.valid.shape[1]
        return int(padded[0]) if padded.size else length, int(real[-1]) + 1 if real.size else 0

    @cached_property
    def real(self) -> np.ndarray:
        """Indices (N,) of the real positions among the B T places.

        Of padding alone one row stays, since some products need one; nobody attends to it.
        """
        real = np.flatnonzero(self.valid)
        return real if len(real) else np.zeros(1, dtype=int)

    @cached_property
    def all_valid(self) -> bool:
        """Whether there is no padding."""
        return bool(self.valid.all())

    @property
    def of_rows(self) -> np.ndarray:
        """The positions of what layers work on: (T,), or (N,) of the rows."""
        if not self.skip_padding:
            return self.positions
        return self.positions[self.real % self.valid.shape[1]]

    def pick(self, ids: np.ndarray) -> np.ndarray:
        """ids (B, T) -> (B, T), or (N,) those of the rows."""
        return ids.ravel()[self.real] if self.skip_padding else ids

    def spread(self, x, heads: int):
        """Rows x (N, H K) -> (B, H, T, K), with zeros at padding; where there is none, a view."""
        if self.all_valid:
            return x.reshape(*self.valid.shape, heads, -1).swapaxes(1, 2)
        _, row_of_place, (sequences, positions) = self._of_heads(heads, array_module(x))
        y = x.reshape(len(x) * heads, -1).take(row_of_place, axis=0)
        y[sequences, :, positions] = 0
        return y

    def gather(self, x):
        """x (B, H, T, K) -> rows (N, H K): the real positions, each with its heads side by side."""
        if self.all_valid:
            return x.swapaxes(1, 2).reshape(len(self.real), -1)
        place_of_row, *_ = self._of_heads(x.shape[1], array_module(x))
        return x.reshape(-1, x.shape[-1]).take(place_of_row, axis=0).reshape(len(self.real), -1)

    def _of_heads(self, heads: int, xp) -> tuple:
        """Of each row's heads their place (N, H) in (B, H, T); of each place a row; the padding.

        At padding, whose sequences and positions are the third, the row is any.
        """
        if (heads, xp) not in self._indices:
            batch, length = self.valid.shape
            sequence, position = np.divmod(self.real, length)
            head = np.arange(heads)
            place_of_row = (sequence[:, None] * heads + head) * length + position[:, None]
            row = np.zeros(batch * length, dtype=int)
            row[self.real] = np.arange(len(self.real))
            row_of_place = row.reshape(batch, 1, length) * heads + head[:, None]
            padding = [xp.asarray(index) for index in np.nonzero(~self.valid)]
            self._indices[heads, xp] = xp.asarray(place_of_row), xp.asarray(row_of_place), padding
        return self._indices[heads, xp]
