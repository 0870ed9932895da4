"""The vocabularies of published models: their own tokenizers, by the libraries that read them."""

import base64
import importlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from numformer.data.vocabulary import Vocabulary
from numformer.errors import InputError


class PublishedVocabulary(Vocabulary):
    """Symbols with the ids that a published model has for them: `names` by id, where there is one.

    `size` is that of the model, which may have ids without a symbol. `unknown` is the id of what is
    none, or None.
    """

    def __init__(self, names: dict[int, str], size: int, unknown: int | None):
        missing = (f"<{n}>" for n in range(size))
        self.symbols = [names.get(n, name) for n, name in enumerate(missing)]
        self.separator = ""
        self._ids = {name: n for n, name in enumerate(self.symbols)}
        self.unknown = unknown

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, sequence: Iterable[str]) -> list[int]:
        """The ids of the symbols. Raises InputError for one that is none, if none is for those."""
        ids = [self._ids.get(symbol, self.unknown) for symbol in sequence]
        if None in ids:
            rule = "symbols are those of the model's tokenizer"
            raise InputError(rule, "others", "Take what `split` gives of a text.")
        return ids  # type: ignore[return-value]

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.symbols[n] for n in ids]


class Tokenizer(PublishedVocabulary):
    """What a tokenizer.json describes, of any kind.

    `whole` says whether a text gets the marks around it that the tokenizer knows, such as [CLS].
    """

    def __init__(self, content: str, size: int, whole: bool):
        self.content, self.whole = content, whole
        try:
            self._tokenizer = library("tokenizers").Tokenizer.from_str(content)
        except InputError:
            raise
        except Exception as problem:  # the library raises no narrower one
            rule = "a tokenizer.json describes a tokenizer"
            raise InputError(rule, problem, "Download it again.") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        names = {n: name for name, n in self._tokenizer.get_vocab().items()}
        if max(names, default=0) >= size:
            rule, fix = "a model has an embedding for each symbol", "Take the files of one model."
            raise InputError(rule, f"{max(names) + 1} symbols, {size} embeddings", fix)
        told = json.loads(content)["model"]  # Unigram names an id, others a symbol
        mark = told.get("unk_token")
        unknown = told.get("unk_id", mark and self._tokenizer.token_to_id(mark))
        super().__init__(names, size, unknown)

    @property
    def model(self) -> bytes:
        """What cuts texts, as its file holds it."""
        return self.content.encode()

    def description(self) -> dict:
        return {"tokenizer": self.content, "size": len(self), "whole": self.whole}

    def split(self, text: str) -> list[str]:
        return self._tokenizer.encode(text, add_special_tokens=self.whole).tokens

    def join(self, symbols: Iterable[str]) -> str:
        return self._tokenizer.decode(self.encode(symbols))


class Pieces(PublishedVocabulary):
    """Marian's: a sentencepiece model cuts texts, and another file has the ids of the pieces."""

    LANGUAGE = re.compile(r"\s*(>>\w+<<)\s*")  # before a text: which language is asked for

    def __init__(self, model: bytes, ids: dict[str, int], size: int, unknown: str = "<unk>"):
        self.model, self.ids, self.mark = model, ids, unknown
        try:
            made = library("sentencepiece").SentencePieceProcessor
            self._processor = made(model_proto=model)
        except RuntimeError as problem:
            rule = "source.spm and target.spm are sentencepiece models"
            raise InputError(rule, problem, "Download them again.") from None
        if not all(type(n) is int and 0 <= n < size for n in ids.values()):
            rule = "vocab.json has an id of the model for each piece"
            raise InputError(rule, "another", "Take the files of one model.")
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
        return self._processor.decode([*symbols])


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"the texts of this published model need the library {name}",
            "an installation without it",
            "Install the extra: pip install 'numformer[published]'",
        ) from None


def vocabulary_of(described: dict) -> PublishedVocabulary | None:
    """The same again that `description` described; None where that is something else."""
    if "tokenizer" in described:
        return Tokenizer(described["tokenizer"], described["size"], described["whole"])
    if "pieces" in described:
        model = base64.b64decode(described["pieces"])
        return Pieces(model, described["ids"], described["size"], described["mark"])
    return None
