"""Many processes at one model: who they are, and what each of them computes."""

from numformer.parallel.ranks import Ranks, together
from numformer.parallel.ring import ring_all_reduce
from numformer.parallel.pipeline import (
    all_forward_all_backward,
    bubble,
    one_forward_one_backward,
)

__all__ = [
    "Ranks",
    "together",
    "ring_all_reduce",
    "one_forward_one_backward",
    "all_forward_all_backward",
    "bubble",
]
