"""The tables of published models: the parts of each kind of model, from first to last.

A row has the published name of a part, our name, and the kind of part (`PART_KINDS` in table.py). A
line that ends with a colon gives the prefixes of the indented rows below it.
"""

from numformer.published.configs import GATED
from numformer.published.table import Table, decoder_table

# Marian, the paper's architecture: the translators of OPUS-MT (Tiedemann and Thottingal 2020).
# BART (Lewis et al. 2020), mBART (Liu et al. 2020), Pegasus (Zhang et al. 2020), M2M100 (Fan et al.
# 2021) and NLLB have its names; some have learned positions and further norms.
_MARIAN = """
{embeddings}
    final_logits_bias                     output.bias                             array (1, V)
    model.encoder.embed_positions.weight                                          constant
    model.decoder.embed_positions.weight                                          constant
    model.encoder.embed_positions.weights                                         constant
    model.decoder.embed_positions.weights                                         constant
    model.encoder.layernorm_embedding     source.norm                             norm
    model.decoder.layernorm_embedding     target.norm                             norm
    model.encoder.layer_norm              encoder.norm                            norm
    model.decoder.layer_norm              decoder.norm                            norm

    model.encoder.layers.*                encoder.layers.*:
        self_attn.q_proj|k_proj|v_proj    self_attention.sublayer.query|key|value  linear
        self_attn.out_proj                self_attention.sublayer.output          linear
        self_attn_layer_norm              self_attention.norm                     norm
        fc1|fc2                           feed_forward.sublayer.inner|outer       linear
        final_layer_norm                  feed_forward.norm                       norm

    model.decoder.layers.*                decoder.layers.*:
        self_attn.q_proj|k_proj|v_proj    self_attention.sublayer.query|key|value  linear
        self_attn.out_proj                self_attention.sublayer.output          linear
        self_attn_layer_norm              self_attention.norm                     norm
        encoder_attn.q_proj|k_proj|v_proj  cross_attention.sublayer.query|key|value  linear
        encoder_attn.out_proj             cross_attention.sublayer.output         linear
        encoder_attn_layer_norm           cross_attention.norm                    norm
        fc1|fc2                           feed_forward.sublayer.inner|outer       linear
        final_layer_norm                  feed_forward.norm                       norm
"""
_ONE_EMBEDDING = """\
    model.shared                          source.embedding                        table
    model.encoder.embed_tokens            source.embedding                        table
    model.decoder.embed_tokens            source.embedding                        table
    lm_head                               source.embedding                        table"""
_TWO_EMBEDDINGS = """\
    model.encoder.embed_tokens            source.embedding                        table
    model.decoder.embed_tokens            target.embedding                        table
    lm_head                               target.embedding                        table
    lm_head                               output                                  table"""


_POSITIONS = """
    model.encoder.embed_positions         source.positions                        table, shifted
    model.decoder.embed_positions         target.positions                        table, shifted"""


def marian(config) -> Table:
    """The table of Marian and its kin. Both languages have one embedding if all is tied."""
    embeddings = _ONE_EMBEDDING if config.tying == "all" else _TWO_EMBEDDINGS
    return Table(_MARIAN.format(embeddings=embeddings + _POSITIONS), optional="model.")


# Whisper (Radford et al. 2023): what Marian has, but for the first layers and the norms at the end.
_WHISPER_INPUTS = """\
    model.encoder.conv1|conv2             source.layers.1|4                       filters
    model.encoder.embed_positions         source.layers.6                         table
    model.decoder.embed_tokens            target.embedding                        table
    proj_out                              target.embedding                        table
    model.decoder.embed_positions         target.positions                        table"""
WHISPER = Table(_MARIAN.format(embeddings=_WHISPER_INPUTS), optional="model.")

# GPT-2 (Radford et al. 2019): only a decoder.
GPT2 = decoder_table(
    """
    transformer.wte                       input.embedding                         table
    lm_head                               input.embedding                         table
    lm_head                               output                                  table
    transformer.wpe                       input.positions                         table

    transformer.h.*                       tower.layers.*:
        ln_1                              self_attention.norm                     norm
        attn.c_attn|c_proj                self_attention.sublayer.query+key+value|output  matrix
        ln_2                              feed_forward.norm                       norm
        mlp.c_fc|c_proj                   feed_forward.sublayer.inner|outer       matrix
        attn.bias                                                                 constant
        attn.masked_bias                                                          constant

    transformer.ln_f                      tower.norm                              norm
""",
    "transformer.",
)

