"""The kinds of published models: what each is here, and what it does with texts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numformer.errors import InputError
from numformer.generation.continuation import Continuation
from numformer.generation.infilling import Infilling
from numformer.generation.text import MOST, Text
from numformer.generation.transduction import Transduction
from numformer.models import (
    LanguageModel,
    MaskedLanguageModel,
    Model,
    Transformer,
    VisionTransformer,
)
from numformer.published import configs, tables
from numformer.published.configs import GATED, Said
from numformer.published.rows import Table
from numformer.published.vocabularies import mark_of, pieces_of, tokenizer_of


@dataclass(frozen=True)
class Kind:
    """A kind of published model: what it is here, how its config becomes ours, and its tables.

    `table` is that of a config, `text` what it does with texts, of the folder, the config and what
    its generation_config.json says.
    """

    model: type[Model]
    config: Callable[[Said], dict]
    table: Callable[[Any], Table]
    text: Callable[[Path, Any, Said], Text | None] = lambda folder, config, said: None


def _transduction(source, target, said: Said) -> Transduction:
    # What counts there is the start, too.
    longest = said.get("max_length", said.get("max_position_embeddings", 513)) - 1
    return Transduction(
        source,
        target,
        max_length=said.get("max_new_tokens", longest),
        beam=said.get("num_beams", 1),
        length_penalty=said.get("length_penalty", 1.0),
        penalty="length",
    )


def _continuation(folder: Path, config, said: Said) -> Continuation:
    longest = config.longest or said.get("max_position_embeddings", MOST)
    vocabulary = tokenizer_of(folder, config.vocabulary, whole=True)
    return Continuation(vocabulary, min(longest, MOST))


def _infilling(folder: Path, config, said: Said) -> Infilling:
    hole, vocabulary = (
        mark_of(folder, "mask_token", "[MASK]"),
        tokenizer_of(folder, config.vocabulary, whole=True),
    )
    if hole not in vocabulary.symbols:
        rule, fix = "a model that fills holes has a symbol for one", "Download the tokenizer again."
        raise InputError(rule, f"no {hole} in the tokenizer of {folder}", fix)
    return Infilling(vocabulary, hole, config.longest)


def _of_t5(folder: Path, config, said: Said) -> Transduction:
    vocabulary = tokenizer_of(folder, config.source_vocabulary, whole=False)
    return _transduction(vocabulary, vocabulary, said)


def _of_marian(folder: Path, config, said: Said) -> Transduction:
    source, target = pieces_of(folder, config.source_vocabulary, config.target_vocabulary)
    return _transduction(source, target, said)


KINDS = {
    "marian": Kind(
        Transformer, configs.marian, lambda config: tables.marian(config.tying == "all"), _of_marian
    ),
    "gpt2": Kind(LanguageModel, configs.gpt2, lambda config: tables.GPT2, _continuation),
    "llama": Kind(LanguageModel, configs.llama, lambda config: tables.LLAMA, _continuation),
    "t5": Kind(
        Transformer,
        configs.t5,
        lambda config: tables.t5(config.tying == "all", config.activation in GATED.values()),
        _of_t5,
    ),
    "bert": Kind(
        MaskedLanguageModel, configs.bert, lambda config: tables.bert(config.relations), _infilling
    ),
    "vit": Kind(VisionTransformer, configs.vit, lambda config: tables.VIT),
}
"""By the model_type of their config.json."""
