"""Continuation: a language model continues texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numformer.data import Vocabulary
from numformer.errors import require_positive
from numformer.generation.binding import greedy
from numformer.generation.rules import RuledWriter, Rules, are_valid
from numformer.generation.sampling import (
    Sampling,
    is_temperature,
    log_softmax,
    random_streams,
)
from numformer.generation.text_pipeline import OneVocabulary, Symbols
from numformer.layer import inference
from numformer.models import Model
from numformer.progress import advance


def extrapolates(model: Model) -> bool:
    """Whether a model reads texts longer than those it was trained on."""
    return getattr(model.config, "extrapolates", False)


@dataclass(frozen=True)
class Continuation(OneVocabulary):
    """Continues the beginning of a text with a language model.

    The model was trained on `context` symbols at a time. `temperature` is the default
    temperature of sampling; with 0 or None, each symbol written is the most probable one. The
    `rules` (see rules.py) hold for every text.
    """

    has_right_answers = False

    vocabulary: Vocabulary
    context: int
    temperature: float | None = None
    rules: Rules = field(default_factory=list)

    def write(
        self,
        model: Model,
        texts: Sequence[Symbols],
        length: int = 200,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
    ) -> list[list[str]]:
        """Return each text with `length` further symbols, or fewer if the model ends the text.

        Once a text has `context` symbols, the model sees only the last `context` / 2 of them and
        what it writes next; a model with `config.extrapolates` always sees the whole text. Symbols
        are sampled if `temperature` (default: the field), `top_k` or `top_p` is given. A text's
        random numbers depend on the seed and the text's index in `texts`.
        """
        require_positive("length", length)
        temperature = self.temperature if temperature is None else temperature
        sampling = Sampling.from_settings(temperature, top_k, top_p)
        writer: Any = RuledWriter(model, self.rules) if self.rules else model

        def continue_text(text: list[str], stream: np.random.Generator) -> list[str]:
            end = len(text) + length
            while len(text) < end:
                window = text[self._first_seen(model, len(text)) :]
                room = end - len(text)
                if not extrapolates(model):
                    room = min(max(1, self.context - len(window)), room)
                inputs = np.array([self.vocabulary.encode(window)])
                if sampling:
                    (ids,) = sampling.write(writer, inputs, room, [stream])
                else:
                    (ids,) = greedy(writer, inputs, room)
                text += self.vocabulary.decode(ids)
                if len(ids) < room:  # the model ended the text
                    break
            return text

        streams = random_streams(seed, range(len(texts)))
        return [
            continue_text(list(text), stream) for text, stream in zip(texts, streams, strict=True)
        ]

    def score(self, model, texts, written):
        """Return log p (N,) of N continuations, and the number (N,) of symbols in each.

        A long text is read in windows; each after the first begins with the last `context` / 2
        known symbols, as in `write`.
        """
        log_p = np.zeros(len(texts))
        for row, (text, continuation) in enumerate(zip(texts, written, strict=True)):
            ids, known = np.array(self.vocabulary.encode([*text, *continuation])), len(text)
            while known < len(ids):
                first = self._first_seen(model, known)
                last = None if extrapolates(model) else first + self.context + 1
                window = ids[first:last]
                with inference():
                    logits = model.forward(window[None, :-1])[0]
                targets = window[known - first :]
                predicted = log_softmax(logits[-len(targets) :])
                log_p[row] += predicted[np.arange(len(targets)), targets].sum()
                known += len(targets)
            advance()
        return log_p, np.array([*map(len, written)])

    def _first_seen(self, model: Model, known: int) -> int:
        """The index of the first symbol that the model sees when `known` symbols are known."""
        is_short = known < self.context or extrapolates(model)
        return 0 if is_short else known - max(1, self.context // 2)

    def fits(self, config) -> bool:
        is_valid = self.temperature is None or is_temperature(self.temperature)
        return super().fits(config) and is_valid and are_valid(self.rules, len(self.vocabulary))

    def maps(self, model, text, written=None):
        """Return attention maps for the last `context` symbols of the text; write no symbols."""
        text = text[-self.context :]
        return text, [], self.self_attention_maps(model, text)
