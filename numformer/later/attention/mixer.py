from numformer import settings
from numformer.paper.attention import *
from numformer.paper.attention import CrossAttention, ScaledDotProductAttention, SelfAttention


class AttentionMixer:
    Settings = settings.Settings
    looks_ahead=True; sees_near=False
    def require(self, config): pass
    def build(self, config, rng, causal):
        return SelfAttention(config.d_model, config.heads, rng, *config.sizes)
    def entries(self, config): return config.d_model*config.heads*2*sum(config.sizes)
    def share(self, a, b): pass
    def own_settings(self, config): return {}
def cross_attention(config, rng): return CrossAttention(config.d_model, config.heads, rng, *config.sizes)
def cross_entries(config): return config.d_model*config.heads*2*sum(config.sizes)
ATTENTION_MIXERS={"attention": AttentionMixer()}
ATTENTIONS={"scaled_dot_product": ScaledDotProductAttention, "tiled": None}
POSITIONS_IN_ATTENTION={}
