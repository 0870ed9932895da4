"""The kinds of published models: for each, our model, its config, parameters and text pipeline."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numformer.errors import InputError
from numformer.generation.continuation import Continuation
from numformer.generation.infilling import Infilling
from numformer.generation.listening import Listening
from numformer.generation.reading import Reading
from numformer.generation.text_pipeline import MAX_SYMBOLS, TextPipeline
from numformer.generation.transduction import Transduction
from numformer.models import (
    LanguageModel,
    MaskedLanguageModel,
    Model,
    SpeechTransformer,
    Transformer,
    VisionTransformer,
)
from numformer.published import configs, tables
from numformer.published.configs import GATED, ForeignConfig
from numformer.published.generation import read_rules
from numformer.published.gpts import GPTS
from numformer.published.llamas import LLAMAS
from numformer.published.sentences import read_pooling
from numformer.published.table import Table
from numformer.published.vocabularies import load_tokenizer, load_vocabularies, mark


class Kind(NamedTuple):
    """A kind of published model.

    `config` turns a config.json into the fields of `model.Config`. `table` returns the Table of the
    parameters for a Config, and takes what `factors` returns for a config.json. `text` makes the
    pipeline from the folder, the Config and the settings of generation.
    """

    model: type[Model]
    config: Callable[[ForeignConfig], dict]
    table: Callable[..., Table]
    text: Callable[[Path, Any, ForeignConfig], TextPipeline | None] = lambda *_: None
    factors: Callable[[ForeignConfig], dict] = lambda foreign: {}

    def table_for(self, config, values: Mapping[str, Any]) -> Table:
        """Return the Table for a Config and the config.json with these values."""
        return self.table(config, **self.factors(ForeignConfig(values)))


def kind_of(architectures: Any) -> str | None:
    """The kind whose class, such as BertForMaskedLM, is among the architectures; None if none."""
    for name in architectures or ():
        stem = re.sub(r"(For\w+|(DoubleHeads|LMHead|WithLMHead|Encoder|MT)?Model)$", "", name)
        for kind in KINDS:
            if re.sub("[_-]", "", kind) == stem.lower():
                return kind
    return None


def _transduction(source, target, settings: ForeignConfig) -> Transduction:
    # Published lengths include the start id.
    longest = settings.get("max_length", settings.get("max_position_embeddings", 513)) - 1
    return Transduction(
        source,
        target,
        max_length=settings.get("max_new_tokens", longest),
        beam=settings.get("num_beams", 1),
        length_penalty=settings.get("length_penalty", 1.0),
        penalty="length",
        rules=read_rules(settings, len(target)),
        early_stopping=settings.get("early_stopping", False),
    )


def _marian_text(folder: Path, config, settings: ForeignConfig) -> Transduction:
    sizes = config.source_vocabulary, config.target_vocabulary
    source, target = load_vocabularies(folder, *sizes)
    return _transduction(source, target, settings)


def _t5_text(folder: Path, config, settings: ForeignConfig) -> Transduction:
    vocabulary = load_tokenizer(folder, config.source_vocabulary, marked="before")
    return _transduction(vocabulary, vocabulary, settings)


def _continuation(folder: Path, config, settings: ForeignConfig) -> Continuation:
    longest = config.longest or settings.get("max_position_embeddings", MAX_SYMBOLS)
    vocabulary = load_tokenizer(folder, config.vocabulary, marked=True)
    temperature = settings.get("temperature", 1.0) if settings.get("do_sample", False) else 0.0
    rules = read_rules(settings, len(vocabulary))
    return Continuation(vocabulary, min(longest, MAX_SYMBOLS), temperature, rules)


def _listening(folder: Path, config, settings: ForeignConfig) -> Listening:
    return Listening(
        load_tokenizer(folder, config.vocabulary, marked=False),
        config.bands,
        config.frames,
        config.longest,
        settings.get("is_multilingual", config.vocabulary >= 51865),
        settings.get("num_beams", 1),
        settings.get("suppress_tokens", []),
        settings.get("begin_suppress_tokens", []),
        settings.get("max_initial_timestamp_index", None),
    )


def reading(folder: Path, config, *_) -> Reading:
    """The pipeline of a model whose texts are only read: for their vectors."""
    vocabulary = load_tokenizer(folder, config.vocabulary, marked=True)
    limits, how = read_pooling(folder)
    return Reading(vocabulary, min(*limits, config.longest or MAX_SYMBOLS, MAX_SYMBOLS), **how)


def _infilling(folder: Path, config, settings: ForeignConfig) -> Infilling:
    vocabulary = load_tokenizer(folder, config.vocabulary, marked=True)
    usual = "<mask>" if "<mask>" in vocabulary.symbols else "[MASK]"
    hole = mark(folder, "mask_token", usual)
    if hole not in vocabulary.symbols:
        raise InputError(
            "a model that fills holes has a hole symbol",
            f"no {hole} in the tokenizer of {folder}",
            "Download the tokenizer again.",
        )
    return Infilling(vocabulary, hole, config.longest)


def _reading_or_infilling(folder: Path, config, settings: ForeignConfig) -> Reading | Infilling:
    """A text of a model without a head, or for sentence-transformers, is only read."""
    return (_infilling if config.transform else reading)(folder, config, settings)


def _encoder(config: Callable[[ForeignConfig], dict], table: Callable[[Any], Table]) -> Kind:
    return Kind(MaskedLanguageModel, config, table, _reading_or_infilling)


KINDS = {
    "marian": Kind(
        Transformer,
        configs.read_marian,
        lambda config: tables.marian(config.tying == "all"),
        _marian_text,
    ),
    "gpt2": Kind(LanguageModel, configs.read_gpt2, lambda config: tables.GPT2, _continuation),
    **{
        name: Kind(LanguageModel, kind.config, kind.table, _continuation, kind.factors)
        for name, kind in (LLAMAS | GPTS).items()
    },
    "t5": Kind(
        Transformer,
        configs.read_t5,
        lambda config, scaled: tables.t5(config, config.activation in GATED.values(), scaled),
        _t5_text,
        configs.t5_factors,
    ),
    "bert": _encoder(configs.read_bert, tables.bert),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert"), _encoder(configs.read_roberta, tables.roberta)
    ),
    "distilbert": _encoder(configs.read_distilbert, tables.distilbert),
    "electra": _encoder(configs.read_electra, tables.electra),
    "mpnet": _encoder(configs.read_mpnet, tables.mpnet),
    "whisper": Kind(
        SpeechTransformer, configs.read_whisper, lambda config: tables.WHISPER, _listening
    ),
    "vit": Kind(VisionTransformer, configs.read_vit, lambda config: tables.VIT),
}
"""The kinds by the model_type of a config.json."""

REFUSED = {
    "gemma3": "It also reads pictures. Name the folder of its text model (gemma3_text).",
    "mpt": "Its norms have no shift, unlike LayerNorm. Name the folder of another model.",
}
"""Why other kinds are not supported, by their model_type, and what to do."""
