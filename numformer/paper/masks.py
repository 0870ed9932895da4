"""Which positions may attend to which: none to padding and, in a decoder, none to later ones.

Places say which positions of a padded batch are real. A Reach says to which positions each one may
attend; `Reach.mask` is the paper's mask (section 3.2.3). Only attention combines positions. All
other layers treat each position by itself, so they can skip padding.
"""

from functools import cached_property

import numpy as np

from numformer.backend import array_module, dtype_kind, has_kernel, to_module
from numformer.errors import InputError


def padding_mask(valid):
    """valid (B, S), False at padding -> (B, 1, 1, S): no position may attend to padding."""
    return valid[:, None, None, :]


def causal_mask(queries, xp=np, keys=None):
    """Return the mask (1, 1, T, S): position t may attend to all positions <= t (section 3.2.3).

    `queries` (T,) and `keys` (S,) are positions. If both are 0 to T - 1, pass just the integer T.
    """
    queries = xp.arange(queries) if np.ndim(queries) == 0 else queries
    keys = queries if keys is None else keys
    return (keys <= queries[:, None])[None, None]


class Places:
    """The B * T places of a padded batch, where `valid` (B, T), a host array, is False at padding.

    With `skip_padding`, layers work on rows (N, D), one for each of the N places that are `real`;
    otherwise on the whole batch (B, T, D). `positions` (T,) are the places' positions in their
    sequences, 0 to T - 1 by default; in decoding, a batch may hold a single later position.
    """

    def __init__(
        self, valid: np.ndarray, skip_padding: bool = False, positions: np.ndarray | None = None
    ):
        self.valid, self.skip_padding = valid, skip_padding
        self.positions = np.arange(valid.shape[1]) if positions is None else positions
        self._indices: dict[tuple, tuple] = {}

    @classmethod
    def without_padding(
        cls, batch: int, length: int, first: int = 0, skip_padding: bool = False
    ) -> "Places":
        """Return Places for `batch` unpadded sequences, at `length` positions from `first` on."""
        places = cls(np.ones((batch, length), bool), skip_padding, np.arange(first, first + length))
        places.all_valid, places.real = True, np.arange(batch * length)
        return places

    @cached_property
    def real(self) -> np.ndarray:
        """The indices (N,) of the real places among all B * T places."""
        real = np.flatnonzero(self.valid)
        # If all is padding, keep one row, as some products need one; no query attends to it.
        return real if len(real) else np.zeros(1, dtype=int)

    @cached_property
    def all_valid(self) -> bool:
        """True if there is no padding."""
        return bool(self.valid.all())

    @property
    def row_positions(self) -> np.ndarray:
        """The positions (T,) of the batch, or with `skip_padding` the position of each row (N,)."""
        rows = self.real % self.valid.shape[1] if self.skip_padding else slice(None)
        return self.positions[rows]

    def pick(self, ids: np.ndarray) -> np.ndarray:
        """ids (B, T) -> all ids (B, T), or with `skip_padding` the ids at real places (N,)."""
        return ids.ravel()[self.real] if self.skip_padding else ids

    def spread(self, x, heads: int):
        """Rows x (N, H K) -> (B, H, T, K), with zeros at padding; a view if there is no padding."""
        if self.all_valid:
            return x.reshape(*self.valid.shape, heads, x.shape[1] // heads).swapaxes(1, 2)
        return spread_rows(x, *self._head_indices(heads, array_module(x))[1:])

    def gather(self, x):
        """x (B, H, T, K) -> rows (N, H K): the real places, each with its heads side by side."""
        if self.all_valid:
            return x.swapaxes(1, 2).reshape(len(self.real), x.shape[1] * x.shape[3])
        return gather_rows(x, self._head_indices(x.shape[1], array_module(x))[0])

    def _head_indices(self, heads: int, xp) -> tuple:
        """The indices place_of_row (N, H), row_of_place (B, H, T), padding (sequence, position)."""
        if (heads, xp) not in self._indices:
            batch, length = self.valid.shape
            sequence, position = np.divmod(self.real, length)
            head = np.arange(heads)
            place_of_row = (sequence[:, None] * heads + head) * length + position[:, None]
            row = np.where(self.valid, self.valid.cumsum().reshape(batch, length) - 1, -1)
            indices = place_of_row, row[:, None] * heads + head[:, None]
            self._indices[heads, xp] = *(to_module(x, xp) for x in indices), np.nonzero(~self.valid)
        return self._indices[heads, xp]


@has_kernel
def spread_rows(x, row_of_place, padding):
    """x (N, H K), row_of_place (B, H, T) -> (B, H, T, K): each place gets its row, padding 0."""
    y = x.reshape(len(x) * row_of_place.shape[1], -1).take(row_of_place, axis=0)
    sequence, position = map(array_module(x).asarray, padding)
    y[sequence, :, position] = 0
    return y


@has_kernel
def gather_rows(x, place_of_row):
    """x (B, H, T, K), place_of_row (N, H) -> (N, H K): each row is read from its place."""
    return x.reshape(-1, x.shape[-1]).take(place_of_row, axis=0).reshape(len(place_of_row), -1)


class Reach:
    """The key positions s to which each query position t of a batch may attend.

    `queries` and `keys` are Places; by default the keys are the queries. No query attends to
    padding. If `causal`, as in the decoder's self-attention, t attends only to s <= t.
    """

    def __init__(self, queries: Places, keys: Places | None = None, causal: bool = False):
        self.queries, self.keys = queries, queries if keys is None else keys
        self.causal = causal
        self._masks: dict = {}
        self._with_keys: dict[bytes, Reach] = {}

    def mask(self, xp=np):
        """A boolean mask, True = may attend, broadcast to (B, H, T, S); None if all are True."""
        if xp not in self._masks:
            mask = np.ones((1, 1, 1, 1), bool)
            if self.causal:
                mask = causal_mask(self.queries.positions, keys=self.keys.positions)
            if not self.keys.all_valid:
                mask = mask & padding_mask(self.keys.valid)
            self._masks[xp] = None if mask.all() else to_module(mask, xp)
        return self._masks[xp]

    def with_keys(self, positions: np.ndarray) -> "Reach":
        """Return the Reach of the same queries over keys in memory, at `positions` (S,).

        All layers of a model need the same Reach, so it is made only once.
        """
        name = positions.tobytes()
        if name not in self._with_keys:
            keys = Places.without_padding(len(self.queries.valid), len(positions))
            keys.positions = positions
            self._with_keys[name] = Reach(self.queries, keys, self.causal)
        return self._with_keys[name]


class ExplicitMask(Reach):
    """A Reach with a given mask, a boolean array that broadcasts to (B, H, T, S)."""

    def __init__(self, array, queries: Places, keys: Places):
        super().__init__(queries, keys)
        self.array = array[(None,) * (4 - array.ndim)]

    def mask(self, xp=np):
        return self.array

    def with_keys(self, positions: np.ndarray) -> Reach:
        return ExplicitMask(self.array, self.queries, super().with_keys(positions).keys)


def as_reach(reach, x, memory, first: int = 0) -> Reach:
    """Return the Reach of x (B, T, D) over memory (B, S, D); positions of both start at `first`.

    `reach` is a Reach, returned as it is; None, if all positions may attend to all; or a boolean
    mask that broadcasts to (B, H, T, S). Raises InputError for anything else, such as numbers.
    """
    if isinstance(reach, Reach):
        return reach
    queries, keys = (Places.without_padding(len(a), a.shape[1], first) for a in (x, memory))
    if reach is None:
        return Reach(queries, keys)
    require_mask(reach)
    return ExplicitMask(reach, queries, keys)


def as_mask(reach, xp=np):
    """Return the mask of a Reach; return a mask or None unchanged."""
    return reach.mask(xp) if isinstance(reach, Reach) else reach


def require_mask(mask) -> None:
    """Raise InputError unless the mask is a boolean array."""
    if dtype_kind(mask) != "b":
        raise InputError(
            "a mask is a boolean array, True = may attend",
            getattr(mask, "dtype", type(mask).__name__),
            "Pass mask != 0 if 0 means masked, mask == 0 if -inf does. To add numbers, use a bias.",
        )
