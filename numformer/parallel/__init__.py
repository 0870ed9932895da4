"""Many processes at one model: who they are, and what each of them computes."""

from numformer.parallel.ranks import Ranks, together

__all__ = ["Ranks", "together"]