# T5 (Raffel et al. 2020): relative positions; the weights include the scale of the scores.
_T5_ENCODER = """
    shared                                {embedding}                        table
    encoder.embed_tokens                  {embedding}                        table

    encoder.block.*                       {stack}.layers.*:
        layer.0.layer_norm                self_attention.norm                     norm
        layer.0.SelfAttention.q           self_attention.sublayer.query           linear{query}
        layer.0.SelfAttention.k|v|o       self_attention.sublayer.key|value|output  linear
        layer.0.SelfAttention.relative_attention_bias  self_attention.sublayer.attention.bias  bias
        layer.1.layer_norm                feed_forward.norm                       norm
        layer.1.DenseReluDense.{inner}    feed_forward.sublayer.inner             linear
        layer.1.DenseReluDense.wo         feed_forward.sublayer.outer             linear

    encoder.final_layer_norm              {stack}.norm                            norm
"""
_T5_DECODER = """
    decoder.embed_tokens                  source.embedding                        table
    lm_head                               source.embedding                        table
    lm_head                               output                                  table

    decoder.block.*                       decoder.layers.*:
        layer.0.layer_norm                self_attention.norm                     norm
        layer.0.SelfAttention.q           self_attention.sublayer.query           linear{query}
        layer.0.SelfAttention.k|v|o       self_attention.sublayer.key|value|output  linear
        layer.0.SelfAttention.relative_attention_bias  self_attention.sublayer.attention.bias  bias
        layer.1.layer_norm                cross_attention.norm                    norm
        layer.1.EncDecAttention.q         cross_attention.sublayer.query          linear{query}
        layer.1.EncDecAttention.k|v|o     cross_attention.sublayer.key|value|output  linear
        layer.1.EncDecAttention.relative_attention_bias.weight                    unused
        layer.2.layer_norm                feed_forward.norm                       norm
        layer.2.DenseReluDense.{inner}    feed_forward.sublayer.inner             linear
        layer.2.DenseReluDense.wo         feed_forward.sublayer.outer             linear

    decoder.final_layer_norm              decoder.norm                            {final}
"""


def t5(config, scaled: bool) -> Table:
    """T5's table. If `scaled`, logits are divided by sqrt(d_model)."""
    final = f"norm, times {config.d_model**-0.5}" if scaled else "norm"
    names: dict[str, str] = dict(embedding="source.embedding", stack="encoder", final=final)
    return Table((_T5_ENCODER + _T5_DECODER).format(**names, **_t5_parts(config)))


def t5_encoder(config) -> Table:
    """The table of T5's encoder alone."""
    names = dict(embedding="input.embedding", stack="tower")
    return Table(_T5_ENCODER.format(**names, **_t5_parts(config)))


def _t5_parts(config) -> dict[str, str]:
    gated = config.activation in GATED.values()
    return dict(inner="wi_0+wi_1" if gated else "wi", query=f", times {config.key_size**0.5}")


# Encoders with the names of BERT's parts.
_ENCODER = """
    {name}.embeddings                     input:
        word_embeddings                   embedding                               table
        position_embeddings               positions                               {positions}
        token_type_embeddings             segments                                table
        LayerNorm                         norm                                    norm, both names
        position_ids                                                              constant

    {name}.encoder.layer.*                tower.layers.*:
        attention.self.query|key|value    self_attention.sublayer.query|key|value  linear
        attention.output.dense            self_attention.sublayer.output          linear
        attention.output.LayerNorm        self_attention.norm                     norm, both names
        intermediate.dense                feed_forward.sublayer.inner             linear
        output.dense                      feed_forward.sublayer.outer             linear
        output.LayerNorm                  feed_forward.norm                       norm, both names

{pooler}
"""
_POOLER = """\
    {name}.pooler.dense                   pooler                                  linear
    cls.seq_relationship                  relation                                linear"""
_UNUSED = """\
    {name}.pooler.dense.weight                                                    unused
    {name}.pooler.dense.bias                                                      unused"""

# BERT (Devlin et al. 2019): only an encoder, with a small network before its output.
_BERT_HEAD = """
    cls.predictions:
        transform.dense                   transform                               linear
        transform.LayerNorm               norm                                    norm, both names
        decoder                           input.embedding                         table
        decoder                           output                                  table
        {bias}                            output.bias                             array
        {copy}
"""

