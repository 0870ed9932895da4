"""The Transformer of "Attention Is All You Need", forward and backward by hand.

Letters that shapes are written in: B batch, S source length, T target length, D d_model,
H heads, K d_k (and d_v where it is the same), F d_ff, V vocabulary. A gradient is `d` and the
name: `dx`.

The public names below stand in the order in which the source reads well. The gradient check is
`numformer.gradient_check`, the pictures are `numformer.plots`.
"""

__version__ = "0.1.0"

from numformer.errors import InputError
from numformer.layer import FlatParameters, Layer, Parameter, inference, mode, pack
from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.activation import ReLU
from numformer.layers.softmax import Softmax
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.positional import LearnedPositions, SinusoidalPositions
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.feed_forward import FeedForward
from numformer.layers.residual import Residual
from numformer.models.config import Config
from numformer.models.encoder_decoder import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    Transformer,
    causal_mask,
    padding_mask,
)
from numformer.layers.cross_entropy import CrossEntropy
from numformer.training.optimizers import (
    Adam,
    clip_global_norm,
    learning_rate,
    linear_rate,
    warmup_rate,
)
from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, Vocabulary
from numformer.data.batching import Batch, EpochBatches, pad, pad_sources
from numformer.generation.decoding import beam_search, greedy
from numformer.training.checkpoints import load_model, save_model
from numformer.training.loop import Schedule, Task, train

__all__ = [
    "InputError",
    "FlatParameters",
    "Layer",
    "Parameter",
    "inference",
    "mode",
    "pack",
    "Linear",
    "OutputProjection",
    "ReLU",
    "Softmax",
    "LayerNorm",
    "Dropout",
    "Embedding",
    "LearnedPositions",
    "SinusoidalPositions",
    "CrossAttention",
    "MultiHeadAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
    "DotProductScore",
    "MultiplicativeScore",
    "AdditiveScore",
    "FeedForward",
    "Residual",
    "Config",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "Transformer",
    "causal_mask",
    "padding_mask",
    "CrossEntropy",
    "Adam",
    "clip_global_norm",
    "learning_rate",
    "linear_rate",
    "warmup_rate",
    "END",
    "PADDING",
    "START",
    "UNKNOWN",
    "Vocabulary",
    "Batch",
    "EpochBatches",
    "pad",
    "pad_sources",
    "beam_search",
    "greedy",
    "load_model",
    "save_model",
    "Schedule",
    "Task",
    "train",
]
