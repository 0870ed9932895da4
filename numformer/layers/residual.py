"""The residual connection around every sublayer, with its norm and dropout (sections 3.1, 5.4)."""

from collections.abc import Callable
from typing import Any

from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.layers.dropout import Dropout
from numformer.layers.layer_norm import LayerNorm


class Residual(Layer):
    """x (B, T, D), *others -> (B, T, D): the sublayer's output is added to its input.

    norm "post" (section 3.1):  y = LayerNorm(x + Dropout(Sublayer(x, *others)))
    norm "pre":                 y = x + Dropout(Sublayer(LayerNorm(x), *others))

    `normalization` may be another norm than LayerNorm. `others` (memory, masks, a cache) go to the
    sublayer unchanged. `backward` returns dx, or dx and the gradients of those others that have
    one.
    """

    def __init__(
        self,
        sublayer: Layer,
        d_model: int,
        p_drop: float = 0.0,
        norm: str = "post",
        normalization: Callable[[int], Layer] = LayerNorm,
    ):
        if norm not in ("post", "pre"):
            raise InputError("norm is post or pre", repr(norm), "The paper's is post.")
        self.sublayer = sublayer
        self.dropout = Dropout(p_drop)
        self.norm = normalization(d_model)
        self.norm_first = norm == "pre"

    def forward(self, x: Array, *others: Any) -> Array:
        if self.norm_first:
            return x + self.dropout.forward(self.sublayer.forward(self.norm.forward(x), *others))
        return self.norm.forward(x + self.dropout.forward(self.sublayer.forward(x, *others)))

    def backward(self, dy: Array) -> Any:
        dsum = dy if self.norm_first else self.norm.backward(dy)
        gradients = self.sublayer.backward(self.dropout.backward(dsum))
        dx, *dothers = gradients if isinstance(gradients, tuple) else (gradients,)
        if self.norm_first:
            dx = self.norm.backward(dx)
        dx += dsum  # x goes to the sublayer and into the sum
        return (dx, *dothers) if dothers else dx
