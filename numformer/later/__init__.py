"""Parts that the paper does not have, one file per topic; `registries` has the choices by name."""

from numformer.later.activations import GEGLU, GELU, Cap, GELUTanh, QuickGELU, SwiGLU, Swish, Tanh
from numformer.later.rms_norm import RMSNorm
from numformer.later.pre_norm import (
    LayerScale,
    NormedDecoder,
    NormedEncoder,
    OutputNormResidual,
    ParallelLayer,
    PreNormResidual,
    SandwichResidual,
    ScaledResidual,
)
from numformer.later.positions import NoPositions
from numformer.later.embeddings import (
    BiasedOutputProjection,
    CappedOutputProjection,
    RichInputEmbedding,
    UnscaledEmbedding,
)
from numformer.later.feed_forward import Chain
from numformer.later.experts import Experts, RoutedDecoderLayer, RoutedEncoderLayer
from numformer.later.attention.rotary import Rotary
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.heads import BiasedHeads, QueryKeyHeads
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.patterns import FullPattern, GlobalWindow, Strided, Window
from numformer.later.attention.relative import RelativePositions
from numformer.later.attention.tiles import TiledAttention, attention_weights
from numformer.later.mixers.mixer import Mixer
from numformer.later.mixers.linear_attention import LinearAttention
from numformer.later.mixers.convolution import Convolution
from numformer.later.mixers.state_space import StateSpace
from numformer.later.checkpointed import Checkpointed
from numformer.later.divergence import Divergence
from numformer.later.patches import ClassToken, Patches, TokenAndMean
from numformer.later.pick import Pick
from numformer.later.similarity import Similarity
from numformer.later.sound import SoundEmbedding, Windows
from numformer.later.registries import ACTIVATIONS as ACTIVATIONS
from numformer.later.registries import ATTENTIONS as ATTENTIONS
from numformer.later.registries import FEED_FORWARDS as FEED_FORWARDS
from numformer.later.registries import MIXERS as MIXERS
from numformer.later.registries import NORMALIZATIONS as NORMALIZATIONS
from numformer.later.registries import POSITIONS as POSITIONS
from numformer.later.registries import POSITIONS_IN_ATTENTION as POSITIONS_IN_ATTENTION

__all__ = [
    "GELU",
    "GELUTanh",
    "Swish",
    "QuickGELU",
    "SwiGLU",
    "GEGLU",
    "Tanh",
    "Cap",
    "RMSNorm",
    "PreNormResidual",
    "SandwichResidual",
    "LayerScale",
    "ScaledResidual",
    "OutputNormResidual",
    "ParallelLayer",
    "NormedEncoder",
    "NormedDecoder",
    "NoPositions",
    "UnscaledEmbedding",
    "RichInputEmbedding",
    "BiasedOutputProjection",
    "CappedOutputProjection",
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
    "FullPattern",
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
    "TokenAndMean",
    "Pick",
    "Windows",
    "SoundEmbedding",
    "Similarity",
]
