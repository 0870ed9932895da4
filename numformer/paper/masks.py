"""Who may see whom: nobody sees padding, and a decoder sees no later positions (section 3.2.3).

Places say which positions of a padded batch are real; a Reach says which of them may see which.
Only attention combines positions. Other layers treat each one separately, so they skip padding.
"""

from functools import cached_property

import numpy as np

from numformer.backend import array_module, dtype_kind, has_kernel
from numformer.errors import InputError


def padding_mask(valid):
    """valid (B, S), False at padding -> (B, 1, 1, S): no position may attend to padding."""
    return valid[:, None, None, :]


def causal_mask(length: int, xp=np):
    """(1, 1, T, T): position t may attend to positions up to and including t (section 3.2.3)."""
    return xp.tril(xp.ones((length, length), dtype=bool))[None, None]


class Places:
    """The places of a batch of B sequences: `valid` (B, T), a host array, is False at padding.

    With `skip_padding`, layers work on rows (N, D), one for each real position; `real` (N,) has
    their indices among the B T places. Without it, a batch keeps its shape (B, T, D). `positions`
    (T,) says where in a sequence the places are: 0 to T - 1 unless given.
    """

    def __init__(
        self, valid: np.ndarray, skip_padding: bool = False, positions: np.ndarray | None = None
    ):
        self.valid, self.skip_padding = valid, skip_padding
        self.positions = np.arange(valid.shape[1]) if positions is None else positions
        self._indices: dict[tuple, tuple] = {}

    @classmethod
    def whole(cls, batch: int, length: int, first: int = 0, skip_padding: bool = False) -> "Places":
        """Places of `batch` sequences without padding, at `length` positions from `first` on."""
        return cls.at(np.arange(first, first + length), batch, skip_padding)

    @classmethod
    def at(cls, positions: np.ndarray, batch: int, skip_padding: bool = False) -> "Places":
        """Places of `batch` sequences without padding, at `positions` (T,)."""
        valid = np.ones((batch, len(positions)), dtype=bool)
        places = cls(valid, skip_padding, positions)
        places.all_valid, places.real = True, np.arange(valid.size)
        return places

    @cached_property
    def real(self) -> np.ndarray:
        """Indices (N,) of the real positions among the B T places."""
        real = np.flatnonzero(self.valid)
        # If all is padding, one row stays, since some products need one; nobody attends to it.
        return real if len(real) else np.zeros(1, dtype=int)

    @cached_property
    def all_valid(self) -> bool:
        """Whether there is no padding."""
        return bool(self.valid.all())

    @property
    def row_positions(self) -> np.ndarray:
        """The positions that layers work on: (T,), or with `skip_padding` one for each row (N,)."""
        rows = self.real % self.valid.shape[1] if self.skip_padding else slice(None)
        return self.positions[rows]

    def pick(self, ids: np.ndarray) -> np.ndarray:
        """ids (B, T) -> (B, T), or with `skip_padding` the ids (N,) of the rows."""
        return ids.ravel()[self.real] if self.skip_padding else ids

    def spread(self, x, heads: int):
        """Rows x (N, H K) -> (B, H, T, K), with zeros at padding; without padding, a view."""
        if self.all_valid:
            return x.reshape(*self.valid.shape, heads, -1).swapaxes(1, 2)
        _, row_of_place, padding = self._of_heads(heads, array_module(x))
        return spread_rows(x.reshape(len(x) * heads, -1), row_of_place, padding)

    def gather(self, x):
        """x (B, H, T, K) -> rows (N, H K): the real positions, each with its heads side by side."""
        if self.all_valid:
            return x.swapaxes(1, 2).reshape(len(self.real), -1)
        place_of_row, *_ = self._of_heads(x.shape[1], array_module(x))
        return x.reshape(-1, x.shape[-1]).take(place_of_row, axis=0).reshape(len(self.real), -1)

    def _of_heads(self, heads: int, xp) -> tuple:
        """Indices: the place (N, H) of each row's heads; the row (B, H, T) of each place; padding.

        The row is negative at padding, whose sequences and positions the third index holds.
        """
        if (heads, xp) not in self._indices:
            batch, length = self.valid.shape
            sequence, position = np.divmod(self.real, length)
            head = np.arange(heads)[:, None]
            place_of_row = (sequence * heads + head).T * length + position[:, None]
            row = np.where(self.valid, self.valid.cumsum().reshape(batch, length) - 1, -1)
            row_of_place = row[:, None] * heads + head
            padding = [xp.asarray(index) for index in np.nonzero(~self.valid)]
            self._indices[heads, xp] = xp.asarray(place_of_row), xp.asarray(row_of_place), padding
        return self._indices[heads, xp]


