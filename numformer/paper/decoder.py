"""The decoder: a stack of N layers that also attend to the encoder's output (section 3.1)."""

from collections.abc import Iterable
from typing import Any

from numformer.layer import Array, Layer
from numformer.paper.memory import Memory


class DecoderLayer(Layer):
    """x (B, T, D), reach, memory (B, S, D), memory_reach -> (B, T, D)   (section 3.1).

    Self-attention, attention to the encoder's output `memory` and the feed-forward network are each
    in a Residual. `reach` masks the attention to x, `memory_reach` the attention to memory. In
    decoding, `past` holds the states of earlier positions. `backward` returns dx, dmemory.
    """

    def __init__(self, self_attention: Layer, cross_attention: Layer, feed_forward: Layer):
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward

    def forward(
        self, x: Array, reach: Any, memory: Array, memory_reach: Any, past: Memory | None = None
    ) -> Array:
        x = self.self_attention.forward(x, reach, past)
        x = self.cross_attention.forward(x, memory, memory_reach, past)
        return self.feed_forward.forward(x)

    def backward(self, dy: Array) -> Any:
        dx, dmemory = self.cross_attention.backward(self.feed_forward.backward(dy))
        return self.self_attention.backward(dx), dmemory


class Decoder(Layer):
    """x (B, T, D), reach, memory (B, S, D), memory_reach -> (B, T, D): the layers in turn.

    `backward` returns dx, dmemory.
    """

    def __init__(self, layers: Iterable[Layer]):
        self.layers = list(layers)

    def forward(
        self, x: Array, reach: Any, memory: Array, memory_reach: Any, past: Memory | None = None
    ) -> Array:
        for layer in self.layers:
            x = layer.forward(x, reach, memory, memory_reach, past)
        return x

    def backward(self, dy: Array) -> Any:
        dx, dmemory = dy, 0
        for layer in reversed(self.layers):
            dx, dmemory_of_layer = layer.backward(dx)
            dmemory += dmemory_of_layer  # every layer attends to the same memory
        return dx, dmemory
