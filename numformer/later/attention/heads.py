"""Attention heads with biases, with a norm (QK-norm) and with rotary positions."""

from typing import Any

import numpy as np

from numformer.errors import require_width
from numformer.layer import Array, Layer
from numformer.paper.attention import Heads, merge_heads, split_heads
from numformer.paper.linear import Linear, linear
from numformer.paper.masks import Places


class BiasedHeads(Heads):
    """x (B, T, D) at places -> (B, H, T, K): x W_i + b_i for each head i; b starts at 0."""

    def __init__(
        self, d_model: int, heads: int, size: int, rng: np.random.Generator, bias: bool = True
    ):
        Linear.__init__(self, d_model, heads * size, rng, bias)
        self.heads = heads

    def forward(self, x: Array, places: Places) -> Array:  # type: ignore[override]
        require_width(self, x, self.weight.shape[0])
        self.save(x=x, places=places)
        y = linear(x, self.weight.data, self.bias and self.bias.data)
        return split_heads(y, self.heads, places)


class QueryKeyHeads(BiasedHeads):
    """x (B, T, D) at places -> (B, H, T, K): queries or keys, normalised and rotated.

    `norm` normalises each query or key of size K (QK-norm), which bounds the scores (Henry et al.
    2020; Dehghani et al. 2023). A `joint` norm takes all heads of a position as one vector of size
    H K (OLMo 2). `rotary` then rotates each by its position. Both are optional.
    """

    def __init__(
        self,
        *sizes: Any,
        norm: Layer | None = None,
        rotary: Layer | None = None,
        joint: bool = False,
    ):
        super().__init__(*sizes)
        self.norm, self.rotary, self.joint = norm, rotary, joint

    def forward(self, x: Array, places: Places) -> Array:  # type: ignore[override]
        heads = super().forward(x, places)
        if self.norm:
            heads = self._normalise(self.norm.forward, heads, places)
        return self.rotary.forward(heads, places.positions) if self.rotary else heads

    def backward(self, dheads: Array) -> Array:
        if self.rotary:
            dheads = self.rotary.backward(dheads)
        if self.norm:
            dheads = self._normalise(self.norm.backward, dheads, self.saved[-1]["places"])
        return super().backward(dheads)

    def _normalise(self, function: Any, heads: Array, places: Places) -> Array:
        """Apply the norm, or its backward, to heads (B, H, T, K)."""
        if not self.joint:
            return function(heads)
        return split_heads(function(merge_heads(heads, places)), self.heads, places)