# RoBERTa (Liu et al. 2019): the same, with other names in the head.
_ROBERTA_HEAD = """
    lm_head:
        dense                             transform                               linear
        layer_norm                        norm                                    norm
        decoder                           input.embedding                         table
        decoder                           output                                  table
        {bias}                            output.bias                             array
        {copy}
"""


# The heads of classifiers (`TASKS` in configs.py)
_CLASSIFIER = """
    {pooler}                              pooler                                  linear
    {classes}                             relation                                linear
"""
_LABELS = """
    {classes}                             output                                  table
    {classes}.bias                        output.bias                             array
"""


def _head(task: str, pooler: str, classes: str, symbols: str) -> str:
    """The rows of an encoder's head: those of `symbols`, or those of a classifier."""
    if task == "texts":
        return _CLASSIFIER.format(pooler=pooler, classes=classes)
    return {
        "symbols": symbols,
        "positions": _LABELS.format(classes="classifier"),
        "spans": _LABELS.format(classes="qa_outputs"),
    }[task]


OUT = "classifier.dense", "classifier.out_proj"
"""The two matrices of the head of a RoBERTa that classifies texts, and of others."""


def _encoder(
    name: str, config, head: str, positions: str = "table", related: bool = False
) -> Table:
    """The table of an encoder with the names of BERT's parts, whose arrays begin with `name`.

    Unless two segments are `related` by a classifier, the pooler is unused.
    """
    pooler = (_POOLER if related else _UNUSED).format(name=name)
    text = _ENCODER.format(name=name, pooler=pooler, positions=positions)
    return _with_head(name, config, text + head)


def _with_head(name: str, config, text: str) -> Table:
    """The table of an encoder with or without a head."""
    bias, copy = "bias", "decoder.bias                      output.bias                      array"
    if not config.tied:  # an output with weights of its own has a bias of its own, too
        bias = "decoder.bias"  # in files of early releases it is the other one
        copy = "bias              output.bias              array\n        bias           unused"
    text = text.format(bias=bias, copy=copy)
    has_head = config.transform or config.relations or config.labels
    return Table(text, optional=f"{name}.", bare=not has_head)


def bert(config, task: str = "symbols") -> Table:
    """BERT's table."""
    head = _head(task, "bert.pooler.dense", "classifier", _BERT_HEAD)
    related = task == "symbols" and config.relations
    return _encoder("bert", config, head, related=related)


def roberta(config, task: str = "symbols") -> Table:
    """The table of RoBERTa and its kin."""
    head = _head(task, *OUT, _ROBERTA_HEAD)
    return _encoder("roberta", config, head, "table, after padding")


# ELECTRA (Clark et al. 2020): narrow embeddings; its generator fills holes.
_ELECTRA = """
    electra.embeddings_project            input.projection                        linear
"""
_ELECTRA_HEAD = """
    generator_predictions.dense           transform                               linear
    generator_predictions.LayerNorm       norm                                    norm
    generator_lm_head                     input.embedding                         table
    generator_lm_head                     output                                  table
    generator_lm_head.bias                output.bias                             array
    discriminator_predictions.dense.weight                                        unused
    discriminator_predictions.dense.bias                                          unused
    discriminator_predictions.dense_prediction.weight                             unused
    discriminator_predictions.dense_prediction.bias                               unused
"""


def electra(config, task: str = "symbols") -> Table:
    """ELECTRA's table; the discriminator's other parts are unused."""
    return _encoder("electra", config, _ELECTRA + _head(task, *OUT, _ELECTRA_HEAD))


# ALBERT (Lan et al. 2020): narrow embeddings, and the same parameters in all layers.
_ALBERT = """
    albert.embeddings                     input:
        word_embeddings                   embedding                               table
        position_embeddings               positions                               table
        token_type_embeddings             segments                                table
        LayerNorm                         norm                                    norm
        position_ids                                                              constant

    albert.encoder.embedding_hidden_mapping_in  input.projection                  linear

    albert.encoder.albert_layer_groups.0.albert_layers.0  tower.layers.0:
        attention.query|key|value         self_attention.sublayer.query|key|value  linear
        attention.dense                   self_attention.sublayer.output          linear
        attention.LayerNorm               self_attention.norm                     norm
        ffn                               feed_forward.sublayer.inner             linear
        ffn_output                        feed_forward.sublayer.outer             linear
        full_layer_layer_norm             feed_forward.norm                       norm

    albert.pooler.weight                                                          unused
    albert.pooler.bias                                                            unused
    sop_classifier.classifier.weight                                              unused
    sop_classifier.classifier.bias                                                unused
"""
_ALBERT_HEAD = """
    predictions:
        dense                             transform                               linear
        LayerNorm                         norm                                    norm
        decoder                           input.embedding                         table
        decoder                           output                                  table
        {bias}                            output.bias                             array
        {copy}
"""


