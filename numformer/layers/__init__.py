"""The layers, one concept a file, in reading order; and the choices among them, by name.

A config names its choices by the keys of these registries; an unknown name raises there.
"""

from collections.abc import Callable

from numformer.layer import Layer
from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.activation import GEGLU, GELU, GELUTanh, ReLU, SwiGLU, Swish, Tanh
from numformer.layers.softmax import Softmax
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.rms_norm import RMSNorm
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.positional import (
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
    sinusoidal_halves_table,
)
from numformer.layers.places import Places
from numformer.layers.reach import Reach, causal_mask, padding_mask
from numformer.layers.memory import Memory
from numformer.layers.mixer import Mixer
from numformer.layers.blocks import BlockAttention
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.layers.grouped import GroupedQueryAttention
from numformer.layers.window import WindowAttention
from numformer.layers.tiles import TiledAttention
from numformer.layers.global_window import GlobalWindowAttention
from numformer.layers.strided import StridedAttention
from numformer.layers.relative import BiasedAttention, RelativeAttention, RelativePositions
from numformer.layers.linear_attention import LinearAttention
from numformer.layers.convolution import Convolution
from numformer.layers.state_space import StateSpace
from numformer.layers.rotary import Rotary
from numformer.layers import alibi
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.cells import GRUCell, LSTMCell, RNNCell
from numformer.layers.recurrence import Recurrent
from numformer.layers.additive_attention import AdditiveAttention
from numformer.layers.feed_forward import FeedForward
from numformer.layers.residual import Residual
from numformer.layers.checkpointed import Checkpointed
from numformer.layers.patches import ClassToken, Patches
from numformer.layers.pick import Pick
from numformer.layers.cross_entropy import CrossEntropy
from numformer.layers.divergence import Divergence

NORMALIZATIONS = {"layer": LayerNorm, "rms": RMSNorm}
ACTIVATIONS = {
    "relu": ReLU,
    "gelu": GELU,
    "gelu_tanh": GELUTanh,
    "swish": Swish,
    "swiglu": SwiGLU,
    "geglu": GEGLU,
}
ATTENTIONS = {"scaled_dot_product": ScaledDotProductAttention}
CELLS = {"rnn": RNNCell, "lstm": LSTMCell, "gru": GRUCell}
POSITIONS: dict[str, Callable[..., Layer]] = {
    **dict.fromkeys(
        ["sinusoidal", "sinusoidal_rotary"], lambda max_length, d_model, rng: SinusoidalPositions()
    ),
    "sinusoidal_halves": lambda max_length, d_model, rng: SinusoidalPositions(
        sinusoidal_halves_table
    ),
    "learned": LearnedPositions,
    **dict.fromkeys(["rotary", "alibi", "none"], lambda max_length, d_model, rng: NoPositions()),
}
# What makes the settings of self-attention, where positions come in there. Cross-attention looks at
# another sequence: with rotary positions alone it does not know where in it something is.
POSITIONS_IN_ATTENTION: dict[str, Callable[..., dict]] = {
    **dict.fromkeys(["rotary", "sinusoidal_rotary"], lambda base=1e4: {"rotary": Rotary(base)}),
    "alibi": lambda base=1e4: {"position_bias": alibi.alibi},
}
# What may stand where attention stands.
MIXERS: dict[str, type[Mixer]] = {
    "attention": SelfAttention,
    "grouped": GroupedQueryAttention,
    "window": WindowAttention,
    "global_window": GlobalWindowAttention,
    "strided": StridedAttention,
    "relative": RelativeAttention,
    "linear": LinearAttention,
    "state_space": StateSpace,
}

__all__ = [
    "Linear",
    "OutputProjection",
    "ReLU",
    "GELU",
    "GELUTanh",
    "Swish",
    "SwiGLU",
    "GEGLU",
    "Tanh",
    "Softmax",
    "LayerNorm",
    "RMSNorm",
    "Dropout",
    "Embedding",
    "LearnedPositions",
    "SinusoidalPositions",
    "NoPositions",
    "Places",
    "Reach",
    "causal_mask",
    "padding_mask",
    "Memory",
    "Mixer",
    "CrossAttention",
    "MultiHeadAttention",
    "ScaledDotProductAttention",
    "BlockAttention",
    "SelfAttention",
    "GroupedQueryAttention",
    "WindowAttention",
    "TiledAttention",
    "GlobalWindowAttention",
    "StridedAttention",
    "RelativePositions",
    "BiasedAttention",
    "RelativeAttention",
    "LinearAttention",
    "Convolution",
    "StateSpace",
    "Rotary",
    "DotProductScore",
    "MultiplicativeScore",
    "AdditiveScore",
    "RNNCell",
    "LSTMCell",
    "GRUCell",
    "Recurrent",
    "AdditiveAttention",
    "FeedForward",
    "Residual",
    "Checkpointed",
    "Patches",
    "ClassToken",
    "Pick",
    "CrossEntropy",
    "Divergence",
]
