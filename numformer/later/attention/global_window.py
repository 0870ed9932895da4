"""A window with global tokens (Beltagy et al. 2020, Longformer): the first positions meet all.

What is near is seen directly, what is far by way of a few positions that everybody sees and that
see everybody. Work and memory grow with T. Where positions look back alone, the first tokens are
what all later ones can look at, whatever the window (Xiao et al. 2024 call them attention sinks).
"""

from dataclasses import dataclass

import numpy as np

from numformer import settings
from numformer.layers.memory import Memory
from numformer.layers.reach import Reach
from numformer.layers.tiles import Tile, TiledAttention, near_blocks
from numformer.layers.window import Latest, WindowAttention


class GlobalWindowAttention(TiledAttention):
    """x (B, T, D), reach -> (B, T, D): t sees s where |t - s| < window, or t or s is global.

    The first `global_tokens` positions are global; as far as the reach allows they see all and are
    seen by all. Longformer gives them projections of their own; here, as in BigBird (Zaheer et al.
    2020), there is one for all positions.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(WindowAttention.Settings):
        """How far a position sees, and how many see everything."""

        global_tokens: int = settings.size(1, "first positions that see all and that all see")

    def __init__(self, d_model: int, heads: int, rng, window: int, global_tokens: int, **others):
        super().__init__(d_model, heads, rng, **others)
        self.window, self.global_tokens = window, global_tokens

    def tiles(self, reach: Reach) -> list[Tile]:
        t, s = reach.queries.positions, reach.keys.positions
        if len(t) == 1:  # whose keys may come from a ring, in any order
            return [self._tile(slice(None), slice(None), t, s)]
        globals_ = np.count_nonzero(s < self.global_tokens)
        tiles = []
        for rows, near in near_blocks(reach, self.window):
            if not reach.causal and t[rows][0] < self.global_tokens:
                keys = slice(None)
            elif near.start <= globals_:
                keys = slice(0, near.stop)
            else:
                keys = np.r_[:globals_, near]
            tiles.append(self._tile(rows, keys, t, s))
        return tiles

    def _tile(self, rows, keys, t, s) -> Tile:
        t = t[rows][:, None]
        s = s[keys]
        seen = (abs(s - t) < self.window) | (np.minimum(t, s) < self.global_tokens)
        return Tile(slice(None), rows, keys, seen)

    def remembered(self, past: Memory) -> Latest:
        """The keys and values that later positions can see."""
        return Latest(past, self.window, self.global_tokens)

    @classmethod
    def own_settings(cls, config) -> dict:
        return {name: getattr(config, name) for name in ("window", "global_tokens")}
