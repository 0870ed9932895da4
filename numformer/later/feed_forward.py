"""The feed-forward network with optional parts: other activations, gates, dropout, no biases."""

import numpy as np

from numformer.layer import Array, Layer
from numformer.paper.dropout import Dropout
from numformer.paper.feed_forward import FeedForward
from numformer.paper.linear import Linear


class Chain(Layer):
    """x -> y: several layers in sequence, such as an activation and dropout."""

    def __init__(self, *layers: Layer):
        self.layers = layers

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, dy: Array) -> Array:
        for layer in reversed(self.layers):
            dy = layer.backward(dy)
        return dy


class DenseFeedForward:
    """The entry "dense" of FEED_FORWARDS: the paper's FeedForward with parts chosen by a config.

    Every entry of FEED_FORWARDS has `build` and `entries`. It may also have its own `Settings`, a
    method `require(config)` that raises InputError for an unsuitable config, and its own
    `EncoderLayer` and `DecoderLayer`.
    """

    @staticmethod
    def build(config, rng: np.random.Generator) -> FeedForward:
        """Build the network that a TowerConfig describes."""
        width, activation = config.d_ff, config.new_activation()
        inner = Linear(
            config.d_model, getattr(activation, "inputs", 1) * width, rng, config.feed_forward_bias
        )
        outer = Linear(width, config.d_model, rng, config.feed_forward_bias)
        if config.activation_dropout:
            activation = Chain(activation, Dropout(config.activation_dropout))
        return FeedForward(config.d_model, width, rng, inner, activation, outer)

    @staticmethod
    def entries(config) -> int:
        """Return a lower bound on the number of entries in the network's matrices."""
        return 2 * config.d_model * config.d_ff
