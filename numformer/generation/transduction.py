"""Transduction: an encoder-decoder turns one sequence into another."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from numformer.data import PairBatch, Vocabulary, pad_sources
from numformer.errors import InputError, require_positive
from numformer.generation.beam import PENALTIES, RANKINGS, beam_search, is_alpha, n_best
from numformer.generation.binding import greedy
from numformer.generation.measures import Measure, edit_distance
from numformer.generation.rules import RuledWriter, Rules, are_valid
from numformer.generation.sampling import Sampling, random_streams, score
from numformer.generation.text_pipeline import MAX_SYMBOLS, Symbols, TextPipeline, is_length
from numformer.models import Model
from numformer.plots import AttentionMaps, attention_weights, by_kind
from numformer.progress import advance
from numformer.symbols import special_ids


@dataclass(frozen=True)
class Transduction(TextPipeline):
    """Turns sequences of one vocabulary into sequences of another, by encoder-decoder (section 1).

    At most `max_length` symbols are written; `longest` is the length of the longest source in
    training, if that is known. `beam` is the beam's size (1 is greedy), `length_penalty` the alpha
    of the length penalty, `penalty` its kind, a name in PENALTIES, and `early_stopping` the one of
    `n_best`. The `rules` (see rules.py) hold for every target.
    """

    source: Vocabulary
    target: Vocabulary
    max_length: int
    longest: int | None = None
    beam: int = 1
    length_penalty: float = 1.0
    penalty: str = "paper"
    rules: Rules = field(default_factory=list, kw_only=True)
    early_stopping: bool | str | None = field(default=None, kw_only=True)

    @property
    def settings(self) -> tuple:
        """The arguments of `beam_search` that are fields."""
        own = self.beam, self.length_penalty, self.penalty
        return *own, self.rules, self.early_stopping

    @property
    def input_vocabulary(self) -> Vocabulary:
        return self.source

    def symbols(self, text: str) -> list[str]:
        return super().symbols(text.strip() if isinstance(text, str) else text)

    def notes(self, symbols: Symbols) -> list[str]:
        notes = super().notes(symbols)
        if self.longest and len(symbols) > self.longest:
            notes.append(f"training saw at most {self.longest} symbols; these are {len(symbols)}")
        return notes

    def write(
        self,
        model: Model,
        texts: Sequence[Symbols],
        beam: int | None = None,
        length_penalty: float | None = None,
        penalty: str | None = None,
        max_length: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
    ) -> list[list[str]]:
        """The target of each source; the arguments `beam` to `max_length` replace the fields.

        A `temperature`, `top_k` or `top_p` turns on sampling, with random numbers that depend on
        the seed and the index of a source in `texts`. Raises InputError for sampling combined with
        settings of beam search, and for a beam of 1 combined with a length penalty.
        """
        sampling = Sampling.from_settings(temperature, top_k, top_p)
        penalties = {"length_penalty": length_penalty, "penalty": penalty}
        settings = {name: v for name, v in ({"beam": beam} | penalties).items() if v is not None}
        if sampling and settings:
            name, value = next(iter(settings.items()))
            raise InputError(
                "a text is either found by beam search or sampled",
                f"{name} {value} and a temperature, top_k or top_p",
                "Leave out one of the two.",
            )
        search = self._replace(max_length=max_length, **settings)
        if search.beam == 1 and settings.keys() & penalties:
            rule = "a length penalty chooses among the hypotheses of a beam"
            raise InputError(rule, "beam 1", "Choose a larger beam.")
        written: list[list[str]] = [[]] * len(texts)
        writer: Any = RuledWriter(model, self.rules) if self.rules else model
        for places, source, limit in search._batches(model, texts):
            if sampling:
                answers = sampling.write(writer, source, limit, random_streams(seed, places))
            elif search.beam == 1:
                answers = greedy(writer, source, limit)
            else:
                answers = search.beam_search(model, source, limit, [texts[n] for n in places])
            for place, ids in zip(places, answers, strict=True):
                written[place] = self.decode(ids, texts[place])
        return written

    def n_best(
        self,
        model: Model,
        texts: Sequence[Symbols],
        count: int,
        beam: int | None = None,
        length_penalty: float | None = None,
        penalty: str | None = None,
        max_length: int | None = None,
    ) -> list[list[tuple[float, list[str]]]]:
        """For each source the `count` best targets, best first, each with its score.

        The `beam` is at least `count`; by default it is the larger of `count` and the field `beam`.
        With a larger `count` the search runs longer, so the first target may be better than the one
        that `write` finds with the same beam.
        """
        require_positive("count", count)
        beam = max(count, self.beam) if beam is None else beam
        search = self._replace(
            beam=beam, length_penalty=length_penalty, penalty=penalty, max_length=max_length
        )
        answers: list[list[tuple[float, list[str]]]] = [[]] * len(texts)
        for places, source, limit in search._batches(model, texts):
            best = n_best(model, source, limit, count, *search.settings)
            for place, hypotheses in zip(places, best, strict=True):
                text = texts[place]
                answers[place] = [(h.score, self.decode(h.ids, text)) for h in hypotheses]
        return answers

    def score(self, model, texts, written):
        """Return log p (N,) of N targets, and the number (N,) of symbols in each, with its end."""
        log_p, closing = np.zeros(len(texts)), special_ids(model).closing
        targets = [[*self.encode(target), *closing] for target in written]
        _require_positions(model, "target", written)
        for places, source, _ in self._batches(model, texts):
            log_p[places] = score(model, source, [targets[place] for place in places])
        return log_p, np.array([*map(len, targets)])

    def answer_symbols(self, text: str) -> list[str]:
        return self.target.split(text.strip())

    def measures(self, texts, answers, right):
        """Return the edits per 100 symbols of the targets, and the share of exact answers."""
        edits = [edit_distance(*pair) for pair in zip(answers, right, strict=True)]
        return {
            "symbol_error_rate": Measure.ratio(edits, [*map(len, right)], 100),
            "exact_match": Measure.ratio([count == 0 for count in edits], [1] * len(edits)),
        }

    def length_limit(self, source_length: int) -> int:
        """The most symbols to write for a source of up to `source_length` symbols."""
        return self.max_length

    def beam_search(
        self, model: Model, source: np.ndarray, limit: int, texts: Sequence[Symbols]
    ) -> list[list[int]]:
        """source (B, S), the ids of B texts -> for each text the ids that beam search finds."""
        return beam_search(model, source, limit, *self.settings)

    def decode(self, ids: Sequence[int], text: Symbols) -> list[str]:
        """The symbols of the ids that were written for the source `text`."""
        return self.target.decode(ids)

    def encode(self, written: Symbols) -> list[int]:
        """The ids of the symbols of an answer."""
        return self.target.encode(written)

    def _replace(self, **settings) -> "Transduction":
        """A copy of the pipeline with the settings that are not None."""
        pipeline = replace(self, **{name: v for name, v in settings.items() if v is not None})
        require_positive("beam", pipeline.beam)
        require_positive("max_length", pipeline.max_length, MAX_SYMBOLS)
        return pipeline

    def _batches(
        self, model: Model, texts: Sequence[Symbols]
    ) -> Iterator[tuple[list[int], np.ndarray, int]]:
        """Yield batches of texts: their indices in `texts`, their ids, and their length limit.

        A batch has texts of similar length, and fewer of them if they are long or the beam is wide.
        """
        _require_positions(model, "source", texts)
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]), reverse=True)
        while order:
            longest = len(texts[order[0]])
            # At most 250 texts, 2^20 attention weights per head, and 1,250 hypotheses in all.
            count = max(1, min(250, 2**20 // (longest + 1) ** 2, 1250 // self.beam))
            places, order = order[:count], order[count:]
            sources = [self.source.encode(texts[place]) for place in places]
            limit = self.length_limit(longest)
            limit = min(limit, model.config.longest or limit)
            yield places, pad_sources(sources, special_ids(model)), limit
            advance(len(places))

    def join(self, symbols: Symbols) -> str:
        return self.target.join(symbols)

    def maps(self, model, text, written=None):
        if written is None:
            (written,) = self.write(model, [text])
        if model.config.longest:  # leaves a position for the start id
            written = written[: model.config.longest - 1]
        pair = self.source.encode(text), self.encode(written)
        batch = PairBatch.of([pair], special_ids(model))
        source, target_out, target_in = [*text, "⊣"], [*written, "⊣"], ["⊢", *written]
        labels = {
            "encoder self_attention": (source, source),
            "decoder self_attention": (target_out, target_in),
            "decoder cross_attention": (target_out, source),
        }
        kinds = by_kind(attention_weights(model, batch.source, batch.target_in))
        maps = [AttentionMaps(kind, maps[:, 0], *labels[kind]) for kind, maps in kinds.items()]
        return text, written, maps

    def fits(self, config) -> bool:
        sizes = [getattr(config, f"{side}_vocabulary", None) for side in ("source", "target")]
        lengths = [self.max_length, self.beam] + ([] if self.longest is None else [self.longest])
        fits = [len(self.source), len(self.target)] == sizes and all(map(is_length, lengths))
        fits = fits and self.penalty in PENALTIES and is_alpha(self.length_penalty)
        stops = self.early_stopping in (None, *RANKINGS)
        return fits and stops and are_valid(self.rules, len(self.target))


def _require_positions(model: Model, side: str, texts: Sequence[Symbols]) -> None:
    """Raise InputError if a text is longer than a model's learned positions allow."""
    most = (model.config.longest or math.inf) - len(special_ids(model).closing)
    for text in texts:
        if len(text) > most:
            raise InputError(
                f"this model has learned positions for {most} symbols of a {side}",
                f"{len(text)} symbols",
                f"Leave out longer {side}s, train on texts of that length, or train with "
                "sinusoidal positions.",
            )
