"""Exact attention in tiles: the scores are never stored as a whole (Rabe and Staats 2021).

A tile holds the scores of some queries and the keys that they may see. So memory grows with the
length T, not with T^2; most scores that a pattern, a causal reach or padding excludes are never
computed; and the scores of a tile stay in the processor's cache. Backward recomputes the weights,
for which forward saves the logarithm of each row's sum of exponentials (Dao et al. 2022).
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numformer.arithmetic import dot_last, matmul, max_last, sum_last, transpose
from numformer.backend import array_module, on_host
from numformer.errors import InputError
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.patterns import FullPattern, Tile, slices
from numformer.later.attention.tiled_dropout import TiledDropoutMask
from numformer.layer import Array, Layer, mode, training
from numformer.paper.attention import MultiHeadAttention
from numformer.paper.dropout import dropout, dropout_backward
from numformer.paper.masks import ExplicitMask, Reach, as_reach, padding_mask

ROWS = 128  # queries in a tile: fewer make products slow; more spend time on masked scores
SMALL = 40  # exp(40) times any length fits in a float32, and so does exp(-40) times small values
LEAST = 1 << 16  # tiles are faster for at least this many scores in a sequence, half of them masked


def contiguous(x):
    """Return x (..., M, N) with contiguous rows, which matrix products read fastest."""
    return array_module(x).ascontiguousarray(x)


class Scores(NamedTuple):
    """How to compute the scores of a tile for some sequences and heads.

    `queries`, `keys` and `dkeys` index arrays (B, H, T, K), (B, G, S, K) and (B, H, S, K).
    `offsets` are pairs: columns, and an array to add to the scores in these columns. `keep` is the
    dropout mask, or None. `dbias` accumulates the gradient of a trained bias; None without one.
    """

    queries: tuple
    keys: tuple
    dkeys: tuple
    offsets: list
    keep: Any
    dbias: Any

    def compute(self, query, key):
        """Scaled query (B, H, T, K), key (B, G, S, K) -> the scores."""
        scores = matmul(query[self.queries], transpose(key[self.keys]))
        for columns, offset in self.offsets:
            scores[..., columns] += offset
        return scores


def attention_in_tiles(query, key, value, tiles, small: bool):
    """softmax(Q K^T / sqrt(d_k)) V, one tile of `Scores` at a time.

    query (B, H, T, K), key (B, G, S, K), value (B, G, S, K_v) -> output (B, H, T, K_v), log_sums
    (B, H, T, 1): log sum_s exp(score_ts). The output of a query that sees no key is 0. The
    exponentials of `small` scores are computed directly; from other scores, the row's maximum is
    subtracted first.
    """
    xp, highest = array_module(query), 0
    output = xp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    log_sums = xp.zeros((*query.shape[:-1], 1), query.dtype)
    scale = 1 / math.sqrt(query.shape[-1])
    query, key, value = map(contiguous, (query * scale, key, value))
    for scores in tiles:
        weights = scores.compute(query, key)
        if not small:
            highest = xp.maximum(max_last(weights), xp.finfo(weights.dtype).min)
            weights -= highest
        xp.exp(weights, out=weights)
        total = xp.maximum(sum_last(weights), xp.finfo(weights.dtype).tiny)
        log_sums[scores.queries] = highest + xp.log(total)
        rows = matmul(dropout(weights, scores.keep), value[scores.keys])
        rows /= total  # divide the product, which has fewer entries than the weights
        output[scores.queries] = rows
        del weights  # so that the next tile reuses this memory, which is in the cache
    return output, log_sums


def attention_in_tiles_backward(doutput, query, key, value, output, log_sums, tiles):
    """doutput (B, H, T, K_v) -> dquery (B, H, T, K), dkey (B, H, S, K), dvalue (B, H, S, K_v)."""
    xp, scale = array_module(query), 1 / math.sqrt(query.shape[-1])
    dquery = xp.zeros(query.shape, query.dtype)
    dkey, dvalue = (xp.zeros((*query.shape[:2], *x.shape[2:]), x.dtype) for x in (key, value))
    query, key, value, doutput = map(contiguous, (query * scale, key, value, doutput))
    inner = dot_last(doutput, output)  # <dweights, weights> of each row, since output = weights @ V
    for scores in tiles:
        weights = scores.compute(query, key)
        weights -= log_sums[scores.queries]
        xp.exp(weights, out=weights)
        drows = doutput[scores.queries]
        dropped = dropout(weights, scores.keep)
        dvalue[scores.dkeys] += matmul(transpose(dropped), drows)  # output = dropped @ V
        ddropped = matmul(drows, transpose(value[scores.keys]))  # output = dropped @ V
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
    """Return whether max |q| max |k| / sqrt(d_k), which bounds scores, is small; False on a GPU."""
    if not on_host(query):  # reading the bound would wait for the GPU
        return False
    lengths = (math.sqrt(dot_last(x, x).max(initial=0)) for x in (query, key))
    return math.prod(lengths) <= SMALL * math.sqrt(query.shape[-1])


class TiledAttention(Layer):
    """query (B, H, T, K), key (B, G, S, K), value (B, G, S, K_v), reach -> (B, H, T, K_v).

    Scaled dot-product attention over the keys that a `pattern` lets each query see. With fewer
    heads of keys and values than of queries, G < H, query head i uses key head i // (H / G)
    (Ainslie et al. 2023; Shazeer 2019 for G = 1). The `reach` is a Reach, a boolean mask or None.
    A `bias` computes an array (H, T, S), which is added to the scores, from the positions (T,) of
    queries and (S,) of keys; if it is a Layer, it is trained.

    If the reach is causal, sequences of more than `rows` queries and at least `least` scores are
    computed in tiles of `rows` queries; otherwise `least` and the tiles' rows are doubled. Shorter
    sequences go to BiasedAttention. If you pass an attention of your own as `dense`, all sequences
    go to it; its forward takes query, key, value, mask and, if there is one, the bias.
    """

    def __init__(
        self,
        pattern: FullPattern | None = None,
        p_drop: float = 0.0,
        bias: Any = None,
        rows: int = ROWS,
        least: int = LEAST,
        dense: Layer | None = None,
    ):
        self.pattern, self.p_drop, self.rows = pattern or FullPattern(), p_drop, rows
        self.least = math.inf if dense else least
        self.dense = dense or BiasedAttention(p_drop)
        self.bias = bias

    def _children(self):
        """Yield `dense` as `whole`, so that files saved by the previous version still load."""
        for name, child in super()._children():
            yield ("whole" if name == "dense" else name), child

    def forward(self, query: Array, key: Array, value: Array, reach: Any = None) -> Array:
        reach = as_reach(reach, query[:, 0], key[:, 0])
        if not self.uses_tiles(reach):
            output = self.dense.forward(*self._dense_inputs(query, key, value, reach))
            self.save(groups=key.shape[1])
            return merge_groups(output)
        keep = None
        if training() and self.p_drop:
            keep = TiledDropoutMask((*query.shape[:-1], key.shape[2]), self.p_drop)
        tiles = self.tiles(query, key, reach, keep)
        small = self.bias is None and scores_are_small(query, key)
        output, log_sums = attention_in_tiles(query, key, value, tiles, small)
        saved = dict(query=query, key=key, value=value, output=output, log_sums=log_sums)
        self.save(arrays=saved, reach=reach, keep=keep, groups=key.shape[1])
        return output

    def backward(self, doutput: Array) -> Any:
        saved, (heads, length) = self.pop_saved(), doutput.shape[1:3]
        self.saved.append(saved)  # kept until every tile has added to the bias's gradient
        groups, trained = saved["groups"], isinstance(self.bias, Layer)
        if "arrays" in saved:
            query, key = saved["arrays"]["query"], saved["arrays"]["key"]
            tiles = self.tiles(query, key, saved["reach"], saved["keep"], trained)
            gradients = attention_in_tiles_backward(doutput, **saved["arrays"], tiles=tiles)
        else:
            doutput = doutput if groups == heads else split_groups(doutput, groups)
            *gradients, dbias = (*self.dense.backward(doutput), None)[:4]
            if trained and dbias is None:
                raise InputError(
                    "with a trained bias, attention's backward returns dquery, dkey, dvalue, dbias",
                    f"{len(gradients)} gradients from {type(self.dense).__name__}",
                    "Extend BiasedAttention, or choose another attention_function.",
                )
            if trained:
                self.bias.backward(dbias.reshape(heads, length, -1))  # pyright: ignore
        dquery, dkey, dvalue = map(merge_groups, gradients)
        if groups < heads:  # the heads of a group share keys and values
            dkey, dvalue = (split_groups(x, groups).sum(axis=2) for x in (dkey, dvalue))
        self.saved.pop()
        return dquery, dkey, dvalue

    def uses_tiles(self, reach: Reach) -> bool:
        """Return whether tiles are faster than the plain formula; they always need less memory."""
        queries, keys = len(reach.queries.positions), len(reach.keys.positions)
        least = self.least if reach.causal else 2 * self.least
        return queries > self.rows and queries * keys >= least

    def latest_weights(self):
        """Return the weights (B, H, T, S) of the latest forward; None if it saved none."""
        attention, saved = self.dense, self.saved[-1]
        if "arrays" in saved:  # tiles save no weights: recompute them
            query, key, value = (saved["arrays"][name] for name in ("query", "key", "value"))
            with mode(saving=False):
                inputs = self._dense_inputs(query, key, value, saved["reach"])
            (attention := BiasedAttention()).forward(*inputs)
        weights = attention.saved[-1].get("weights")
        return weights if weights is None else merge_groups(weights)

    def _dense_inputs(self, query, key, value, reach: Reach) -> list:
        """Return the inputs of `dense`; if heads share keys, H becomes two axes: groups, heads."""
        xp, positions = array_module(query), (reach.queries.positions, reach.keys.positions)
        heads, groups = query.shape[1], key.shape[1]
        mask = combine_masks(reach.mask(xp), self.pattern.mask(*positions, heads), xp)
        bias = [self.bias.forward(*positions, query)] if self.bias else []
        if groups == heads:
            return [query, key, value, mask, *bias]
        mask = mask if mask is None else split_groups(mask, groups)
        bias = [split_groups(each, groups) for each in bias]
        return [split_groups(query, groups), key[:, :, None], value[:, :, None], mask, *bias]

    def tiles(
        self,
        query,
        key,
        reach: Reach,
        keep: TiledDropoutMask | None = None,
        train_bias: bool = False,
    ) -> Iterator[Scores]:
        """Yield the scores of query (B, H, T, K) and key (B, G, S, K), tile by tile.

        On the host, each Scores has one sequence and one group of heads, to fit in the cache. In a
        `small` tile and on a GPU, it has all sequences, and if G = H all heads of the tile. On the
        host, the sequences of a padded batch, which differ in length, have separate tiles. With
        `train_bias`, every tile adds to the gradient of the bias.
        """
        xp, host, (batch, heads) = array_module(query), on_host(query), query.shape[:2]
        rows, group = self.rows if reach.causal else 2 * self.rows, heads // key.shape[1]
        for sequences in slices(0, batch, 1 if host and not reach.keys.all_valid else batch):
            t, s = real_positions(reach, sequences)
            indices = np.arange(len(s))
            real: Any = reach.keys.valid[sequences].all(axis=0)
            real &= not isinstance(reach, ExplicitMask)  # an explicit mask may mask any key
            for tile in self.pattern.tiles(t, s, reach.causal, heads, rows):
                keys, dbias = indices[tile.keys], None
                if not len(keys):
                    continue
                with mode(saving=train_bias):
                    offsets = self._offsets(query, reach, sequences, tile, keys, real[keys])
                if train_bias:
                    dbias = xp.zeros((heads, len(t[tile.rows]), len(keys)), query.dtype)
                columns = tile.keys if isinstance(tile.keys, slice) else xp.asarray(keys)
                for batch_part, head_part in tile_parts(sequences, tile, heads, group, host):
                    group_part = slice(head_part.start // group, -(-head_part.stop // group))
                    queries = batch_part, head_part, tile.rows
                    yield Scores(
                        queries,
                        (batch_part, group_part, columns),
                        (batch_part, head_part, columns),
                        [(part, offset[batch_part, head_part]) for part, offset in offsets],
                        keep and keep.tile(queries, keys, query),
                        None if dbias is None else dbias[head_part],
                    )
                if train_bias:
                    self.bias.backward(dbias)

    def _offsets(self, query, reach: Reach, sequences: slice, tile: Tile, keys, real) -> list:
        """Return pairs (columns, offset (B, H, T, S)): the bias, or -infinity where masked."""
        xp, offsets, zero = array_module(query), [], query.dtype.type(0)
        t, s = reach.queries.positions[tile.rows], reach.keys.positions
        if self.bias:
            offsets.append((slice(0, len(keys)), self.bias.forward(t, s[keys], query)[None]))
        real = real[tile.unmasked]
        stop = tile.unmasked.start + (len(real) if real.all() else real.argmin())
        for columns in slice(0, tile.unmasked.start), slice(stop, len(keys)):
            part = keys[columns]
            if not len(part):
                continue
            visible = tile.mask(t, s[part]) if tile.mask else None
            if reach.causal:
                earlier = s[part] <= t[:, None]
                visible = earlier if visible is None else visible & earlier
            mask = combine_masks(key_mask(reach, sequences, tile.rows, part, xp), visible, xp)
            if mask is not None:
                offsets.append((columns, xp.where(mask, zero, zero - xp.inf)))
        shape = query.shape[:2]
        return [(part, xp.broadcast_to(x, (*shape, *x.shape[2:]))) for part, x in offsets]


def tile_parts(sequences: slice, tile: Tile, heads: int, group: int, host: bool) -> Iterator:
    """Return pairs of slices (sequences, heads) to compute together, within one group if G < H."""
    together = tile.small or not host
    size = group if tile.heads == slice(0, heads) else 1  # other tiles may have part of a group
    return itertools.product(
        [sequences] if together else slices(sequences.start, sequences.stop, 1),
        slices(tile.heads.start, tile.heads.stop, heads if together and group == 1 else size),
    )


def real_positions(reach: Reach, sequences: slice):
    """Return positions (T,) of the queries to compute and (S,) of keys up to the last real one."""
    t, s = reach.queries.positions, reach.keys.positions
    if isinstance(reach, ExplicitMask):
        return t, s
    query_stop, key_stop = (
        1 + np.flatnonzero(places.valid[sequences].any(axis=0)).max(initial=0)
        for places in (reach.queries, reach.keys)
    )
    return t[:query_stop] if reach.queries.skip_padding else t, s[:key_stop]


def key_mask(reach: Reach, sequences: slice, rows: slice, keys, xp):
    """Return the explicit mask or padding mask (B, H, T, S) of some rows and keys, or None."""
    if isinstance(reach, ExplicitMask):
        shape = len(reach.queries.positions), len(reach.keys.positions)
        mask = xp.broadcast_to(reach.array, (*reach.array.shape[:2], *shape))
        return mask[:, :, rows, xp.asarray(keys)]
    valid = reach.keys.valid[sequences][:, keys]
    return None if valid.all() else xp.asarray(padding_mask(valid))


def combine_masks(mask, visible, xp):
    """Return what a mask (B, H, T, S) and a host mask ([H,] T, S) both allow; None allows all."""
    if visible is None or visible.all():
        return mask
    visible = xp.asarray(visible)[(None,) * (4 - visible.ndim)]
    return visible if mask is None else mask & visible


def split_groups(x, groups: int):
    """x (..., H, T, K) -> (..., G, H / G, T, K), a view: G groups of adjacent heads.

    An axis H of length 1, which broadcasts, becomes two axes of length 1.
    """
    *others, heads, length, width = x.shape
    groups = min(groups, heads)
    return x.reshape(*others, groups, heads // groups, length, width)


def merge_groups(x):
    """x (B, G, H / G, T, K) or (B, H, T, K) -> (B, H, T, K)."""
    return x.reshape(len(x), math.prod(x.shape[1:-2]), *x.shape[-2:])


def attention_weights(layer: Any):
    """Return the weights (B, H, T, S) of a layer's latest forward; None if it saved none.

    The layer is an attention, or another layer with a method `attention_weights`, such as a Mixer.
    """
    if not isinstance(layer, MultiHeadAttention):
        return layer.attention_weights() if hasattr(layer, "attention_weights") else None
    if isinstance(layer.attention, TiledAttention):
        return layer.attention.latest_weights()
    return layer.attention.saved[-1].get("weights")
