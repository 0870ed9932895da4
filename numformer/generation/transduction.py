"""From a text to another: what an encoder-decoder does with texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from numformer.data import PairBatch, Vocabulary, pad_sources
from numformer.errors import InputError
from numformer.generation.beam import PENALTIES, beam_search, is_alpha, n_best
from numformer.generation.greedy import greedy, require_positive
from numformer.generation.sampling import Sampling, random_streams
from numformer.generation.text import Symbols, Text, is_length
from numformer.models import Model
from numformer.plots import AttentionMaps, attention_weights, by_kind


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
        max_length: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> list[list[str]]:
        """The target of each source; `beam` and `max_length` replace the usual ones.

        With a `temperature`, `top_k` or `top_p` it is sampled, by random numbers of the seed and of
        the source's place among the texts; a beam cannot be asked for then.
        """
        sampling = Sampling.asked(temperature, top_k, top_p)
        if sampling and beam is not None:
            raise InputError(
                "a text is searched for by a beam, or it is sampled",
                f"beam {beam} and a temperature, top_k or top_p",
                "Leave out one of them.",
            )
        beam = self.beam if beam is None else beam
        require_positive("beam", beam)
        max_length = self._room(model, max_length)
        written: list[list[str]] = [[]] * len(texts)
        for part, source in self._batches(texts, beam):
            if sampling:
                answers = sampling.write(model, source, max_length, random_streams(seed, part))
            elif beam == 1:
                answers = greedy(model, source, max_length)
            else:
                how = beam, self.length_penalty, self.penalty
                answers = beam_search(model, source, max_length, *how)
            for index, ids in zip(part, answers, strict=True):
                written[index] = self.target.decode(ids)
        return written

    def n_best(
        self, model: Model, texts: Sequence[Symbols], count: int, max_length: int | None = None
    ) -> list[list[tuple[float, list[str]]]]:
        """For each source the `count` best targets, best first, each with its score."""
        require_positive("count", count)
        answers: list[list[tuple[float, list[str]]]] = [[]] * len(texts)
        beam = max(count, self.beam)
        how = dict(alpha=self.length_penalty, penalty=self.penalty, beam=beam)
        for part, source in self._batches(texts, beam):
            best = n_best(model, source, self._room(model, max_length), count, **how)
            for index, hypotheses in zip(part, best, strict=True):
                answers[index] = [(h.score, self.target.decode(h.ids)) for h in hypotheses]
        return answers

    def _room(self, model: Model, max_length: int | None) -> int:
        """The most symbols that may be written."""
        max_length = self.max_length if max_length is None else max_length
        require_positive("max_length", max_length)
        return min(max_length, model.config.longest or max_length)

    def _batches(
        self, texts: Sequence[Symbols], beam: int
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Places of texts and their ids: of similar length together, fewer where long or wide."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]), reverse=True)
        while order:
            positions = len(texts[order[0]]) + 1  # with the end id
            # At once 250 texts, 2^20 weights of a head's attention, 1,250 hypotheses of a beam.
            count = max(1, min(250, 2**20 // positions**2, 1250 // beam))
            part, order = order[:count], order[count:]
            yield part, pad_sources([self.source.encode(texts[index]) for index in part])

    def join(self, symbols: Symbols) -> str:
        return self.target.join(symbols)

    def maps(self, model, asked, written=None):
        if written is None:
            (written,) = self.write(model, [asked])
        if model.config.longest:  # the start id takes a place, too
            written = written[: model.config.longest - 1]
        pair = self.source.encode(asked), self.target.encode(written)
        batch = PairBatch.of([pair])
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
