"""Beam search for several hypotheses, with a choice of length penalties."""

from functools import partial
from numbers import Real

import numpy as np

from numformer.backend import array_module, on_host
from numformer.errors import InputError, require_positive
from numformer.generation.binding import bind_model
from numformer.generation.rules import RuledWriter, Rules
from numformer.models import Model
from numformer.paper import beam as paper_beam
from numformer.paper.beam import Hypothesis, Ranking, largest_entries, length_penalty, search
from numformer.symbols import DEFAULT_IDS, SpecialIds


def by_length(length: int, alpha: float) -> float:
    """Return length^alpha: with alpha 1, a score is the mean log probability of the symbols."""
    return length**alpha


LARGEST_ALPHA = 9
GROUP = 32  # symbols per group in largest_in_groups
PIECE = 1 << 18  # numbers per piece in most_probable
PENALTIES = {"paper": length_penalty, "length": by_length}


def is_alpha(value) -> bool:
    """Whether `value` is a valid alpha; penalties far above LARGEST_ALPHA would overflow."""
    return type(value) is not bool and isinstance(value, Real) and 0 <= value <= LARGEST_ALPHA  # type: ignore[operator]


def largest_in_groups(x, count: int):
    """Like paper.beam.largest_entries, but faster for many symbols.

    A row's `count` largest numbers lie in the `count` groups with the largest maxima, or in the
    columns left over. The members of a group are `groups` columns apart, so one vector operation
    computes the maxima of all groups.
    """
    xp, (rows, length) = array_module(x), x.shape
    groups = length // GROUP
    if groups <= count:
        return largest_entries(x, count)
    grouped, rest = xp.split(x, [groups * GROUP], axis=1)
    highest = grouped.reshape(rows, GROUP, groups).max(axis=1)
    first = xp.argpartition(highest, -count)[:, -count:]
    places = (first[:, :, None] + groups * xp.arange(GROUP)).reshape(rows, -1)
    after = xp.broadcast_to(xp.arange(length - rest.shape[1], length), rest.shape)
    places = xp.concatenate([places, after], axis=1)
    near = x.take(places + length * xp.arange(rows)[:, None])
    among = xp.argpartition(near, -count)[:, -count:]
    return xp.take_along_axis(places, among, axis=1)


def most_probable(logits, count: int, special: SpecialIds = DEFAULT_IDS):
    """Like paper.beam.most_probable, with largest_in_groups.

    On the host, it takes a few rows at a time, so that intermediate arrays stay in the cache.
    """
    rows = max(1, PIECE // logits.shape[1]) if on_host(logits) else len(logits)
    pieces = (logits[start : start + rows] for start in range(0, len(logits), rows))
    found = [paper_beam.most_probable(piece, count, special, largest_in_groups) for piece in pieces]
    symbols, log_p = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return symbols, log_p


class FirstRanking(Ranking):
    """Early stopping: the hypotheses of a row are those that end first."""

    def is_open(self, reachable, current, width):
        return self.ended < width


class PatientRanking(Ranking):
    """A row goes on as long as an open hypothesis can become one of the best."""

    def is_open(self, reachable, current, width):
        return reachable > self.worst


RANKINGS = {True: FirstRanking, False: Ranking, "never": PatientRanking}
"""The rankings by transformers' values of early_stopping."""


def beam_search(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    beam: int = 4,
    alpha: float = 0.6,
    penalty: str = "paper",
    rules: Rules = (),
    early_stopping: bool | str | None = None,
) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids of its best hypothesis.

    Like `n_best` with one hypothesis. The paper uses beam 4 and alpha 0.6 (section 6.1).
    """
    settings = beam, alpha, penalty, rules, early_stopping
    return [best.ids for (best,) in n_best(model, inputs, max_length, 1, *settings)]


def n_best(
    model: Model,
    inputs: np.ndarray,
    max_length: int,
    count: int,
    beam: int = 4,
    alpha: float = 0.6,
    penalty: str = "paper",
    rules: Rules = (),
    early_stopping: bool | str | None = None,
) -> list[list[Hypothesis]]:
    """inputs (B, S) -> each row's `count` best hypotheses, best first, by a beam of width `beam`.

    `penalty` names one of PENALTIES. `count` is at most `beam`, as a narrower beam
    might find too few hypotheses. With a larger `count` the search runs longer, so the first
    hypothesis may be better, and is never worse. `rules` are pairs of a name and a value (see
    rules.py). With True, False or "never", `early_stopping` ends a row when transformers ends it.
    Raises InputError for invalid settings.
    """
    require_positive("count", count)
    require_positive("beam", beam)
    if count > beam:
        raise InputError(
            "count (--n-best) is at most beam (--beam)",
            f"count {count}, beam {beam}",
            "Choose a larger beam.",
        )
    if not is_alpha(alpha):
        rule = f"the alpha of a length penalty is a number from 0 to {LARGEST_ALPHA}"
        raise InputError(rule, repr(alpha), "The paper uses 0.6; with 0, length has no effect.")
    if penalty not in PENALTIES:
        rule = f"a length penalty is one of {', '.join(PENALTIES)}"
        raise InputError(rule, repr(penalty), 'Name one; the paper\'s is "paper".')
    if early_stopping not in (None, *RANKINGS):
        rule = 'early_stopping is None, True, False or "never"'
        raise InputError(rule, repr(early_stopping), "With None, a row ends by numformer's rule.")
    divisor = partial(PENALTIES[penalty], alpha=alpha)
    writer, choose, ranking = bind_model(model), most_probable, partial(Ranking, count)
    if rules:
        writer = RuledWriter(model, rules, searched=True)
        choose = writer.candidates(most_probable, largest_in_groups)
    if early_stopping is not None:
        ranking = partial(RANKINGS[early_stopping], beam)
    found = search(writer, inputs, max_length, beam, divisor, ranking, choose)
    return [hypotheses[:count] for hypotheses in found]
