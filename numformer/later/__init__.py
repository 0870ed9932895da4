"""What came after the paper, one concept a file; and the choices among it and the paper's, by name.

A config names its choices by the keys of these registries; an unknown name raises there.
"""

from collections.abc import Callable
from typing import Any

from numformer.layer import Layer
from numformer.later.activations import GEGLU, GELU, GELUTanh, SwiGLU, Swish, Tanh
from numformer.later.rms_norm import RMSNorm
from numformer.later.pre_norm import NormedDecoder, NormedEncoder, PreNormResidual
from numformer.later.positions import NoPositions, sinusoidal_halves_table
from numformer.later.embeddings import (
    BiasedOutputProjection,
    RichInputEmbedding,
    UnscaledEmbedding,
)
from numformer.later.feed_forward import Chain, DenseFeedForward
from numformer.later.experts import (
    Experts,
    MixtureOfExperts,
    RoutedDecoderLayer,
    RoutedEncoderLayer,
)
from numformer.later.attention.rotary import Rotary
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.heads import BiasedHeads, QueryKeyHeads
from numformer.later.attention.dense import BiasedAttention
from numformer.later.attention.patterns import Everything, GlobalWindow, Strided, Window
from numformer.later.attention.relative import RelativePositions
from numformer.later.attention.tiles import TiledAttention, attention_weights
from numformer.later.attention.mixer import ATTENTIONS as ATTENTIONS
from numformer.later.attention.mixer import POSITIONS_IN_ATTENTION as POSITIONS_IN_ATTENTION
from numformer.later.attention.mixer import AttentionMixer
from numformer.later.mixers.mixer import Mixer
from numformer.later.mixers.linear_attention import LinearAttention
from numformer.later.mixers.convolution import Convolution
from numformer.later.mixers.state_space import StateSpace
from numformer.later.checkpointed import Checkpointed
from numformer.later.divergence import Divergence
from numformer.later.patches import ClassToken, Patches
from numformer.later.pick import Pick
from numformer.paper.config import POSITIONS as PAPER_POSITIONS
from numformer.paper.feed_forward import ReLU
from numformer.paper.layer_norm import LayerNorm
from numformer.paper.positions import SinusoidalPositions

NORMALIZATIONS: dict[str, Callable[..., Layer]] = {"layer": LayerNorm, "rms": RMSNorm}
QK_NORMS = "none", *NORMALIZATIONS
ACTIVATIONS: dict[str, type[Layer]] = {
    "relu": ReLU,
    "gelu": GELU,
    "gelu_tanh": GELUTanh,
    "swish": Swish,
    "swiglu": SwiGLU,
    "geglu": GEGLU,
}
FEED_FORWARDS: dict[str, Any] = {"dense": DenseFeedForward, "experts": MixtureOfExperts}
POSITIONS: dict[str, Callable[..., Layer]] = {
    **PAPER_POSITIONS,
    "sinusoidal_halves": lambda *sizes: SinusoidalPositions(sinusoidal_halves_table),
    "sinusoidal_rotary": lambda *sizes: SinusoidalPositions(),
    **dict.fromkeys(["rotary", "alibi", "none"], lambda *sizes: NoPositions()),
}
# What may stand where self-attention stands.
MIXERS: dict[str, Any] = {
    "attention": AttentionMixer(),
    "window": AttentionMixer(Window),
    "global_window": AttentionMixer(GlobalWindow),
    "strided": AttentionMixer(Strided),
    "relative": AttentionMixer(bias=RelativePositions),
    "linear": LinearAttention,
    "state_space": StateSpace,
}
MIXERS_OF_ATTENTION = [name for name in MIXERS if isinstance(MIXERS[name], AttentionMixer)]

__all__ = [
    "GELU",
    "GELUTanh",
    "Swish",
    "SwiGLU",
    "GEGLU",
    "Tanh",
    "RMSNorm",
    "PreNormResidual",
    "NormedEncoder",
    "NormedDecoder",
    "NoPositions",
    "UnscaledEmbedding",
    "RichInputEmbedding",
    "BiasedOutputProjection",
    "Chain",
    "Experts",
    "RoutedEncoderLayer",
    "RoutedDecoderLayer",
    "BiasedHeads",
    "QueryKeyHeads",
    "Rotary",
    "ALiBi",
    "RelativePositions",
    "BiasedAttention",
    "TiledAttention",
    "Everything",
    "Window",
    "GlobalWindow",
    "Strided",
    "attention_weights",
    "Mixer",
    "LinearAttention",
    "Convolution",
    "StateSpace",
    "Checkpointed",
    "Divergence",
    "Patches",
    "ClassToken",
    "Pick",
]
