"""Sampling: each symbol is drawn at random, with the probability that the model predicts.

There are so many improbable symbols that one of them is often drawn. Two settings exclude them:
with `top_k`, only the `top_k` most probable symbols are drawn (Fan et al. 2018); with `top_p`, only
the nucleus, the smallest set of symbols whose probabilities add up to at least `top_p` (Holtzman
et al. 2020).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from numformer.backend import array_module, to_host
from numformer.errors import InputError, require_no_nan
from numformer.generation.binding import bind_model
from numformer.layer import inference
from numformer.models import Model
from numformer.paper.writing import Writer, write
from numformer.randomness import seed_sequence
from numformer.symbols import DEFAULT_IDS, SpecialIds, special_ids

MAX_TEMPERATURE = 1e300
"""Integers far above this limit cannot be converted to a floating-point number."""


def log_softmax(logits) -> np.ndarray:
    """logits (..., V) -> log softmax (..., V) in float64 on the host.

    Raises BrokenNumbers if the result has a NaN.
    """
    xp = array_module(logits)
    shifted = logits.astype(xp.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result = to_host(shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True)))
    require_no_nan(result)
    return result


def log_probabilities(logits, special: SpecialIds = DEFAULT_IDS) -> np.ndarray:
    """logits (N, V) -> log softmax (N, V), but minus infinity for ids that a model must not write.

    Padding is such an id. Raises BrokenNumbers if the result has a NaN.
    """
    result = log_softmax(logits)
    result[:, special.unwritten] = -np.inf
    return result


def score(model: Writer, inputs: np.ndarray, written: Sequence[Sequence[int]]) -> np.ndarray:
    """inputs (B, S), as model.start takes them, and B sequences of ids -> the log p (B,) of each.

    log p(y | x) = sum_t log p(y_t | y_1 ... y_(t-1), x), in nats; the ids include the end id.
    """
    rows, lengths = np.arange(len(written)), np.array([*map(len, written)])
    total = np.zeros(len(rows))
    with inference():
        bound = bind_model(model)
        state = bound.start(inputs, lengths.max())
        ids = state.ids
        for position in range(lengths.max()):
            log_p = log_softmax(bound.step(ids, state))
            real = position < lengths
            ids = np.array([row[min(position, len(row) - 1)] for row in written])
            total += np.where(real, log_p[rows, ids], 0)
    return total


def sample(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids that the model writes.

    Like `greedy`, but each symbol is drawn as `Sampling` says. The same seed gives the same ids.
    Each row has its own random numbers, which depend on its index in the batch, not on the other
    rows.
    """
    sampling = Sampling(temperature, top_k, top_p)
    return sampling.write(model, inputs, max_length, random_streams(seed, range(len(inputs))))


@dataclass(frozen=True)
class Sampling:
    """Which symbols may be drawn, and with which probabilities. Invalid settings raise InputError.

    The logits are divided by `temperature`: below 1 it favours probable symbols, at 0 the most
    probable one is always drawn, and above 1 the probabilities become more alike. Symbols outside
    `top_k` or `top_p` then get the probability 0; of equally probable ones the smallest ids stay.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        t, k, p = self.temperature, self.top_k, self.top_p
        number = f"a number from 0 to {MAX_TEMPERATURE:g}"
        _require("temperature", t, number, is_temperature(t))
        _require("top_k", k, "an integer of at least 1", k is None or (type(k) is int and k >= 1))
        valid = p is None or (_is_number(p) and 0 < p <= 1)
        _require("top_p", p, "a number above 0 and at most 1", valid)

    @classmethod
    def from_settings(cls, temperature, top_k, top_p) -> "Sampling | None":
        """Sampling with these settings; None if all of them are None."""
        if temperature is None and top_k is None and top_p is None:
            return None
        return cls(1.0 if temperature is None else temperature, top_k, top_p)

    def probabilities(self, log_p: np.ndarray) -> np.ndarray:
        """log_p (N, V) -> the probabilities (N, V) of being drawn; each row sums to 1."""
        p = log_p - log_p.max(axis=-1, keepdims=True)
        if self.temperature:
            with np.errstate(over="ignore"):  # a tiny temperature may give -inf, as it should
                p = np.exp(p / self.temperature)
        else:  # the limit at temperature 0: always the first most probable symbol
            p = np.eye(p.shape[1])[p.argmax(axis=-1)]
        p /= p.sum(axis=-1, keepdims=True)
        if self.top_k is not None or self.top_p is not None:
            p[~self._candidates(p)] = 0
        return p / p.sum(axis=-1, keepdims=True)

    def _candidates(self, p: np.ndarray) -> np.ndarray:
        """Probabilities (N, V) -> which symbols may be drawn (N, V)."""
        ranked = -np.sort(-p)  # largest first; sorting values is much faster than argsort
        most = p.shape[1] if self.top_k is None else min(self.top_k, p.shape[1])
        count = np.full((len(p), 1), most)
        if self.top_p is not None and self.top_p < 1:
            below = (ranked.cumsum(axis=-1) < self.top_p).sum(axis=-1, keepdims=True)
            count = np.minimum(count, below + 1)  # one more symbol reaches top_p
        smallest = np.take_along_axis(ranked, count - 1, axis=-1)
        larger, equal = p > smallest, p == smallest
        room = count - larger.sum(axis=-1, keepdims=True)  # how many of the equal ones are kept
        return larger | equal & (equal.cumsum(axis=-1) <= room)

    def write(
        self,
        model: Model,
        inputs: np.ndarray,
        max_length: int,
        streams: list[np.random.Generator],
    ) -> list[list[int]]:
        """Like `sample`, with a random stream per row that gives a number for each symbol written.

        Each symbol has a piece of the interval from 0 to 1, as long as the symbol's probability.
        The symbol whose piece contains the number is written.
        """
        special = special_ids(model)

        def choose(logits, rows: np.ndarray) -> np.ndarray:
            ends = self.probabilities(log_probabilities(logits, special)).cumsum(axis=-1)
            numbers = np.array([streams[row].random() for row in rows])[:, None]
            return (ends <= numbers * ends[:, -1:]).sum(axis=-1)  # the sum may round to less than 1

        return write(bind_model(model), inputs, max_length, choose)


def random_streams(seed: int, numbers: Iterable[int]) -> list[np.random.Generator]:
    """Return a random stream for each of `numbers`; it depends on that number and the seed."""
    _require("seed", seed, "an integer of at least 0", type(seed) is int and seed >= 0)
    return [np.random.default_rng(seed_sequence(seed, "sampling", number)) for number in numbers]


def is_temperature(value) -> bool:
    """Whether `value` is a valid sampling temperature."""
    return _is_number(value) and value >= 0


def _is_number(value) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and value <= MAX_TEMPERATURE


def _require(name: str, value, rule: str, valid: bool) -> None:
    if not valid:
        raise InputError(f"{name} is {rule}", repr(value), f"Change {name}.")
