"""Infilling: a masked language model fills the holes in texts."""

from collections.abc import Sequence
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
            log_p = self._log_softmax(model, text, holes)
            special = special_ids(model)
            hole_ids = self.vocabulary.encode([self.hole])
            log_p[:, [*special.unwritten, *special.ends, *hole_ids]] = -np.inf
            surest = np.argsort(-log_p.max(axis=-1))[: -(-len(holes) // 4)]
            symbols = self.vocabulary.decode(log_p.argmax(axis=-1))
            for hole in surest:
                text[holes[hole]] = symbols[hole]
        advance()
        return text

    def _log_softmax(self, model: Model, text: Symbols, holes: list[int]) -> np.ndarray:
        """holes (N,) -> log p (N, V) of all ids at each hole, given the text around it."""
        ids, parts = np.array(self.vocabulary.encode(text)), []
        width = min(self.context, len(ids))
        for chunk in np.split(holes, range(256, len(holes), 256)):
            starts = np.clip(chunk - width // 2, 0, len(ids) - width)
            distinct, window = np.unique(starts, return_inverse=True)
            windows = ids[distinct[:, None] + np.arange(width)]
            with inference():
                places, valid = window * width + chunk - starts, np.ones(windows.shape, bool)
                logits = model.forward(windows, places, valid=valid)
            parts.append(log_softmax(logits))
        return np.concatenate(parts)

    def score(self, model, texts, written):
        """Return log p (N,) and number (N,) of the symbols in the holes of each text.

        Each symbol is predicted while all the holes are empty.
        """
        log_p, counts = np.zeros(len(texts)), np.zeros(len(texts), int)
        for row, (text, answer) in enumerate(zip(texts, written, strict=True)):
            holes = self._holes(text, answer)
            ids = self.vocabulary.encode(answer[hole] for hole in holes)
            predicted = self._log_softmax(model, text, holes)
            log_p[row], counts[row] = predicted[np.arange(len(holes)), ids].sum(), len(holes)
            advance()
        return log_p, counts

    def measures(self, texts, answers, right):
        """Return the share of holes with the right symbol."""
        rows = [*zip(map(self._holes, texts, right), answers, right, strict=True)]
        found = [sum(answer[n] == solution[n] for n in holes) for holes, answer, solution in rows]
        return {"accuracy": Measure.ratio(found, [len(holes) for holes, *_ in rows])}

    def _holes(self, text: Symbols, answer: Symbols) -> list[int]:
        """The places of the holes. Raises InputError unless `answer` fills them."""
        holes = [place for place, symbol in enumerate(text) if symbol == self.hole]
        filled = list(text)
        if len(answer) == len(text):
            for hole in holes:
                filled[hole] = answer[hole]
        if not holes or filled != list(answer):
            raise InputError(
                f"an answer is the text with a symbol for each hole {self.hole!r}",
                f"{self.join(answer)!r:.60} for {self.join(text)!r:.60}",
                "Pass the text with holes, then the whole text.",
            )
        return holes

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
