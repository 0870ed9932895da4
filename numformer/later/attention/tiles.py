"""Attention by tiles: stretches of queries, each with the keys that one of them can see.

What a pattern of attention is, which keys a query sees, says which tiles there are; scores of other
keys are never computed. So a pattern is a list of tiles, and forward and backward are one loop.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numformer.backend import array_module
from numformer.layers.attention import SelfAttention
from numformer.layers.reach import Reach


class Tile(NamedTuple):
    """Some heads' queries and keys (slices; keys also as indices), and which see which within it.

    `pattern` (T, S) is on the host, None where who sees whom is a matter of the reach alone.
    """

    heads: slice
    rows: slice
    keys: Any
    pattern: Any = None


def near_blocks(reach: Reach, window: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of `window` queries, and the stretch of keys less than `window` from one of them."""
    t, s = reach.queries.positions, reach.keys.positions
    ahead = 0 if reach.causal else window - 1
    for first in range(0, len(t), window):
        rows = slice(first, min(first + window, len(t)))
        seen = t[rows][0] - window + 1, t[rows][-1] + ahead + 1
        yield rows, slice(*np.searchsorted(s, seen))


class TiledAttention(SelfAttention):
    """x (B, T, D), reach -> (B, T, D): self-attention of which `tiles` says what is computed.

    Each pattern is a subclass with tiles of its own; here one tile is the whole.
    """

    def tiles(self, reach: Reach) -> list[Tile]:
        """What is computed, in order. Each query of each head is in one tile."""
        everything = slice(None)
        return [Tile(everything, everything, everything)]

    def attend(self, query, key, value, reach: Reach):
        xp = array_module(query)
        heads = xp.empty((*query.shape[:-1], value.shape[-1]), query.dtype)
        for tile in self.tiles(reach):
            mask, bias = self.mask_and_bias(query, reach.tile(tile.rows, tile.keys))
            if tile.pattern is not None and not tile.pattern.all():
                pattern = xp.asarray(tile.pattern)[None, None]
                mask = pattern if mask is None else mask & pattern
            of_scores = (_of_heads(x, tile.heads) for x in (mask, bias))
            keys = _index(xp, tile.keys)
            heads[:, tile.heads, tile.rows] = self.attention.forward(
                query[:, tile.heads, tile.rows],
                key[:, tile.heads, keys],
                value[:, tile.heads, keys],
                *of_scores,
            )
        return heads

    def attend_backward(self, dheads, reach: Reach):
        xp, (batch, heads, length, _) = array_module(dheads), dheads.shape
        longer = len(reach.keys.positions)
        dquery = xp.empty((batch, heads, length, self.d_k), dheads.dtype)
        dkey = xp.zeros((batch, heads, longer, self.d_k), dheads.dtype)
        dvalue = xp.zeros((batch, heads, longer, self.d_v), dheads.dtype)
        for tile in reversed(self.tiles(reach)):
            rows, keys = (tile.heads, tile.rows), (tile.heads, _index(xp, tile.keys))
            dquery[:, *rows], *of_keys = self.attention.backward(dheads[:, *rows])
            dkey[:, *keys] += of_keys[0]  # several tiles have the same keys
            dvalue[:, *keys] += of_keys[1]
        return dquery, dkey, dvalue

    def looks(self):
        reach = self.saved[-1]["reach"]
        (batch, length), longer = reach.queries.valid.shape, len(reach.keys.positions)
        tiles = self.tiles(reach)
        saved = self.attention.saved_weights()[-len(tiles) :]
        xp, dtype = array_module(saved[0]), saved[0].dtype
        weights = xp.zeros((batch, self.heads, length, longer), dtype)
        for tile, of_tile in zip(tiles, saved, strict=True):
            weights[:, tile.heads, tile.rows, _index(xp, tile.keys)] = of_tile
        return weights


def _index(xp, keys):
    return keys if isinstance(keys, slice) else xp.asarray(keys)


def _of_heads(x, heads: slice):
    """Of what broadcasts to (B, H, T, S) the part of some heads."""
    return x if x is None or x.shape[-3] == 1 else x[..., heads, :, :]
