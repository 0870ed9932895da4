"""Encoders of texts, from BERT to MPNet: a reading and a table for each, with and without heads."""

from numformer.published.configs import ForeignConfig, special_ids, stack_fields
from numformer.published.table import Table

# Heads

MASKED = "cls.predictions.", "lm_head.", "vocab_", "generator_", "predictions."
"""How the names of the arrays begin that only a model that fills holes has."""
TASKS = {
    "ForSequenceClassification": "texts",
    "ForTokenClassification": "positions",
    "ForQuestionAnswering": "spans",
}
"""What the heads of these architectures classify."""


def task_of(foreign: ForeignConfig) -> dict[str, str]:
    """What an encoder's head does, as its architectures say; "symbols" for the usual ones."""
    classes = str(foreign.get("architectures", ""))
    return dict(task=next((task for name, task in TASKS.items() if name in classes), "symbols"))


def _heads(foreign: ForeignConfig, activation: str = "tanh") -> dict:
    """The head on an encoder's stack, which its architectures and its arrays' names tell.

    Nothing in a bare model; its output then shares the embedding, as it has no weights of its own.
    `activation` is the one in the head of a classifier of texts.
    """
    task, classes = task_of(foreign)["task"], len(foreign.get("id2label", ["", ""]))
    if task == "texts":
        return dict(relations=classes, relation_activation=activation)
    if task != "symbols":
        return dict(labels=classes, output_bias=True)
    fills = not foreign.arrays or foreign.has(*MASKED)
    return dict(
        transform=fills,
        output_bias=fills,
        tied=not fills or foreign.get("tie_word_embeddings", True),
        relations=2 if foreign.has("cls.seq_relationship.weight") else None,
    )


_SYMBOLS = """
    {}:
        {}                                transform                               linear
        {}                                norm                                    norm, both names
        decoder                           input.embedding                         table
        decoder                           output                                  table
        {{bias}}                          output.bias                             array
        {{copy}}
"""
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


def _with_head(name: str, config, text: str) -> Table:
    """The table of an encoder with or without a head."""
    bias, copy = "bias", "decoder.bias                      output.bias                      array"
    if not config.tied:  # an output with weights of its own has a bias of its own, too
        bias = "decoder.bias"  # in files of early releases it is the other one
        copy = "bias              output.bias              array\n        bias           unused"
    text = text.format(bias=bias, copy=copy)
    has_head = config.transform or config.relations or config.labels
    return Table(text, optional=f"{name}.", bare=not has_head)


# BERT (Devlin et al. 2019): a small network before its output.


def read_bert(foreign: ForeignConfig, activation: str = "tanh") -> dict:
    foreign.require(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return dict(
        vocabulary=foreign["vocab_size"],
        **stack_fields(foreign),
        positions="learned",
        max_length=foreign["max_position_embeddings"],
        segments=foreign.get("type_vocab_size", 2),
        embedding_scale=False,
        embedding_norm=True,
        epsilon=foreign.get("layer_norm_eps", 1e-12),
        **_heads(foreign, activation),
        p_drop=foreign.get("hidden_dropout_prob", 0.1),
        attention_dropout=foreign.get("attention_probs_dropout_prob", 0.1),
        **special_ids(foreign, padding=0),
    )


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
_BERT_HEAD = _SYMBOLS.format("cls.predictions", "transform.dense", "transform.LayerNorm")


def _encoder(
    name: str, config, head: str, positions: str = "table", related: bool = False
) -> Table:
    """The table of an encoder with the names of BERT's parts, whose arrays begin with `name`.

    Unless two segments are `related` by a classifier, the pooler is unused.
    """
    pooler = (_POOLER if related else _UNUSED).format(name=name)
    text = _ENCODER.format(name=name, pooler=pooler, positions=positions)
    return _with_head(name, config, text + head)


def bert(config, task: str = "symbols") -> Table:
    """BERT's table."""
    head = _head(task, "bert.pooler.dense", "classifier", _BERT_HEAD)
    related = task == "symbols" and config.relations
    return _encoder("bert", config, head, related=related)


# RoBERTa (Liu et al. 2019): the same, with other names in the head.


def read_roberta(foreign: ForeignConfig) -> dict:
    foreign.require(hidden_act="gelu")  # its head has no other
    padding = foreign.get("pad_token_id", 1)
    return read_bert(foreign) | dict(
        # A text's first position is padding + 1.
        max_length=foreign["max_position_embeddings"] - padding - 1,
        **special_ids(foreign, padding=1, start=0, end=2),
    )


_ROBERTA_HEAD = _SYMBOLS.format("lm_head", "dense", "layer_norm")


def roberta(config, task: str = "symbols") -> Table:
    """The table of RoBERTa and its kin."""
    head = _head(task, *OUT, _ROBERTA_HEAD)
    return _encoder("roberta", config, head, "table, after padding")


# ELECTRA (Clark et al. 2020): narrow embeddings; its generator fills holes.


def read_electra(foreign: ForeignConfig) -> dict:
    foreign.require(hidden_act="gelu")  # its head has no other
    size = foreign.get("embedding_size", 128)
    return read_bert(foreign, "gelu") | dict(
        embedding_size=None if size == foreign["hidden_size"] else size
    )


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


def read_albert(foreign: ForeignConfig) -> dict:
    foreign.require(num_hidden_groups=1, inner_group_num=1)
    return read_bert(foreign) | dict(
        embedding_size=foreign.get("embedding_size", 128),
        shared_layers=True,
        p_drop=foreign.get("hidden_dropout_prob", 0.0),
        attention_dropout=foreign.get("attention_probs_dropout_prob", 0.0),
        **special_ids(foreign, padding=0, start=2, end=3),
    )


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
_ALBERT_HEAD = _SYMBOLS.format("predictions", "dense", "LayerNorm")


def albert(config, task: str = "symbols") -> Table:
    """ALBERT's table."""
    head = _head(task, "albert.pooler", "classifier", _ALBERT_HEAD)
    return _with_head("albert", config, _ALBERT + head)


# MPNet (Song et al. 2020): learned positions and relative ones.


def read_mpnet(foreign: ForeignConfig) -> dict:
    foreign.require(relative_attention_num_buckets=32, pad_token_id=1)  # whatever a file says
    relative = dict(mixers="relative", distance_buckets=32, farthest=128, segments=None)
    return read_roberta(foreign) | relative


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


def read_distilbert(foreign: ForeignConfig) -> dict:
    return dict(
        vocabulary=foreign["vocab_size"],
        **stack_fields(foreign, "dim", "hidden_dim", "n_heads", "n_layers", "activation"),
        positions="learned",
        max_length=foreign["max_position_embeddings"],
        embedding_scale=False,
        embedding_norm=True,
        epsilon=1e-12,
        **_heads(foreign, "relu"),
        p_drop=foreign.get("dropout", 0.1),
        attention_dropout=foreign.get("attention_dropout", 0.1),
        **special_ids(foreign, padding=0),
    )


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


ENCODERS = {
    "bert": (read_bert, bert),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), (read_roberta, roberta)),
    "distilbert": (read_distilbert, distilbert),
    "electra": (read_electra, electra),
    "albert": (read_albert, albert),
    "mpnet": (read_mpnet, mpnet),
}
"""The readings and tables by the model_type of a config.json."""
