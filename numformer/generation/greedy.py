"""Greedy generation: the most probable symbol at every position.

It works with every model that writes: `model.start(inputs, length)` reads what is given and returns
the State before the first position, `model.step(ids, state)` gives the logits of the next one.
"""

import itertools
import math
from collections.abc import Callable, Collection

import numpy as np

from numformer.backend import array_module, max_last, sum_last, to_host
from numformer.data.vocabulary import OURS, Special
from numformer.errors import BrokenNumbers, InputError
from numformer.layer import inference
from numformer.models import Model

GROUP = 64  # symbols of which the largest is looked for first


def special_of(model: Model) -> Special:
    """Which ids mean something else than a symbol to a model: ours, unless its config says."""
    return getattr(getattr(model, "config", None), "special", OURS)


def log_probabilities(logits, special: Special = OURS) -> np.ndarray:
    """logits (N, V) -> log softmax (N, V) in float64 on the host.

    Padding, start and unknown are no symbols of an output; they get minus infinity. Raises
    BrokenNumbers for logits that are not numbers.
    """
    xp = array_module(logits)
    shifted = logits.astype(xp.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result = to_host(shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True)))
    _require_numbers(result)
    result[:, special.unwritten] = -np.inf
    return result


def most_probable(logits, count: int, special: Special = OURS) -> tuple[np.ndarray, np.ndarray]:
    """logits (N, V) -> the `count` most probable symbols of each row and their log probabilities.

    Both (N, count), on the host, in the order of ids; where the vocabulary is smaller, of all. As
    log_probabilities, but of few: the softmax of each row needs one number more, its normaliser.
    """
    xp = array_module(logits)
    shifted = logits - max_last(logits)
    normaliser = xp.log(sum_last(xp.exp(shifted)), dtype=xp.float64)
    _require_numbers(to_host(normaliser))
    for symbol in special.unwritten:
        shifted[:, symbol] = -xp.inf
    count = min(count, shifted.shape[1])
    symbols = xp.sort(_largest(shifted, count))
    log_p = xp.take_along_axis(shifted, symbols, axis=1) - normaliser
    return to_host(symbols), to_host(log_p)


def _largest(x, count: int):
    """x (N, V) -> where the `count` largest of each row are (N, count).

    They lie in those `count` groups of the row whose own largest are the largest. Members of a
    group stand apart, so that all groups are compared at once, as vectors.
    """
    xp, (rows, length) = array_module(x), x.shape
    groups = length // GROUP
    if groups <= count:
        return xp.argpartition(x, -count)[:, -count:]
    whole, rest = xp.split(x, [groups * GROUP], axis=1)
    highest = whole.reshape(rows, GROUP, groups).max(axis=1)
    first = xp.argpartition(highest, -count)[:, -count:]
    places = (first[:, :, None] + groups * xp.arange(GROUP)).reshape(rows, -1)
    after = xp.broadcast_to(xp.arange(length - rest.shape[1], length), rest.shape)
    places = xp.concatenate([places, after], axis=1)
    among = xp.argpartition(xp.take_along_axis(x, places, axis=1), -count)[:, -count:]
    return xp.take_along_axis(places, among, axis=1)


def _require_numbers(array: np.ndarray) -> None:
    if np.isnan(array).any():
        raise BrokenNumbers(
            "logits are NaN: the weights are broken, or so large that they overflow"
        )


def greedy(model: Model, inputs: np.ndarray, max_length: int) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids that the model writes.

    Each is the most probable one at its position, up to an id that ends a text. The results hold
    neither start nor end id and at most `max_length` ids.
    """
    unwritten = special_of(model).unwritten

    def most_probable_ids(logits, rows: np.ndarray) -> np.ndarray:
        """The softmax does not change which is the largest."""
        highest = logits.max(axis=-1)
        _require_numbers(to_host(highest - highest))  # NaN where one of them is, or infinite
        ids = to_host(logits.argmax(axis=-1))
        if np.isin(ids, unwritten).any():
            allowed = logits.copy()
            for symbol in unwritten:
                allowed[:, symbol] = -np.inf
            ids = to_host(allowed.argmax(axis=-1))
        return ids

    return write(model, inputs, max_length, most_probable_ids)


def write(model: Model, inputs: np.ndarray, max_length: int, choose: Callable) -> list[list[int]]:
    """As `greedy`, with `choose`: logits (N, V) of a position of the rows (N,) -> the ids there.

    The rows that have ended are left out as soon as they are half of those that are written.
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
    """The ids before the first that is an end."""
    return [*itertools.takewhile(lambda symbol: symbol not in ends, ids)]


def require_writer(model: Model) -> None:
    """Raise InputError for a model that does not write symbol after symbol."""
    if not (hasattr(model, "start") and hasattr(model, "step")):
        raise InputError(
            "a model that writes has the methods start and step",
            f"a {type(model).__name__} without",
            "Ask a Transformer, LanguageModel or RecurrentEncoderDecoder.",
        )


def require_positive(name: str, value: int, most: float = math.inf) -> None:
    """Raise InputError for what is no integer, and for one below 1 or above `most`."""
    is_integer = isinstance(value, int | np.integer) and type(value) is not bool
    if not is_integer or not 1 <= value <= most:
        limits = "of at least 1" if most == math.inf else f"from 1 to {most}"
        rule, fix = f"{name} is an integer {limits}", f"Ask for another {name}."
        raise InputError(rule, repr(value), fix)
