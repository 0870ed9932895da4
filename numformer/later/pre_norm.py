"""Pre-norm (Xiong et al. 2020): a norm before each sublayer, and one after the last layer."""

from collections.abc import Iterable
from typing import Any

from numformer.layer import Array, Layer
from numformer.paper.decoder import Decoder
from numformer.paper.encoder import Encoder
from numformer.paper.memory import Memory
from numformer.paper.residual import Residual


class PreNormResidual(Residual):
    """y = x + Dropout(Sublayer(LayerNorm(x), *others)); x (B, T, D), *others -> (B, T, D)."""

    def forward(self, x: Array, *others: Any) -> Array:
        return x + self.dropout.forward(self.sublayer.forward(self.norm.forward(x), *others))

    def backward(self, dy: Array) -> Any:
        gradients = self.sublayer.backward(self.dropout.backward(dy))
        dx, *dothers = gradients if isinstance(gradients, tuple) else (gradients,)
        dx = self.norm.backward(dx)
        dx += dy  # x goes to the norm and into the sum
        return (dx, *dothers) if dothers else dx


class NormedEncoder(Encoder):
    """x (B, T, D), reach -> (B, T, D): an Encoder with a norm after its last layer."""

    def __init__(self, layers: Iterable[Layer], norm: Layer):
        super().__init__(layers)
        self.norm = norm

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:
        return self.norm.forward(super().forward(x, reach, past))

    def backward(self, dy: Array) -> Array:
        return super().backward(self.norm.backward(dy))


class NormedDecoder(Decoder):
    """x (B, T, D), reach, memory, memory_reach -> (B, T, D): a Decoder with a norm at the end."""

    def __init__(self, layers: Iterable[Layer], norm: Layer):
        super().__init__(layers)
        self.norm = norm

    def forward(
        self, x: Array, reach: Any, memory: Array, memory_reach: Any, past: Memory | None = None
    ) -> Array:
        return self.norm.forward(super().forward(x, reach, memory, memory_reach, past))

    def backward(self, dy: Array) -> Any:
        return super().backward(self.norm.backward(dy))
