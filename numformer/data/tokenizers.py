"""Vocabularies of published models, whose tokenizers run in the libraries made for them."""

import base64
import importlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from numformer.data.subwords import SPACE
from numformer.data.vocabulary import Vocabulary
from numformer.errors import InputError


class PublishedVocabulary(Vocabulary):
    """The symbols of a published model, with its ids for them; `names` maps ids to symbols.

    `size` is the size of the model's vocabulary; some ids may have no symbol. `unknown` is the id
    for anything that is not a symbol, or None.
    """

    def __init__(self, names: dict[int, str], size: int, unknown: int | None):
        self.symbols = [names.get(n, f"<{n}>") for n in range(size)]
        self.separator = ""
        self._ids = {name: n for n, name in enumerate(self.symbols)}
        self.unknown = unknown

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, sequence: Iterable[str]) -> list[int]:
        """Return the ids of symbols; raises InputError for an unknown one if `unknown` is None."""
        ids = [self._ids.get(symbol, self.unknown) for symbol in sequence]
        if None in ids:
            rule = "symbols belong to the model's tokenizer"
            raise InputError(rule, "others", "Pass the symbols that `split` returns for a text.")
        return ids  # type: ignore[return-value]

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.symbols[n] for n in ids]


class Tokenizer(PublishedVocabulary):
    """The vocabulary of a tokenizer.json of any kind.

    `marked` says whether `split` adds the tokenizer's marks, such as [CLS], around a text; with
    "before", it adds those that come before a text.
    """

    def __init__(self, content: str, size: int, marked: bool | str):
        self.content, self.marked = content, marked
        try:
            self._tokenizer = library("tokenizers").Tokenizer.from_str(content)
        except InputError:
            raise
        except Exception as problem:  # the library has no more specific exception
            rule = "a tokenizer.json describes a tokenizer"
            raise InputError(rule, problem, "Download it again.") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        names = {n: name for name, n in self._tokenizer.get_vocab().items()}
        if max(names, default=0) >= size:
            rule, fix = "a model has an embedding for each symbol", "Take all files from one model."
            raise InputError(rule, f"{max(names) + 1} symbols, {size} embeddings", fix)
        model = json.loads(content)["model"]
        mark = model.get("unk_token")  # a model of type "Unigram" has "unk_id" instead
        unknown = model.get("unk_id", mark and self._tokenizer.token_to_id(mark))
        super().__init__(names, size, unknown)

    @property
    def model(self) -> bytes:
        """The content of the tokenizer's file."""
        return self.content.encode()

    def description(self) -> dict:
        return {"tokenizer": self.content, "size": len(self), "whole": self.marked}

    def split(self, text: str) -> list[str]:
        encoding = self._tokenizer.encode(text, add_special_tokens=bool(self.marked))
        tokens, marks = encoding.tokens, encoding.special_tokens_mask
        while self.marked == "before" and marks and marks.pop():
            tokens.pop()
        return tokens

    @property
    def closing(self) -> list[str]:
        """The marks after a text that `split` leaves out."""
        return self._tokenizer.encode("a").tokens[len(self.split("a")) :]

    def shorten(self, text: str, longest: int) -> list[str]:
        """Return the first symbols of a text, at most `longest`, the marks among them."""
        marks = self._tokenizer.num_special_tokens_to_add(False) * bool(self.marked)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(max(0, longest - marks))
        return self._tokenizer.post_process(encoding, add_special_tokens=bool(self.marked)).tokens

    def join(self, symbols: Iterable[str]) -> str:
        return self._tokenizer.decode(self.encode(symbols))


class MarianVocabulary(PublishedVocabulary):
    """Marian's vocabulary: a sentencepiece model splits texts, and `ids` maps pieces to ids."""

    LANGUAGE = re.compile(r"\s*(>>\w+<<)\s*")  # a target language's mark, before a text

    def __init__(self, model: bytes, ids: dict[str, int], size: int, unknown: str = "<unk>"):
        self.model, self.ids, self.mark = model, ids, unknown
        try:
            self._processor = library("sentencepiece").SentencePieceProcessor(model_proto=model)
        except RuntimeError as problem:
            rule = "source.spm and target.spm are sentencepiece models"
            raise InputError(rule, problem, "Download them again.") from None
        if not all(type(n) is int and 0 <= n < size for n in ids.values()):
            rule = "every id in vocab.json is an id of the model"
            raise InputError(rule, "an invalid id", "Take all files from one model.")
        super().__init__({n: name for name, n in ids.items()}, size, ids.get(unknown))

    def description(self) -> dict:
        model = base64.b64encode(self.model).decode()
        return {"pieces": model, "ids": self.ids, "size": len(self), "mark": self.mark}

    def split(self, text: str) -> list[str]:
        language = self.LANGUAGE.match(text)
        if language and language[1] in self.ids:
            return [language[1], *self.split(text[language.end() :])]
        return self._processor.encode(text, out_type=str)

    def join(self, symbols: Iterable[str]) -> str:
        """Join pieces into a text, without the mark for unknown pieces."""
        text = self._processor.decode([symbol for symbol in symbols if symbol != self.mark])
        return text.replace(SPACE, " ").strip()  # decode leaves SPACE in the other side's pieces


def library(name: str) -> Any:
    """Import a library. Raises InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"the tokenizer of this published model needs the library {name}",
            "an installation without it",
            "Install the extra: pip install 'numformer[published]'",
        ) from None


def published_vocabulary(description: dict) -> PublishedVocabulary | None:
    """Return the vocabulary that is described; None if it is not that of a published model."""
    if "tokenizer" in description:
        return Tokenizer(description["tokenizer"], description["size"], description["whole"])
    if "pieces" in description:
        model = base64.b64decode(description["pieces"])
        return MarianVocabulary(model, description["ids"], description["size"], description["mark"])
    return None
