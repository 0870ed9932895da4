"""Texts in, texts out: from a source to a target, on from a beginning, into holes.

What a model was trained to do with texts is saved beside it (`description`), so that
`numformer.load` finds its vocabularies. Each class here is one thing to do with texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from numformer.data import END, PairBatch, Vocabulary, pad_sources
from numformer.errors import InputError
from numformer.generation.beam import PENALTIES, beam_search, n_best
from numformer.generation.greedy import greedy, log_probabilities, require_positive
from numformer.generation.sampling import Sampling, random_streams
from numformer.generation.text import Symbols, Text, is_length
from numformer.layer import inference
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
        max_length = self._room(model, max_length)
        written: list[list[str]] = [[]] * len(texts)
        for part, source in self._batches(texts, beam):
            if sampling:
                found = sampling.write(model, source, max_length, random_streams(seed, part))
            elif beam == 1:
                found = greedy(model, source, max_length)
            else:
                how = beam, self.length_penalty, self.penalty
                found = beam_search(model, source, max_length, *how)
            for index, ids in zip(part, found, strict=True):
                written[index] = self.target.decode(ids)
        return written

    def n_best(
        self, model: Model, texts: Sequence[Symbols], count: int, max_length: int | None = None
    ) -> list[list[tuple[float, list[str]]]]:
        """For each source the `count` best targets, best first, each with its score."""
        found: list[list[tuple[float, list[str]]]] = [[]] * len(texts)
        beam = max(count, self.beam)
        how = dict(alpha=self.length_penalty, penalty=self.penalty, beam=beam)
        for part, source in self._batches(texts, beam):
            best = n_best(model, source, self._room(model, max_length), count, **how)
            for index, hypotheses in zip(part, best, strict=True):
                found[index] = [(each.score, self.target.decode(each.ids)) for each in hypotheses]
        return found

    def _room(self, model: Model, max_length: int | None) -> int:
        """The most symbols that may be written."""
        max_length = self.max_length if max_length is None else max_length
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
        fits = fits and self.penalty in PENALTIES and type(self.length_penalty) in (int, float)
        return fits and 0 <= self.length_penalty <= 9


@dataclass(frozen=True)
class Continuation(Text):
    """From the beginning of a text to its continuation: a language model's work.

    The model was trained on `context` symbols at a time.
    """

    vocabulary: Vocabulary
    context: int

    @property
    def read(self) -> Vocabulary:
        return self.vocabulary

    def write(
        self,
        model: Model,
        texts: Sequence[Symbols],
        length: int = 200,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> list[list[str]]:
        """Each text and `length` symbols after it, fewer where the model writes the end id.

        A text is written until there are `context` symbols, and then from the latest half of them.
        With a `temperature`, `top_k` or `top_p` it is sampled, by random numbers of the seed and of
        its place among the texts.
        """
        require_positive("length", length)
        sampling = Sampling.asked(temperature, top_k, top_p)

        def go_on(text: list[str], stream: np.random.Generator) -> list[str]:
            end = len(text) + length
            while len(text) < end:
                known = text if len(text) < self.context else text[-max(1, self.context // 2) :]
                room = min(max(1, self.context - len(known)), end - len(text))
                asked = np.array([self.vocabulary.encode(known)])
                if sampling:
                    (ids,) = sampling.write(model, asked, room, [stream])
                else:
                    (ids,) = greedy(model, asked, room)
                text += self.vocabulary.decode(ids)
                if len(ids) < room:  # the end id came
                    break
            return text

        streams = random_streams(seed, range(len(texts)))
        return [go_on(list(text), stream) for text, stream in zip(texts, streams, strict=True)]

    def join(self, symbols: Symbols) -> str:
        return self.vocabulary.join(symbols)

    def maps(self, model, asked, written=None):
        """Of a text that is read, its latest `context` symbols; none is written."""
        asked = asked[-self.context :]
        kinds = by_kind(attention_weights(model, np.array([self.vocabulary.encode(asked)])))
        maps = [AttentionMaps(kind, of[:, 0], asked, asked) for kind, of in kinds.items()]
        return asked, [], maps

    def fits(self, config) -> bool:
        return len(self.vocabulary) == getattr(config, "vocabulary", None) and is_length(
            self.context
        )


@dataclass(frozen=True)
class Infilling(Text):
    """From a text with holes to the whole text: a masked language model's work.

    `hole` is the symbol that stands for a missing one; the model was trained on `context` symbols
    at a time.
    """

    vocabulary: Vocabulary
    hole: str
    context: int

    @property
    def read(self) -> Vocabulary:
        return self.vocabulary

    def notes(self, symbols: Symbols) -> list[str]:
        holes = [] if self.hole in symbols else [f"there is no {self.hole!r} to fill"]
        return Text.notes(self, symbols) + holes

    def write(self, model: Model, texts: Sequence[Symbols]) -> list[list[str]]:
        """Each text with a symbol in each of its holes."""
        return [self._filled(model, list(text)) for text in texts]

    def _filled(self, model: Model, text: list[str]) -> list[str]:
        """The surest quarter of the holes is filled first, and then helps with the others."""
        while holes := [place for place, symbol in enumerate(text) if symbol == self.hole]:
            log_p = self._log_probabilities(model, text, holes)
            surest = np.argsort(-log_p.max(axis=-1))[: -(-len(holes) // 4)]
            symbols = self.vocabulary.decode(log_p.argmax(axis=-1))
            for hole in surest:
                text[holes[hole]] = symbols[hole]
        return text

    def _log_probabilities(self, model: Model, text: Symbols, holes: list[int]) -> np.ndarray:
        """What may stand in each of the holes (N,), seen in its window -> (N, V)."""
        ids, found = np.array(self.vocabulary.encode(text)), []
        width = min(self.context, len(ids))
        for some in np.split(holes, range(256, len(holes), 256)):
            starts = np.clip(some - width // 2, 0, len(ids) - width)
            distinct, window = np.unique(starts, return_inverse=True)
            windows = ids[distinct[:, None] + np.arange(width)]
            with inference():
                logits = model.forward(windows, window * width + some - starts)
            found.append(log_probabilities(logits))
        log_p = np.concatenate(found)
        log_p[:, [END, *self.vocabulary.encode([self.hole])]] = -np.inf
        return log_p

    def join(self, symbols: Symbols) -> str:
        return self.vocabulary.join(symbols)

    def maps(self, model, asked, written=None):
        """Of a text that is read, up to `context` symbols, with the first hole in their middle."""
        first = asked.index(self.hole) if self.hole in asked else 0
        start = max(0, min(first - self.context // 2, len(asked) - self.context))
        asked = asked[start : start + self.context]
        if written is None:
            (written,) = self.write(model, [asked])
        kinds = by_kind(attention_weights(model, np.array([self.vocabulary.encode(asked)])))
        maps = [AttentionMaps(kind, of[:, 0], asked, asked) for kind, of in kinds.items()]
        return asked, written, maps

    def fits(self, config) -> bool:
        known = len(self.vocabulary) == getattr(config, "vocabulary", None)
        return known and self.hole in self.vocabulary.symbols and is_length(self.context)
