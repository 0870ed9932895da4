"""Rules of generation: what published models set besides the search, such as forced symbols.

A rule changes the scores of the next symbols, depending on the symbols before them. Names and
effects are those of Hugging Face's library transformers, so that texts agree with it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from numformer.backend import to_host
from numformer.errors import InputError
from numformer.generation.binding import bind_model
from numformer.generation.sampling import log_softmax
from numformer.symbols import SpecialIds, special_ids

Rules = Sequence[Any]
"""Pairs of a name, one of RULES or RENORMALIZE, and its value."""


@dataclass
class Texts:
    """N texts while they are written; `state` is that of the model.

    `known` (N, T) are the ids so far, with the start or the prompt, of which there are `begin`; at
    most `end` there will be. `sources` are the ids of the N sources; prompts are sources, too.
    `is_forced` says that the first id after a single start is forced.
    """

    state: Any
    known: np.ndarray
    sources: np.ndarray
    begin: int
    end: int
    special: SpecialIds
    is_forced: bool

    @property
    def ids(self) -> np.ndarray:
        return self.state.ids

    @property
    def length(self) -> int:
        return self.known.shape[1]

    def choose(self, rows: np.ndarray) -> None:
        """Keep the batch rows with the indices `rows` (N,), in this order; an index may repeat."""
        self.state.choose(rows)
        self.known, self.sources = self.known[rows], self.sources[rows]

    def real_sources(self) -> list[np.ndarray]:
        """The ids of each source, without padding."""
        real = self.special.real(self.sources)
        return [ids[where] for ids, where in zip(self.sources, real, strict=True)]


class Rule(NamedTuple):
    """`change(scores, texts, value)` changes scores (N, V) in place, while `when(texts, value)`.

    `allows(value, size)` says whether a value is valid for a vocabulary of this size.
    """

    allows: Callable[[Any, int], bool]
    change: Callable[[np.ndarray, Texts, Any], None]
    when: Callable[[Texts, Any], bool] = lambda texts, value: True


def _is_id(value, size: int) -> bool:
    return type(value) is int and 0 <= value < size


def _are_ids(value, size: int) -> bool:
    return type(value) is list and value != [] and all(_is_id(n, size) for n in value)


def _are_id_or_ids(value, size: int) -> bool:
    return _is_id(value, size) or _are_ids(value, size)


def _are_words(value, size: int) -> bool:
    return type(value) is list and all(_are_ids(word, size) for word in value)


def _is_count(value, size: int) -> bool:
    return type(value) is int and value >= 1


def _is_number(value, *_) -> bool:
    return type(value) is not bool and isinstance(value, Real) and math.isfinite(value)


def _is_factor(value, *_) -> bool:
    return _is_number(value) and value > 0


def _are_biases(value, size: int) -> bool:
    return type(value) is list and all(
        type(pair) is list and len(pair) == 2 and _are_ids(pair[0], size) and _is_number(pair[1])
        for pair in value
    )


def _is_decay(value, size: int) -> bool:
    is_pair = type(value) is list and len(value) == 2
    return is_pair and type(value[0]) is int and value[0] >= 0 and _is_factor(value[1])


def _bias(scores, texts: Texts, pairs: Iterable) -> None:
    """Add each pair's number to the last id of its sequence, where the text has those before it."""
    for (*before, last), number in pairs:
        if (first := texts.length - len(before)) >= 0:
            scores[(texts.known[:, first:] == before).all(axis=-1), last] += number


def _penalize(scores, texts: Iterable[Any], penalty: float) -> None:
    """Lower the scores of the ids of each text (Keskar et al. 2019)."""
    for row, ids in zip(scores, texts, strict=True):
        row[ids] = np.where(row[ids] < 0, row[ids] * penalty, row[ids] / penalty)


def _forbid_repeats(scores, texts: Texts, sources: Iterable[Any], size: int) -> None:
    """Forbid each id that would complete `size` ids in a row that are also in the source."""
    for row, ids, source in zip(scores, texts.known.tolist(), sources, strict=True):
        latest = ids[len(ids) + 1 - size :]
        pieces = zip(*(source[n:] for n in range(size)), strict=False)
        row[[last for *before, last in pieces if before == latest]] = -np.inf


def _forbid(scores, ids: Sequence[int]) -> None:
    scores[:, ids] = -np.inf


def _force(scores, texts: Texts, ids: int | list[int]) -> None:
    allowed = np.zeros(scores.shape[1], bool)
    allowed[ids] = True
    scores[:] = np.where(allowed, 0, -np.inf)


def _favour_ends(scores, texts: Texts, decay: Sequence) -> None:
    """Raise the scores of the ends, the more the longer the text is."""
    start, factor = decay
    for end in texts.special.ends:
        finite = np.isfinite(scores[:, end])
        growth = factor ** (texts.length - texts.begin - start) - 1
        scores[finite, end] += np.abs(scores[finite, end]) * growth


