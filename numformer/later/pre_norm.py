"""Norms inside the residual connection, with one after the last layer; sublayers side by side."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from numformer.arithmetic import sum_rows
from numformer.layer import Array, Layer, Parameter
from numformer.paper.decoder import Decoder
from numformer.paper.encoder import Encoder, EncoderLayer
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


class SandwichResidual(Residual):
    """y = x + Dropout(Norm'(Sublayer(Norm(x), *others))); x (B, T, D), *others -> (B, T, D).

    `output_norm` is the second norm, of what the sublayer adds (Ding et al. 2021, section 2.3).
    """

    def __init__(
        self, sublayer: Layer, d_model: int, p_drop: float, norm: Layer, output_norm: Layer
    ):
        super().__init__(sublayer, d_model, p_drop, norm)
        self.output_norm = output_norm

    def forward(self, x: Array, *others: Any) -> Array:
        y = self.output_norm.forward(self.sublayer.forward(self.norm.forward(x), *others))
        return x + self.dropout.forward(y)

    def backward(self, dy: Array) -> Any:
        gradients = self.sublayer.backward(self.output_norm.backward(self.dropout.backward(dy)))
        dx, *dothers = gradients if isinstance(gradients, tuple) else (gradients,)
        dx = self.norm.backward(dx)
        dx += dy  # x goes to the norm and into the sum
        return (dx, *dothers) if dothers else dx


def layer_scale(x, scale):
    """x (..., D), scale (D) -> y (..., D): y = x * scale (Touvron et al. 2021, section 3.1)."""
    return x * scale


def layer_scale_backward(dy, x, scale):
    """dy (..., D) -> dx (..., D), dscale (D)."""
    return dy * scale, sum_rows(dy * x)  # every position has the same scale


class LayerScale(Layer):
    """x (..., D) -> (..., D): every feature times a trained factor, at first 0.1."""

    role = "norm"

    def __init__(self, width: int):
        self.scale = Parameter(np.full(width, 0.1))

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return layer_scale(x, self.scale.data)

    def backward(self, dy: Array) -> Array:
        dx, dscale = layer_scale_backward(dy, **self.pop_saved(), scale=self.scale.data)
        self.scale.grad += dscale
        return dx


class ScaledResidual(SandwichResidual):
    """y = x + Dropout(scale * Sublayer(Norm(x), *others)); x (B, T, D), *others -> (B, T, D)."""

    def __init__(self, sublayer: Layer, d_model: int, p_drop: float, norm: Layer):
        super().__init__(sublayer, d_model, p_drop, norm, LayerScale(d_model))


class OutputNormResidual(Residual):
    """y = x + Dropout(Norm(Sublayer(x, *others))); x (B, T, D), *others -> (B, T, D).

    The norm is that of what the sublayer adds (OLMo 2; Liu et al. 2022, section 2.2).
    """

    def forward(self, x: Array, *others: Any) -> Array:
        return x + self.dropout.forward(self.norm.forward(self.sublayer.forward(x, *others)))

    def backward(self, dy: Array) -> Any:
        gradients = self.sublayer.backward(self.norm.backward(self.dropout.backward(dy)))
        dx, *dothers = gradients if isinstance(gradients, tuple) else (gradients,)
        dx += dy  # x enters both the sublayer and the sum
        return (dx, *dothers) if dothers else dx


RESIDUALS: dict[str, tuple[Any, int]] = {
    "post": (Residual, 1),
    "pre": (PreNormResidual, 1),
    "output": (OutputNormResidual, 1),
    "sandwich": (SandwichResidual, 2),
    "pre_scaled": (ScaledResidual, 1),
}
"""For each place of the norms: the residual connection, and how many norms it has."""


class ParallelLayer(EncoderLayer):
    """x (B, T, D), reach -> x + Attention(Norm(x)) + FFN(Norm'(x)) (B, T, D).

    Both sublayers read the same x, so they can be computed at the same time (Wang and Komatsuzaki
    2021, GPT-J). Both are PreNormResiduals; with `one_norm` they share the norm of the first.
    """

    self_attention: Any
    feed_forward: Any

    def __init__(self, self_attention: Layer, feed_forward: Layer, one_norm: bool = False):
        super().__init__(self_attention, feed_forward)
        if one_norm:
            self.feed_forward.norm = self.self_attention.norm

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:
        attention, network = self.self_attention, self.feed_forward
        attended = attention.sublayer.forward(attention.norm.forward(x), reach, past)
        y = x + attention.dropout.forward(attended)
        y += network.dropout.forward(network.sublayer.forward(network.norm.forward(x)))
        return y

    def backward(self, dy: Array) -> Array:
        dx = dy.copy()  # x goes to both sublayers and into the sum
        for part in self.feed_forward, self.self_attention:
            dx += part.norm.backward(part.sublayer.backward(part.dropout.backward(dy)))
        return dx


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
