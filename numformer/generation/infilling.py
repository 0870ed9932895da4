"""Into the holes of a text: what a masked language model does with texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numformer.data import Vocabulary
from numformer.generation.sampling import log_probabilities
from numformer.generation.text import Symbols, Text, is_length
from numformer.layer import inference
from numformer.models import Model
from numformer.plots import AttentionMaps, attention_weights, by_kind
from numformer.symbols import special_ids


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
        ids, parts = np.array(self.vocabulary.encode(text)), []
        width = min(self.context, len(ids))
        for some in np.split(holes, range(256, len(holes), 256)):
            starts = np.clip(some - width // 2, 0, len(ids) - width)
            distinct, window = np.unique(starts, return_inverse=True)
            windows = ids[distinct[:, None] + np.arange(width)]
            with inference():
                logits = model.forward(windows, window * width + some - starts)
            parts.append(log_probabilities(logits, special_ids(model)))
        log_p = np.concatenate(parts)
        log_p[:, self.vocabulary.encode([self.hole])] = -np.inf
        log_p[:, special_ids(model).ends] = -np.inf
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
