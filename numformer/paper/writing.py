"""Greedy decoding: generate one symbol at a time and feed it back as input (section 3)."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from numformer.backend import to_host
from numformer.errors import InputError, require_no_nan, require_positive
from numformer.layer import inference
from numformer.symbols import special_ids


class Writer(Protocol):
    """A model that generates one symbol at a time; its state is used like a memory.State."""

    def start(self, inputs: Any, length: int, /) -> Any:
        """inputs (B, S) -> the state before the first of at most `length` positions."""

    def step(self, ids: Any, state: Any, /) -> Any:
        """ids (B,) at the latest position of every row -> logits (B, V) for the next position."""


def require_writer(model: Writer) -> None:
    """Raise InputError for a model without the methods `start` and `step`."""
    if not (hasattr(model, "start") and hasattr(model, "step")):
        raise InputError(
            "a model that generates has the methods start and step",
            f"a {type(model).__name__} without them",
            "Use a Transformer, LanguageModel or RecurrentEncoderDecoder.",
        )


def greedy(model: Writer, inputs: np.ndarray, max_length: int) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids that the model generates.

    Each id is the most probable one at its position. A row stops before its first end id, or after
    `max_length` ids. The start id is left out.
    """
    unwritten = {*special_ids(model).unwritten}

    def most_probable_ids(logits, rows: np.ndarray) -> np.ndarray:
        # No softmax is needed, since it keeps the order of the logits.
        highest = logits.max(axis=-1)
        require_no_nan(to_host(highest - highest))  # NaN if `highest` is NaN or infinite
        ids = to_host(logits.argmax(axis=-1))
        if not unwritten.isdisjoint(ids.tolist()):
            allowed = logits.copy()
            for symbol in unwritten:
                allowed[:, symbol] = -np.inf
            ids = to_host(allowed.argmax(axis=-1))
        return ids

    return write(model, inputs, max_length, most_probable_ids)


def write(model: Writer, inputs: np.ndarray, max_length: int, choose: Callable) -> list[list[int]]:
    """Like `greedy`, but `choose(logits, rows)` maps the logits (N, V) of rows (N,) to ids (N,).

    Rows that have ended leave the batch as soon as they make up at least half of it.
    """
    require_positive("max_length", max_length)
    require_writer(model)
    batch, ends = len(inputs), {*special_ids(model).ends}
    written = np.zeros((batch, max_length), int)
    ended, rows = np.zeros(batch, dtype=bool), np.arange(batch)
    with inference():
        state = model.start(inputs, max_length)
        ids = state.ids
        for position in range(max_length):
            ids = choose(model.step(ids, state), rows)
            written[rows, position] = ids
            ended[rows] |= [symbol in ends for symbol in ids.tolist()]
            if ended.all():
                break
            if 2 * ended[rows].sum() >= len(rows):
                open_rows = np.flatnonzero(~ended[rows])
                state.choose(open_rows)
                rows, ids = rows[open_rows], ids[open_rows]
    return [special_ids(model).before_end(row) for row in written.tolist()]
