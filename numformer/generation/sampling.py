"""Sampling: each symbol is drawn at random, as probable as the model takes it to be.

Two ways to leave out what is improbable, since many such symbols together are often drawn: the
`top_k` most probable are kept (Fan et al. 2018), or the fewest that together have the probability
`top_p`, the nucleus (Holtzman et al. 2020).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from numformer.backend import array_module, to_host
from numformer.errors import InputError, require_no_nan
from numformer.models import Model
from numformer.paper.writing import write
from numformer.randomness import seed_sequence
from numformer.symbols import OURS, Special, special_ids

MOST = 1e300
"""The largest temperature: a larger integer is no floating-point number."""


def log_probabilities(logits, special: Special = OURS) -> np.ndarray:
    """logits (N, V) -> log softmax (N, V) in float64 on the host.

    Padding, start and unknown are no symbols of an output; they get minus infinity. Raises
    BrokenNumbers for logits that are not numbers.
    """
    xp = array_module(logits)
    shifted = logits.astype(xp.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result = to_host(shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True)))
    require_no_nan(result)
    result[:, special.unwritten] = -np.inf
    return result


def sample(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids that are drawn for it.

    As `greedy` does, but with symbols as `Sampling` draws them. The same seed gives the same again.
    Each row has random numbers of its own, those of its place in the batch, so the other rows do
    not matter to it.
    """
    how = Sampling(temperature, top_k, top_p)
    return how.write(model, inputs, max_length, random_streams(seed, range(len(inputs))))


@dataclass(frozen=True)
class Sampling:
    """How symbols are drawn. InputError for settings that say nothing.

    The logits are divided by `temperature`: below 1 what is probable becomes more so, 0 always
    takes the most probable, above 1 all become more alike. Of the probabilities that this gives,
    symbols outside `top_k` or `top_p` get 0; among equals the smaller id goes before.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        t, k, p = self.temperature, self.top_k, self.top_p
        _require("temperature", t, f"a number from 0 to {MOST:g}", _is_number(t) and t >= 0)
        _require("top_k", k, "an integer of at least 1", k is None or (type(k) is int and k >= 1))
        fits = p is None or (_is_number(p) and 0 < p <= 1)
        _require("top_p", p, "a number above 0 and at most 1", fits)

    @classmethod
    def asked(cls, temperature, top_k, top_p) -> "Sampling | None":
        """With those settings that are given; None where none is."""
        if temperature is None and top_k is None and top_p is None:
            return None
        return cls(1.0 if temperature is None else temperature, top_k, top_p)

    def probabilities(self, log_p: np.ndarray) -> np.ndarray:
        """Log probabilities (N, V) -> the probabilities (N, V) to draw by, which sum to 1."""
        p = log_p - log_p.max(axis=-1, keepdims=True)
        if self.temperature:
            with np.errstate(over="ignore"):  # a tiny temperature: minus infinity is right
                p = np.exp(p / self.temperature)
        else:  # the limit: the first of the most probable
            p = np.eye(p.shape[1])[p.argmax(axis=-1)]
        p /= p.sum(axis=-1, keepdims=True)
        if self.top_k is not None or self.top_p is not None:
            p[~self._kept(p)] = 0
        return p / p.sum(axis=-1, keepdims=True)

    def _kept(self, p: np.ndarray) -> np.ndarray:
        """Probabilities (N, V) -> which symbols are not left out (N, V)."""
        ranked = -np.sort(-p)  # of the values alone, many times as fast as the order of symbols
        most = p.shape[1] if self.top_k is None else min(self.top_k, p.shape[1])
        count = np.full((len(p), 1), most)
        if self.top_p is not None and self.top_p < 1:
            reached = ranked.cumsum(axis=-1)
            count = np.minimum(count, 1 + (reached < self.top_p).sum(axis=-1, keepdims=True))
        lowest = np.take_along_axis(ranked, count - 1, axis=-1)
        above, equal = p > lowest, p == lowest
        room = count - above.sum(axis=-1, keepdims=True)
        return above | equal & (equal.cumsum(axis=-1) <= room)

    def write(
        self,
        model: Model,
        inputs: np.ndarray,
        max_length: int,
        streams: list[np.random.Generator],
    ) -> list[list[int]]:
        """As `sample`; each row draws from a stream of its own, one number for each symbol.

        The symbols lie side by side from 0 to 1, each as long as it is probable, and the number
        says which is meant.
        """
        special = special_ids(model)

        def choose(logits, rows: np.ndarray) -> np.ndarray:
            ends = self.probabilities(log_probabilities(logits, special)).cumsum(axis=-1)
            numbers = np.array([streams[row].random() for row in rows])[:, None]
            return (ends <= numbers * ends[:, -1:]).sum(axis=-1)  # rounded, they may end below 1

        return write(model, inputs, max_length, choose)


def random_streams(seed: int, numbers: Iterable[int]) -> list[np.random.Generator]:
    """For each of the numbers a stream of its own."""
    _require("seed", seed, "an integer of at least 0", type(seed) is int and seed >= 0)
    return [np.random.default_rng(seed_sequence(seed, "sampling", number)) for number in numbers]


def _is_number(value) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and value <= MOST


def _require(name: str, value, words: str, holds: bool) -> None:
    if not holds:
        raise InputError(f"{name} is {words}", repr(value), f"Change {name}.")
