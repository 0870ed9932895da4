"""The registries: each maps the names that a config's field may have to the parts they choose.

An entry that you add becomes a choice like the others. An unknown name raises InputError.
"""

from collections.abc import Callable
from typing import Any

from numformer.later.activations import GEGLU, GELU, GELUTanh, QuickGELU, SwiGLU, Swish
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.patterns import GlobalWindow, Strided, Window
from numformer.later.attention.relative import RelativePositions
from numformer.later.attention.rotary import new_rotary
from numformer.later.attention.tiles import TiledAttention
from numformer.later.experts import MixtureOfExperts
from numformer.later.feed_forward import DenseFeedForward
from numformer.later.mixers.attention import AttentionMixer
from numformer.later.mixers.linear_attention import LinearAttention
from numformer.later.mixers.state_space import StateSpace
from numformer.later.positions import (
    NoPositions,
    sinusoidal_fairseq_table,
    sinusoidal_halves_table,
)
from numformer.later.rms_norm import RMSNorm
from numformer.layer import Layer
from numformer.paper.attention import ScaledDotProductAttention
from numformer.paper.config import POSITIONS as PAPER_POSITIONS
from numformer.paper.feed_forward import ReLU
from numformer.paper.layer_norm import LayerNorm
from numformer.paper.positions import SinusoidalPositions

NORMALIZATIONS: dict[str, Callable[..., Layer]] = {"layer": LayerNorm, "rms": RMSNorm}

ACTIVATIONS: dict[str, type[Layer]] = {
    "relu": ReLU,
    "gelu": GELU,
    "gelu_tanh": GELUTanh,
    "swish": Swish,
    "quick_gelu": QuickGELU,
    "swiglu": SwiGLU,
    "geglu": GEGLU,
}

FEED_FORWARDS: dict[str, Any] = {"dense": DenseFeedForward, "experts": MixtureOfExperts}

POSITIONS: dict[str, Callable[..., Layer]] = {
    **PAPER_POSITIONS,
    "sinusoidal_halves": lambda *sizes: SinusoidalPositions(sinusoidal_halves_table),
    "sinusoidal_fairseq": lambda *sizes: SinusoidalPositions(sinusoidal_fairseq_table),
    "sinusoidal_rotary": lambda *sizes: SinusoidalPositions(),
    **dict.fromkeys(["rotary", "alibi", "none"], lambda *sizes: NoPositions()),
}
"""Layers that add positions to the embeddings, built from (max_length, d_model, rng)."""

POSITIONS_IN_ATTENTION: dict[str, Callable[[Any], dict[str, Any]]] = {
    "rotary": new_rotary,
    "sinusoidal_rotary": new_rotary,
    "alibi": lambda config: {"bias": ALiBi(config.heads)},
}
"""Position encodings inside attention: a config -> a dict with the part `rotary` or `bias`."""

ATTENTIONS: dict[str, Callable[..., Layer]] = {
    "scaled_dot_product": ScaledDotProductAttention,
    "tiled": TiledAttention,
}
"""Layers that compute each head. A class that you add is called with p_drop."""

MIXERS: dict[str, Any] = {
    "attention": AttentionMixer(),
    "window": AttentionMixer(Window),
    "global_window": AttentionMixer(GlobalWindow),
    "strided": AttentionMixer(Strided),
    "relative": AttentionMixer(bias=RelativePositions),
    "linear": LinearAttention,
    "state_space": StateSpace,
}
"""Kinds of self-attention, and layers that can replace it."""