RULES: dict[str, Rule] = {
    "sequence_bias": Rule(_are_biases, _bias),
    "encoder_repetition_penalty": Rule(
        _is_factor, lambda scores, t, v: _penalize(scores, t.real_sources(), 1 / v)
    ),
    "repetition_penalty": Rule(_is_factor, lambda scores, t, v: _penalize(scores, t.known, v)),
    "no_repeat_ngram_size": Rule(
        _is_count, lambda scores, t, v: _forbid_repeats(scores, t, t.known, v)
    ),
    "encoder_no_repeat_ngram_size": Rule(
        _is_count, lambda scores, t, v: _forbid_repeats(scores, t, t.real_sources(), v)
    ),
    "bad_words_ids": Rule(
        _are_words, lambda scores, t, v: _bias(scores, t, zip(v, itertools.repeat(-np.inf)))
    ),
    "min_length": Rule(
        _is_count,
        lambda scores, t, v: _forbid(scores, t.special.ends),
        lambda t, v: t.length < v,
    ),
    "min_new_tokens": Rule(
        _is_count,
        lambda scores, t, v: _forbid(scores, t.special.ends),
        lambda t, v: t.length - t.begin < v,
    ),
    "forced_bos_token_id": Rule(_is_id, _force, lambda t, v: t.length == 1),
    "forced_eos_token_id": Rule(_are_id_or_ids, _force, lambda t, v: t.length == t.end - 1),
    "exponential_decay_length_penalty": Rule(
        _is_decay, _favour_ends, lambda t, v: t.length - t.begin > v[0]
    ),
    "begin_suppress_tokens": Rule(
        _are_ids,
        lambda scores, t, v: _forbid(scores, v),
        lambda t, v: t.length == t.begin + (t.begin == 1 and t.is_forced),
    ),
}
"""The rules by name, in the order in which they change scores."""

RENORMALIZE = "renormalize_logits"
"""A rule of beam search: symbols that are never written are left out of the sum of p."""


def are_valid(rules: Any, size: int) -> bool:
    """Whether these are Rules for a vocabulary of this size."""
    return all(
        value is True if name == RENORMALIZE else RULES[name].allows(value, size)
        for name, value in rules
    )


class RuledWriter:
    """A Writer that follows rules. If it is `searched`, rules change log p, otherwise logits."""

    def __init__(self, model: Any, rules: Rules, searched: bool = False):
        self.model, self.config, self.searched = bind_model(model), model.config, searched
        self.values: dict[str, Any] = dict(rules)
        if unknown := [name for name in self.values if name not in (*RULES, RENORMALIZE)]:
            rule = f"a rule of generation is one of {', '.join((*RULES, RENORMALIZE))}"
            raise InputError(rule, repr(unknown[0]), "Leave it out.")

    def start(self, inputs, length: int) -> Texts:
        """inputs (B, S), as model.start takes them -> the Texts before the first position."""
        state = self.model.start(inputs, length)
        ids = inputs[:, :-1] if hasattr(self.config, "vocabulary") else np.empty((len(inputs), 0))
        begin = ids.shape[1] + 1
        forced, special = "forced_bos_token_id" in self.values, special_ids(self)
        return Texts(state, ids.astype(int), inputs, begin, begin + length, special, forced)

    def step(self, ids, texts: Texts):
        """ids (B,) at the latest position of every row -> scores (B, V) for the next position."""
        scores = self.model.step(ids, texts.state)
        texts.known = np.concatenate([texts.known, ids[:, None]], axis=-1)
        pairs = [(rule, self.values[name]) for name, rule in RULES.items() if name in self.values]
        active = [(rule, value) for rule, value in pairs if rule.when(texts, value)]
        self.is_changed = active != []
        if active:
            scores = log_softmax(scores) if self.searched else to_host(scores).astype(float)
        for rule, value in active:
            rule.change(scores, texts, value)
        return scores

    def candidates(self, most_probable: Callable, largest: Callable) -> Callable:
        """Return paper.beam.most_probable for this writer.

        log p that a rule has changed are used as they are, unless they are renormalized.
        """
        renormalizes = RENORMALIZE in self.values

        def choose(scores, count: int, special: SpecialIds):
            if renormalizes or self.is_changed:
                scores = scores.copy()
                scores[:, special.unwritten] = -np.inf
            if renormalizes or not self.is_changed:
                return most_probable(scores, count, special)
            symbols = np.sort(largest(scores, min(count, scores.shape[1])))
            return symbols, scores[np.arange(len(scores))[:, None], symbols]

        return choose
