"""Tensor parallelism (Shoeybi et al. 2019, Megatron-LM): each rank has a stretch of the matrices.

FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 with W_1 = [A_1, ..., A_R] cut by columns and W_2 by rows,
B_1 above B_2 and so on: the rank r computes max(0, x A_r + ...) B_r, and the sum over the ranks is
x's FFN. What stands between the two matrices needs no other rank (section 3, figure 3). The heads
of an attention are such columns, and W^O has its rows.
"""

from typing import Any, ClassVar

import numpy as np

from numformer.errors import InputError
from numformer.layer import Array, Layer, Parameter, require_width
from numformer.layers.grouped import GroupedQueryAttention
from numformer.layers.strided import StridedAttention
from numformer.paper.attention import MultiHeadAttention
from numformer.paper.feed_forward import FeedForward
from numformer.paper.linear import Linear, linear
from numformer.parallel.ranks import Ranks
from numformer.parallel.ring import ring_all_reduce


def stretch(array, ranks: Ranks, axis: int, groups: int):
    """The R-th of an array that is this rank's, along `axis`; of each of its `groups` (..., D)."""
    before, length, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    _require(length // groups, ranks, f"an axis of {length // groups}")
    apart = array.reshape(*before, groups, ranks.size, -1, *after)
    return apart.take(ranks.rank, axis + 1).reshape(*before, -1, *after)


def joined(stretches: list, axis: int, groups: int):
    """The array of which each rank has one of these stretches."""
    before, after = stretches[0].shape[:axis], stretches[0].shape[axis + 1 :]
    apart = [part.reshape(*before, groups, -1, *after) for part in stretches]
    return np.concatenate(apart, axis + 1).reshape(*before, -1, *after)


class ColumnLinear(Linear):
    """x (..., D_in), the same in all ranks -> y_r (..., D_out / R): y_r = x W_r + b_r.

    W = [W_1, ..., W_R]; of a `whole` Linear the rank takes its columns, where these come in
    `groups`, as the gate and the value of SwiGLU, its columns of each.
    """

    axes: ClassVar = {"weight": 1, "bias": 0}

    def __init__(self, whole: Linear, ranks: Ranks, groups: int = 1):
        self.ranks, self.groups = ranks, groups
        _take(self, whole)

    def backward(self, dy: Array) -> Array:
        dx = super().backward(dy)
        ring_all_reduce(self.ranks, dx)  # every rank has used x: dx = sum_r dy_r W_r^T
        return dx


class RowLinear(Linear):
    """x_r (..., D_in / R) -> y (..., D_out), the same in all ranks: y = sum_r x_r W_r + b.

    W is W_1 above W_2 and so on, of which each rank has the rows for its x_r. All have b, whose
    gradient is the same in all. Backward needs no other rank.
    """

    axes: ClassVar = {"weight": 0}
    groups: ClassVar = 1

    def __init__(self, whole: Linear, ranks: Ranks):
        self.ranks = ranks
        _take(self, whole)

    def forward(self, x: Array) -> Array:
        require_width(self, x, self.weight.shape[0])
        self.save(x=x)
        y = linear(x, self.weight.data)
        ring_all_reduce(self.ranks, y)
        if self.bias:
            y += self.bias.data
        return y


def _take(part: "ColumnLinear | RowLinear", whole: Linear) -> None:
    """Give a part its stretch of a whole Linear's parameters."""
    if type(whole) is not Linear or whole.weight.data.base is not None:
        raise InputError(
            "what is cut is a whole Linear that was not packed",
            f"a {type(whole).__name__}",
            "Cut each layer once, then pack it.",
        )
    for name in ("weight", "bias"):
        parameter = getattr(whole, name)
        if parameter and name in part.axes:
            own = stretch(parameter.data, part.ranks, part.axes[name], part.groups)
            parameter = Parameter(own)
        setattr(part, name, parameter)


def shard(layer: Layer, ranks: Ranks) -> None:
    """Leave this rank's stretch of every FeedForward and attention that is in `layer`.

    All ranks call it with equal layers, before `pack`. Then the outputs and dx are those of the
    whole layer in each of them, and so are the gradients of what stays whole: norms, embeddings,
    attention whose heads are not alike or have further parameters, and other mixers. In each
    FeedForward or attention a forward sums one array over the ranks, a backward one for each matrix
    that is cut by columns.

    Raises InputError, and cuts nothing, where R does not divide heads or d_ff, or where there is
    dropout between the matrices: ranks with one seed would drop the same of different heads.
    """
    networks: list[Any] = [part for part in layer.layers_within() if isinstance(part, FeedForward)]
    attentions: list[Any] = [part for part in layer.layers_within() if _heads_are_alike(part)]
    for network in networks:
        _require(network.outer.weight.shape[0], ranks, f"d_ff {network.outer.weight.shape[0]}")
    for attention in attentions:
        _require(attention.heads, ranks, f"heads {attention.heads}")
        _require(attention.heads_of_keys, ranks, f"key_value_heads {attention.heads_of_keys}")
    for part in [*networks, *attentions]:
        _require_no_dropout(part)
    for network in networks:
        groups = network.inner.weight.shape[1] // network.outer.weight.shape[0]
        network.inner = ColumnLinear(network.inner, ranks, groups)
        network.outer = RowLinear(network.outer, ranks)
    for attention in attentions:
        for name in ("query", "key", "value"):
            setattr(attention, name, ColumnLinear(getattr(attention, name), ranks))
        attention.output = RowLinear(attention.output, ranks)
        attention.heads //= ranks.size
        if isinstance(attention, GroupedQueryAttention):
            attention.key_value_heads //= ranks.size
        if attention.position_bias:
            attention.position_bias = _of_own_heads(attention.position_bias, ranks)


def whole_state(layer: Layer, ranks: Ranks) -> dict[str, np.ndarray]:
    """The state_dict of what was cut by `shard`, put together from all ranks, in each of them.

    It is that of the whole layer: a model that is saved so can be loaded in one process.
    """
    state = layer.state_dict()
    for path, part in layer.named_layers().items():
        if isinstance(part, ColumnLinear | RowLinear):
            for name, axis in part.axes.items():
                key = f"{path}.{name}" if path else name
                if key in state:
                    state[key] = joined(ranks.gather(state[key]), axis, part.groups)
    return state


def _heads_are_alike(part: Layer) -> bool:
    """Whether it is an attention whose heads differ by nothing but its four matrices."""
    if not isinstance(part, MultiHeadAttention) or isinstance(part, StridedAttention):
        return False
    linears = [part.query, part.key, part.value, part.output]
    own = sum(len(matrix.named_parameters()) for matrix in linears)
    return len(part.named_parameters()) == own


def _of_own_heads(position_bias, ranks: Ranks):
    """A position_bias(heads, queries, keys) of this rank's heads, which are not the first ones."""

    def of_own_heads(heads, queries, keys):
        first = heads * ranks.rank
        return position_bias(heads * ranks.size, queries, keys)[first : first + heads]

    return of_own_heads


def _require(length: int, ranks: Ranks, received: str) -> None:
    if length % ranks.size:
        raise InputError(
            "ranks share heads, and the width of a feed-forward network, evenly",
            f"{received} for {ranks.size} ranks",
            "Use a number of ranks that divides it.",
        )


def _require_no_dropout(part: Layer) -> None:
    for inner in part.layers_within():
        if p_drop := getattr(inner, "p_drop", 0):
            raise InputError(
                "what is cut drops nothing between its matrices",
                f"p_drop {p_drop} within a {type(part).__name__}",
                "Set attention_dropout and activation_dropout to 0; p_drop of residuals may stay.",
            )
