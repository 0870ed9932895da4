"""Where attention looked, for maps."""

from numformer.layer import Layer
from numformer.later.attention.tiles import TiledAttention
from numformer.paper.attention import MultiHeadAttention


def attention_weights(layer: Layer):
    """Where the queries of a layer's latest forward looked: (B, H, T, S), or None.

    The layer is an attention, or another that has a method of this name, as a Mixer does.
    """
    if isinstance(layer, MultiHeadAttention):
        layer = layer.attention
        if not isinstance(layer, TiledAttention):
            return layer.saved[-1].get("weights") if layer.saved else None
    return layer.attention_weights() if hasattr(layer, "attention_weights") else None
