"""The paper's formulas as functions, each with its backward, and the update rules of optimizers."""

from numformer.optimization.optimizers import adamw, lion, muon, sgd
from numformer.paper.adam import adam
from numformer.paper.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.paper.cross_entropy import cross_entropy, cross_entropy_backward
from numformer.paper.dropout import dropout, dropout_backward
from numformer.paper.embedding import (
    embed,
    embed_backward,
    output_projection,
    output_projection_backward,
)
from numformer.paper.feed_forward import relu, relu_backward
from numformer.paper.layer_norm import layer_norm, layer_norm_backward
from numformer.paper.linear import linear, linear_backward
from numformer.paper.softmax import softmax, softmax_backward

__all__ = [
    "adam",
    "adamw",
    "cross_entropy",
    "cross_entropy_backward",
    "dropout",
    "dropout_backward",
    "embed",
    "embed_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "lion",
    "muon",
    "output_projection",
    "output_projection_backward",
    "relu",
    "relu_backward",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "sgd",
    "softmax",
    "softmax_backward",
]
