"""Write symbols one at a time, each fed back as input (section 3); choose the most probable."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from numformer.backend import to_host
from numformer.errors import InputError, require_no_nan, require_positive
from numformer.layer import inference
from numformer.symbols import special_ids


class Writer(Protocol):
    """A model that writes one symbol after another; its state has the methods of memory.State."""

    def start(self, inputs: Any, length: int, /) -> Any:
        """Read inputs (B, S) -> the state before the first of `length` positions."""

    def step(self, ids: Any, state: Any, /) -> Any:
        """ids (B,) at the latest position of every row -> logits (B, V) for the next."""


def require_writer(model: Writer) -> None:
    """Raise InputError for a model that does not write one symbol after another."""
    if not (hasattr(model, "start") and hasattr(model, "step")):
        raise InputError(
            "a model that writes has the methods start and step",
            f"a {type(model).__name__} without them",
            "Use a Transformer, LanguageModel or RecurrentEncoderDecoder.",
        )


def greedy(model: Writer, inputs: np.ndarray, max_length: int) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids that the model writes.

    Each id is the most probable one at its position. A row ends before its first end id, and after
    `max_length` ids at the latest; the start id is left out.
    """
    unwritten = special_ids(model).unwritten

    def most_probable_ids(logits, rows: np.ndarray) -> np.ndarray:
        # Logits are enough, since the softmax keeps their order.
        highest = logits.max(axis=-1)
        require_no_nan(to_host(highest - highest))  # NaN if a logit is NaN or infinite
        ids = to_host(logits.argmax(axis=-1))
        if np.isin(ids, unwritten).any():
            allowed = logits.copy()
            for symbol in unwritten:
                allowed[:, symbol] = -np.inf
            ids = to_host(allowed.argmax(axis=-1))
        return ids

    return write(model, inputs, max_length, most_probable_ids)


def write(model: Writer, inputs: np.ndarray, max_length: int, choose: Callable) -> list[list[int]]:
    """Like `greedy`, but `choose(logits, rows)` turns the logits (N, V) of rows (N,) into ids (N,).

    Rows that have ended leave the batch as soon as they make up half of it.
    """
    require_positive("max_length", max_length)
    require_writer(model)
    batch, special = len(inputs), special_ids(model)
    written = np.zeros((batch, max_length), int)
    ended, rows = np.zeros(batch, dtype=bool), np.arange(batch)
    with inference():
        state = model.start(inputs, max_length)
        ids = state.ids
        for position in range(max_length):
            ids = choose(model.step(ids, state), rows)
            written[rows, position] = ids
            ended[rows] |= np.isin(ids, special.ends)
            if ended.all():
                break
            if 2 * ended[rows].sum() >= len(rows):
                open_rows = np.flatnonzero(~ended[rows])
                state.choose(open_rows)
                rows, ids = rows[open_rows], ids[open_rows]
    return [special.before_end(row) for row in written.tolist()]
