"""Batches for language models: parts of texts, and the symbol that follows each position."""

from dataclasses import dataclass

import numpy as np

from numformer.data import Batch


@dataclass(frozen=True)
class Windows(Batch):
    """ids (B, T), and the ids that follow them (B, T), which are to be predicted."""

    ids: np.ndarray
    following: np.ndarray


@dataclass(frozen=True)
class PartialWindows(Windows):
    """Windows in which following ids are to be predicted only where `valid` (B, T) is True."""

    valid: np.ndarray

    @property
    def weight(self) -> int:
        return np.count_nonzero(self.valid)
