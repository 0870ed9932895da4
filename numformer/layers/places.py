"""Where the real positions of a padded batch stand, and how padding is left out."""

import numpy as np


class Places:
    """The places of a batch of B sequences: `valid` (B, T), a host array, False at padding.

    Only attention lets positions meet. All else treats each by itself, so with `skip_padding` it
    works on the rows (N, D) of the real positions alone; `real` (N,) are their indices among the
    B T places. Without it a batch keeps its shape (B, T, D). `xp` is where the batch's arrays live.
    """

    def __init__(self, valid: np.ndarray, xp=np, skip_padding: bool = False):
        self.valid, self.xp, self.skip_padding = valid, xp, skip_padding
        self.real = np.flatnonzero(valid)
        if not len(self.real):
            # Of padding alone one row stays, since some products need one; nobody attends to it.
            self.real = np.zeros(1, dtype=int)
        self._of_heads: dict[int, tuple] = {}

    @property
    def positions(self) -> np.ndarray:
        """Positions within the sequences: (T,), or (N,) those of the rows."""
        length = self.valid.shape[1]
        return self.real % length if self.skip_padding else np.arange(length)

    def pick(self, ids: np.ndarray) -> np.ndarray:
        """ids (B, T) -> (B, T), or (N,) those of the rows."""
        return ids.ravel()[self.real] if self.skip_padding else ids

    def spread(self, x, heads: int):
        """Rows x (N, H K) -> (B, H, T, K). At padding stands a copy of the first row.

        It changes nothing, since a Mask lets nobody attend to padding and padding to nobody.
        """
        _, row_of_place = self._indices(heads)
        return x.reshape(len(x) * heads, -1).take(row_of_place, axis=0)

    def gather(self, x):
        """x (B, H, T, K) -> rows (N, H K): the real positions, each with its heads side by side."""
        place_of_row, _ = self._indices(x.shape[1])
        return x.reshape(-1, x.shape[-1]).take(place_of_row, axis=0).reshape(len(self.real), -1)

    def _indices(self, heads: int):
        """Of each row's heads their place (N, H) in (B, H, T); of each such place its row."""
        if heads not in self._of_heads:
            batch, length = self.valid.shape
            sequence, position = np.divmod(self.real, length)
            head = np.arange(heads)
            place_of_row = (sequence[:, None] * heads + head) * length + position[:, None]
            row = np.zeros(batch * length, dtype=int)
            row[self.real] = np.arange(len(self.real))
            row_of_place = row.reshape(batch, 1, length) * heads + head[:, None]
            self._of_heads[heads] = self.xp.asarray(place_of_row), self.xp.asarray(row_of_place)
        return self._of_heads[heads]
