"""Listening: an encoder-decoder writes down what is said in a sound (Radford et al. 2023)."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer.backend import array_module, to_host
from numformer.data import Vocabulary
from numformer.data.sound import HOP, RATE, log_mel, read_wav
from numformer.errors import InputError
from numformer.generation.beam import n_best
from numformer.generation.binding import bind_model, greedy
from numformer.generation.sampling import score
from numformer.generation.text_pipeline import Symbols, TextPipeline, is_length
from numformer.layer import inference
from numformer.models import Model
from numformer.paper.masks import Places, Reach
from numformer.paper.memory import ArrayState
from numformer.plots import AttentionMaps, attention_weights
from numformer.progress import advance

TIME_STEP = 0.02
"""Seconds from one time stamp to the next."""
BATCH = 8  # sounds at once: each has as many positions as a long text


@dataclass(frozen=True)
class Listening(TextPipeline):
    """Writes down what is said in .wav files, with a SpeechTransformer.

    A "text" that the model reads is the name of a file; its symbols are frames of `bands` numbers,
    of which the model hears `frames` at a time. The decoder's prompt says the language and the task
    (Radford et al. 2023, section 2.3). The ids `unwritten` are never written, `unwritten_first` not
    at the beginning. A first time stamp is at most `latest_start` steps of TIME_STEP.
    """

    vocabulary: Vocabulary
    bands: int
    frames: int
    max_length: int
    multilingual: bool
    beam: int = 1
    unwritten: Sequence[int] = ()
    unwritten_first: Sequence[int] = ()
    latest_start: int | None = None

    @property
    def input_vocabulary(self) -> Vocabulary:
        return self.vocabulary

    def id_of(self, name: str) -> int:
        """The id of a mark, such as "transcribe". Raises InputError for an unknown mark."""
        symbol = f"<|{name}|>"
        if symbol not in self.vocabulary.symbols:
            rule = "languages and tasks are marks of the tokenizer, such as en and transcribe"
            raise InputError(rule, repr(name), "Name another one.")
        return self.vocabulary.encode([symbol])[0]

    @property
    def first_stamp(self) -> int:
        """The id of the time stamp 0.00; the later ones follow."""
        return self.id_of("notimestamps") + 1

    @property
    def languages(self) -> list[int]:
        """The ids of the languages: they are between the start and the tasks."""
        return [*range(self.id_of("startoftranscript") + 1, self.id_of("translate"))]

    def prompt(self, language: str | None, task: str, timestamps: bool) -> list[int | None]:
        """The ids after the start id; None stands for the language that the model hears."""
        spoken = None if language is None else self.id_of(language)
        stamps = [] if timestamps else [self.id_of("notimestamps")]
        return [*([spoken, self.id_of(task)] if self.multilingual else []), *stamps]

    def symbols(self, text: Any) -> Any:
        """Return at least `frames` frames of a .wav file. Raises InputError for another file."""
        samples = read_wav(text)
        silence = max(0, self.frames * HOP - len(samples))
        return list(log_mel(np.pad(samples, (0, silence)), self.bands))

    def unseen_symbols(self, symbols: Symbols) -> list[str]:
        return []

    def join_source(self, symbols: Symbols) -> str:
        return f"{len(symbols)} frames"

    def write(
        self,
        model: Model,
        texts: Sequence[Symbols],
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = False,
        beam: int | None = None,
        max_length: int | None = None,
    ) -> list[list[str]]:
        """The symbols of what is said in each sound, with `timestamps` between them if asked for.

        The `language` is a code, such as "en"; the model hears it if there is none. The `task` is
        "transcribe" or "translate" (into English). In a beam, log p is that of the symbols that may
        be written, divided by the number of symbols. A sound that is longer than what the model
        hears at a time is heard in windows (see `_windows`).
        """
        beam = self.beam if beam is None else beam
        limit = self.max_length if max_length is None else max_length

        def hear(sounds, writer: Any) -> list[list[int]]:
            most = limit
            if model.config.longest:  # the start id and the prompt have positions, too
                most = min(limit, model.config.longest - 1 - len(writer.prompt))
            if beam == 1:
                return greedy(writer, sounds, most)
            best = n_best(writer, sounds, most, 1, beam, 1.0, "length")
            return [hypothesis.ids for (hypothesis,) in best]

        def new_writer(stamped: bool) -> StampWriter:
            return StampWriter(model, self.prompt(language, task, stamped), self, stamped)

        def hear_windows(text: Symbols) -> list[str]:
            symbols = self._windows(text, hear, new_writer(True))
            return [symbol for symbol in symbols if timestamps or not _is_stamp(symbol)]

        whole: list[list[str]] = []
        for sounds in _batches([text for text in texts if len(text) == self.frames]):
            whole += map(self.decode, hear(sounds, new_writer(timestamps)))
            advance(len(sounds))
        return [hear_windows(x) if len(x) > self.frames else whole.pop(0) for x in texts]

    def _windows(self, frames: Sequence[Any], hear, writer: Any) -> list[str]:
        """The symbols of a long sound, heard in windows (Radford et al. 2023, section 3.8).

        Where a window ends amid a piece of speech, the next one begins with this piece: at the last
        time stamp that both ends a piece and is followed by the beginning of another.
        """
        written: list[str] = []
        start = 0
        while start < len(frames):
            window = frames[start : start + self.frames]
            silence = self.frames - len(window)
            (ids,) = hear(np.pad(window, ((0, silence), (0, 0)))[None], writer)
            step, stamps = len(window), [n >= self.first_stamp for n in ids]
            pairs = [n for n in range(1, len(ids)) if stamps[n - 1] and stamps[n]]
            if pairs and stamps[-2:] != [False, True]:
                ids = ids[: pairs[-1]]
                step = round((ids[-1] - self.first_stamp) * TIME_STEP * RATE / HOP)
            written += self.decode(ids, start * HOP / RATE)
            start += step
            writer.prompt = [writer.heard[0] if n is None else n for n in writer.prompt]
        advance(1)
        return written

    def decode(self, ids: Sequence[int], start: float = 0.0) -> list[str]:
        """The symbols of ids; a time stamp becomes its seconds after `start`, such as <|1.20|>."""
        first, names = self.first_stamp, self.vocabulary.decode(ids)
        return [
            f"<|{start + (n - first) * TIME_STEP:.2f}|>" if n >= first else name
            for n, name in zip(ids, names, strict=True)
        ]

    def encode(self, written: Symbols) -> list[int]:
        return [
            self.first_stamp + round(_seconds(symbol) / TIME_STEP)
            if _is_stamp(symbol)
            else self.vocabulary.encode([symbol])[0]
            for symbol in written
        ]

    def join(self, symbols: Symbols) -> str:
        parts = itertools.groupby(symbols, _is_stamp)
        texts = ("".join(part) if stamps else self.vocabulary.join(part) for stamps, part in parts)
        return "".join(texts).strip()

    def answer_symbols(self, text: str) -> list[str]:
        return self.vocabulary.split(f" {text.strip()}")

    def score(self, model, texts, written):
        """Return log p (N,) of N answers, after the prompt, and the number (N,) of symbols."""
        self._require_one_window(texts)
        writer: Any = PromptedWriter(model, self.prompt(None, "transcribe", False), self)
        ids = [[*self.encode(symbols), model.config.special.end] for symbols in written]
        parts = [
            score(writer, sounds, ids[n * BATCH : (n + 1) * BATCH])
            for n, sounds in enumerate(_batches(texts))
        ]
        return np.concatenate(parts), np.array([*map(len, ids)])

    def maps(self, model: Any, text, written=None):
        """Return no symbols, those written, and the decoder's attention to the sound.

        The prompt is that of English. The maps have a column for every fiftieth of a second.
        """
        self._require_one_window([text])
        written = self.write(model, [text])[0] if written is None else written
        prompt = self.prompt("en", "transcribe", False)
        ids = np.array([[model.config.special.start, *prompt, *self.encode(written)]])
        with inference():
            memory, sources = model.listen(np.stack(text)[None])
            places = Places.without_padding(*ids.shape)
            x = model.target.forward(ids, places)
        reaches = Reach(places, causal=True), Reach(places, sources)
        weights = attention_weights(model.decoder, x, reaches[0], memory, reaches[1])
        layers = [array[0] for name, array in weights.items() if "cross_attention" in name]
        queries = np.stack(layers)[:, :, len(prompt) : -1]  # the query that wrote each symbol
        labels = [self.join([symbol]) for symbol in written]
        return [], written, [AttentionMaps("decoder cross_attention", queries, labels, [])]

    def _require_one_window(self, texts) -> None:
        """Raise InputError for a sound that is longer than what the model hears at a time."""
        for text in texts:
            if len(text) > self.frames:
                raise InputError(
                    f"only writing hears more than {self.frames * HOP / RATE:g} seconds",
                    f"{len(text) * HOP / RATE:.1f} seconds",
                    "Cut the sound at pauses.",
                )

    def fits(self, config) -> bool:
        sizes = [getattr(config, name, None) for name in ("vocabulary", "bands", "frames")]
        fits = [len(self.vocabulary), self.bands, self.frames] == sizes
        return fits and is_length(self.max_length) and is_length(self.beam)


def _batches(texts: Sequence[Any]):
    """Yield features (B, F, M) of at most BATCH sounds at a time."""
    for start in range(0, len(texts), BATCH):
        yield np.stack(texts[start : start + BATCH])


def _is_stamp(symbol: str) -> bool:
    return re.fullmatch(r"<\|\d+\.\d\d\|>", symbol) is not None


def _seconds(symbol: str) -> float:
    return float(symbol[2:-2])


class PromptedWriter:
    """A Writer that writes after a prompt; where that is None, the most probable language."""

    def __init__(self, model: Any, prompt: Sequence[int | None], text: Listening):
        self.model, self.config = bind_model(model), model.config
        self.prompt, self.text = prompt, text

    def start(self, inputs, length: int):
        state = self.model.start(inputs, length + len(self.prompt))
        for number in self.prompt:
            logits = self.model.step(state.ids, state)
            if number is None:
                languages = self.text.languages
                logits = logits[:, languages[0] : languages[-1] + 1]
                state.ids = self.heard = languages[0] + to_host(logits.argmax(axis=-1))
            else:
                state.ids = np.full(len(state.ids), number)
        return state

    def step(self, ids, state):
        return self.model.step(ids, state)


class StampWriter(PromptedWriter):
    """A PromptedWriter that keeps to the rules of what may be written, and of time stamps."""

    def __init__(self, model: Any, prompt: Sequence[int | None], text: Listening, timestamps: bool):
        super().__init__(model, prompt, text)
        self.first = text.first_stamp if timestamps else None

    def step(self, ids, state):
        logits = super().step(ids, state)
        past = state.past.state(self, lambda past: ArrayState(ids=np.empty((len(ids), 0), int)))
        past["ids"] = np.concatenate([past["ids"], ids[:, None]], axis=-1)
        xp = array_module(logits)
        forbidden = self.forbidden(past["ids"][:, 1:], logits.shape[1])  # without the prompt
        logits = xp.where(xp.asarray(forbidden), -xp.inf, logits)
        if self.first is not None:  # a stamp, if all together are more probable than any symbol
            p = xp.exp(logits - logits.max(axis=-1, keepdims=True))
            is_stamp = p[:, self.first :].sum(axis=-1) > p[:, : self.first].max(axis=-1)
            logits[:, : self.first][is_stamp] = -xp.inf
        return logits

    def forbidden(self, written: np.ndarray, size: int) -> np.ndarray:
        """ids written so far (N, T) -> which of the `size` ids may not follow (N, size).

        Time stamps stand in pairs, at the end of a piece and at the beginning of the next; the
        first id is one, and they never decrease.
        """
        mask = np.zeros((len(written), size), bool)
        mask[:, [*self.text.unwritten]] = True
        if not written.shape[1]:
            mask[:, [*self.text.unwritten_first]] = True
        if self.first is None:
            return mask
        mask[:, self.first - 1] = True
        for row, ids in zip(mask, written.tolist(), strict=True):
            stamps = [n for n in ids if n >= self.first]
            if not ids:
                row[: self.first] = True
                if self.text.latest_start is not None:
                    row[self.first + self.text.latest_start + 1 :] = True
                continue
            last, before = ids[-1] >= self.first, len(ids) < 2 or ids[-2] >= self.first
            if last and before:  # a piece begins
                row[self.first :] = True
            elif last:  # a piece has ended
                row[: self.config.special.end] = True
            if stamps:
                row[self.first : stamps[-1] + (not last)] = True
        return mask
