"""ALiBi (Press et al. 2022): the further away a key is, the lower its score. No other positions."""

import numpy as np

from numformer.backend import array_module
from numformer.layer import Array


def alibi(slopes, queries, keys):
    """slopes (H,), positions queries (T,), keys (S,) -> bias (H, T, S): -m_h |t - s|."""
    return -slopes[:, None, None] * abs(queries[:, None] - keys)


class ALiBi:
    """Positions of queries (T,) and keys (S,), host arrays -> what is added to scores (H, T, S).

    The slopes m_h are the powers of 2^(-8 / H), from the first to the H-th (section 3). Both
    directions count alike, so an encoder can use it, too. It is a constant, without a gradient.
    """

    def __init__(self, heads: int):
        self.slopes = 2.0 ** (-8 / heads * np.arange(1, heads + 1))

    def forward(self, queries: Array, keys: Array, like: Array) -> Array:
        """The bias, of the dtype and device of the array `like`."""
        given = map(array_module(like).asarray, (self.slopes, queries, keys))
        return alibi(*given).astype(like.dtype)
