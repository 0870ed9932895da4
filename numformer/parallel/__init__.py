"""Many processes at one model: who they are, and what each of them computes."""

from numformer.parallel.ranks import Ranks, together
from numformer.parallel.ring import ring_all_reduce
from numformer.parallel.groups import Group, grid
from numformer.parallel.tensor import ColumnHeads, ColumnLinear, RowLinear, shard, whole_state
from numformer.parallel.pipeline import (
    MicroBatch,
    Pipeline,
    all_forward_all_backward,
    bubble,
    one_forward_one_backward,
)

__all__ = [
    "Ranks",
    "together",
    "ring_all_reduce",
    "Group",
    "grid",
    "ColumnLinear",
    "ColumnHeads",
    "RowLinear",
    "shard",
    "whole_state",
    "Pipeline",
    "MicroBatch",
    "one_forward_one_backward",
    "all_forward_all_backward",
    "bubble",
]
