"""What attention may look at: padding and the future are masked (section 3.2.3)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer.layers.places import Places


def padding_mask(valid):
    """valid (B, S), False at padding -> (B, 1, 1, S): no position may attend to padding."""
    return valid[:, None, None, :]


def causal_mask(length: int, xp=np):
    """(1, 1, T, T): position t may attend to positions up to and including t (section 3.2.3)."""
    return xp.tril(xp.ones((length, length), dtype=bool))[None, None]


@dataclass(frozen=True)
class Mask:
    """What each query may attend to, and where the rows of queries and keys stand.

    `allowed` broadcasts to (B, H, T, S), True = may attend. `queries` and `keys` are the Places of
    the rows x (N, D) and memory (M, D) where these leave padding out, else None.
    """

    allowed: Any = None
    queries: Places | None = None
    keys: Places | None = None


def attention_mask(queries: Places, keys: Places, causal: bool = False) -> Mask:
    """The Mask of a padded batch: keys at padding, and with `causal` later keys, are out of bounds.

    Where padding is left out the queries at padding are masked, too: they stand for nothing.
    """
    allowed = padding_mask(keys.xp.asarray(keys.valid))
    if causal:
        allowed = allowed & causal_mask(keys.valid.shape[1], keys.xp)
    if not queries.skip_padding:
        return Mask(allowed)
    real_queries = queries.xp.asarray(queries.valid)[:, None, :, None]
    return Mask(allowed & real_queries, queries, keys)
