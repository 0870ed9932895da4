"""Attention patterns: the weight that a head puts on the places of a pattern, against chance."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from numformer.data import Batch, PairBatch
from numformer.data.vocabulary import SpecialIds

FARTHEST = 8
"""The largest offset, back or ahead, that is a pattern."""
OFFSETS = range(-FARTHEST, FARTHEST + 1)
PATTERNS = "alignment", "induction", "copying", "rest", "place"
"""Each of the OFFSETS is a pattern of its own; "place" is the best of them."""
DESCRIPTIONS = {
    "alignment": "looks at the source of what it writes",
    "induction": "looks at what came after the same symbol",
    "copying": "looks at the symbol that is to come",
    "rest": "rests on the start or the end",
}
LABELS = {"alignment": "source", "induction": "induction", "copying": "copying", "rest": "rests"}
SHUFFLES = 5
FEWEST_PLACES = 30
"""A score is a mean over at least this many places."""
CLEAR = 0.25
"""The least `Score.above` that can give a head its role."""


class Lexicon:
    """t(f|e), how likely a source symbol e is to produce a target symbol f: IBM model 1.

    (Brown et al. 1993, section 4.1.) Any source symbol of a sentence may have produced any target
    symbol, so EM gives each pair in it a count of t(f|e) / sum_e' t(f|e'). The new t(f|e) is the
    pair's count in all sentences, divided by that of all pairs with e. The end id of a source
    stands for the null word.
    """

    def __init__(self, batches: Iterable[PairBatch], enough: int = 20_000, rounds: int = 5):
        cells, sentences, places = [], 0, 0
        for batch in batches:
            self.special = batch.special
            real = batch.target_out != self.special.padding
            number = places + np.cumsum(real).reshape(real.shape)  # a number for each target place
            row, t, s = (real[:, :, None] & self.special.real(batch.source)[:, None]).nonzero()
            codes = _pair_code(batch.source[row, s], batch.target_out[row, t])
            cells.append((codes, number[row, t]))
            sentences, places = sentences + len(real), places + np.count_nonzero(real)
            if sentences >= enough:
                break
        codes, place = map(np.concatenate, zip(*cells, strict=True))
        self.codes, cell = np.unique(codes, return_inverse=True)
        source = self.codes >> 32
        self.t = np.ones(len(self.codes))
        for _ in range(rounds):
            share = self.t[cell] / np.bincount(place, self.t[cell])[place]
            count = np.bincount(cell, share)
            self.t = count / np.bincount(source, count)[source]

    def aligned(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """source (S,), target (T,) -> (T, S), True at the likeliest origin of each target symbol.

        A row is True at several places if the origin occurs there, at none if it is the null word.
        """
        codes = _pair_code(source, target[:, None])
        nearest = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        t = np.where(self.codes[nearest] == codes, self.t[nearest], 0)
        origin = (t == t.max(axis=1, keepdims=True)) & (t > 0)
        null = origin & np.isin(source, self.special.closing)
        return origin & ~null.any(axis=1, keepdims=True)


def _pair_code(source, target):
    """One number that encodes a pair of ids."""
    return (source.astype(np.int64) << 32) + target


def example_symbols(batch: Batch, kind: str, special: SpecialIds) -> tuple[np.ndarray, ...]:
    """For a batch of one: ids at queries (T,) and keys (S,), and those to predict (T,), or -1."""
    if isinstance(batch, PairBatch):
        source, target, follows = (ids[0] for ids in batch.inputs)
        if kind.startswith("encoder"):
            return source, source, np.full(len(source), -1)
        return target, source if "cross" in kind else target, follows
    ids, answers, *valid = (array[0] for array in batch.inputs)
    predicted = np.logical_and.reduce([answers != special.padding, *valid])
    return ids, ids, np.where(predicted, answers, -1)


def patterns(
    reads, looks_at, follows, special: SpecialIds, lexicon: Lexicon | None = None
) -> np.ndarray:
    """reads, follows (T,), looks_at (S,) -> (patterns, T, S), True at the places of each pattern.

    The patterns are in the order of PATTERNS: the source of the symbol that is written (only with a
    `lexicon`, for cross-attention); without a lexicon, the symbol after an earlier occurrence of
    the query's symbol (Olsson et al. 2022), and the symbol to predict; the start or end sign, or
    the first place if there is neither; each of the OFFSETS.
    """
    size = len(reads), len(looks_at)
    alignment, induction, copying, rest = np.zeros((4, *size), bool)
    signs = np.isin(looks_at, [i for i in (special.start, special.end) if i is not None])
    signs[0] |= not signs.any()
    rest[:] = signs
    if lexicon:
        alignment[:] = lexicon.aligned(looks_at, follows)
    else:
        induction[:, 1:] = reads[:, None] == looks_at[:-1]
        induction[:] = np.tril(induction)
        copying[:] = follows[:, None] == looks_at
    offsets = [np.eye(*size, k=offset, dtype=bool) for offset in OFFSETS]
    return np.stack([alignment, induction, copying, rest, *offsets])


def shuffle_rows(weights, visible, rng: np.random.Generator) -> np.ndarray:
    """weights (H, T, S), visible (T, S) -> (SHUFFLES, H, T, S): each row's weights in random order.

    Weights move only between visible places.
    """
    random = rng.random((SHUFFLES, *visible.shape))
    order = np.where(visible, random, 2).argsort(axis=-1)  # visible places at random, then others
    places = np.broadcast_to((~visible).argsort(axis=-1, kind="stable"), order.shape)
    source = np.empty_like(order)
    np.put_along_axis(source, places, order, axis=-1)
    return np.take_along_axis(weights[None], source[:, None], axis=-1)


class Score(NamedTuple):
    """The mean weight on a pattern's places; its mean and deviation when weights are shuffled."""

    pattern: str
    weight: float
    chance: float
    spread: float
    offset: int = 0

    @property
    def above(self) -> float:
        """How far the weight exceeds chance, as a share of the most by which it could."""
        return (self.weight - self.chance) / max(1 - self.chance, 1e-9)

    @property
    def clear(self) -> bool:
        """Whether the score is clear enough to make the pattern the head's role."""
        return self.above >= CLEAR and self.weight > self.chance + 3 * self.spread

    def description(self, short: bool = False) -> str:
        """What a head with this pattern does."""
        if self.pattern != "place":
            return (LABELS if short else DESCRIPTIONS)[self.pattern]
        if not self.offset:
            return "same place" if short else "looks at the same place"
        count, direction = abs(self.offset), "back" if self.offset < 0 else "ahead"
        return (
            f"{count} {direction}"
            if short
            else f"looks {count} place{'s' * (count > 1)} {direction}"
        )


