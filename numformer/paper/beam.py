"""Beam search: several hypotheses are written side by side, and the best is kept (section 6.1)."""

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from numformer.backend import array_module, max_last, sum_last, to_host
from numformer.layer import inference
from numformer.paper.greedy import (
    Writer,
    require_numbers,
    require_positive,
    require_writer,
    special_of,
    up_to,
)
from numformer.symbols import END, OURS, Special


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha (Wu et al. 2016), which divides a hypothesis's log probability."""
    return ((5 + length) / 6) ** alpha


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A text that a model may write: log probability / length penalty; ids without the end id."""

    score: float
    ids: list[int] = field(compare=False)


def beam_search(
    model: Writer, inputs: np.ndarray, max_length: int, beam: int = 4, alpha: float = 0.6
) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids of its best hypothesis.

    The paper uses beam 4 and alpha 0.6 (section 6.1).
    """
    penalty = partial(length_penalty, alpha=alpha)
    return [best.ids for (best,) in search(model, inputs, max_length, beam, penalty)]


def largest(x, count: int):
    """x (N, V) -> the indices (N, count) of the `count` largest of each row, in any order."""
    return array_module(x).argpartition(x, -count)[:, -count:]


def search(
    model: Writer,
    inputs: np.ndarray,
    max_length: int,
    beam: int,
    penalty: Callable[[int], float],
    count: int = 1,
    largest: Callable = largest,
) -> list[list[Hypothesis]]:
    """inputs (B, S) -> for each row the `count` best hypotheses found with `beam`, best first.

    The best has the largest log probability / penalty(length); the length counts the end id. A row
    is done when no open hypothesis can become one of the best any more, or when `beam` hypotheses
    have ended and no open one is ahead of these. The results hold neither start nor end id and
    at most `max_length` ids.
    """
    require_writer(model)
    require_positive("max_length", max_length)
    require_positive("beam", beam)
    special = special_of(model)
    rankings = [Ranking(count, special.ends) for _ in inputs]
    hypotheses = Beam(len(inputs), beam, special.ends)
    # Even if all end ids are among the most probable candidates, `beam` others are left to go on.
    candidates = beam + len(special.ends)
    with inference():
        state = model.start(inputs, max_length)
        state.choose(np.repeat(hypotheses.rows, beam))
        ids = state.ids
        for length in range(1, max_length + 1):
            ways = most_probable(model.step(ids, state), candidates, special, largest)
            parents, ended = hypotheses.write(*ways)
            for row, log_p, written in ended:
                rankings[row].offer(log_p / penalty(length), written)
                rankings[row].ended += 1
            of_rows = [(rankings[row].worst, rankings[row].ended) for row in hypotheses.rows]
            worst, ended_in_row = np.array(of_rows).T
            best_open = hypotheses.log_p.max(axis=-1)
            # The best score an open hypothesis can reach: no further loss, the largest penalty.
            can_win = best_open / penalty(max_length) > worst
            # While a probable hypothesis goes on, many improbable ones may end before it.
            ahead = best_open / penalty(length) > worst
            remain = can_win & (ahead | (ended_in_row < beam))
            state.choose(parents[remain].ravel())
            hypotheses.keep(remain)
            ids = hypotheses.written[:, :, -1].ravel()
            if not remain.any():
                break
    for row, log_p, written in hypotheses:
        rankings[row].offer(log_p / penalty(max_length), written)
    return [ranking.best for ranking in rankings]


def most_probable(
    logits, count: int, special: Special = OURS, largest: Callable = largest
) -> tuple[np.ndarray, np.ndarray]:
    """logits (N, V) -> the `count` most probable symbols of each row and their log probabilities.

    Both (N, count), on the host, in the order of ids; a smaller vocabulary gives all its symbols.
    These are values of the log softmax: for a few of them, each row's normaliser is enough.
    """
    xp = array_module(logits)
    shifted = logits - max_last(logits)
    normaliser = xp.log(sum_last(xp.exp(shifted)), dtype=xp.float64)
    require_numbers(to_host(normaliser))
    for symbol in special.unwritten:
        shifted[:, symbol] = -xp.inf
    count = min(count, shifted.shape[1])
    symbols = xp.sort(largest(shifted, count))
    log_p = xp.take_along_axis(shifted, symbols, axis=1) - normaliser
    return to_host(symbols), to_host(log_p)


class Ranking:
    """The `best` complete hypotheses of a row, at most `count`, and how many have `ended`."""

    def __init__(self, count: int, ends: Collection[int] = (END,)):
        self.count, self.ended, self.ends = count, 0, ends
        self.best: list[Hypothesis] = []

    def offer(self, score: float, written: list[int]) -> None:
        """Rank a hypothesis; of equal ones, the one offered first ranks higher."""
        if score > -np.inf:
            hypothesis = Hypothesis(float(score), up_to(self.ends, written))
            self.best = heapq.nlargest(self.count, [*self.best, hypothesis])

    @property
    def worst(self) -> float:
        """The score that a further hypothesis must exceed to be among the best."""
        return self.best[-1].score if len(self.best) == self.count else -np.inf


class Beam:
    """The open hypotheses of a batch, `width` for each row that is not done, and how they go on.

    `rows` (N,) are the indices of those rows in the batch, `log_p` (N, width) are the log
    probabilities of their hypotheses, best first, and `written` (N, width, T) are their ids.
    """

    def __init__(self, batch: int, width: int, ends: Sequence[int] = (END,)):
        self.ends = ends
        self.rows = np.arange(batch)
        # A row's hypotheses start equal, so all but one are impossible until they differ.
        self.log_p = np.full((batch, width), -np.inf)
        self.log_p[:, 0] = 0
        self.written = np.empty((batch, width, 0), int)

    def __iter__(self) -> Iterator[tuple[int, float, list[int]]]:
        """The row, the log probability and the ids of every hypothesis."""
        rows = self.rows.tolist(), self.log_p, self.written.tolist()
        for row, log_p, written in zip(*rows, strict=True):
            yield from zip([row] * len(log_p), log_p, written, strict=True)

    def write(self, symbols: np.ndarray, log_p: np.ndarray) -> tuple[np.ndarray, list[tuple]]:
        """Go on in the best ways: symbols, log_p (N width, C) are candidates of each hypothesis.

        Returns for each new hypothesis (N, width) its parent among the N width old ones; and row,
        log probability and ids of the hypotheses that end here among the best `width`.
        """
        rows, width = self.log_p.shape
        totals = (self.log_p[:, :, None] + log_p.reshape(rows, width, -1)).reshape(rows, -1)
        ranked = np.argsort(-totals, kind="stable")
        row = np.arange(rows)[:, None]
        totals, symbols = totals[row, ranked], symbols.reshape(rows, -1)[row, ranked]
        parents, ends = ranked // log_p.shape[1], np.isin(symbols, self.ends)
        ended = [
            (
                self.rows[n],
                totals[n, rank],
                [*self.written[n, parents[n, rank]].tolist(), symbols[n, rank]],
            )
            for n, rank in np.argwhere(ends[:, :width] & np.isfinite(totals[:, :width]))
        ]
        going_on = np.argsort(ends, kind="stable")[:, :width]
        self.log_p, parents = totals[row, going_on], parents[row, going_on]
        latest = symbols[row, going_on][:, :, None]
        self.written = np.concatenate([self.written[row, parents], latest], axis=-1)
        return row * width + parents, ended

    def keep(self, remain: np.ndarray) -> None:
        """Drop the rows that are done: those where `remain` (N,) is False."""
        self.rows, self.log_p, self.written = (
            array[remain] for array in (self.rows, self.log_p, self.written)
        )
