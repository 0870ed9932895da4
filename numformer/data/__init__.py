"""Vocabularies and batches: from texts to the arrays that a model reads."""

from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, SpecialIds, Vocabulary
from numformer.data.subwords import Subwords
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
    "Batch",
    "PairBatch",
    "EpochBatches",
    "TokenBatches",
    "pad",
    "pad_sources",
]
