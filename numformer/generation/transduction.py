"""From a text to another: what an encoder-decoder does with texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from numformer.data import PairBatch, Vocabulary, pad_sources
from numformer.errors import InputError, require_positive
from numformer.generation.beam import PENALTIES, beam_search, is_alpha, n_best
from numformer.generation.sampling import Sampling, random_streams
from numformer.generation.text import MOST, Symbols, Text, is_length
from numformer.models import Model
from numformer.paper.writing import greedy
from numformer.plots import AttentionMaps, attention_weights, by_kind
from numformer.symbols import special_ids


@dataclass(frozen=True)
class Transduction(Text):
    """From a sequence of one vocabulary to one of another (section 1): an encoder-decoder's work.

    At most `max_length` symbols are written; `longest` is the most that a source had in training,
    where that is known. `beam` is the size of beam search, greedy with 1, `length_penalty` its
    alpha and `penalty` the kind of it, a name of PENALTIES.
    """

    source: Vocabulary
    target: Vocabulary
    max_length: int
    longest: int | None = None
    beam: int = 1
    length_penalty: float = 1.0
    penalty: str = "paper"

    @property
    def read(self) -> Vocabulary:
        return self.source

    def symbols(self, text: str) -> list[str]:
        return super().symbols(text.strip() if isinstance(text, str) else text)

    def notes(self, symbols: Symbols) -> list[str]:
        notes = super().notes(symbols)
        if self.longest and len(symbols) > self.longest:
            notes.append(f"training saw at most {self.longest} symbols, here are {len(symbols)}")
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
        seed: int = 0,
    ) -> list[list[str]]:
        """The target of each source; `beam` to `max_length` replace the usual ones.

        With a `temperature`, `top_k` or `top_p` it is sampled, by random numbers of the seed and of
        the source's place among the texts; nothing of a beam can be asked for then, and no penalty
        where there is a beam of 1.
        """
        sampling = Sampling.asked(temperature, top_k, top_p)
        penalties = {"length_penalty": length_penalty, "penalty": penalty}
        asked = {name: v for name, v in ({"beam": beam} | penalties).items() if v is not None}
        if sampling and asked:
            name, value = next(iter(asked.items()))
            raise InputError(
                "a text is searched for by a beam, or it is sampled",
                f"{name} {value} and a temperature, top_k or top_p",
                "Leave out one of them.",
            )
        search = self._with(max_length=max_length, **asked)
        if search.beam == 1 and asked.keys() & penalties:
            rule = "a length penalty chooses among the hypotheses of a beam"
            raise InputError(rule, "beam 1", "Ask for a larger beam.")
        written: list[list[str]] = [[]] * len(texts)
        for part, source, most in search._batches(model, texts):
            if sampling:
                streams = random_streams(seed, part)
                answers = sampling.write(model, source, most, streams)
            elif search.beam == 1:
                answers = greedy(model, source, most)
            else:
                answers = search.searched(model, source, most, [texts[index] for index in part])
            for index, ids in zip(part, answers, strict=True):
                written[index] = self.decoded(ids, texts[index])
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

        They are found by a `beam` of at least as many, the usual one or `count` unless given.
        """
        require_positive("count", count)
        beam = max(count, self.beam) if beam is None else beam
        asked = dict(length_penalty=length_penalty, penalty=penalty, max_length=max_length)
        search = self._with(beam=beam, **asked)
        how = search.beam, search.length_penalty, search.penalty
        answers: list[list[tuple[float, list[str]]]] = [[]] * len(texts)
        for part, source, most in search._batches(model, texts):
            best = n_best(model, source, most, count, *how)
            for index, hypotheses in zip(part, best, strict=True):
                text = texts[index]
                answers[index] = [(h.score, self.decoded(h.ids, text)) for h in hypotheses]
        return answers

    def most(self, length: int) -> int:
        """How many symbols are written at most for sources of up to so many."""
        return self.max_length

    def searched(
        self, model: Model, source: np.ndarray, most: int, asked: Sequence[Symbols]
    ) -> list[list[int]]:
        """source ids (B, S), those of B texts `asked` -> the ids that a beam search writes."""
        return beam_search(model, source, most, self.beam, self.length_penalty, self.penalty)

    def decoded(self, ids: Sequence[int], asked: Symbols) -> list[str]:
        """The symbols of what was written for the source `asked`."""
        return self.target.decode(ids)

    def encoded(self, written: Symbols) -> list[int]:
        """The ids of what was written, as symbols."""
        return self.target.encode(written)

    def _with(self, **asked) -> "Transduction":
        """As it is usual, but for what is asked."""
        how = replace(self, **{name: v for name, v in asked.items() if v is not None})
        require_positive("beam", how.beam)
        require_positive("max_length", how.max_length, MOST)
        return how

    def _batches(
        self, model: Model, texts: Sequence[Symbols]
    ) -> Iterator[tuple[list[int], np.ndarray, int]]:
        """Places of texts, their ids, and how many symbols are written for them at most.

        Texts of similar length are together, fewer where they are long or the beam is wide.
        """
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]), reverse=True)
        while order:
            positions = len(texts[order[0]]) + 1  # with the end id
            # At once 250 texts, 2^20 weights of a head's attention, 1,250 hypotheses of a beam.
            count = max(1, min(250, 2**20 // positions**2, 1250 // self.beam))
            part, order = order[:count], order[count:]
            sources = [self.source.encode(texts[index]) for index in part]
            most = self.most(len(texts[part[0]]))
            longest = min(most, model.config.longest or most)
            yield part, pad_sources(sources, special_ids(model)), longest

    def join(self, symbols: Symbols) -> str:
        return self.target.join(symbols)

    def maps(self, model, asked, written=None):
        if written is None:
            (written,) = self.write(model, [asked])
        if model.config.longest:  # the start id takes a place, too
            written = written[: model.config.longest - 1]
        pair = self.source.encode(asked), self.encoded(written)
        batch = PairBatch.of([pair], special_ids(model))
        source, writes, after = [*asked, "⊣"], [*written, "⊣"], ["⊢", *written]
        labels = {
            "encoder self_attention": (source, source),
            "decoder self_attention": (writes, after),
            "decoder cross_attention": (writes, source),
        }
        kinds = by_kind(attention_weights(model, batch.source, batch.target_in))
        maps = [AttentionMaps(kind, of[:, 0], *labels[kind]) for kind, of in kinds.items()]
        return asked, written, maps

    def fits(self, config) -> bool:
        known = [getattr(config, f"{side}_vocabulary", None) for side in ("source", "target")]
        lengths = [self.max_length, self.beam] + ([] if self.longest is None else [self.longest])
        fits = [len(self.source), len(self.target)] == known and all(map(is_length, lengths))
        return fits and self.penalty in PENALTIES and is_alpha(self.length_penalty)
