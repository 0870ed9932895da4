"""The residual connection around every sublayer, with its norm and dropout (sections 3.1, 5.4)."""

from typing import Any

from numformer.layer import Array, Layer
from numformer.paper.dropout import Dropout
from numformer.paper.layer_norm import LayerNorm


class Residual(Layer):
    """y = LayerNorm(x + Dropout(Sublayer(x, *others)))   (sections 3.1, 5.4).

    x (B, T, D), *others -> (B, T, D). `others`, such as a memory and a Reach, go to the sublayer.
    `norm`, a norm of D values, replaces LayerNorm if given. `backward` returns dx or, if the
    sublayer also returns gradients of `others`, a tuple of dx and these gradients.
    """

    def __init__(
        self, sublayer: Layer, d_model: int, p_drop: float = 0.0, norm: Layer | None = None
    ):
        self.sublayer = sublayer
        self.dropout = Dropout(p_drop)
        self.norm = norm or LayerNorm(d_model)

    def forward(self, x: Array, *others: Any) -> Array:
        return self.norm.forward(x + self.dropout.forward(self.sublayer.forward(x, *others)))

    def backward(self, dy: Array) -> Any:
        dsum = self.norm.backward(dy)
        gradients = self.sublayer.backward(self.dropout.backward(dsum))
        dx, *dothers = gradients if isinstance(gradients, tuple) else (gradients,)
        dx += dsum  # x enters both the sublayer and the sum
        return (dx, *dothers) if dothers else dx
