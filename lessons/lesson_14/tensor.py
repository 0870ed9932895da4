"""Tensor parallelism (Shoeybi et al. 2019, Megatron-LM): each rank has a slice of the matrices.

FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 with W_1 = [A_1, ..., A_R] cut by columns and W_2 by rows,
B_1 above B_2 and so on: the rank r computes max(0, x A_r + ...) B_r, and the sum over the ranks,
plus b_2, is FFN(x). What stands between the two matrices needs no other rank (section 3, figure 3).
In attention, the heads are such groups of columns, and W^O is cut by rows.
"""

from typing import Any, ClassVar

import numpy as np

from lessons.lesson_14.all_reduce import ring_all_reduce
from numformer.errors import InputError, require_width
from numformer.execution.ranks import Ranks
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.heads import BiasedHeads, QueryKeyHeads
from numformer.later.attention.patterns import Strided
from numformer.later.attention.relative import RelativePositions
from numformer.later.attention.tiles import TiledAttention
from numformer.layer import Array, Layer, Parameter
from numformer.paper.attention import Heads, MultiHeadAttention
from numformer.paper.feed_forward import FeedForward
from numformer.paper.linear import Linear, linear


def slice_of(array, ranks: Ranks, axis: int, groups: int):
    """This rank's slice of an array along `axis`: one of R parts of each of its `groups`."""
    before, length, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    _require(length // groups, ranks, f"an axis of {length // groups}")
    slices = array.reshape(*before, groups, ranks.size, -1, *after)
    return slices.take(ranks.rank, axis + 1).reshape(*before, -1, *after)


def join(slices: list, axis: int, groups: int):
    """The array whose slices the ranks have."""
    before, after = slices[0].shape[:axis], slices[0].shape[axis + 1 :]
    slices = [part.reshape(*before, groups, -1, *after) for part in slices]
    return np.concatenate(slices, axis + 1).reshape(*before, -1, *after)


class ColumnLinear(Linear):
    """x (..., D_in), the same in all ranks -> y_r (..., D_out / R): y_r = x W_r + b_r.

    W = [W_1, ..., W_R], the weight of `layer`. If the columns come in `groups`, as SwiGLU's gate
    and value do, a rank has its columns of each group.
    """

    axes: ClassVar = {"weight": 1, "bias": 0}

    def __init__(self, layer: Linear, ranks: Ranks, groups: int = 1):
        self.ranks, self.groups = ranks, groups
        _take_slices(self, layer)

    def backward(self, dy: Array) -> Array:
        dx = super().backward(dy)
        ring_all_reduce(self.ranks, dx)  # every rank has used x: dx = sum_r dy_r W_r^T
        return dx


class ColumnHeads(QueryKeyHeads):
    """x (B, T, D), the same in all ranks -> (B, H / R, T, K): this rank's heads of `layer`.

    All ranks have the norm of the heads. Its gradient is the sum over the heads of all ranks.
    """

    axes: ClassVar = ColumnLinear.axes
    groups: ClassVar = 1

    def __init__(self, layer: Heads, ranks: Ranks):
        self.ranks, self.heads = ranks, layer.heads // ranks.size
        _take_slices(self, layer)
        self.norm, self.rotary = (getattr(layer, name, None) for name in ("norm", "rotary"))
        self.joint = False  # a norm of all heads would need those of the other ranks

    def backward(self, dheads: Array) -> Array:
        parameters = [*self.norm.named_parameters().values()] if self.norm else []
        before = [parameter.grad.copy() for parameter in parameters]
        dx = super().backward(dheads)
        ring_all_reduce(self.ranks, dx)  # every rank has used x
        for parameter, start in zip(parameters, before, strict=True):
            own = parameter.grad - start
            ring_all_reduce(self.ranks, own)
            parameter.grad[...] = start + own
        return dx


class RowLinear(Linear):
    """x_r (..., D_in / R) -> y (..., D_out), the same in all ranks: y = sum_r x_r W_r + b.

    W is W_1 above W_2 and so on; each rank has the rows for its x_r. All ranks have b, whose
    gradient is the same in all. Backward needs no other rank.
    """

    axes: ClassVar = {"weight": 0}
    groups: ClassVar = 1

    def __init__(self, layer: Linear, ranks: Ranks):
        self.ranks = ranks
        _take_slices(self, layer)

    def forward(self, x: Array) -> Array:
        require_width(self, x, self.weight.shape[0])
        self.save(x=x)
        y = linear(x, self.weight.data)
        ring_all_reduce(self.ranks, y)
        if self.bias:
            y += self.bias.data
        return y


def _take_slices(part: "ColumnLinear | ColumnHeads | RowLinear", layer: Linear) -> None:
    """Give a part its slices of a Linear's parameters."""
    kinds = Linear, Heads, BiasedHeads, QueryKeyHeads
    if type(layer) not in kinds or layer.weight.data.base is not None:
        raise InputError(
            "only a Linear that was neither cut nor packed can be cut",
            f"a {type(layer).__name__}",
            "Cut each layer once, then pack it.",
        )
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        if parameter and name in part.axes:
            own = slice_of(parameter.data, part.ranks, part.axes[name], part.groups)
            parameter = Parameter(own)
        setattr(part, name, parameter)


def shard(layer: Layer, ranks: Ranks) -> None:
    """Keep only this rank's slice of every FeedForward and attention in `layer`.

    All ranks call it with equal layers, before `pack`. Then each rank computes the same outputs and
    dx as the layer before the cut, and the whole gradients of what is not cut: norms, embeddings,
    other mixers, and attention whose heads differ or have parameters that are unknown here. In each
    FeedForward or attention, forward sums one array over the ranks; backward sums one for each
    matrix that is cut by columns and one for each parameter of the norm of the heads.

    Raises InputError, and cuts nothing, if R does not divide heads or d_ff, or if there is dropout
    between the matrices: ranks with the same seed would drop the same entries of different heads.
    """
    networks: list[Any] = [part for part in layer.layers_within() if isinstance(part, FeedForward)]
    attentions: list[Any] = [part for part in layer.layers_within() if _heads_are_alike(part)]
    for network in networks:
        _require(network.outer.weight.shape[0], ranks, f"d_ff {network.outer.weight.shape[0]}")
    for attention in attentions:
        _require(attention.heads, ranks, f"heads {attention.heads}")
        _require(attention.key.heads, ranks, f"key_value_heads {attention.key.heads}")
    for part in [*networks, *attentions]:
        _require_no_dropout(part)
    for network in networks:
        groups = network.inner.weight.shape[1] // network.outer.weight.shape[0]
        network.inner = ColumnLinear(network.inner, ranks, groups)
        network.outer = RowLinear(network.outer, ranks)
    tables: dict[int, Parameter] = {}  # layers may share one
    for attention in attentions:
        for name in ("query", "key", "value"):
            setattr(attention, name, ColumnHeads(getattr(attention, name), ranks))
        attention.output = RowLinear(attention.output, ranks)
        attention.heads //= ranks.size
        bias = getattr(attention.attention, "bias", None)
        if isinstance(bias, RelativePositions):
            own = Parameter(slice_of(bias.table.data, ranks, 1, 1))
            bias.table = tables.setdefault(id(bias.table), own)
            vars(bias).update(axes={"table": 1}, groups=1)
            bias = bias.constant
        if isinstance(bias, ALiBi):
            bias.slopes = slice_of(bias.slopes, ranks, 0, 1)


def full_state_dict(layer: Layer, ranks: Ranks) -> dict[str, np.ndarray]:
    """Return to every rank the state_dict of a layer that `shard` has cut, joined from all ranks.

    A model that is saved with this state_dict can be loaded in one process.
    """
    state = layer.state_dict()
    for path, part in layer.named_layers().items():
        for name, axis in getattr(part, "axes", {}).items():
            key = f"{path}.{name}" if path else name
            if key in state:
                state[key] = join(ranks.gather(state[key]), axis, part.groups)  # type: ignore[attr-defined]
    return state


def _heads_are_alike(part: Any) -> bool:
    """Whether a part is an attention whose heads differ only in parameters that can be cut."""
    if not isinstance(part, MultiHeadAttention):
        return False
    heads, attention = (part.query, part.key, part.value), part.attention
    if any(type(part) not in (Heads, BiasedHeads, QueryKeyHeads) for part in heads):
        return False
    if isinstance(attention, TiledAttention):
        bias = attention.bias
        known = bias is None or isinstance(bias, ALiBi | RelativePositions)
        return known and not isinstance(attention.pattern, Strided)
    return not attention.named_parameters()


def _require(length: int, ranks: Ranks, received: str) -> None:
    if length % ranks.size:
        raise InputError(
            "ranks divide the heads, and the width of a feed-forward network, evenly",
            f"{received} for {ranks.size} ranks",
            "Use a number of ranks that divides it.",
        )


def _require_no_dropout(part: Layer) -> None:
    for inner in part.layers_within():
        if p_drop := getattr(inner, "p_drop", 0):
            raise InputError(
                "a layer that is cut has no dropout between its matrices",
                f"p_drop {p_drop} within a {type(part).__name__}",
                "Set attention_dropout and activation_dropout to 0; p_drop of residuals may stay.",
            )
