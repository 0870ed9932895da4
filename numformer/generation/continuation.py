"""On from the beginning of a text: what a language model does with texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numformer.data import Vocabulary
from numformer.errors import require_positive
from numformer.generation.sampling import Sampling, random_streams
from numformer.generation.text import Symbols, Text, is_length
from numformer.models import Model
from numformer.paper.writing import greedy
from numformer.plots import AttentionMaps, attention_weights, by_kind


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
        """Each text and `length` symbols after it, fewer where the model ends.

        A text is written until there are `context` symbols, and then from the latest half of them;
        a model to which all lengths are alike (`config.unlimited`) always sees the whole text.
        With a `temperature`, `top_k` or `top_p` it is sampled, by random numbers of the seed and of
        its place among the texts.
        """
        require_positive("length", length)
        sampling = Sampling.asked(temperature, top_k, top_p)
        unlimited = getattr(model.config, "unlimited", False)

        def go_on(text: list[str], stream: np.random.Generator) -> list[str]:
            end = len(text) + length
            while len(text) < end:
                known, room = text, end - len(text)
                if not unlimited:
                    if len(text) >= self.context:
                        known = text[-max(1, self.context // 2) :]
                    room = min(max(1, self.context - len(known)), room)
                asked = np.array([self.vocabulary.encode(known)])
                if sampling:
                    (ids,) = sampling.write(model, asked, room, [stream])
                else:
                    (ids,) = greedy(model, asked, room)
                text += self.vocabulary.decode(ids)
                if len(ids) < room:  # it ended
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
