"""Exact attention a tile after the other: its scores are never stored whole (Rabe and Staats 2021).

Some queries meet the keys that they may see, and are done with: memory grows with the length T, not
with T^2, what a pattern or a mask leaves out is not computed, and the scores stay in the
processor's cache. Backward computes the weights again, of the logarithm of each row's sum (Dao et
al. 2022).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numformer.backend import (
    array_module,
    dot_last,
    laid_out,
    matmul,
    max_last,
    on_host,
    sum_last,
    transpose,
)
from numformer.later.attention.dense import BiasedAttention
from numformer.later.attention.keep import KeepByTiles
from numformer.later.attention.patterns import Everything, Tile, stretches
from numformer.layer import Array, Layer, mode, training
from numformer.paper.dropout import dropout, dropout_backward
from numformer.paper.masks import ExplicitMask, Places, Reach, as_reach

ROWS = 128  # of queries in a tile: fewer make slow products, more compute more that is masked
SMALL = 40  # exp(40) times any length is a number of float32, and so is exp(-40) times small values
LEAST = 1 << 16  # scores of a sequence from which on tiles are faster, where half are masked


class Scores(NamedTuple):
    """The scores of a tile in some sequences and groups of heads, and what they meet.

    The indices are those of arrays (B, G, H / G, T, K): `queries`, `keys`, which all heads of a
    group share, and `dkeys`, which they do not. `added` are stretches of columns and what is added
    to their scores, `keep` is the mask of dropout or None; a gradient is added to `dbias`, if any.
    """

    queries: tuple
    keys: tuple
    dkeys: tuple
    added: list
    keep: Any
    dbias: Any

    def of(self, query, key):
        """query (B, G, H / G, T, K), already scaled, key (B, G, 1, S, K) -> these scores."""
        scores = matmul(query[self.queries], transpose(key[self.keys]))
        for columns, addend in self.added:
            scores[..., columns] += addend
        return scores


def attention_in_tiles(query, key, value, tiles, small):
    """softmax(Q K^T / sqrt(d_k) + bias) V, as biased_attention, a tile after the other.

    query (B, G, H / G, T, K), key (B, G, 1, S, K), value (B, G, 1, S, K_v)
    -> output (B, G, H / G, T, K_v), log_sums (B, G, H / G, T, 1): log sum_s exp(score_ts). A row
    that sees nothing gives 0. Of `small` scores the exponentials are numbers as they are; else the
    highest of the row is subtracted first.
    """
    xp, highest = array_module(query), 0
    output = xp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    log_sums = xp.zeros((*query.shape[:-1], 1), query.dtype)
    scale = 1 / math.sqrt(query.shape[-1])
    query, key, value = map(laid_out, (query * scale, key, value))
    for scores in tiles:
        weights = scores.of(query, key)
        if not small:
            highest = xp.maximum(max_last(weights), xp.finfo(weights.dtype).min)
            weights -= highest
        xp.exp(weights, out=weights)
        total = xp.maximum(sum_last(weights), xp.finfo(weights.dtype).tiny)
        log_sums[scores.queries] = highest + xp.log(total)
        rows = matmul(dropout(weights, scores.keep), value[scores.keys])
        rows /= total  # fewer entries than the weights have
        output[scores.queries] = rows
        del weights  # so that the next tile takes this memory, which is in the cache
    return output, log_sums


def attention_in_tiles_backward(doutput, query, key, value, output, log_sums, tiles):
    """doutput (B, G, H / G, T, K_v) -> dquery, and dkey, dvalue (B, G, H / G, S, K) of each head."""
    xp, scale = array_module(query), 1 / math.sqrt(query.shape[-1])
    dquery = xp.zeros(query.shape, query.dtype)
    dkey, dvalue = (xp.zeros((*query.shape[:3], *x.shape[3:]), x.dtype) for x in (key, value))
    query, key, value, doutput = map(laid_out, (query * scale, key, value, doutput))
    inner = dot_last(doutput, output)  # <dweights, weights> of each row: output = weights V
    for scores in tiles:
        weights = scores.of(query, key)
        weights -= log_sums[scores.queries]
        xp.exp(weights, out=weights)
        drows = doutput[scores.queries]
        dropped = dropout(weights, scores.keep)
        dvalue[scores.dkeys] += matmul(transpose(dropped), drows)  # output = dropped V
        ddropped = matmul(drows, transpose(value[scores.keys]))  # output = dropped V
        dscores = dropout_backward(ddropped, scores.keep)
        dscores -= inner[scores.queries]
        dscores *= weights  # weights = softmax(scores)
        if scores.dbias is not None:
            scores.dbias[...] += dscores.sum(axis=0)  # scores = Q K^T + bias
        dquery[scores.queries] = matmul(dscores, key[scores.keys])  # scores = Q K^T
        dkey[scores.dkeys] += matmul(transpose(dscores), query[scores.queries])  # scores = Q K^T
        del weights, dropped, ddropped, dscores
    dquery *= scale
    return dquery, dkey, dvalue


def scores_are_small(query, key) -> bool:
    """Whether |q||k| / sqrt(d_k), which no score exceeds, is small; on a GPU asking would wait."""
    if not on_host(query):
        return False
    lengths = (math.sqrt(dot_last(x, x).max()) for x in (query, key))
    return math.prod(lengths) <= SMALL * math.sqrt(query.shape[-1])


class TiledAttention(Layer):
    """query (B, H, T, K), key (B, G, S, K), value (B, G, S, K_v), reach -> (B, H, T, K_v).

    What ScaledDotProductAttention computes, of the keys that a `pattern` lets a query see. With
    fewer heads of keys and values than of queries, G < H, query i has key i // (H / G): all queries
    of a group look at one (Ainslie et al. 2023; of G = 1 Shazeer 2019). The `reach` is a Reach, a
    boolean mask or None. A `bias` makes of positions (T,), (S,) what is added to their scores
    (H, T, S); its backward gets the gradient of that.

    Long sequences are taken in tiles of `rows` queries, of twice as many where the reach is not
    causal. Where they are short the formula is computed whole, by BiasedAttention; an attention of
    one's own, `whole`, meets all scores so.
    """

    def __init__(
        self,
        pattern: Everything = Everything(),
        p_drop: float = 0.0,
        bias: Layer | None = None,
        rows: int = ROWS,
        whole: Layer | None = None,
    ):
        self.pattern, self.p_drop, self.rows = pattern, p_drop, rows
        self.takes_tiles = whole is None
        self.whole = whole or BiasedAttention(p_drop)
        self.bias = bias

    def forward(self, query: Array, key: Array, value: Array, reach: Any = None) -> Array:
        reach = as_reach(reach, query[:, 0], key[:, 0])
        shape, groups = query.shape[:-1], key.shape[1]
        tiled = self.takes_tiles and worth_tiles(reach)
        grouped = tiled or groups < shape[1]
        if grouped:
            query, key, value = in_groups(query, groups), key[:, :, None], value[:, :, None]
        if tiled:
            output, saved = self._in_tiles(query, key, value, reach)
        else:
            mask, bias = self._mask_and_bias(reach, shape[1], query)
            if grouped:
                mask, bias = (x if x is None else in_groups(x, groups) for x in (mask, bias))
            added = [] if bias is None else [bias]
            output, saved = self.whole.forward(query, key, value, mask, *added), {}
        self.save(groups=groups if grouped else None, of_tiles=saved)
        return output.reshape(*shape, -1)

    def backward(self, doutput: Array) -> Any:
        saved = self.pop_saved()
        groups, of_tiles, shape = saved["groups"], saved["of_tiles"], doutput.shape[:-1]
        doutput = doutput if groups is None else in_groups(doutput, groups)
        if of_tiles:
            tiles = of_tiles.pop("tiles").of(doutput, gradients=True)
            dquery, dkey, dvalue = attention_in_tiles_backward(doutput, **of_tiles, tiles=tiles)
        else:
            dquery, dkey, dvalue, *dbias = self.whole.backward(doutput)
            if self.bias and self.bias.named_parameters():
                self.bias.backward(dbias[0].reshape(shape[1], shape[2], -1))
        if groups is None:
            return dquery, dkey, dvalue
        # the heads of a group look at the same keys and values
        return dquery.reshape(*shape, -1), *(x.sum(axis=2) for x in (dkey, dvalue))

    def attention_weights(self):
        """Where the queries of the latest forward looked: (B, H, T, S), or None."""
        of_tiles = self.saved[-1]["of_tiles"]
        if of_tiles:
            weights = weights_of_tiles(**of_tiles)
        else:
            weights = self.whole.saved[-1].get("weights")
        if weights is None:
            return None
        return weights.reshape(len(weights), -1, *weights.shape[-2:])

    def _in_tiles(self, query, key, value, reach: Reach):
        """The output of query (B, G, H / G, T, K), and what its backward needs."""
        keep = None
        if training() and self.p_drop:
            keep = KeepByTiles((*query.shape[:-1], key.shape[-2]), self.p_drop)
        rows = self.rows if reach.causal else 2 * self.rows
        tiles = Tiles(reach, self.pattern, self.bias, keep, rows)
        small = self.bias is None and scores_are_small(query, key)
        output, log_sums = attention_in_tiles(query, key, value, tiles.of(query), small)
        arrays = dict(query=query, key=key, value=value, output=output, log_sums=log_sums)
        return output, dict(arrays, tiles=tiles)

    def _mask_and_bias(self, reach: Reach, heads: int, like) -> tuple:
        """What the scores of all positions meet, (B, H, T, S) and (H, T, S), or None."""
        xp, positions = array_module(like), (reach.queries.positions, reach.keys.positions)
        bias = self.bias.forward(*positions, like) if self.bias else None
        return both(reach.dense(xp), self.pattern.sees(*positions, heads), xp), bias


class Tiles(NamedTuple):
    """How the scores of a reach are cut into tiles, and what these meet."""

    reach: Reach
    pattern: Everything
    bias: Any
    keep: KeepByTiles | None
    rows: int

    def of(self, query, gradients: bool = False) -> Iterator[Scores]:
        """The tiles of query (B, G, H / G, T, K); with `gradients` the bias gets its own.

        On the host those of one group of heads after the other, so that they stay in the cache;
        padded sequences, too, since each ends elsewhere. A GPU takes all together.
        """
        xp, (batch, groups, count) = array_module(query), query.shape[:3]
        apart = on_host(query) and not self.reach.keys.all_valid
        trained = gradients and self.bias and bool(self.bias.named_parameters())
        for sequences in stretches(batch, 1 if apart else batch):
            reach = trimmed(self.reach, sequences)
            if not len(reach.keys.positions):
                continue
            for tile in self.pattern.tiles(reach, groups * count, self.rows):
                keys = np.arange(len(reach.keys.positions))[tile.keys]
                if not len(keys):
                    continue
                with mode(saving=trained):
                    added = self.added(reach, tile, keys, query)
                dbias = None
                if trained:
                    rows = len(reach.queries.positions[tile.rows])
                    dbias = xp.zeros((groups, count, rows, len(keys)), query.dtype)
                together = tile.small or not on_host(query)
                index = tile.keys if isinstance(tile.keys, slice) else xp.asarray(keys)
                for some in [sequences] if together else one_by_one(sequences):
                    for of_groups, of_heads in parts(tile.heads, groups, count, together):
                        within = slice(some.start - sequences.start, some.stop - sequences.start)
                        here = within, of_groups, of_heads
                        queries = some, of_groups, of_heads, tile.rows
                        yield Scores(
                            queries,
                            (some, of_groups, slice(None), index),
                            (some, of_groups, of_heads, index),
                            [(columns, addend[here]) for columns, addend in added],
                            self.keep and self.keep.tile((*queries, tile.keys), query),
                            None if dbias is None else dbias[of_groups, of_heads],
                        )
                if trained:
                    self.bias.backward(dbias.reshape(groups * count, *dbias.shape[2:]))

    def added(self, reach: Reach, tile: Tile, keys: np.ndarray, query) -> list:
        """The bias, and minus infinity where not all rows see all."""
        xp, shape, added = array_module(query), query.shape[1:3], []
        t, s = reach.queries.positions[tile.rows], reach.keys.positions[keys]

        def add(columns, addend):
            """(B, H, T, S), where B and H may be 1, as all sequences and heads have it."""
            sizes = len(reach.keys.valid), math.prod(shape), *addend.shape[2:]
            addend = xp.broadcast_to(addend, sizes)
            added.append((columns, addend.reshape(sizes[0], *shape, *sizes[2:])))

        if self.bias:
            add(slice(None), self.bias.forward(t, s, query)[None])
        real = reach.keys.valid.all(axis=0) & (not isinstance(reach, ExplicitMask))
        open_ = real[keys[tile.open]]
        stop = tile.open.start + (len(open_) if open_.all() else int(open_.argmin()))
        for columns in slice(0, tile.open.start), slice(stop, len(keys)):
            some = part_of(reach, slice(None), tile.rows, keys[columns])
            mask = both(some.dense(xp), tile.sees and tile.sees(t, s[columns]), xp)
            if mask is not None and len(keys[columns]):
                add(columns, xp.where(mask, query.dtype.type(0), query.dtype.type(-np.inf)))
        return added


def weights_of_tiles(query, key, log_sums, tiles, **others):
    """The weights (B, G, H / G, T, S), computed again."""
    weights = array_module(query).zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
    query = query * (1 / math.sqrt(query.shape[-1]))
    for scores in tiles.of(query):
        exponent = scores.of(query, key) - log_sums[scores.queries]
        weights[*scores.queries, scores.keys[-1]] = array_module(query).exp(exponent)
    return weights


def worth_tiles(reach: Reach) -> bool:
    """Whether tiles are faster than the plain formula; they always need less memory."""
    length, longer = len(reach.queries.positions), len(reach.keys.positions)
    return length > ROWS and length * longer >= (LEAST if reach.causal else 2 * LEAST)


def in_groups(x, groups: int):
    """x (..., H, T, K) -> (..., G, H / G, T, K), a view: G groups of neighbouring heads.

    An axis of one head that broadcasts becomes two such axes.
    """
    *others, heads, length, width = x.shape
    groups = min(groups, heads)
    return x.reshape(*others, groups, heads // groups, length, width)


def both(mask, seen, xp):
    """A mask (B, H, T, S) or None, and (T, S) or (H, T, S) on the host, or None -> what both let."""
    if seen is None or seen.all():
        return mask
    seen = xp.asarray(seen)[None] if seen.ndim == 3 else xp.asarray(seen)[None, None]
    return seen if mask is None else mask & seen


def trimmed(reach: Reach, sequences: slice) -> Reach:
    """The reach of some sequences up to the last key that is real, and query that is computed."""
    ends = []
    for places, ends_early in (reach.queries, reach.queries.skip_padding), (reach.keys, True):
        real = np.flatnonzero(places.valid[sequences].any(axis=0))
        last = real[-1] + 1 if len(real) else 0
        whole = isinstance(reach, ExplicitMask) or not ends_early
        ends.append(slice(0, len(places.positions) if whole else last))
    return part_of(reach, sequences, *ends)


def part_of(reach: Reach, sequences: slice, queries: slice, keys: Any) -> Reach:
    """The reach of some queries of some sequences over some keys, a slice or indices."""
    here, there = (
        Places(places.valid[sequences, some], positions=places.positions[some])
        for places, some in ((reach.queries, queries), (reach.keys, keys))
    )
    if not isinstance(reach, ExplicitMask):
        return Reach(here, there, reach.causal)
    keys = keys if isinstance(keys, slice) else array_module(reach.mask).asarray(keys)
    index = sequences, slice(None), queries, keys
    sizes = zip(index, reach.mask.shape, strict=True)
    mask = reach.mask[tuple(some if size > 1 else slice(None) for some, size in sizes)]
    return ExplicitMask(mask, here, there)


def one_by_one(stretch: slice) -> list[slice]:
    """Its parts of one each."""
    return [slice(n, n + 1) for n in range(stretch.start, stretch.stop)]


def parts(heads: slice, groups: int, count: int, together: bool) -> list[tuple[slice, slice]]:
    """Some heads of groups of `count` as slices of groups and of heads within each of these."""
    if together and count == 1:
        return [(heads, slice(0, 1))]
    if together and heads == slice(0, groups * count):
        return [(slice(0, groups), slice(0, count))]
    of_each = []
    for group in one_by_one(slice(0, groups)):
        ends = (heads.start, heads.stop)
        of_heads = slice(*(min(max(0, end - group.start * count), count) for end in ends))
        if of_heads.start < of_heads.stop:
            of_each.append((group, of_heads))
    return of_each
