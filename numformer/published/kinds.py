"""The kinds of published models: for each, our model, its config, parameters and text pipeline."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from numformer.errors import InputError
from numformer.generation.continuation import Continuation
from numformer.generation.infilling import Infilling
from numformer.generation.labelling import Labelling
from numformer.generation.listening import Listening
from numformer.generation.reading import Reading
from numformer.generation.text_pipeline import MAX_SYMBOLS, TextPipeline
from numformer.generation.transduction import Transduction
from numformer.models import (
    DualEncoder,
    LanguageModel,
    MaskedLanguageModel,
    Model,
    SpeechTransformer,
    Transformer,
    VisionTransformer,
)
from numformer.published import encoders, images, marians, t5s
from numformer.published.configs import ForeignConfig
from numformer.published.decoders import or_bare
from numformer.published.generation import read_rules
from numformer.published.gpts import GPTS
from numformer.published.llamas import LLAMAS
from numformer.published.sentences import read_pooling
from numformer.published.table import Table
from numformer.published.vocabularies import TOKENIZER, load_tokenizer, load_vocabularies, mark


class Kind(NamedTuple):
    """A kind of published model.

    `config` turns a config.json into the fields of `model.Config`. `table` returns the Table of the
    parameters for a Config, given what `factors` returns for a config.json. `text` makes the
    pipeline from the folder, the Config and the settings of generation. `encoder` is the kind of
    the encoder alone, if it is published, too.
    """

    model: type[Model]
    config: Callable[[ForeignConfig], dict]
    table: Callable[..., Table]
    text: Callable[[Path, Any, ForeignConfig], TextPipeline | None] = lambda *_: None
    factors: Callable[[ForeignConfig], dict] = lambda foreign: {}
    encoder: Any = None

    def table_for(self, config, values: Mapping[str, Any]) -> Table:
        """Return the Table for a Config and the config.json with these values."""
        return self.table(config, **self.factors(ForeignConfig(values)))


def name_of_class(architectures: Any) -> str | None:
    """The name of the kind that has one of these classes, such as BertForMaskedLM, or None."""
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


def _one_vocabulary_text(folder: Path, config, settings: ForeignConfig) -> Transduction:
    vocabulary = load_tokenizer(folder, config.source_vocabulary, marked="before")
    if len(vocabulary.closing) > 1:
        raise InputError(
            "the tokenizer of an encoder-decoder puts only the end symbol after a text",
            f"{' '.join(vocabulary.closing)} in {folder}",
            "Choose a model whose texts begin with their language, such as mBART-50.",
        )
    return _transduction(vocabulary, vocabulary, settings)


def _continuation(folder: Path, config, settings: ForeignConfig) -> Continuation | Reading:
    if not config.head:
        return reading(folder, config)
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


def _longest(config) -> int:
    """The number of symbols in the longest text that an encoder takes."""
    return min(config.longest or MAX_SYMBOLS, MAX_SYMBOLS)


def reading(folder: Path, config, *_) -> Reading:
    """The pipeline of a model that only computes vectors for texts."""
    vocabulary = load_tokenizer(folder, config.vocabulary, marked=True)
    limits, how = read_pooling(folder)
    return Reading(vocabulary, min([*limits, _longest(config)]), **how)


def _comparing(folder: Path, config, settings: ForeignConfig) -> Reading:
    """A text's vector is that of its end, which CLIP's own tokenizer adds."""
    if not (folder / TOKENIZER).is_file():
        rule = f"texts of a CLIP are split by its {TOKENIZER}"
        raise InputError(rule, f"{folder} without it", "Download the whole folder.")
    text = reading(folder, config)
    return replace(text, pooling="last", normalized=True)


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


def _encoder_text(folder: Path, config, settings: ForeignConfig) -> TextPipeline:
    """A text is labelled or filled, or it is only read, if the model has no head."""
    if (task := encoders.task_of(settings)["task"]) != "symbols":
        vocabulary = load_tokenizer(folder, config.vocabulary, marked=True)
        labels = settings.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        names = [labels[str(n)] for n in range(len(labels))]
        return Labelling(vocabulary, _longest(config), names, task)
    return (_infilling if config.transform else reading)(folder, config, settings)


KINDS = {
    "marian": Kind(Transformer, marians.read_marian, marians.table, _marian_text),
    **{
        name: Kind(Transformer, read, marians.table, _one_vocabulary_text)
        for name, read in marians.BARTS.items()
    },
    **{
        name: Kind(LanguageModel, or_bare(read), table, _continuation, factors)
        for name, (read, table, factors) in (GPTS | LLAMAS).items()
    },
    **{
        name: Kind(
            Transformer,
            read,
            t5s.table,
            _one_vocabulary_text,
            factors,
            Kind(MaskedLanguageModel, t5s.encoder_of(read), t5s.encoder_table, reading),
        )
        for name, (read, factors) in t5s.T5S.items()
    },
    **{
        name: Kind(MaskedLanguageModel, read, table, _encoder_text, encoders.task_of)
        for name, (read, table) in encoders.ENCODERS.items()
    },
    "whisper": Kind(
        SpeechTransformer, marians.read_whisper, lambda config: marians.WHISPER, _listening
    ),
    **{name: Kind(VisionTransformer, read, table) for name, (read, table) in images.VITS.items()},
    "clip": Kind(DualEncoder, images.read_clip, lambda config: images.CLIP, _comparing),
}
"""The kinds by the model_type of a config.json."""


def kind_of(values: Mapping[str, Any]) -> Kind:
    """The kind that a config.json names, whose model_type is one of KINDS."""
    kind = KINDS[values["model_type"]]
    return (kind.encoder if "EncoderModel" in str(values.get("architectures")) else None) or kind


REFUSED = {
    "gemma3": "It also reads pictures. Name the folder of its text model (gemma3_text).",
    "beit": "Its layers have a number for each distance of patches. Name the folder of a ViT.",
    "clip_text_model": "It is half of a CLIP. Name the folder of a whole one (clip).",
    "clip_vision_model": "It is half of a CLIP. Name the folder of a whole one (clip), or a ViT's.",
    "mpt": "Its norms have no shift, unlike LayerNorm. Name the folder of another model.",
}
"""Why other kinds are not supported, by their model_type, and what to do."""
