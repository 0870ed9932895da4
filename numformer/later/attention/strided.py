"""Strided sparse attention (Child et al. 2019): half of the heads look near, half in strides.

The near ones see the latest l positions, the others every l-th before; two layers bring together
any two positions. With l near the root of T, work and memory grow with T to the power of 3/2.
"""

from dataclasses import dataclass

from numformer import settings
from numformer.errors import InputError
from numformer.layers.reach import Reach
from numformer.layers.tiles import Tile, TiledAttention, near_blocks


class StridedAttention(TiledAttention):
    """x (B, T, D), reach -> (B, T, D): t sees s where |t - s| < stride, or stride divides t - s.

    The former is what the first half of the heads does (the larger one where they are odd), the
    latter the second: the two patterns of section 4.3 side by side as heads, the third of the ways
    in section 5.2. All keys are remembered, of which a position of the second kind reads one in l.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """How far apart the positions are that see each other."""

        stride: int = settings.size(32, "how far near heads see; the others see one in so many")

    def __init__(self, d_model: int, heads: int, rng, stride: int, **others):
        require_heads(heads)
        super().__init__(d_model, heads, rng, **others)
        self.stride = stride

    def tiles(self, reach: Reach) -> list[Tile]:
        t, s = reach.queries.positions, reach.keys.positions
        half = (self.heads + 1) // 2
        near, far = slice(half), slice(half, None)
        tiles = [
            Tile(near, rows, keys, abs(s[keys] - t[rows][:, None]) < self.stride)
            for rows, keys in near_blocks(reach, self.stride)
        ]
        for first in range(min(self.stride, len(t))):
            of_keys = (t[first] - s[0]) % self.stride
            rows, keys = slice(first, None, self.stride), slice(of_keys, None, self.stride)
            tiles.append(Tile(far, rows, keys))
        return tiles

    @classmethod
    def require(cls, config) -> None:
        require_heads(config.heads)


def require_heads(heads: int) -> None:
    """Raise InputError unless there are heads of both kinds."""
    if heads < 2:
        raise InputError(
            "strided attention has at least 2 heads: one looks near, one in strides",
            f"heads {heads}",
            "Use more heads, or window attention.",
        )
