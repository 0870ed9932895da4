"""Grouped-query attention (Ainslie et al. 2023): several heads of queries share keys and values.

What decoding remembers, and reads for every symbol, becomes as many times smaller. With one head of
keys and values it is multi-query attention (Shazeer 2019).
"""

from dataclasses import dataclass

from numformer import settings
from numformer.errors import InputError
from numformer.layers.attention import SelfAttention, head_size
from numformer.layers.reach import Reach


def in_groups(x, groups: int):
    """x (..., H, T, K) -> (..., G, H / G, T, K), a view: G groups of neighbouring heads.

    An axis of one head that broadcasts becomes two such axes.
    """
    *others, heads, length, width = x.shape
    groups = min(groups, heads)
    return x.reshape(*others, groups, heads // groups, length, width)


class GroupedQueryAttention(SelfAttention):
    """x (B, T, D), reach -> (B, T, D): self-attention whose H heads of queries form G groups.

    All queries of a group look at one head of keys and values: query i has key i // (H / G).
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """How many heads of keys and values there are."""

        key_value_heads: int | None = settings.size(
            None, "heads of keys and values, G; as many as of queries unless given"
        )

    def __init__(self, d_model: int, heads: int, rng, key_value_heads: int | None = None, **others):
        require_groups(heads, key_value_heads)
        self.key_value_heads = key_value_heads or heads
        super().__init__(d_model, heads, rng, **others)

    @property
    def heads_of_keys(self) -> int:
        return self.key_value_heads

    def attend(self, query, key, value, reach: Reach):
        query, key, value = in_groups(query, len(key[0])), key[:, :, None], value[:, :, None]
        return self._of_heads(super().attend(query, key, value, reach))

    def attend_backward(self, dheads, reach: Reach):
        dquery, dkey, dvalue = super().attend_backward(in_groups(dheads, self.heads_of_keys), reach)
        # the heads of a group look at the same keys and values
        return self._of_heads(dquery), dkey.sum(axis=2), dvalue.sum(axis=2)

    def mask_and_bias(self, query, reach: Reach) -> tuple:
        of_scores = super().mask_and_bias(query, reach)
        return tuple(x if x is None else in_groups(x, self.heads_of_keys) for x in of_scores)

    def looks(self):
        weights = super().looks()
        return self._of_heads(weights)

    def _of_heads(self, x):
        """x (B, G, H / G, T, K) -> (B, H, T, K)."""
        return x.reshape(len(x), self.heads, *x.shape[3:])

    @classmethod
    def require(cls, config) -> None:
        require_groups(config.heads, config.key_value_heads)

    @classmethod
    def entries(cls, config) -> int:
        heads = config.heads + (config.key_value_heads or config.heads)
        sizes = (
            size or head_size(config.d_model, config.heads) for size in (config.d_k, config.d_v)
        )
        return config.d_model * heads * sum(sizes)


def require_groups(heads: int, key_value_heads: int | None) -> None:
    """Raise InputError unless the heads of queries form groups of one size."""
    if key_value_heads and heads % key_value_heads:
        raise InputError(
            "heads is a multiple of key_value_heads, each of which serves as many heads of queries",
            f"heads {heads}, key_value_heads {key_value_heads}",
            "Change one of them.",
        )
