"""Greedy generation: the most probable symbol at every position."""

import itertools
import math
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np

from numformer.backend import to_host
from numformer.errors import BrokenNumbers, InputError
from numformer.layer import inference
from numformer.symbols import OURS, Special


class Writer(Protocol):
    """A model that writes one symbol after another; its state is like memory.State."""

    def start(self, inputs: Any, length: int, /) -> Any:
        """Read inputs (B, S) -> the state before the first of `length` positions."""

    def step(self, ids: Any, state: Any, /) -> Any:
        """The next position of every row: ids (B,) -> logits (B, V)."""


def special_of(model: Writer) -> Special:
    """The special ids of a model, such as padding: ours, unless its config has others."""
    return getattr(getattr(model, "config", None), "special", OURS)


def require_numbers(array: np.ndarray) -> None:
    """Raise BrokenNumbers for logits that are not numbers."""
    if np.isnan(array).any():
        raise BrokenNumbers(
            "logits are NaN: the weights are broken, or so large that they overflow"
        )


def greedy(model: Writer, inputs: np.ndarray, max_length: int) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids that the model writes.

    Each id is the most probable one at its position, up to an id that ends a text. The results hold
    neither start nor end id and at most `max_length` ids.
    """
    unwritten = special_of(model).unwritten

    def most_probable_ids(logits, rows: np.ndarray) -> np.ndarray:
        """Taken from the logits, since the softmax keeps their order."""
        highest = logits.max(axis=-1)
        require_numbers(to_host(highest - highest))  # NaN if one of the logits is NaN or infinite
        ids = to_host(logits.argmax(axis=-1))
        if np.isin(ids, unwritten).any():
            allowed = logits.copy()
            for symbol in unwritten:
                allowed[:, symbol] = -np.inf
            ids = to_host(allowed.argmax(axis=-1))
        return ids

    return write(model, inputs, max_length, most_probable_ids)


def write(model: Writer, inputs: np.ndarray, max_length: int, choose: Callable) -> list[list[int]]:
    """As `greedy`, with `choose`: the logits (N, V) of the next position of rows (N,) -> its ids.

    Rows that have ended are left out as soon as they are half of the rows being written.
    """
    require_positive("max_length", max_length)
    require_writer(model)
    batch, ends = len(inputs), special_of(model).ends
    written = np.zeros((batch, max_length), int)
    ended, rows = np.zeros(batch, dtype=bool), np.arange(batch)
    with inference():
        state = model.start(inputs, max_length)
        ids = state.ids
        for position in range(max_length):
            ids = choose(model.step(ids, state), rows)
            written[rows, position] = ids
            ended[rows] |= np.isin(ids, ends)
            if ended.all():
                break
            if 2 * ended[rows].sum() >= len(rows):
                going_on = np.flatnonzero(~ended[rows])
                state.choose(going_on)
                rows, ids = rows[going_on], ids[going_on]
    return [up_to(ends, row) for row in written.tolist()]


def up_to(ends: Collection[int], ids: list[int]) -> list[int]:
    """The ids before the first end id."""
    return [*itertools.takewhile(lambda symbol: symbol not in ends, ids)]


def require_writer(model: Writer) -> None:
    """Raise InputError for a model that does not write one symbol after another."""
    if not (hasattr(model, "start") and hasattr(model, "step")):
        raise InputError(
            "a model that writes has the methods start and step",
            f"a {type(model).__name__} without",
            "Ask a Transformer, LanguageModel or RecurrentEncoderDecoder.",
        )


def require_positive(name: str, value: int, most: float = math.inf) -> None:
    """Raise InputError unless `value` is an integer from 1 to `most`."""
    is_integer = isinstance(value, int | np.integer) and type(value) is not bool
    if not is_integer or not 1 <= value <= most:
        limits = "of at least 1" if most == math.inf else f"from 1 to {most}"
        rule, fix = f"{name} is an integer {limits}", f"Ask for another {name}."
        raise InputError(rule, repr(value), fix)
