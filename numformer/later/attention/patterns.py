"""Patterns of attention: which keys each query may see, as a mask and as tiles to compute.

With a sparse pattern, work and memory grow with T or T^(3/2) instead of T^2.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later.attention.rolling_cache import RollingKeysAndValues
from numformer.paper.memory import KeysAndValues


class Tile(NamedTuple):
    """A block of scores that are computed together: those of some heads, query rows and keys.

    `keys` is a slice or an array of indices. Apart from padding, every row sees all columns of the
    tile in the slice `unmasked`; for the others, `mask(t, s)` says which rows see which keys, or is
    None if the pattern masks nothing. `small` marks the tiles of patterns that divide the scores
    into many tiles with few scores each.
    """

    heads: slice
    rows: slice
    keys: Any
    unmasked: slice = slice(0, 0)
    mask: Callable | None = None
    small: bool = False


class FullPattern:
    """Every query sees every key.

    `key_value_state(memory)` creates the state for decoding, which holds the keys and values that
    later positions can see. `is_local` is True if a query sees only keys up to a fixed distance.
    The positions t (T,) of queries and s (S,) of keys are host arrays.
    """

    Settings: ClassVar[type[settings.Settings]] = settings.Settings
    is_local: ClassVar[bool] = False
    key_value_state: Any = KeysAndValues

    def require(self, heads: int) -> None:
        """Raise InputError if the pattern is impossible with this number of heads."""

    def mask(self, t, s, heads: int = 1):
        """Return a boolean mask ([H,] T, S), True = t may see s; None if every t sees every s."""
        return None

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        """Yield tiles that cover the pattern's scores, each with up to `rows` adjacent queries."""
        yield from window_tiles(t, s, causal, heads, rows)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(settings.Settings):
    """The size of a window."""

    window: int = settings.size(128, "how many latest positions a position sees, itself included")


class Window(WindowSettings, FullPattern):
    """t sees s if |t - s| < window (Beltagy et al. 2020; Jiang et al. 2023).

    Through N layers, information travels at most N (window - 1) positions.
    """

    Settings, is_local = WindowSettings, True

    @property
    def key_value_state(self):
        return partial(RollingKeysAndValues, window=self.window)

    def mask(self, t, s, heads: int = 1):
        return abs(s - t[:, None]) < self.window

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        for tile in window_tiles(t, s, causal, heads, rows, self.window):
            yield tile._replace(mask=self.mask)


@dataclass(frozen=True, kw_only=True)
class GlobalWindowSettings(WindowSettings):
    """The size of a window, and the number of global positions."""

    global_tokens: int = settings.size(1, "how many initial positions see all and are seen by all")


class GlobalWindow(GlobalWindowSettings, FullPattern):
    """t sees s if |t - s| < window, or t or s is global (Beltagy et al. 2020, Longformer).

    The first `global_tokens` positions are global; distant positions exchange information through
    them. As in BigBird (Zaheer et al. 2020), they have no projections of their own. Under a causal
    mask, every later position can see them (the attention sinks of Xiao et al. 2024).
    """

    Settings = GlobalWindowSettings

    @property
    def key_value_state(self):
        return partial(RollingKeysAndValues, window=self.window, permanent=self.global_tokens)

    def mask(self, t, s, heads: int = 1):
        t = t[:, None]
        return (abs(s - t) < self.window) | (np.minimum(t, s) < self.global_tokens)

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        count = np.count_nonzero(s < self.global_tokens)
        for tile in window_tiles(t, s, causal, heads, rows, self.window):
            keys: Any = slice(0, tile.keys.stop)
            if not causal and t[tile.rows.start] < self.global_tokens:
                keys = slice(0, len(s))
            elif tile.keys.start > count:
                keys = np.r_[:count, tile.keys]
            yield Tile(tile.heads, tile.rows, keys, mask=self.mask)


@dataclass(frozen=True, kw_only=True)
class StridedSettings(settings.Settings):
    """The stride of `Strided`."""

    stride: int = settings.size(32, "window of half the heads; the rest see every stride-th key")


class Strided(StridedSettings, FullPattern):
    """t sees s if |t - s| < stride, or if t - s is a multiple of stride (Child et al. 2019).

    The first half of the heads (rounded up) follows the first rule, the rest follow the second.
    This is the third variant in section 5.2 of Child et al. Two layers are enough to connect any
    two positions. With a stride near the square root of T, work and memory grow with T^(3/2).
    """

    Settings = StridedSettings

    def require(self, heads: int) -> None:
        if heads < 2:
            raise InputError(
                "strided attention has at least 2 heads: one for near keys, one for distant keys",
                f"heads {heads}",
                "Use more heads, or window attention.",
            )

    def mask(self, t, s, heads: int = 1):
        ahead, near = s - t[:, None], np.arange(heads) < (heads + 1) // 2
        return np.where(near[:, None, None], abs(ahead) < self.stride, ahead % self.stride == 0)

    def tiles(self, t, s, causal: bool, heads: int, rows: int) -> Iterator[Tile]:
        half = (heads + 1) // 2
        for tile in Window(window=self.stride).tiles(t, s, causal, half, min(rows, self.stride)):
            yield tile._replace(small=self.stride < rows)
        for first in range(min(self.stride, len(t))):
            strided_rows = slice(first, len(t), self.stride)
            strided_keys = slice((t[first] - s[0]) % self.stride, len(s), self.stride)
            yield Tile(slice(half, heads), strided_rows, strided_keys, small=True)


def window_tiles(t, s, causal: bool, heads: int, rows: int, window: float = math.inf):
    """Yield tiles, each with consecutive queries and all keys that any of these queries sees."""
    ahead = 0 if causal else window - 1
    for part in slices(0, len(t), rows):
        first, last = t[part][[0, -1]]
        limits = first - window + 1, last - window + 1, first + ahead + 0.5, last + ahead + 0.5
        start, unmasked_start, unmasked_stop, stop = np.searchsorted(s, limits)
        unmasked = slice(unmasked_start - start, max(unmasked_start, unmasked_stop) - start)
        yield Tile(slice(0, heads), part, slice(start, stop), unmasked)


def slices(start: int, stop: int, size: int) -> list[slice]:
    """Return consecutive slices of length `size` from start to stop; the last may be shorter."""
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]