class PatternScores:
    """The scores of one layer's heads, over all examples that were added."""

    def __init__(self, heads: int, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.places = np.zeros(len(PATTERNS) - 1 + len(OFFSETS))
        self.weight = np.zeros((1 + SHUFFLES, heads, len(self.places)))

    def add(self, weights: np.ndarray, marks: np.ndarray, rows: np.ndarray) -> None:
        """Add an example: weights (H, T, S), pattern places (patterns, T, S), rows (T,) to use."""
        visible = (weights > 0).any(axis=0) & rows[:, None]
        marks = marks & visible
        several = np.concatenate([weights[None], shuffle_rows(weights, visible, self.rng)])
        flat = marks.reshape(len(marks), -1).T.astype(weights.dtype)
        self.weight += several.reshape(*several.shape[:2], -1) @ flat
        self.places += marks.any(axis=2).sum(axis=1)

    def scores(self, head: int) -> list[Score]:
        """The scores of a head (heads count from 0) for each pattern that has enough places."""
        means = self.weight[:, head] / np.maximum(self.places, 1)
        means[:, self.places < FEWEST_PLACES] = -1
        others, places = np.split(means, [len(PATTERNS) - 1], axis=1)
        offset = OFFSETS[int(places[0].argmax())]
        scores = []
        for name, column in zip(PATTERNS, [*others.T, places.max(axis=1)], strict=True):
            weight, *by_chance = map(float, column)
            if weight >= 0:
                chance, spread = float(np.mean(by_chance)), float(np.std(by_chance))
                scores.append(Score(name, weight, chance, spread, offset))
        return scores


def head_role(scores: list[Score]) -> Score | None:
    """The clear score that is highest to one decimal, the first of equal ones; None if none is."""
    clear = [score for score in scores if score.clear]
    return max(clear, key=lambda score: round(score.above, 1), default=None)
