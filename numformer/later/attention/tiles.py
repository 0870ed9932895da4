"""Exact attention a tile after the other: its scores are never stored whole (Rabe and Staats 2021).

Some queries meet the keys that they may see, and are done with: memory grows with the length T, not
with T^2, what a pattern or a mask leaves out is not computed, and the scores stay in the
processor's cache. Backward computes the weights again, of the logarithm of each row's sum (Dao et
al. 2022).
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numformer.arithmetic import dot_last, matmul, max_last, sum_last, transpose
from numformer.backend import array_module, on_host
from numformer.errors import InputError
from numformer.later.attention.dense import BiasedAttention
from numformer.later.attention.keep import KeepByTiles
from numformer.later.attention.patterns import Everything, Tile, stretches
from numformer.layer import Array, Layer, mode, training
from numformer.paper.attention import MultiHeadAttention
from numformer.paper.dropout import dropout, dropout_backward
from numformer.paper.masks import ExplicitMask, Reach, as_reach, padding_mask

ROWS = 128  # of queries in a tile: fewer make slow products, more compute more that is masked
SMALL = 40  # exp(40) times any length is a number of float32, and so is exp(-40) times small values
LEAST = 1 << 16  # scores of a sequence from which on tiles are faster, where half are masked


def laid_out(x):
    """x (..., M, N) with its rows one after the other in memory, as products read them best."""
    return array_module(x).ascontiguousarray(x)


class Scores(NamedTuple):
    """The scores of a tile in some sequences and heads: their indices, and what they meet.

    `queries`, `keys` and `dkeys` are indices of arrays (B, H, T, K), (B, G, S, K), (B, H, S, K).
    `added` are stretches of columns and what is added to their scores, `keep` is the mask of
    dropout or None, to `dbias` the gradient of a bias is added, where one is trained.
    """

    queries: tuple
    keys: tuple
    dkeys: tuple
    added: list
    keep: Any
    dbias: Any

    def of(self, query, key):
        """query (B, H, T, K), already scaled, key (B, G, S, K) -> these scores."""
        scores = matmul(query[self.queries], transpose(key[self.keys]))
        for columns, addend in self.added:
            scores[..., columns] += addend
        return scores


def attention_in_tiles(query, key, value, tiles, small):
    """softmax(Q K^T / sqrt(d_k) + bias) V, as biased_attention, a tile after the other.

    query (B, H, T, K), key (B, G, S, K), value (B, G, S, K_v) -> output (B, H, T, K_v), log_sums
    (B, H, T, 1): log sum_s exp(score_ts). A row that sees nothing gives 0. Of `small` scores the
    exponentials are numbers as they are; else the highest of the row is subtracted first.
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
    """doutput (B, H, T, K_v) -> dquery (B, H, T, K), dkey and dvalue (B, H, S, K) of each head."""
    xp, scale = array_module(query), 1 / math.sqrt(query.shape[-1])
    dquery = xp.zeros(query.shape, query.dtype)
    dkey, dvalue = (xp.zeros((*query.shape[:2], *x.shape[2:]), x.dtype) for x in (key, value))
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
    of a group look at one (Ainslie et al. 2023; Shazeer 2019 for G = 1). The `reach` is a Reach, a
    boolean mask or None. A `bias` makes of positions (T,), (S,) what is added to scores (H, T, S);
    one that is a Layer gets a gradient.

    Long sequences, of `least` scores or of twice as many where the reach is not causal, are taken
    in tiles of `rows` queries, or twice as many. Of short ones BiasedAttention computes all scores;
    so does an attention of one's own, `whole`, at any length: its forward takes query, key, value,
    mask and a bias where there is one.
    """

    def __init__(
        self,
        pattern: Everything | None = None,
        p_drop: float = 0.0,
        bias: Any = None,
        rows: int = ROWS,
        least: int = LEAST,
        whole: Layer | None = None,
    ):
        self.pattern, self.p_drop, self.rows = pattern or Everything(), p_drop, rows
        self.least = math.inf if whole else least
        self.whole = whole or BiasedAttention(p_drop)
        self.bias = bias

    def forward(self, query: Array, key: Array, value: Array, reach: Any = None) -> Array:
        reach = as_reach(reach, query[:, 0], key[:, 0])
        if not self.takes_tiles(reach):
            output = self.whole.forward(*self._with_mask_and_bias(query, key, value, reach))
            self.save(groups=key.shape[1])
            return of_heads(output)
        keep = None
        if training() and self.p_drop:
            keep = KeepByTiles((*query.shape[:-1], key.shape[-2]), self.p_drop)
        tiles = self.tiles(query, key, reach, keep)
        small = self.bias is None and scores_are_small(query, key)
        output, log_sums = attention_in_tiles(query, key, value, tiles, small)
        saved = dict(query=query, key=key, value=value, output=output, log_sums=log_sums)
        self.save(arrays=saved, reach=reach, keep=keep, groups=key.shape[1])
        return output

    def backward(self, doutput: Array) -> Any:
        saved, (heads, length) = self.pop_saved(), doutput.shape[1:3]
        self.saved.append(saved)  # until the bias has its gradient from every tile
        groups, trained = saved["groups"], isinstance(self.bias, Layer)
        if "arrays" in saved:
            query, key = saved["arrays"]["query"], saved["arrays"]["key"]
            tiles = self.tiles(query, key, saved["reach"], saved["keep"], trained)
            gradients = attention_in_tiles_backward(doutput, **saved["arrays"], tiles=tiles)
        else:
            doutput = doutput if groups == heads else in_groups(doutput, groups)
            *gradients, dbias = (*self.whole.backward(doutput), None)[:4]
            if trained and dbias is None:
                raise InputError(
                    "an attention with a bias that is trained gives dquery, dkey, dvalue, dbias",
                    f"{len(gradients)} gradients of a {type(self.whole).__name__}",
                    "Extend BiasedAttention, or choose another attention_function.",
                )
            if trained:
                self.bias.backward(dbias.reshape(heads, length, -1))  # pyright: ignore
        dquery, dkey, dvalue = map(of_heads, gradients)
        if groups < heads:  # the heads of a group look at the same keys and values
            dkey, dvalue = (in_groups(x, groups).sum(axis=2) for x in (dkey, dvalue))
        self.saved.pop()
        return dquery, dkey, dvalue

    def takes_tiles(self, reach: Reach) -> bool:
        """Whether tiles are faster than the plain formula; they always need less memory."""
        length, longer = len(reach.queries.positions), len(reach.keys.positions)
        least = self.least if reach.causal else 2 * self.least
        return length > self.rows and length * longer >= least

    def latest_weights(self):
        """Where the queries of the latest forward looked: (B, H, T, S), or None."""
        whole, saved = self.whole, self.saved[-1]
        if "arrays" in saved:  # the weights are computed again
            query, key, value = (saved["arrays"][name] for name in ("query", "key", "value"))
            with mode(saving=False):
                inputs = self._with_mask_and_bias(query, key, value, saved["reach"])
            (whole := BiasedAttention()).forward(*inputs)
        weights = whole.saved[-1].get("weights")
        return weights if weights is None else of_heads(weights)

    def _with_mask_and_bias(self, query, key, value, reach: Reach) -> list:
        """What an attention takes that computes all scores; heads that share keys are in groups."""
        xp, positions = array_module(query), (reach.queries.positions, reach.keys.positions)
        heads, groups = query.shape[1], key.shape[1]
        mask = both(reach.mask(xp), self.pattern.sees(*positions, heads), xp)
        bias = [self.bias.forward(*positions, query)] if self.bias else []
        if groups == heads:
            return [query, key, value, mask, *bias]
        mask = mask if mask is None else in_groups(mask, groups)
        bias = [in_groups(added, groups) for added in bias]
        return [in_groups(query, groups), key[:, :, None], value[:, :, None], mask, *bias]

    def tiles(
        self, query, key, reach: Reach, keep: KeepByTiles | None = None, train_bias: bool = False
    ) -> Iterator[Scores]:
        """The scores of query (B, H, T, K) and key (B, G, S, K) in turn; the bias may be trained.

        On the host those of one sequence and one group of heads, so that they stay in the cache;
        padded sequences by themselves, since each ends elsewhere. A GPU takes all together.
        """
        xp, host, (batch, heads) = array_module(query), on_host(query), query.shape[:2]
        rows, group = self.rows if reach.causal else 2 * self.rows, heads // key.shape[1]
        for sequences in stretches(0, batch, 1 if host and not reach.keys.all_valid else batch):
            t, s = real_positions(reach, sequences)
            every = np.arange(len(s))
            real: Any = reach.keys.valid[sequences].all(axis=0)
            real &= not isinstance(reach, ExplicitMask)  # of which nothing is known
            for tile in self.pattern.tiles(t, s, reach.causal, heads, rows):
                keys, dbias = every[tile.keys], None
                if not len(keys):
                    continue
                with mode(saving=train_bias):
                    added = self._added(query, reach, sequences, tile, keys, real[keys])
                if train_bias:
                    dbias = xp.zeros((heads, len(t[tile.rows]), len(keys)), query.dtype)
                columns = tile.keys if isinstance(tile.keys, slice) else xp.asarray(keys)
                for some, of_heads in parts(sequences, tile, heads, group, host):
                    of_groups = slice(of_heads.start // group, -(-of_heads.stop // group))
                    queries = some, of_heads, tile.rows
                    yield Scores(
                        queries,
                        (some, of_groups, columns),
                        (some, of_heads, columns),
                        [(stretch, addend[some, of_heads]) for stretch, addend in added],
                        keep and keep.tile(queries, keys, query),
                        None if dbias is None else dbias[of_heads],
                    )
                if train_bias:
                    self.bias.backward(dbias)

    def _added(self, query, reach: Reach, sequences: slice, tile: Tile, keys, real) -> list:
        """Columns and what is added there (B, H, T, S): bias, minus infinity where not all see."""
        xp, added, zero = array_module(query), [], query.dtype.type(0)
        t, s = reach.queries.positions[tile.rows], reach.keys.positions
        if self.bias:
            added.append((slice(0, len(keys)), self.bias.forward(t, s[keys], query)[None]))
        real = real[tile.open]
        stop = tile.open.start + (len(real) if real.all() else int(real.argmin()))
        for columns in slice(0, tile.open.start), slice(stop, len(keys)):
            some = keys[columns]
            if not len(some):
                continue
            seen = tile.sees(t, s[some]) if tile.sees else None
            if reach.causal:
                earlier = s[some] <= t[:, None]
                seen = earlier if seen is None else seen & earlier
            mask = both(mask_of_keys(reach, sequences, tile.rows, some, xp), seen, xp)
            if mask is not None:
                added.append((columns, xp.where(mask, zero, zero - xp.inf)))
        shape = query.shape[:2]
        return [(some, xp.broadcast_to(a, (*shape, *a.shape[2:]))) for some, a in added]


def parts(sequences: slice, tile: Tile, heads: int, group: int, host: bool) -> Iterator:
    """The sequences and heads of a tile that are taken together, those of several groups never."""
    together = tile.small or not host
    size = group if tile.heads == slice(0, heads) else 1  # others may cut a group in two
    return itertools.product(
        [sequences] if together else stretches(sequences.start, sequences.stop, 1),
        stretches(tile.heads.start, tile.heads.stop, heads if together and group == 1 else size),
    )


def real_positions(reach: Reach, sequences: slice):
    """Those (T,) of the queries that are computed, and (S,) of the keys up to the last real one."""
    t, s = reach.queries.positions, reach.keys.positions
    if isinstance(reach, ExplicitMask):
        return t, s
    stops = (
        1 + np.flatnonzero(places.valid[sequences].any(axis=0)).max(initial=0)
        for places in (reach.queries, reach.keys)
    )
    of_queries, of_keys = stops
    return t[:of_queries] if reach.queries.skip_padding else t, s[:of_keys]


def mask_of_keys(reach: Reach, sequences: slice, rows: slice, keys, xp):
    """What an explicit mask or padding lets some rows see of some keys: (B, H, T, S) or None."""
    if isinstance(reach, ExplicitMask):
        shape = len(reach.queries.positions), len(reach.keys.positions)
        mask = xp.broadcast_to(reach.array, (*reach.array.shape[:2], *shape))
        return (mask if len(mask) == 1 else mask[sequences])[:, :, rows, xp.asarray(keys)]
    valid = reach.keys.valid[sequences][:, keys]
    return None if valid.all() else xp.asarray(padding_mask(valid))


def both(mask, seen, xp):
    """(B, H, T, S) and, on the host, (T, S) or (H, T, S): what both allow; None allows all."""
    if seen is None or seen.all():
        return mask
    seen = xp.asarray(seen)[(None,) * (4 - seen.ndim)]
    return seen if mask is None else mask & seen


def in_groups(x, groups: int):
    """x (..., H, T, K) -> (..., G, H / G, T, K), a view: G groups of neighbouring heads.

    An axis of one head that broadcasts becomes two such axes.
    """
    *others, heads, length, width = x.shape
    groups = min(groups, heads)
    return x.reshape(*others, groups, heads // groups, length, width)


def of_heads(x):
    """x (B, G, H / G, T, K) or (B, H, T, K) -> (B, H, T, K)."""
    return x.reshape(len(x), -1, *x.shape[-2:])


def attention_weights(layer: Any):
    """Where the queries of a layer's latest forward looked: (B, H, T, S), or None.

    The layer is an attention, or another that has a method of this name, as a Mixer does.
    """
    if not isinstance(layer, MultiHeadAttention):
        return layer.attention_weights() if hasattr(layer, "attention_weights") else None
    if isinstance(layer.attention, TiledAttention):
        return layer.attention.latest_weights()
    return layer.attention.saved[-1].get("weights")
