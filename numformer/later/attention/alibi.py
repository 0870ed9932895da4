"""ALiBi (Press et al. 2022): the further away a key is, the lower its score. No other positions."""

from numformer.backend import array_module


def alibi(heads: int, queries, keys):
    """Positions queries (T,), keys (S,) -> what is added to scores (H, T, S): -m_h |t - s|.

    The slopes m_h are the powers of 2^(-8 / H), from the first to the H-th (section 3). Both
    directions count alike, so an encoder can use it, too. It is a constant, without a gradient.
    """
    distance = abs(queries[:, None] - keys)
    slopes = 2.0 ** (-8 / heads * array_module(queries).arange(1, heads + 1))
    return -slopes[:, None, None] * distance
