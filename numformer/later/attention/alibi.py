"""ALiBi (Press et al. 2022): scores fall linearly with the distance between query and key."""

import numpy as np

from numformer.backend import array_module
from numformer.layer import Array


def alibi(slopes, queries, keys):
    """slopes (H,), positions queries (T,), keys (S,) -> bias (H, T, S): -m_h |t - s|."""
    return -slopes[:, None, None] * abs(queries[:, None] - keys)


class ALiBi:
    """Positions of queries (T,) and keys (S,), host arrays -> a bias (H, T, S) to add to scores.

    ALiBi replaces all other position encodings. The slopes m_h are the powers of 2^(-8 / H), from
    the first to the H-th (section 3). A distance has no direction, so an encoder can use ALiBi,
    too. The bias is a constant: it has no gradient.
    """

    def __init__(self, heads: int):
        self.slopes = 2.0 ** (-8 / heads * np.arange(1, heads + 1))

    def forward(self, queries: Array, keys: Array, like: Array) -> Array:
        """Return the bias, in the dtype and on the device of `like`."""
        arrays = map(array_module(like).asarray, (self.slopes, queries, keys))
        return alibi(*arrays).astype(like.dtype)
