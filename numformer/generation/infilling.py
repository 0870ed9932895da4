"""Infilling: a masked language model fills the holes in texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numformer.data import Vocabulary
from numformer.generation.sampling import log_probabilities
from numformer.generation.text_pipeline import OneVocabulary, Symbols
from numformer.layer import inference
from numformer.models import Model
from numformer.symbols import special_ids


@dataclass(frozen=True)
class Infilling(OneVocabulary):
    """Fills the holes in a text with a masked language model.

    The symbol `hole` marks a missing symbol; the model was trained on `context` symbols at a time.
    """

    vocabulary: Vocabulary
    hole: str
    context: int

    def notes(self, symbols: Symbols) -> list[str]:
        no_hole = [] if self.hole in symbols else [f"there is no {self.hole!r} to fill"]
        return super().notes(symbols) + no_hole

    def write(self, model: Model, texts: Sequence[Symbols]) -> list[list[str]]:
        """Return each text with a symbol in place of every hole."""
        return [self._fill(model, list(text)) for text in texts]

    def _fill(self, model: Model, text: list[str]) -> list[str]:
        """Fill the quarter of the holes that the model is surest of; repeat until none is left."""
        while holes := [place for place, symbol in enumerate(text) if symbol == self.hole]:
            log_p = self._log_probabilities(model, text, holes)
            surest = np.argsort(-log_p.max(axis=-1))[: -(-len(holes) // 4)]
            symbols = self.vocabulary.decode(log_p.argmax(axis=-1))
            for hole in surest:
                text[holes[hole]] = symbols[hole]
        return text

    def _log_probabilities(self, model: Model, text: Symbols, holes: list[int]) -> np.ndarray:
        """holes (N,) -> log p (N, V) of all symbols at each hole, given the text around it."""
        ids, parts = np.array(self.vocabulary.encode(text)), []
        width = min(self.context, len(ids))
        for chunk in np.split(holes, range(256, len(holes), 256)):
            starts = np.clip(chunk - width // 2, 0, len(ids) - width)
            distinct, window = np.unique(starts, return_inverse=True)
            windows = ids[distinct[:, None] + np.arange(width)]
            with inference():
                logits = model.forward(windows, window * width + chunk - starts)
            parts.append(log_probabilities(logits, special_ids(model)))
        log_p = np.concatenate(parts)
        log_p[:, self.vocabulary.encode([self.hole])] = -np.inf
        log_p[:, special_ids(model).ends] = -np.inf
        return log_p

    def maps(self, model, text, written=None):
        """Return attention maps for up to `context` symbols of the text, around its first hole."""
        first = text.index(self.hole) if self.hole in text else 0
        start = max(0, min(first - self.context // 2, len(text) - self.context))
        text = text[start : start + self.context]
        if written is None:
            (written,) = self.write(model, [text])
        return text, written, self.self_attention_maps(model, text)

    def fits(self, config) -> bool:
        return super().fits(config) and self.hole in self.vocabulary.symbols
