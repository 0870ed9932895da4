"""Beam search: several hypotheses are written side by side, and the best is kept (section 6.1)."""

import heapq
from dataclasses import dataclass, field

import numpy as np

from numformer.data.vocabulary import END
from numformer.errors import InputError
from numformer.generation.greedy import (
    log_probabilities,
    require_positive,
    require_writer,
    up_to_end,
)
from numformer.layer import inference
from numformer.models import Model


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha (Wu et al. 2016), by which a beam's log probability is divided."""
    return ((5 + length) / 6) ** alpha


@dataclass(frozen=True, order=True)
class Hypothesis:
    """What a model may write: log probability / length_penalty, and the ids without the end id."""

    score: float
    ids: list[int] = field(compare=False)


def beam_search(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    beam: int = 4,
    alpha: float = 0.6,
) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids of its best hypothesis.

    As `n_best` with one hypothesis. The paper has beam 4, alpha 0.6 (section 6.1).
    """
    return [best.ids for (best,) in n_best(model, inputs, max_length, 1, beam, alpha)]


def n_best(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    count: int,
    beam: int = 4,
    alpha: float = 0.6,
) -> list[list[Hypothesis]]:
    """inputs (B, S) -> for each row the `count` best hypotheses found with `beam`, best first.

    Best is the largest log probability / length_penalty, the length counting the end id. A row is
    done when none of the open hypotheses can still become one of them, or when `beam` have ended
    and none of the open ones is ahead of them. The results hold neither start nor end id and at
    most `max_length` ids. `count` is at most `beam`, or fewer than `count` might be found.
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
    batch = len(inputs)
    best: list[list[Hypothesis]] = [[] for _ in range(batch)]
    ended = np.zeros(batch, int)

    def offer(row: int, log_probability: float, ids: list[int]) -> None:
        if log_probability == -np.inf:
            return
        score = float(log_probability / length_penalty(len(ids), alpha))
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
            log_p = log_probabilities(model.step(ids, state)).reshape(*scores.shape, -1)
            # A hypothesis has one way to end, so twice the beam leaves enough that go on.
            totals, parents, symbols = _largest(scores[:, :, None] + log_p, 2 * beam)
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
            can_win = best_open / length_penalty(max_length, alpha) > worst
            # A sure hypothesis sees many improbable ones end before it does.
            ahead = best_open / length_penalty(length, alpha) > worst
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


def _largest(candidates: np.ndarray, count: int):
    """candidates (N, beam, V) -> the `count` largest, best first, as values, beams and symbols."""
    flat = candidates.reshape(len(candidates), -1)
    chosen = np.argsort(-flat, kind="stable")[:, :count]
    beams, symbols = np.divmod(chosen, candidates.shape[-1])
    return flat[np.arange(len(flat))[:, None], chosen], beams, symbols
