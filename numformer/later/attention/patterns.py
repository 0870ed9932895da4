"""Patterns: which keys a query may see, as a mask, and as the tiles that are computed.

With a pattern that leaves most keys out work and memory grow with T, or its power of 3/2, not T^2.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later.attention.latest import Latest
from numformer.paper.memory import KeysAndValues


class Tile(NamedTuple):
    """Scores that are computed together: of some heads, rows of queries and keys.

    `keys` is a slice or an array of indices. All rows see the `open` ones, a stretch of the tile's
    columns; of the others `sees(t, s)` says which rows see them, where the pattern does not let
    all. `small` are many tiles of few scores.
    """

    heads: slice
    rows: slice
    keys: Any
    open: slice = slice(0, 0)
    sees: Callable | None = None
    small: bool = False


class Everything:
    """A query sees every key, as far as a mask lets it.

    `key_value_state(memory)` makes the state that holds the keys and values which later positions
    can see. Positions t (T,) of queries and s (S,) of keys are host arrays.
    """

    Settings: ClassVar[type[settings.Settings]] = settings.Settings
    sees_near: ClassVar[bool] = False
    key_value_state: Any = KeysAndValues

    def require(self, heads: int) -> None:
        """Raise InputError for a number of heads that cannot have this pattern."""

    def sees(self, t, s, heads: int = 1):
        """Which t sees which s, boolean (T, S) or (H, T, S); None where all see all."""
        return None

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        """The tiles, of at most so many rows, that hold every score of the pattern."""
        yield from tiles_near(t, s, causal, heads, rows)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(settings.Settings):
    """How far a position sees."""

    window: int = settings.size(128, "positions that a position sees back, itself included")


class Window(WindowSettings, Everything):
    """t sees s where |t - s| < window (Beltagy et al. 2020; Jiang et al. 2023).

    Through N layers what a position knows of comes from up to N (window - 1) positions away.
    """

    Settings, sees_near = WindowSettings, True

    @property
    def key_value_state(self):
        return partial(Latest, window=self.window)

    def sees(self, t, s, heads: int = 1):
        return abs(s - t[:, None]) < self.window

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        for tile in tiles_near(t, s, causal, heads, rows, self.window):
            yield tile._replace(sees=self.sees)


@dataclass(frozen=True, kw_only=True)
class GlobalWindowSettings(WindowSettings):
    """How far a position sees, and how many see everything."""

    global_tokens: int = settings.size(1, "first positions that see all and that all see")


class GlobalWindow(GlobalWindowSettings, Everything):
    """t sees s where |t - s| < window, or t or s is global (Beltagy et al. 2020, Longformer).

    The first `global_tokens` positions are global; far ones meet by way of them. As in BigBird
    (Zaheer et al. 2020) they have no projections of their own. Where positions look back alone,
    they are what all later ones can look at (Xiao et al. 2024 call them attention sinks).
    """

    Settings = GlobalWindowSettings

    @property
    def key_value_state(self):
        return partial(Latest, window=self.window, lasting=self.global_tokens)

    def sees(self, t, s, heads: int = 1):
        t = t[:, None]
        return (abs(s - t) < self.window) | (np.minimum(t, s) < self.global_tokens)

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        count = np.count_nonzero(s < self.global_tokens)
        for tile in tiles_near(t, s, causal, heads, rows, self.window):
            keys: Any = slice(0, tile.keys.stop)
            if not causal and t[tile.rows.start] < self.global_tokens:
                keys = slice(0, len(s))
            elif tile.keys.start > count:
                keys = np.r_[:count, tile.keys]
            yield Tile(tile.heads, tile.rows, keys, sees=self.sees)


@dataclass(frozen=True, kw_only=True)
class StridedSettings(settings.Settings):
    """How far apart the positions are that see each other."""

    stride: int = settings.size(32, "how far near heads see; the others see one in so many")


class Strided(StridedSettings, Everything):
    """t sees s where |t - s| < stride, or where stride divides t - s (Child et al. 2019).

    The former in the first half of the heads (the larger one where they are odd), the latter in the
    second: the third way of section 5.2. Two layers bring together any two positions. With a stride
    near the root of T work and memory grow with T to the power of 3/2.
    """

    Settings = StridedSettings

    def require(self, heads: int) -> None:
        if heads < 2:
            raise InputError(
                "strided attention has at least 2 heads: one looks near, one in strides",
                f"heads {heads}",
                "Use more heads, or window attention.",
            )

    def sees(self, t, s, heads: int = 1):
        ahead, near = s - t[:, None], np.arange(heads) < (heads + 1) // 2
        return np.where(near[:, None, None], abs(ahead) < self.stride, ahead % self.stride == 0)

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        half = (heads + 1) // 2
        for tile in Window(window=self.stride).tiles(t, s, causal, half, min(rows, self.stride)):
            yield tile._replace(small=self.stride < rows)
        for first in range(min(self.stride, len(t))):
            rows_apart = slice(first, len(t), self.stride)
            keys_apart = slice((t[first] - s[0]) % self.stride, len(s), self.stride)
            yield Tile(slice(half, heads), rows_apart, keys_apart, small=True)


def tiles_near(t, s, causal: bool, heads: int, rows: int, window: float = math.inf):
    """Stretches of queries, each with the keys that one of them sees: |t - s| < window."""
    ahead = 0 if causal else window - 1
    for some in stretches(0, len(t), rows):
        first, last = t[some][[0, -1]]
        limits = first - window + 1, last - window + 1, first + ahead + 0.5, last + ahead + 0.5
        start, from_here, to_here, stop = np.searchsorted(s, limits).tolist()
        open_to_all = slice(from_here - start, max(from_here, to_here) - start)
        yield Tile(slice(0, heads), some, slice(start, stop), open_to_all)


def stretches(start: int, stop: int, size: int) -> list[slice]:
    """The slices of `size` from start to stop; the last may be shorter."""
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]
