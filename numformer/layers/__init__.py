"""The layers, one concept a file, in reading order; and the choices among them, by name.

A config names its choices by the keys of these registries; an unknown name raises there.
"""

from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.activation import ReLU
from numformer.layers.softmax import Softmax
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.rms_norm import RMSNorm
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.positional import LearnedPositions, SinusoidalPositions
from numformer.layers.places import Places
from numformer.layers.mask import Mask, attention_mask, causal_mask, padding_mask
from numformer.layers.cache import KeyValueCache
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.recurrent import GRUCell, LSTMCell, Recurrent, RNNCell, Tanh
from numformer.layers.additive_attention import AdditiveAttention
from numformer.layers.feed_forward import FeedForward
from numformer.layers.residual import Residual
from numformer.layers.cross_entropy import CrossEntropy

NORMALIZATIONS = {"layer": LayerNorm, "rms": RMSNorm}
ACTIVATIONS = {"relu": ReLU}
ATTENTIONS = {"scaled_dot_product": ScaledDotProductAttention}
CELLS = {"rnn": RNNCell, "lstm": LSTMCell, "gru": GRUCell}
POSITIONS = {
    "sinusoidal": lambda max_length, d_model, rng: SinusoidalPositions(),
    "learned": LearnedPositions,
}

__all__ = [
    "Linear",
    "OutputProjection",
    "ReLU",
    "Softmax",
    "LayerNorm",
    "RMSNorm",
    "Dropout",
    "Embedding",
    "LearnedPositions",
    "SinusoidalPositions",
    "Places",
    "Mask",
    "attention_mask",
    "causal_mask",
    "padding_mask",
    "KeyValueCache",
    "CrossAttention",
    "MultiHeadAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
    "DotProductScore",
    "MultiplicativeScore",
    "AdditiveScore",
    "RNNCell",
    "LSTMCell",
    "GRUCell",
    "Recurrent",
    "Tanh",
    "AdditiveAttention",
    "FeedForward",
    "Residual",
    "CrossEntropy",
]
