"""A case: one layer with inputs, small enough for a gradient check.

The batch has several sequences, S != T, several heads, padding, and a row in which every key is
masked. Sizes of 1, equal sizes or a batch without masks would hide mistakes in axes and masks.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from numformer.layer import Layer
from numformer.paper.masks import Places, Reach, causal_mask, padding_mask

B, S, T, D, H, F, V = 3, 5, 4, 8, 2, 12, 11

IDS = dict(
    # The last row is all padding.
    source=np.array([[4, 5, 6, 7, 2], [8, 5, 2, 0, 0], [0, 0, 0, 0, 0]]),
    target_in=np.array([[1, 9, 4, 5], [1, 9, 9, 0], [1, 7, 0, 0]]),
    target_out=np.array([[9, 4, 5, 2], [9, 9, 2, 0], [7, 2, 0, 0]]),
    # One sequence is all padding. The permutation that puts the longest first is not self-inverse.
    lengths=np.array([0, 4, 2]),
    some_places=np.array([9, 0, 4, 11, 5]),  # indices among the B T positions of a batch
)


@dataclass
class InputGenerator:
    """Generates inputs: ids and their masks, and random x (B, T, D) and memory (B, S, D)."""

    rng: np.random.Generator
    source: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray
    lengths: np.ndarray
    some_places: np.ndarray

    def __post_init__(self):
        (self.B, self.S), self.T = self.source.shape, self.target_in.shape[1]
        self.x, self.memory = self.normal(self.T, D), self.normal(self.S, D)

    def normal(self, *shape: int) -> np.ndarray:
        """Return normal random numbers (B, *shape)."""
        return self.rng.standard_normal((self.B, *shape))

    @cached_property
    def sources(self) -> Places:
        return Places(self.source != 0)

    @cached_property
    def targets(self) -> Places:
        return Places(self.target_in != 0)

    @cached_property
    def encoder(self) -> Reach:
        """The Reach of an encoder: source positions see all source positions."""
        return Reach(self.sources)

    @cached_property
    def decoder(self) -> Reach:
        """The Reach of a decoder: target positions see themselves and earlier ones."""
        return Reach(self.targets, causal=True)

    @cached_property
    def cross(self) -> Reach:
        """The Reach of cross-attention: target positions see source positions."""
        return Reach(self.targets, self.sources)

    @cached_property
    def source_mask(self) -> np.ndarray:
        return padding_mask(self.source != 0)

    @cached_property
    def target_mask(self) -> np.ndarray:
        return causal_mask(self.T) & padding_mask(self.target_in != 0)


@dataclass
class Case:
    """A layer and its inputs, for the tests of all layers; calling the case builds new ones.

    `build(generator)` returns the layer and its inputs. `reference` (by default `name`) names the
    function in tests/gradient_check/torch_reference.py that computes the same from `settings`. A
    `composed` case is a model whose parts have cases of their own. If a case `waits`, its layer's
    shapes depend on computed values, so the layer has to wait for the GPU.
    """

    name: str
    build: Callable[[InputGenerator], tuple[Layer, list]]
    reference: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    composed: bool = False
    waits: bool = False

    def __post_init__(self):
        self.reference = self.reference or self.name

    def __call__(self, **ids) -> tuple[Layer, list]:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))  # independent of other cases
        return self.build(InputGenerator(rng, **(IDS | ids)))
