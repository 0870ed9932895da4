"""The encoder: a stack of N layers of self-attention and a feed-forward network (section 3.1)."""

from collections.abc import Iterable
from typing import Any

from numformer.layer import Array, Layer
from numformer.paper.memory import Memory


class EncoderLayer(Layer):
    """x (B, T, D), reach -> (B, T, D): self-attention, then the feed-forward network (3.1).

    Each is wrapped in a Residual. `reach` masks the self-attention. In decoding, by a language
    model, `past` holds the states of the positions before x.
    """

    def __init__(self, self_attention: Layer, feed_forward: Layer):
        self.self_attention = self_attention
        self.feed_forward = feed_forward

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:
        return self.feed_forward.forward(self.self_attention.forward(x, reach, past))

    def backward(self, dy: Array) -> Array:
        return self.self_attention.backward(self.feed_forward.backward(dy))


class Encoder(Layer):
    """x (B, T, D), reach -> (B, T, D): the layers, one after the other."""

    def __init__(self, layers: Iterable[Layer]):
        self.layers = list(layers)

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:
        for layer in self.layers:
            x = layer.forward(x, reach, past)
        return x

    def backward(self, dy: Array) -> Array:
        for layer in reversed(self.layers):
            dy = layer.backward(dy)
        return dy
