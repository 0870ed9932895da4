"""The residual connection around every sublayer, with its norm and dropout (sections 3.1, 5.4)."""

from typing import Any

from numformer.layer import Array, Layer
from numformer.paper.dropout import Dropout
from numformer.paper.layer_norm import LayerNorm


class Residual(Layer):
    """y = LayerNorm(x + Dropout(Sublayer(x, *others)))   (sections 3.1, 5.4).

    x (B, T, D), *others -> (B, T, D). The sublayer gets `others` (a memory, a Reach) unchanged.
    `norm`, a norm of D values, can replace LayerNorm. `backward` returns dx, or a tuple of dx and
    the gradients of `others`, if the sublayer returns any.
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
        dx += dsum  # x goes to the sublayer and into the sum
        return (dx, *dothers) if dothers else dx