@has_kernel
def spread_rows(x, row_of_place, padding):
    """x (M, K), row_of_place (B, H, T) -> (B, H, T, K): the row of each place; zeros at padding."""
    y = x.take(row_of_place, axis=0)
    y[padding[0], :, padding[1]] = 0
    return y


class Reach:
    """Who may see whom: which keys s each query t of a batch may attend to.

    `queries` and `keys` are Places; unless given, the keys are the queries. Nobody sees padding.
    With `causal`, t sees only s <= t.
    """

    def __init__(self, queries: Places, keys: Places | None = None, causal: bool = False):
        self.queries, self.keys = queries, queries if keys is None else keys
        self.causal = causal
        self._dense: dict = {}
        self._with_keys: dict[bytes, Reach] = {}

    def dense(self, xp=np):
        """Boolean, True = may attend, broadcasts to (B, H, T, S); None if all see all."""
        if xp not in self._dense:
            allowed = None
            if self.causal:
                earlier = self.keys.positions <= self.queries.positions[:, None]
                allowed = None if earlier.all() else earlier[None, None]
            if not self.keys.all_valid:
                valid = padding_mask(self.keys.valid)
                allowed = valid if allowed is None else allowed & valid
            self._dense[xp] = None if allowed is None else xp.asarray(allowed)
        return self._dense[xp]

    def with_keys(self, positions: np.ndarray) -> "Reach":
        """The Reach of the same queries over other keys: the remembered ones, at `positions` (S,).

        All layers of a model need the same Reach, so it is made only once.
        """
        name = positions.tobytes()
        if name not in self._with_keys:
            keys = Places.at(positions, len(self.queries.valid))
            self._with_keys[name] = Reach(self.queries, keys, self.causal)
        return self._with_keys[name]


class ExplicitMask(Reach):
    """A Reach given as an array: `mask`, boolean, broadcasts to (B, H, T, S)."""

    def __init__(self, mask, queries: Places, keys: Places):
        super().__init__(queries, keys)
        self.mask = mask[(None,) * (4 - mask.ndim)]

    def dense(self, xp=np):
        return self.mask

    def with_keys(self, positions: np.ndarray) -> Reach:
        return ExplicitMask(self.mask, self.queries, super().with_keys(positions).keys)


def as_reach(reach, x, memory, first: int = 0) -> Reach:
    """`reach` as a Reach of x (B, T, D) over memory (B, S, D), whose positions begin at `first`.

    A Reach stays as it is, None lets all see all, and a boolean array, where True = may attend,
    broadcasts to (B, H, T, S). Raises InputError for anything else, such as a mask of numbers.
    """
    if isinstance(reach, Reach):
        return reach
    queries, keys = (Places.whole(array.shape[0], array.shape[1], first) for array in (x, memory))
    if reach is None:
        return Reach(queries, keys)
    require_mask(reach)
    return ExplicitMask(reach, queries, keys)


def as_mask(reach, xp=np):
    """A Reach as a boolean array, or None; anything else stays as it is."""
    return reach.dense(xp) if isinstance(reach, Reach) else reach


def require_mask(mask) -> None:
    """Raise InputError unless a mask is an array of truth values."""
    if dtype_kind(mask) != "b":
        raise InputError(
            "a mask is a boolean array, True = may attend",
            getattr(mask, "dtype", type(mask).__name__),
            "Compare: mask != 0. Numbers that are added to scores are a position_bias.",
        )
