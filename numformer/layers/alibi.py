"""ALiBi (Press et al. 2022): the further away a key is, the lower its score. No other positions."""

from numformer.backend import array_module, masked
from numformer.layer import Layer


def alibi(heads: int, queries, keys):
    """Positions queries (T,), keys (S,) -> what is added to scores (H, T, S): -m_h |t - s|.

    The slopes m_h are the powers of 2^(-8 / H), from the first to the H-th (section 3). Both
    directions count alike, so an encoder can use it, too.
    """
    distance = abs(queries[:, None] - keys)
    slopes = 2.0 ** (-8 / heads * array_module(queries).arange(1, heads + 1))
    return -slopes[:, None, None] * distance


class ALiBiAttention(Layer):
    """query (B, H, T, K), key (B, H, S, K), value (B, H, S, K_v), mask -> (B, H, T, K_v).

    `attention`, with scores that fall with distance. The queries stand at the last T of the S
    positions: at all of them, or at those that come after keys of a cache. What is added is no
    parameter and has no gradient.
    """

    def __init__(self, attention: Layer):
        self.attention = attention

    def forward(self, query, key, value, mask=None):
        _, heads, length, _ = query.shape
        keys = array_module(query).arange(key.shape[2])
        bias = alibi(heads, keys[-length:], keys).astype(query.dtype)
        bias = bias if mask is None else masked(bias, mask)
        return self.attention.forward(query, key, value, bias)

    def backward(self, doutput):
        return self.attention.backward(doutput)
