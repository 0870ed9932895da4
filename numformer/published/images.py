"""Models of images, from ViT to CLIP: a reading and a table for each."""

from functools import partial
from typing import Any

from numformer.models import LanguageModel, VisionTransformer
from numformer.published.configs import ForeignConfig, stack_fields
from numformer.published.table import Table

# ViT (Dosovitskiy et al. 2021): an encoder of the patches of an image. DeiT (Touvron et al. 2021)
# has a second token.


def read_vit(
    foreign: ForeignConfig, epsilon: float = 1e-12, d_ff: str = "intermediate_size"
) -> dict:
    foreign.require(qkv_bias=True)
    is_bare = foreign.arrays and not foreign.has("classifier.", "cls_classifier.")
    return dict(
        height=foreign["image_size"],
        width=foreign["image_size"],
        channels=foreign.get("num_channels", 3),
        classes=None if is_bare else len(foreign.get("id2label", ["", ""])),
        patch=foreign["patch_size"],
        **stack_fields(foreign, d_ff=d_ff),
        norm="pre",
        epsilon=foreign.get("layer_norm_eps", epsilon),
        p_drop=foreign.get("hidden_dropout_prob", 0.0),
        attention_dropout=foreign.get("attention_probs_dropout_prob", 0.0),
    )


def read_deit(foreign: ForeignConfig) -> dict:
    has_both = not foreign.arrays or foreign.has("distillation_classifier.")
    return read_vit(foreign) | dict(distilled=True, distilled_head=has_both)


_VIT = """
    {name}.embeddings:
        patch_embeddings.projection       embedding                               patches
        cls_token                         token                                   tokens
        distillation_token                distillation                            tokens
        register_tokens                   registers.layers.{registers}            tokens
        position_embeddings               positions.weight                        array (1, T, D)
        mask_token                                                                unused

    {name}.encoder.layer.*                tower.layers.*:
        {first}                           self_attention.norm                     norm
        attention.attention.query|key|value  self_attention.sublayer.query|key|value  linear
        attention.output.dense            self_attention.sublayer.output          linear
        layer_scale1.lambda1              self_attention.output_norm.scale        array
        {second}                          feed_forward.norm                       norm
        {inner}                           feed_forward.sublayer.inner             linear
        {outer}                           feed_forward.sublayer.outer             linear
        layer_scale2.lambda1              feed_forward.output_norm.scale          array

    {name}.layernorm                      tower.norm                              norm
    {classifier}                          output                                  linear
    distillation_classifier               distilled_output                        linear
    {name}.pooler.dense.weight                                                    unused
    {name}.pooler.dense.bias                                                      unused
"""


def vit(config, name: str = "vit", **names: str) -> Table:
    """ViT's table; `names` are those of parts that another kind calls otherwise."""
    usual = dict(first="layernorm_before", second="layernorm_after", classifier="classifier")
    usual |= dict(inner="intermediate.dense", outer="output.dense")
    usual |= dict(registers="+".join(map(str, range(config.registers or 0))))
    text = _VIT.format(name=name, **usual | names)
    return Table(text, optional=f"{name}.", bare=config.classes is None)


def deit(config) -> Table:
    return vit(config, "deit", classifier=("cls_" if config.distilled_head else "") + "classifier")


# DINOv2 (Oquab et al. 2023): LayerScale, gates in its largest model, registers in some.


