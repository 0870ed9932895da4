"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in the paper's order.

Nothing here is newer than the paper. Every class takes its parts as arguments, so newer models can
reuse it with other parts; training uses these same classes. Two files add what any implementation
needs, `masks` to track padding and `memory` to keep what was computed for earlier positions.
"""

from numformer.paper.linear import Linear
from numformer.paper.softmax import Softmax
from numformer.paper.masks import ExplicitMask, Places, Reach, causal_mask, padding_mask
from numformer.paper.memory import Memory, State
from numformer.paper.attention import (
    CrossAttention,
    Heads,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.paper.feed_forward import FeedForward, ReLU
from numformer.paper.embedding import Embedding, InputEmbedding, OutputProjection
from numformer.paper.positions import LearnedPositions, SinusoidalPositions
from numformer.paper.layer_norm import LayerNorm
from numformer.paper.dropout import Dropout
from numformer.paper.residual import Residual
from numformer.paper.encoder import Encoder, EncoderLayer
from numformer.paper.decoder import Decoder, DecoderLayer
from numformer.paper.config import Config as Config
from numformer.paper.transformer import Transformer as Transformer
from numformer.paper.cross_entropy import CrossEntropy
from numformer.paper.adam import Adam, warmup_rate
from numformer.paper.writing import greedy as greedy
from numformer.paper.beam import beam_search as beam_search

# Config, Transformer, greedy and beam_search are not listed: `numformer` exports its own versions.
__all__ = [  # in reading order
    "Linear", "Softmax", "Places", "Reach", "ExplicitMask", "causal_mask", "padding_mask", "Memory",
    "State", "ScaledDotProductAttention", "Heads", "MultiHeadAttention", "SelfAttention",
    "CrossAttention", "ReLU", "FeedForward", "Embedding", "OutputProjection", "InputEmbedding",
    "SinusoidalPositions", "LearnedPositions", "LayerNorm", "Dropout", "Residual", "EncoderLayer",
    "Encoder", "DecoderLayer", "Decoder", "CrossEntropy", "Adam", "warmup_rate",
]  # fmt: skip
