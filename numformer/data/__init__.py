"""Symbols and batches: from text to the arrays that a model takes."""

from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, Vocabulary
from numformer.data.batching import Batch, EpochBatches, PairBatch, pad, pad_sources

__all__ = [
    "END",
    "PADDING",
    "START",
    "UNKNOWN",
    "Vocabulary",
    "Batch",
    "PairBatch",
    "EpochBatches",
    "pad",
    "pad_sources",
]