def read_dinov2(foreign: ForeignConfig) -> dict:
    inner = int(foreign["hidden_size"] * foreign.get("mlp_ratio", 4))
    gated = foreign.get("use_swiglu_ffn", False)
    inner = (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner
    ours = read_vit(foreign, 1e-6, d_ff="hidden_size")
    ours |= dict(d_ff=inner, norm="pre_scaled", mean_head=True)
    return ours | (dict(activation="swiglu") if gated else {})


def read_dinov2_with_registers(foreign: ForeignConfig) -> dict:
    return read_dinov2(foreign) | dict(registers=foreign.get("num_register_tokens", 4) or None)


def dinov2(config, name: str = "dinov2") -> Table:
    inner, outer = "fc1", "fc2"
    if config.activation == "swiglu":
        inner, outer = "weights_in", "weights_out"
    norms = dict(first="norm1", second="norm2")
    return vit(config, name, inner=f"mlp.{inner}", outer=f"mlp.{outer}", **norms)


REGISTERS = "dinov2_with_registers"
VITS: dict[str, Any] = {
    "vit": (read_vit, vit),
    "deit": (read_deit, deit),
    "dinov2": (read_dinov2, dinov2),
    REGISTERS: (read_dinov2_with_registers, partial(dinov2, name=REGISTERS)),
}
"""The readings and tables by the model_type of a config.json."""

# CLIP (Radford et al. 2021): a tower of texts and one of images.

CLIP_TEXT = dict(vocab_size=49408, hidden_size=512, intermediate_size=2048, num_hidden_layers=12)
CLIP_TEXT |= dict(num_attention_heads=8, max_position_embeddings=77, eos_token_id=49407)
CLIP_VISION = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12)
CLIP_VISION |= dict(num_attention_heads=12, image_size=224, patch_size=32)


def read_clip(foreign: ForeignConfig) -> dict:
    def tower(name: str, defaults: dict) -> ForeignConfig:
        values = foreign.get(f"{name}_config", {}) | foreign.get(f"{name}_config_dict", {})
        return ForeignConfig(dict(hidden_act="quick_gelu") | defaults | values)

    text, image = tower("text", CLIP_TEXT), tower("vision", CLIP_VISION)
    size, end = text["vocab_size"], text["eos_token_id"]
    texts = dict(
        vocabulary=size,
        **stack_fields(text),
        norm="pre",
        positions="learned",
        max_length=text["max_position_embeddings"],
        embedding_scale=False,
        epsilon=text.get("layer_norm_eps", 1e-5),
        head=False,
        p_drop=0.0,
        attention_dropout=text.get("attention_dropout", 0.0),
        end_id=size - 1 if end == 2 else end,  # the first files say 2, but mean the last id
    )
    images = read_vit(image, epsilon=1e-5) | dict(
        classes=None,
        patch_bias=False,
        embedding_norm=True,
        attention_dropout=image.get("attention_dropout", 0.0),
    )
    towers = dict(texts=LanguageModel.Config(**texts), images=VisionTransformer.Config(**images))
    return towers | dict(width=foreign.get("projection_dim", 512))


_CLIP_LAYERS = """
    {name}_model.encoder.layers.*         {ours}.tower.layers.*:
        layer_norm1                       self_attention.norm                     norm
        self_attn.q_proj|k_proj|v_proj    self_attention.sublayer.query|key|value  linear
        self_attn.out_proj                self_attention.sublayer.output          linear
        layer_norm2                       feed_forward.norm                       norm
        mlp.fc1|fc2                       feed_forward.sublayer.inner|outer       linear
"""
_CLIP = """
    text_model.embeddings                 texts.input:
        token_embedding                   embedding                               table
        position_embedding                positions                               table
        position_ids                                                              constant

    vision_model.embeddings               images:
        patch_embedding                   embedding                               patches
        class_embedding                   token.token                             array
        position_embedding                positions                               table
        position_ids                                                              constant

    text_model.final_layer_norm           texts.tower.norm                        norm
    text_projection                       text_projection                         linear
    vision_model.pre_layrnorm             images.norm                             norm
    vision_model.post_layernorm           images.tower.norm                       norm
    visual_projection                     image_projection                        linear
    logit_scale                           similarity.scale                        number
"""
CLIP = Table(
    _CLIP
    + _CLIP_LAYERS.format(name="text", ours="texts")
    + _CLIP_LAYERS.format(name="vision", ours="images")
)
