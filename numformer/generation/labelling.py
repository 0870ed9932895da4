"""Labelling: a model with a classifier names the class of a text or word, or finds an answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.generation.measures import Measure
from numformer.generation.sampling import log_softmax
from numformer.generation.text_pipeline import OneVocabulary, Symbols
from numformer.layer import inference
from numformer.models import Model
from numformer.progress import advance

KINDS = "texts", "positions", "spans"
LONGEST_ANSWER = 30
"""The most symbols of an answer that is found in a text."""


@dataclass(frozen=True)
class Labelling(OneVocabulary):
    """Gives the labels of a text or of its words, or the place of an answer, with probabilities.

    `classifies` is one of KINDS: "texts" gives a line for each of the `labels`, the most probable
    first; "positions" a line for each word, with its most probable label; "spans" the part of a
    text that answers a question. The question precedes the text, with the separator between them
    that the model was trained with: "who sleeps? [SEP] the cat sleeps". A longer text is cut to
    `context` symbols.
    """

    vocabulary: Vocabulary
    context: int
    labels: Sequence[str]
    classifies: str = "texts"

    def write(self, model: Model, texts: Sequence[Symbols]) -> list[list[str]]:
        """Return the lines of each text: what was classified, its label, the probability."""
        describe = getattr(self, f"_{self.classifies}")
        return [[*describe(model, self._cut(text))] for text in texts]

    def answer_symbols(self, text: str) -> list[str]:
        """Return a label as a list of one. Raises InputError if it is none of the `labels`."""
        if self.classifies != "texts":
            rule, fix = "only classifiers of texts are evaluated", "Call the model on each text."
            raise InputError(rule, f"a classifier of {self.classifies}", fix)
        if text not in self.labels:
            rule = f"the label of a text is one of {', '.join(self.labels)}"
            raise InputError(rule, f"{text!r:.60}", "Correct it, or leave the example out.")
        return [text]

    def encode(self, written: Symbols) -> list[int]:
        """The ids of labels. They begin after the last id of the vocabulary."""
        return [len(self.vocabulary) + self.labels.index(label) for label in written]

    def _cut(self, text: Symbols) -> list[str]:
        """The first symbols of a text, with its last one, which is a mark."""
        last = self.context - 1
        return [*text[:last], *text[last:][-1:]]

    def _logits(self, function, text: list[str], *others) -> np.ndarray:
        """Return the logits of the classes of a text (labels), or of each position (T, labels)."""
        ids = np.array([self.vocabulary.encode(text)])
        with inference():
            return function(ids, *others, valid=np.ones(ids.shape, bool))[0]

    def _log_p(self, model, text: list[str]) -> np.ndarray:
        """Return log p of each label of a text (labels)."""
        advance()
        return log_softmax(self._logits(model.relation_logits, text))

    def _texts(self, model, text: list[str]) -> Iterator[str]:
        p = np.exp(self._log_p(model, text))
        return (f"{self.labels[n]} {p[n]:.4f}" for n in np.argsort(-p))

    def _positions(self, model, text: list[str]) -> Iterator[str]:
        p = np.exp(log_softmax(self._logits(model.forward, text)))
        for first, stop in self._words(text):
            best = p[first].argmax()
            word = self.vocabulary.join(text[first:stop]).strip()
            yield f"{word} {self.labels[best]} {p[first, best]:.4f}"

    def _words(self, text: list[str]) -> Iterator[tuple[int, int]]:
        """The first place of each word, whose label counts, and the place after its last symbol."""
        marks = {*self.vocabulary.split("")}
        pieces = any(symbol.startswith("##") for symbol in self.vocabulary.symbols)
        places = [n for n, symbol in enumerate(text) if symbol not in marks]

        def continues(n: int) -> bool:
            joined = text[n].startswith("##") if pieces else text[n][0] not in "▁Ġ"
            return joined and n - 1 in places

        firsts = [n for n in places if not continues(n)]
        for first in firsts:
            stop = next(n for n in range(first + 1, len(text)) if n not in places or n in firsts)
            yield first, stop

    def _spans(self, model, text: list[str]) -> Iterator[str]:
        *_, separator = self.vocabulary.split("")
        begin = text.index(separator)
        while text[begin : begin + 1] == [separator]:  # some models have two
            begin += 1
        if begin == len(text):
            raise InputError(
                f"a question and a text have {separator} between them",
                f"{self.join(text)!r:.60}",
                f'Write "who sleeps? {separator} the cat sleeps".',
            )
        segments = None
        if model.config.segments:
            segments = np.zeros((1, len(text)), int)
            segments[0, begin:] = model.config.segments > 1
        logits = self._logits(model.forward, text, None, segments)
        log_p = log_softmax(logits[begin:-1].T)
        both = log_p[0][:, None] + log_p[1]
        both[np.tril_indices(len(both), -1)] = -np.inf  # an answer does not end before it starts
        both[np.triu_indices(len(both), LONGEST_ANSWER)] = -np.inf
        start, stop = np.unravel_index(both.argmax(), both.shape)
        answer = self.vocabulary.join(text[begin + start : begin + stop + 1]).strip()
        yield f"{answer} {np.exp(both.max()):.4f}"

    def join(self, symbols: Symbols) -> str:
        """Lines, or symbols of a text -> a text."""
        return "\n".join(symbols)

    def score(self, model, texts, written):
        """Return log p (N,) of one label for each text, and the counts (N,) of labels, all 1."""
        pairs = zip(texts, written, strict=True)
        log_p = [
            self._log_p(model, self._cut(t))[self.labels.index(label)] for t, (label,) in pairs
        ]
        return np.array(log_p), np.ones(len(log_p), int)

    def measures(self, texts, answers, right):
        """Return the share of texts whose most probable label is right."""
        best = [line.rpartition(" ")[0] for line, *_ in answers]
        is_right = [label == answer for label, (answer,) in zip(best, right, strict=True)]
        return {"accuracy": Measure.ratio(is_right, np.ones(len(is_right)))}

    def maps(self, model, text, written=None):
        """Return attention maps for the first `context` symbols of the text."""
        text = self._cut(text)
        return text, [], self.self_attention_maps(model, text)

    def fits(self, config) -> bool:
        count = config.relations if self.classifies == "texts" else config.labels
        return super().fits(config) and self.classifies in KINDS and count == len(self.labels)
