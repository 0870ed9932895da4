"""Vocabularies and batches: from texts to the arrays that a model reads."""

from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, SpecialIds, Vocabulary
from numformer.data.subwords import Subwords
from numformer.data.sound import log_mel, mel_filters, read_wav
from numformer.data.batching import (
    Batch,
    EpochBatches,
    PairBatch,
    TokenBatches,
    pad,
    pad_sources,
)

__all__ = [
    "END",
    "PADDING",
    "START",
    "UNKNOWN",
    "SpecialIds",
    "Vocabulary",
    "Subwords",
    "log_mel",
    "mel_filters",
    "read_wav",
    "Batch",
    "PairBatch",
    "EpochBatches",
    "TokenBatches",
    "pad",
    "pad_sources",
]
