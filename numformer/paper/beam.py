"""Beam search (section 6.1): several candidate outputs grow in parallel, and the best one wins.

`search` runs the model and decides when to stop, a Beam holds the open hypotheses, which still
grow, and a Ranking holds the complete hypotheses of one row of the batch.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from numformer.arithmetic import max_last, sum_last
from numformer.backend import array_module, to_host
from numformer.errors import require_no_nan, require_positive
from numformer.layer import inference
from numformer.paper.writing import Writer, require_writer
from numformer.symbols import DEFAULT_IDS, END, SpecialIds, special_ids


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)^alpha, which divides a log probability (Wu et al. 2016)."""
    return ((5 + length) / 6) ** alpha


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A candidate output: `score` is log probability / length penalty; `ids` lack the end id."""

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


def largest_entries(x, count: int):
    """x (N, V) -> the indices (N, count) of each row's `count` largest entries, in any order."""
    return array_module(x).argpartition(x, -count)[:, -count:]


def search(
    model: Writer,
    inputs: np.ndarray,
    max_length: int,
    width: int,
    penalty: Callable[[int], float],
    ranking: Callable = lambda: Ranking(1),
    faster: Callable | None = None,
) -> list[list[Hypothesis]]:
    """inputs (B, S) -> for each row the best hypotheses in a beam of `width`, best first.

    A score is log probability / penalty(length), where the length includes the end id. `ranking()`
    returns the Ranking of a row, which says when the row is done. A hypothesis has at most
    `max_length` ids, not counting start and end. `faster`, if given, replaces most_probable.
    """
    require_writer(model)
    require_positive("max_length", max_length)
    require_positive("beam", width)
    special = special_ids(model)
    rankings = [ranking() for _ in inputs]
    beam = Beam(len(inputs), width, special.ends)
    # Even if every end id is among a hypothesis's candidates, `width` others can extend it.
    candidates = width + len(special.ends)
    with inference():
        state = model.start(inputs, max_length)
        state.choose(np.repeat(beam.rows, width))
        ids = state.ids
        for length in range(1, max_length + 1):
            logits = model.step(ids, state)
            parents, ended = beam.extend(*(faster or most_probable)(logits, candidates, special))
            for row, log_p, text in ended:
                rankings[row].add(log_p / penalty(length), text)
                rankings[row].ended += 1
            best, ranked = beam.log_p.max(axis=-1), [rankings[row] for row in beam.rows]
            # The first are bounds of later scores, as log_p never rises and penalty never falls.
            scores = zip(ranked, best / penalty(max_length), best / penalty(length), strict=True)
            remaining = [ranking.is_open(*both, width) for ranking, *both in scores]
            state.choose(parents[remaining].ravel())
            beam.keep(remaining)
            ids = beam.written[:, :, -1].ravel()
            if not any(remaining):
                break
    for row, log_p, text in beam:
        rankings[row].add(log_p / penalty(max_length), text)
    return [ranking.best for ranking in rankings]


def most_probable(
    logits, count: int, special: SpecialIds = DEFAULT_IDS, largest: Callable = largest_entries
) -> tuple[np.ndarray, np.ndarray]:
    """logits (N, V) -> the `count` most probable symbols of each row and their log probabilities.

    Both are (N, count), on the host, in the order of ids; if V < count, they hold all V symbols.
    The log softmax is computed for these symbols only, from one sum over each row.
    """
    xp = array_module(logits)
    shifted = logits - max_last(logits)
    log_total = xp.log(sum_last(xp.exp(shifted)), dtype=xp.float64)
    require_no_nan(to_host(log_total))
    for symbol in special.unwritten:
        shifted[:, symbol] = -xp.inf
    count = min(count, shifted.shape[1])
    symbols = xp.sort(largest(shifted, count))
    log_p = xp.take_along_axis(shifted, symbols, axis=1) - log_total
    return to_host(symbols), to_host(log_p)


class Ranking:
    """The `count` best complete hypotheses of one row; `ended` is the number of all that ended."""

    def __init__(self, count: int):
        self.count, self.ended = count, 0
        self.best: list[Hypothesis] = []

    def add(self, score: float, ids: list[int]) -> None:
        """Rank a hypothesis; among equal scores the first one added ranks higher."""
        if score > -np.inf:
            self.best = heapq.nlargest(self.count, [*self.best, Hypothesis(float(score), ids)])

    def is_open(self, reachable: float, current: float, width: int) -> bool:
        """Whether open hypotheses, now at `current`, later at most `reachable`, may be the best."""
        # Not only until `width` have ended, as many improbable hypotheses may end first.
        return reachable > self.worst and (current > self.worst or self.ended < width)

    @property
    def worst(self) -> float:
        """The score that a further hypothesis must exceed to be among the best."""
        return self.best[-1].score if len(self.best) == self.count else -np.inf


class Beam:
    """The open hypotheses of a batch, `width` for each row that is not done.

    `rows` (N,) are the indices of these rows in the batch, `log_p` (N, width) the hypotheses' log
    probabilities, best first, and `written` (N, width, T) their ids so far.
    """

    def __init__(self, batch: int, width: int, ends: Sequence[int] = (END,)):
        self.ends = ends
        self.rows = np.arange(batch)
        # A row's hypotheses are equal at first, so all but one start with probability 0.
        self.log_p = np.full((batch, width), -np.inf)
        self.log_p[:, 0] = 0
        self.written = np.empty((batch, width, 0), int)

    def __iter__(self) -> Iterator[tuple[int, float, list[int]]]:
        """Yield the row, the log probability and the ids of every hypothesis."""
        rows = self.rows.tolist(), self.log_p, self.written.tolist()
        for row, log_p, written in zip(*rows, strict=True):
            yield from zip([row] * len(log_p), log_p, written, strict=True)

    def extend(self, symbols: np.ndarray, log_p: np.ndarray) -> tuple[np.ndarray, list[tuple]]:
        """Extend each hypothesis by each of its C candidates, `symbols` and `log_p` (N width, C).

        Of a row's extensions, the best `width` without an end id stay open. Returns, for each open
        one, the index of the hypothesis that it extends (N, width), and a list of those among the
        best `width` extensions that have ended, as (row, log probability, ids).
        """
        rows, width = self.log_p.shape
        totals = (self.log_p[:, :, None] + log_p.reshape(rows, width, -1)).reshape(rows, -1)
        order = np.argsort(-totals, kind="stable")
        row = np.arange(rows)[:, None]
        totals, symbols = totals[row, order], symbols.reshape(rows, -1)[row, order]
        parents, is_end = order // log_p.shape[1], np.isin(symbols, self.ends)
        ended = [
            (self.rows[n], totals[n, rank], self.written[n, parents[n, rank]].tolist())
            for n, rank in np.argwhere(is_end[:, :width] & np.isfinite(totals[:, :width]))
        ]
        still_open = np.argsort(is_end, kind="stable")[:, :width]
        self.log_p, parents = totals[row, still_open], parents[row, still_open]
        latest = symbols[row, still_open][:, :, None]
        self.written = np.concatenate([self.written[row, parents], latest], axis=-1)
        return row * width + parents, ended

    def keep(self, remaining: Sequence[bool]) -> None:
        """Keep the rows where `remaining` (N,) is True; the others are done."""
        self.rows, self.log_p, self.written = (
            array[remaining] for array in (self.rows, self.log_p, self.written)
        )
