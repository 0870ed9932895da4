"""Patterns: which keys a query may see, as a mask, and as the tiles of the scores that are computed.

A pattern that leaves most keys out makes work and memory grow with T, or its power of 3/2, not T^2.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later.attention.latest import Latest
from numformer.paper.masks import Reach
from numformer.paper.memory import KeysAndValues, Memory


class Tile(NamedTuple):
    """Scores that are computed together: of some heads, rows of queries and keys.

    `keys` is a slice or an array of indices. All rows see the keys at `open`, a stretch of the
    tile's columns; of the others `sees(t, s)` says which rows see them, where the pattern does not
    let all. A tile is `small` where there are many of a few scores each.
    """

    heads: slice
    rows: slice
    keys: Any
    open: slice = slice(0, 0)
    sees: Callable | None = None
    small: bool = False


@dataclass(frozen=True)
class Everything:
    """A query sees every key, as far as a mask lets it."""

    Settings: ClassVar[type[settings.Settings]] = settings.Settings
    sees_near: ClassVar[bool] = False
    remembers: ClassVar[Any] = KeysAndValues

    def require(self, heads: int) -> None:
        """Raise InputError for a number of heads that cannot have this pattern."""

    def sees(self, t, s, heads: int = 1):
        """Positions t (T,), s (S,) -> boolean (T, S) or (H, T, S), None where all see all."""
        return None

    def tiles(self, reach: Reach, heads: int, rows: int) -> Iterator[Tile]:
        """The tiles, of at most so many rows, that hold every score that the reach allows."""
        yield from tiles_near(reach, heads, rows)


@dataclass(frozen=True)
class Window(Everything):
    """t sees s where |t - s| < window (Beltagy et al. 2020; Jiang et al. 2023).

    Decoding remembers the latest positions alone. Through N layers what a position knows of comes
    from up to N (window - 1) positions away.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """How far a position sees."""

        window: int = settings.size(128, "positions that a position sees back, itself included")

    sees_near = True
    window: int

    def remembers(self, past: Memory) -> Any:
        """The keys and values that later positions can see."""
        return Latest(past, self.window)

    def sees(self, t, s, heads: int = 1):
        return abs(s - t[:, None]) < self.window

    def tiles(self, reach: Reach, heads: int, rows: int) -> Iterator[Tile]:
        for tile in tiles_near(reach, heads, rows, self.window):
            yield tile._replace(sees=self.sees)


@dataclass(frozen=True)
class GlobalWindow(Window):
    """t sees s where |t - s| < window, or t or s is global (Beltagy et al. 2020, Longformer).

    The first `global_tokens` positions are global: by way of them far positions meet. Longformer
    gives them projections of their own; here, as in BigBird (Zaheer et al. 2020), there is one for
    all positions. Where positions look back alone, the first tokens are what all later ones can
    look at (Xiao et al. 2024 call them attention sinks).
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(Window.Settings):
        """How far a position sees, and how many see everything."""

        global_tokens: int = settings.size(1, "first positions that see all and that all see")

    sees_near = False
    global_tokens: int

    def remembers(self, past: Memory) -> Any:
        return Latest(past, self.window, self.global_tokens)

    def sees(self, t, s, heads: int = 1):
        t = t[:, None]
        return (abs(s - t) < self.window) | (np.minimum(t, s) < self.global_tokens)

    def tiles(self, reach: Reach, heads: int, rows: int) -> Iterator[Tile]:
        t, s = reach.queries.positions, reach.keys.positions
        count = np.count_nonzero(s < self.global_tokens)
        for tile in tiles_near(reach, heads, rows, self.window):
            near = tile.keys
            if not reach.causal and t[tile.rows.start] < self.global_tokens:
                keys: Any = slice(0, len(s))
            elif near.start <= count:
                keys = slice(0, near.stop)
            else:
                keys = np.r_[:count, near]
            yield Tile(tile.heads, tile.rows, keys, sees=self.sees)


@dataclass(frozen=True)
class Strided(Everything):
    """t sees s where |t - s| < stride, or where stride divides t - s (Child et al. 2019).

    The former is what the first half of the heads does (the larger one where they are odd), the
    latter the second: the two patterns of section 4.3 side by side as heads, the third of the ways
    in section 5.2. Two layers bring together any two positions. With a stride near the root of T
    work and memory grow with T to the power of 3/2.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """How far apart the positions are that see each other."""

        stride: int = settings.size(32, "how far near heads see; the others see one in so many")

    stride: int

    def require(self, heads: int) -> None:
        if heads < 2:
            raise InputError(
                "strided attention has at least 2 heads: one looks near, one in strides",
                f"heads {heads}",
                "Use more heads, or window attention.",
            )

    def sees(self, t, s, heads: int = 1):
        ahead, half = s - t[:, None], (heads + 1) // 2
        return np.stack(
            [abs(ahead) < self.stride] * half + [ahead % self.stride == 0] * (heads - half)
        )

    def tiles(self, reach: Reach, heads: int, rows: int) -> Iterator[Tile]:
        t, s, half = reach.queries.positions, reach.keys.positions, (heads + 1) // 2
        for tile in Window(self.stride).tiles(reach, heads, rows):
            yield tile._replace(heads=slice(0, half))
        for first in range(min(self.stride, len(t))):
            of_rows = slice(first, len(t), self.stride)
            of_keys = slice((t[first] - s[0]) % self.stride, len(s), self.stride)
            yield Tile(slice(half, heads), of_rows, of_keys, small=True)


def tiles_near(reach: Reach, heads: int, rows: int, window: float = math.inf) -> Iterator[Tile]:
    """Stretches of queries, each with the keys that one of them sees: |t - s| < window."""
    t, s = reach.queries.positions, reach.keys.positions
    ahead = 0 if reach.causal else window - 1
    for some in stretches(len(t), rows):
        first, last = t[some][[0, -1]]
        limits = first - window + 1, last - window + 1, first + ahead + 0.5, last + ahead + 0.5
        start, from_here, to_here, stop = np.searchsorted(s, limits).tolist()
        open_to_all = slice(from_here - start, max(from_here, to_here) - start)
        yield Tile(slice(0, heads), some, slice(start, stop), open_to_all)


def stretches(length: int, size: int) -> list[slice]:
    """The slices of `size` that cover `length`; the last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
