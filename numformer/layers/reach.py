"""Who may see whom: nobody sees padding, and a decoder sees nothing later (section 3.2.3)."""

import numpy as np

from numformer.backend import array_module, dtype_kind
from numformer.errors import InputError
from numformer.layers.places import Places


def padding_mask(valid):
    """valid (B, S), False at padding -> (B, 1, 1, S): no position may attend to padding."""
    return valid[:, None, None, :]


def causal_mask(length: int, xp=np):
    """(1, 1, T, T): position t may attend to positions up to and including t (section 3.2.3)."""
    return xp.tril(xp.ones((length, length), dtype=bool))[None, None]


class Reach:
    """Who may see whom: which keys s each query t of a batch may attend to.

    `queries` and `keys` are Places, the keys those of the queries unless given. Nobody sees
    padding. With `causal` t sees s <= t, with a `window` only what is nearer than that,
    |t - s| < window. It describes; a mixer asks it for the array that it needs (`dense`), or for a
    part (`tile`), and its Places for rows as arrays (B, H, T, K) and back (`spread`, `gather`).
    """

    def __init__(
        self,
        queries: Places,
        keys: Places | None = None,
        causal: bool = False,
        window: int | None = None,
    ):
        self.queries, self.keys = queries, queries if keys is None else keys
        self.causal, self.window = causal, window
        self._dense: dict = {}
        self._over: dict[bytes, Reach] = {}

    def dense(self, xp=np):
        """Boolean, True = may attend, broadcast to (B, H, T, S); None where all see all."""
        if xp not in self._dense:
            allowed, valid = self._by_position(), None
            if not self.keys.all_valid:
                valid = padding_mask(self.keys.valid)
                allowed = valid if allowed is None else allowed & valid
            self._dense[xp] = None if allowed is None else xp.asarray(allowed)
        return self._dense[xp]

    def tile(self, queries: slice, keys: slice) -> "Reach":
        """The reach of a stretch of the queries over a stretch of the keys."""
        return Reach(self.queries[queries], self.keys[keys], self.causal, self.window)

    def of(self, sequences: slice) -> "Reach":
        """The reach in some sequences of the batch."""
        return Reach(self.queries.of(sequences), self.keys.of(sequences), self.causal, self.window)

    def seen(self, rows: slice) -> tuple[slice, slice]:
        """Of a stretch of queries: the keys that one of them sees, and those that all of them see.

        The former are a stretch that may have others within it, the latter a stretch of them.
        """
        first, last = self.queries.positions[rows][[0, -1]]
        back = np.inf if self.window is None else self.window - 1
        ahead = 0 if self.causal else back
        limits = first - back, last - back, first + ahead + 0.5, last + ahead + 0.5
        start, from_here, to_here, stop = np.searchsorted(self.keys.positions, limits).tolist()
        whole, real = self.keys.ends
        start, stop = min(start, real), min(stop, real)
        from_here, to_here = min(from_here, stop), min(to_here, whole)
        return slice(start, stop), slice(from_here, max(from_here, to_here))

    def over(self, positions: np.ndarray) -> "Reach":
        """The reach of the same queries over other keys, those remembered of `positions` (S,).

        The layers of a model ask for the same one in turn, so it is made once.
        """
        name = positions.tobytes()
        if name not in self._over:
            keys = Places.at(positions, len(self.queries.valid))
            self._over[name] = Reach(self.queries, keys, self.causal, self.window)
        return self._over[name]

    def within(self, window: int) -> "Reach":
        """The same reach as far as a window."""
        return Reach(self.queries, self.keys, self.causal, window)

    def _by_position(self):
        """(1, 1, T, S), what the positions allow, or None where they allow all."""
        if not self.causal and self.window is None:
            return None
        ahead = self.keys.positions - self.queries.positions[:, None]
        allowed = ahead <= 0 if self.causal else np.ones(ahead.shape, dtype=bool)
        if self.window is not None:
            allowed &= abs(ahead) < self.window
        return None if allowed.all() else allowed[None, None]


class Drawn(Reach):
    """A Reach as somebody drew it: `mask`, boolean, broadcasts to (B, H, T, S)."""

    def __init__(self, mask, queries: Places, keys: Places):
        super().__init__(queries, keys)
        self.mask = mask[(None,) * (4 - mask.ndim)]

    def dense(self, xp=np):
        return self.mask

    def over(self, positions: np.ndarray) -> Reach:
        return Drawn(self.mask, self.queries, super().over(positions).keys)

    def tile(self, queries: slice, keys: slice) -> Reach:
        *_, length, longer = self.mask.shape
        mask = self.mask[..., queries if length > 1 else slice(None), :]
        mask = mask[..., keys if longer > 1 else slice(None)]
        return Drawn(mask, self.queries[queries], self.keys[keys])

    def of(self, sequences: slice) -> Reach:
        mask = self.mask[sequences] if len(self.mask) > 1 else self.mask
        return Drawn(mask, self.queries.of(sequences), self.keys.of(sequences))

    def seen(self, rows: slice) -> tuple[slice, slice]:
        return slice(0, len(self.keys.positions)), slice(0, 0)  # nothing is known of it

    def within(self, window: int) -> Reach:
        near = Reach(self.queries, self.keys, window=window).dense(array_module(self.mask))
        return self if near is None else Drawn(self.mask & near, self.queries, self.keys)


def reach_of(reach, x, memory, first: int = 0) -> Reach:
    """What a layer is given as a Reach of x (B, T, D) over memory (B, S, D), both from `first` on.

    A Reach is one, None is that of all over all, and a boolean array, True = may attend, broadcasts
    to (B, H, T, S). Raises InputError for anything else, such as a mask of numbers.
    """
    if isinstance(reach, Reach):
        return reach
    queries, keys = (Places.whole(array.shape[0], array.shape[1], first) for array in (x, memory))
    if reach is None:
        return Reach(queries, keys)
    require_mask(reach)
    return Drawn(reach, queries, keys)


def require_mask(mask) -> None:
    """Raise InputError unless a mask is an array of truth values."""
    if dtype_kind(mask) != "b":
        raise InputError(
            "a mask is a boolean array, True = may attend",
            getattr(mask, "dtype", type(mask).__name__),
            "Compare: mask != 0. Numbers that are added to scores are a position_bias.",
        )
