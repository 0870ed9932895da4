"""Beam search: several hypotheses are written side by side, and the best is kept (section 6.1)."""

import heapq
from dataclasses import dataclass, field

import numpy as np

from numformer.data.vocabulary import END
from numformer.errors import InputError
from numformer.generation.greedy import (
    most_probable,
    require_positive,
    require_writer,
    up_to_end,
)
from numformer.layer import inference
from numformer.models import Model


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha (Wu et al. 2016), by which a beam's log probability is divided."""
    return ((5 + length) / 6) ** alpha


def by_length(length: int, alpha: float) -> float:
    """length^alpha: with alpha 1 a hypothesis counts by the mean log probability of its symbols."""
    return length**alpha


PENALTIES = {"paper": length_penalty, "length": by_length}


@dataclass(frozen=True, order=True)
class Hypothesis:
    """What a model may write: log probability / length penalty, and the ids without the end id."""

    score: float
    ids: list[int] = field(compare=False)


def beam_search(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    beam: int = 4,
    alpha: float = 0.6,
    penalty: str = "paper",
) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids of its best hypothesis.

    As `n_best` with one hypothesis. The paper has beam 4, alpha 0.6 (section 6.1).
    """
    return [best.ids for (best,) in n_best(model, inputs, max_length, 1, beam, alpha, penalty)]


def n_best(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    count: int,
    beam: int = 4,
    alpha: float = 0.6,
    penalty: str = "paper",
) -> list[list[Hypothesis]]:
    """inputs (B, S) -> for each row the `count` best hypotheses found with `beam`, best first.

    Best is the largest log probability / length penalty, the length counting the end id; `penalty`
    names one of PENALTIES. A row is done when none of the open hypotheses can still become one of
    the best, or when `beam` have ended and none of the open ones is ahead of them. The results hold
    neither start nor end id and at most `max_length` ids. `count` is at most `beam`, or fewer than
    `count` might be found.
    """
    require_writer(model)
    require_positive("max_length", max_length)
    require_positive("count", count)
    require_positive("beam", beam)
    if count > beam:
        raise InputError(
            "count is at most beam", f"count {count}, beam {beam}", "Ask for a larger beam."
        )
    if not alpha >= 0:
        raise InputError("alpha is at least 0", alpha, "The paper uses 0.6; 0 does not normalise.")
    if penalty not in PENALTIES:
        rule = f"a length penalty is one of {', '.join(PENALTIES)}"
        raise InputError(rule, repr(penalty), 'Name one; the paper\'s is "paper".')
    divisor = PENALTIES[penalty]
    batch = len(inputs)
    best: list[list[Hypothesis]] = [[] for _ in range(batch)]
    ended = np.zeros(batch, int)

    def offer(row: int, log_probability: float, ids: list[int]) -> None:
        if log_probability == -np.inf:
            return
        score = float(log_probability / divisor(len(ids), alpha))
        found = Hypothesis(score, up_to_end(ids))
        best[row] = heapq.nlargest(count, [*best[row], found])

    def worst_kept(row: int) -> float:
        return best[row][-1].score if len(best[row]) == count else -np.inf

    open_rows = np.arange(batch)
    # A row's hypotheses start equal, so all but one are impossible until they differ.
    scores = np.full((batch, beam), -np.inf)
    scores[:, 0] = 0
    written = np.empty((batch, beam, 0), int)
    with inference():
        state = model.start(inputs, max_length)
        state.choose(np.repeat(np.arange(batch), beam))
        ids = state.ids
        for length in range(1, max_length + 1):
            # A hypothesis has one way to end, so twice the beam leaves enough that go on.
            symbols, log_p = most_probable(model.step(ids, state), 2 * beam)
            totals, parents, symbols = _largest(scores, symbols, log_p, 2 * beam)
            ends = symbols == END
            for row, rank in np.argwhere(ends[:, :beam] & np.isfinite(totals[:, :beam])):
                hypothesis = [*written[row, parents[row, rank]].tolist(), END]
                offer(open_rows[row], totals[row, rank], hypothesis)
                ended[open_rows[row]] += 1

            going_on = np.argsort(ends, kind="stable")[:, :beam]
            each_row = np.arange(len(scores))[:, None]
            scores, parents, symbols = (
                array[each_row, going_on] for array in (totals, parents, symbols)
            )
            written = np.concatenate([written[each_row, parents], symbols[:, :, None]], axis=-1)

            worst = [worst_kept(row) for row in open_rows]
            best_open = scores.max(axis=-1)
            # The best that an open hypothesis can reach: no further loss, the largest divisor.
            can_win = best_open / divisor(max_length, alpha) > worst
            # A sure hypothesis sees many improbable ones end before it does.
            ahead = best_open / divisor(length, alpha) > worst
            remain = can_win & (ahead | (ended[open_rows] < beam))
            state.choose((each_row * beam + parents)[remain].ravel())
            open_rows, scores, written = (array[remain] for array in (open_rows, scores, written))
            ids = written[:, :, -1].ravel()
            if not remain.any():
                break
    for row, sequence in enumerate(open_rows):
        for score, hypothesis in zip(scores[row], written[row].tolist(), strict=True):
            offer(sequence, score, hypothesis)
    return best


def _largest(scores: np.ndarray, symbols: np.ndarray, log_p: np.ndarray, count: int):
    """The `count` best ways on of scores (N, beam), by the most probable symbols of each.

    symbols and log_p (N beam, C) -> totals, parents and symbols (N, count), best first.
    """
    rows, beam = scores.shape
    totals = (scores[:, :, None] + log_p.reshape(rows, beam, -1)).reshape(rows, -1)
    chosen = np.argsort(-totals, kind="stable")[:, :count]
    each_row = np.arange(rows)[:, None]
    parents = chosen // (totals.shape[1] // beam)
    return totals[each_row, chosen], parents, symbols.reshape(rows, -1)[each_row, chosen]
