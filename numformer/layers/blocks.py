"""Exact attention in blocks of rows: its scores are never stored whole (Rabe and Staats 2021).

A block of queries meets the keys that it may see, and is done with: memory grows with the length T,
not with T^2, a causal block computes nothing later, and its scores stay in the processor's cache.
Backward computes the weights again, of the logarithm of each row's sum (Dao et al. 2022).
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from numformer.backend import (
    array_module,
    dot_last,
    matmul,
    max_last,
    on_host,
    sum_last,
    transpose,
)
from numformer.layer import Array, Layer, training
from numformer.layers.dropout import KeepByTiles, dropout, dropout_backward
from numformer.layers.reach import Reach, reach_of

ROWS = 128  # of queries in a block: fewer make slow products, more compute more that is masked
SMALL = 40  # exp(40) times any length is a number of float32, and so is exp(-40) times small values
LEAST = 1 << 16  # scores of a sequence from which on blocks are faster, where half are masked


def laid_out(x):
    """x (..., M, N) with its rows one after the other in memory, as products read them best."""
    return array_module(x).ascontiguousarray(x)


class Tile(NamedTuple):
    """Some rows of the scores: of which queries and keys, and what they meet.

    `queries` and `keys` are indices of arrays (B, H, T, K) and (B, H, S, K), `added` are stretches
    of columns and what is added to their scores, `keep` is the mask of dropout or None.
    """

    queries: tuple
    keys: tuple
    added: list
    keep: Any

    def scores(self, query, key):
        """query (B, H, T, K), already scaled, key (B, H, S, K) -> the scores of this tile."""
        scores = matmul(query[self.queries], transpose(key[self.keys]))
        for columns, addend in self.added:
            scores[..., columns] += addend
        return scores


def attention_in_blocks(query, key, value, tiles, small):
    """softmax(Q K^T / sqrt(d_k)) V, as scaled_dot_product_attention, a tile after the other.

    query (..., T, K), key (..., S, K), value (..., S, K_v) -> output (..., T, K_v), log_sums
    (..., T, 1): log sum_s exp(score_ts). A row that sees nothing gives 0. Of `small` scores the
    exponentials are numbers as they are; else the highest of the row is subtracted first.
    """
    xp, highest = array_module(query), 0
    output = xp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    log_sums = xp.zeros((*query.shape[:-1], 1), query.dtype)
    scale = 1 / math.sqrt(query.shape[-1])
    query, key, value = map(laid_out, (query * scale, key, value))
    for tile in tiles:
        weights = tile.scores(query, key)
        if not small:
            highest = xp.maximum(max_last(weights), xp.finfo(weights.dtype).min)
            weights -= highest
        xp.exp(weights, out=weights)
        total = xp.maximum(sum_last(weights), xp.finfo(weights.dtype).tiny)
        log_sums[tile.queries] = highest + xp.log(total)
        rows = matmul(dropout(weights, tile.keep), value[tile.keys])
        rows /= total  # fewer entries than the weights have
        output[tile.queries] = rows
        del weights  # so that the next tile takes this memory, which is in the cache
    return output, log_sums


def attention_in_blocks_backward(doutput, query, key, value, output, log_sums, tiles):
    """doutput (..., T, K_v) -> dquery (..., T, K), dkey (..., S, K), dvalue (..., S, K_v)."""
    xp, scale, leading = array_module(query), 1 / math.sqrt(query.shape[-1]), query.shape[:-2]
    dquery = xp.zeros(query.shape, query.dtype)
    dkey, dvalue = (xp.zeros((*leading, *x.shape[-2:]), x.dtype) for x in (key, value))
    query, key, value, doutput = map(laid_out, (query * scale, key, value, doutput))
    inner = dot_last(doutput, output)  # <dweights, weights> of each row: output = weights V
    for tile in tiles:
        weights = tile.scores(query, key)
        weights -= log_sums[tile.queries]
        xp.exp(weights, out=weights)
        drows = doutput[tile.queries]
        dropped = dropout(weights, tile.keep)
        dvalue[tile.keys] += matmul(transpose(dropped), drows)  # output = dropped V
        ddropped = matmul(drows, transpose(value[tile.keys]))  # output = dropped V
        dscores = dropout_backward(ddropped, tile.keep)
        dscores -= inner[tile.queries]
        dscores *= weights  # weights = softmax(scores)
        dquery[tile.queries] = matmul(dscores, key[tile.keys])  # scores = Q K^T
        dkey[tile.keys] += matmul(transpose(dscores), query[tile.queries])  # scores = Q K^T
        del weights, dropped, ddropped, dscores
    dquery *= scale
    return dquery, dkey, dvalue


def scores_are_small(query, key) -> bool:
    """Whether |q||k| / sqrt(d_k), which no score exceeds, is small; on a GPU asking would wait."""
    if not on_host(query):
        return False
    lengths = (math.sqrt(dot_last(x, x).max()) for x in (query, key))
    return math.prod(lengths) <= SMALL * math.sqrt(query.shape[-1])


class BlockAttention(Layer):
    """query (B, H, T, K), key (B, H, S, K), value (B, H, S, K_v), reach -> (B, H, T, K_v).

    What ScaledDotProductAttention computes, in blocks of `rows` queries, of twice as many where the
    reach is not causal. The `reach` is a Reach, a boolean mask or None; `position_bias(queries,
    keys)` makes of positions (T,), (S,) what is added to their scores (H, T, S). Instead of H there
    may be several axes, as groups of heads have them.
    """

    def __init__(self, p_drop: float = 0.0, rows: int = ROWS):
        self.p_drop, self.rows = p_drop, rows

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        reach: Any = None,
        position_bias: Callable | None = None,
    ) -> Array:
        reach = reach_of(reach, query[:, 0], key[:, 0])
        keep = None
        if training() and self.p_drop:
            keep = KeepByTiles((*query.shape[:-1], key.shape[-2]), self.p_drop)
        rows = self.rows if reach.causal else 2 * self.rows
        tiles = Tiles(rows, reach, position_bias, keep)
        small = position_bias is None and scores_are_small(query, key)
        output, log_sums = attention_in_blocks(query, key, value, tiles.of(query), small)
        saved = dict(query=query, key=key, value=value, output=output, log_sums=log_sums)
        self.save(**saved, tiles=tiles)
        return output

    def backward(self, doutput: Array) -> Any:
        saved = self.pop_saved()
        tiles = saved.pop("tiles").of(doutput)
        return attention_in_blocks_backward(doutput, **saved, tiles=tiles)

    def saved_weights(self) -> list:
        """The weights (B, H, T, S) of each forward that no backward has met yet, computed again."""
        return [_whole_weights(**record) for record in self.saved]


def _whole_weights(query, key, log_sums, tiles, **others):
    xp = array_module(query)
    weights = xp.zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
    query = query * (1 / math.sqrt(query.shape[-1]))
    for tile in tiles.of(query):
        of_tile = xp.exp(tile.scores(query, key) - log_sums[tile.queries])
        weights[*tile.queries[:-1], tile.keys[-2]] = of_tile
    return weights


class Tiles(NamedTuple):
    """How the scores of a reach are cut into tiles of `rows` queries, and what these meet."""

    rows: int
    reach: Reach
    position_bias: Callable | None
    keep: KeepByTiles | None

    def of(self, query) -> Iterator[Tile]:
        """The tiles of query (B, H, T, K).

        On the host those of one head after the other, so that they stay in the cache; padded
        sequences, too, since each ends elsewhere. A GPU takes all together.
        """
        batch, heads = query.shape[:2]
        whole = slice(batch) if self.reach.keys.all_valid or not on_host(query) else None
        for sequences in [whole] if whole else stretches(batch, 1):
            reach = self.reach.of(sequences)
            length = reach.queries.ends[1] if reach.queries.skip_padding else query.shape[-2]
            parts: list[tuple] = [(sequences, slice(heads))]
            if on_host(query):
                parts = [*itertools.product(range(batch)[sequences], range(heads))]
            for rows in stretches(length, self.rows):
                near, seen_by_all = reach.seen(rows)
                if near.start == near.stop:
                    continue
                added = self.added(reach, rows, near, seen_by_all, query)
                for part in parts:
                    keep = self.keep and self.keep.tile(part, rows, near, query)
                    of_part = [(columns, addend[part]) for columns, addend in added]
                    queries, keys = ((*part, ..., some, slice(None)) for some in (rows, near))
                    yield Tile(queries, keys, of_part, keep)

    def added(self, reach: Reach, rows: slice, near: slice, seen_by_all: slice, query) -> list:
        """The bias, and minus infinity where not all rows see all."""
        xp, heads, added = array_module(query), query.shape[1:-2], []

        def by_heads(addend):
            """(B, H, T, S), where B and H may be 1, as all sequences and heads have it."""
            sizes = addend.shape[2:]
            addend = xp.broadcast_to(addend, (len(query), math.prod(heads), *sizes))
            return addend.reshape(len(query), *heads, *sizes)

        if self.position_bias:
            places = reach.queries[rows], reach.keys[near]
            bias = self.position_bias(*(xp.asarray(part.positions) for part in places))
            added.append((slice(None), by_heads(bias[None].astype(query.dtype))))
        for edge in slice(near.start, seen_by_all.start), slice(seen_by_all.stop, near.stop):
            mask = reach.tile(rows, edge).dense(xp)
            if mask is not None:
                addend = xp.where(mask, query.dtype.type(0), query.dtype.type(-np.inf))
                columns = slice(edge.start - near.start, edge.stop - near.start)
                added.append((columns, by_heads(addend)))
        return added


def worth_blocks(reach: Reach) -> bool:
    """Whether blocks are faster than the plain formula; they always need less memory."""
    length, longer = len(reach.queries.positions), len(reach.keys.positions)
    return length > ROWS and length * longer >= (LEAST if reach.causal else 2 * LEAST)


def stretches(length: int, size: int) -> list[slice]:
    """The slices of `size` that cover `length`; the last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