def albert(config, task: str = "symbols") -> Table:
    """ALBERT's table."""
    head = _head(task, "albert.pooler", "classifier", _ALBERT_HEAD)
    return _with_head("albert", config, _ALBERT + head)


# MPNet (Song et al. 2020): learned positions and relative ones.
_MPNET = """
    mpnet.embeddings                      input:
        word_embeddings                   embedding                               table
        position_embeddings               positions                        table, after padding
        LayerNorm                         norm                                    norm
        position_ids                                                              constant

    mpnet.encoder.layer.*                 tower.layers.*:
        attention.attn.q|k|v              self_attention.sublayer.query|key|value  linear
        attention.attn.o                  self_attention.sublayer.output          linear
        attention.LayerNorm               self_attention.norm                     norm
        intermediate.dense                feed_forward.sublayer.inner             linear
        output.dense                      feed_forward.sublayer.outer             linear
        output.LayerNorm                  feed_forward.norm                       norm

    mpnet.encoder                         tower.layers.0.self_attention.sublayer:
        relative_attention_bias           attention.bias                          bias

    mpnet.pooler.dense.weight                                                     unused
    mpnet.pooler.dense.bias                                                       unused
"""


def mpnet(config, task: str = "symbols") -> Table:
    """MPNet's table."""
    return _with_head("mpnet", config, _MPNET + _head(task, *OUT, _ROBERTA_HEAD))


# DistilBERT (Sanh et al. 2019): BERT without segments and pooler.
_DISTILBERT = """
    distilbert.embeddings                 input:
        word_embeddings                   embedding                               table
        position_embeddings               positions                               table
        LayerNorm                         norm                                    norm
        position_ids                                                              constant

    distilbert.transformer.layer.*        tower.layers.*:
        attention.q_lin|k_lin|v_lin       self_attention.sublayer.query|key|value  linear
        attention.out_lin                 self_attention.sublayer.output          linear
        sa_layer_norm                     self_attention.norm                     norm
        ffn.lin1|lin2                     feed_forward.sublayer.inner|outer       linear
        output_layer_norm                 feed_forward.norm                       norm
"""
_DISTILBERT_HEAD = """
    vocab_transform                       transform                               linear
    vocab_layer_norm                      norm                                    norm
    vocab_projector                       input.embedding                         table
    vocab_projector                       output                                  table
    vocab_projector.bias                  output.bias                             array
"""


def distilbert(config, task: str = "symbols") -> Table:
    """DistilBERT's table."""
    head = _head(task, "pre_classifier", "classifier", _DISTILBERT_HEAD)
    return _with_head("distilbert", config, _DISTILBERT + head)


# ViT (Dosovitskiy et al. 2021): an encoder of the patches of an image. DeiT (Touvron et al. 2021)
# has a second token.
_VIT = """
    {name}.embeddings:
        patch_embeddings.projection       embedding                               patches
        cls_token                         token.token                             array (1, 1, D)
        distillation_token                distillation.token                      array (1, 1, D)
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
    text = _VIT.format(name=name, **usual | names)
    return Table(text, optional=f"{name}.", bare=config.classes is None)


def deit(config) -> Table:
    return vit(config, "deit", classifier=("cls_" if config.distilled_head else "") + "classifier")


# DINOv2 (Oquab et al. 2023): LayerScale, and in its largest model gates.
def dinov2(config) -> Table:
    inner, outer = "fc1", "fc2"
    if config.activation == "swiglu":
        inner, outer = "weights_in", "weights_out"
    norms = dict(first="norm1", second="norm2")
    return vit(config, "dinov2", inner=f"mlp.{inner}", outer=f"mlp.{outer}", **norms)


# CLIP (Radford et al. 2021): a tower of texts and one of images.
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
