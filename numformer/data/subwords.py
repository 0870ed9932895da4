"""Subwords: frequent pieces of words, found by sentencepiece, as symbols (section 5.1)."""

import base64
import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np

from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, Vocabulary
from numformer.errors import InputError

KINDS = "bpe", "unigram"
SPECIAL_IDS = dict(pad_id=PADDING, bos_id=START, eos_id=END, unk_id=UNKNOWN)
SPACE = "▁"  # marks the space before a word in a piece
EXACT = dict(
    add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=["\n", "\t"]
)
"""Settings with which sentencepiece keeps spaces and line ends unchanged."""


def _sentencepiece():
    try:
        import sentencepiece
    except ImportError:
        raise InputError(
            "subwords need the library sentencepiece",
            "an installation without it",
            "Install the extra: pip install 'numformer[translate]'",
        ) from None
    return sentencepiece


class Subwords(Vocabulary):
    """Pieces of words: a frequent word is one piece, a rarer word several (Sennrich et al. 2016).

    `model` is the content of a sentencepiece model file whose first four pieces are padding, start,
    end and unknown. If the model is `exact`, joining the pieces restores all spaces and line ends
    of the text; otherwise the result has one space between words and none at its ends.
    """

    def __init__(self, model: bytes):
        try:
            self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        except RuntimeError as problem:
            raise InputError(
                "subwords need a sentencepiece model", problem, "Pass the content of its file."
            ) from None
        special = [getattr(self._processor, name)() for name in SPECIAL_IDS]
        if special != [*SPECIAL_IDS.values()]:
            raise InputError(
                "the model's ids 0 to 3 are padding, start, end and unknown",
                special,
                "Train it by Subwords.train(texts, size).",
            )
        self.model = model
        self.exact = self._processor.encode(" ") != []
        ids = range(UNKNOWN + 1, self._processor.get_piece_size())
        super().__init__(map(self._processor.id_to_piece, ids), " ")

    @classmethod
    def learned(cls, *args, **settings) -> "Subwords":
        """The former name of `train`."""
        warnings.warn("Subwords.learned is now Subwords.train", DeprecationWarning, stacklevel=2)
        return cls.train(*args, **settings)

    @classmethod
    def train(
        cls, texts: Iterable[str], size: int, kind: str = "bpe", exact: bool = False
    ) -> "Subwords":
        """Learn `size` subwords from texts, including the four special ids; short texts give fewer.

        `kind` is "bpe" (Sennrich et al. 2016: frequent pairs of pieces are merged) or "unigram"
        (Kudo 2018: the pieces that make the texts most probable). Raises InputError if `size` is
        less than the number of distinct characters plus special ids.
        """
        if kind not in KINDS:
            raise InputError(f"the kind is one of {', '.join(KINDS)}", repr(kind), "Name one.")
        library, model = _sentencepiece(), io.BytesIO()
        try:
            library.SentencePieceTrainer.train(
                sentence_iterator=(unicodedata.normalize("NFC", text) for text in texts),
                model_writer=model,
                vocab_size=min(max(5, size), 10**6),  # within sentencepiece's limits; 5 still fails
                hard_vocab_limit=False,
                model_type=kind,
                character_coverage=1.0,
                max_sentence_length=2**30,  # sentencepiece skips longer sentences
                normalization_rule_name="identity",
                minloglevel=2,
                **SPECIAL_IDS,
                **EXACT if exact else {},
            )
        except RuntimeError as problem:
            rule, fix = "subwords are learned from texts", "Pass sentences."
            if least := re.search(r"\d+ vs (\d+)", str(problem)):
                rule = f"subwords are at least {least[1]}: the texts' characters and 4 special ids"
                raise InputError(rule, size, "Choose a larger size.") from None
            raise InputError(rule, f"texts that sentencepiece refuses: {problem}", fix) from None
        return cls(model.getvalue())

    def description(self) -> dict:
        return {"sentencepiece": base64.b64encode(self.model).decode()}

    def split(self, text: str) -> list[str]:
        """Return a text's pieces after normalization NFC. Raises InputError for invalid Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError:  # the text was read from bytes in another encoding
            fix = "Write or save it as UTF-8."
            raise InputError("a text is UTF-8", f"{text!r:.80}", fix) from None
        return self._processor.encode(unicodedata.normalize("NFC", text), out_type=str)

    def encode_with_dropout(
        self, texts: Sequence[str], dropout: float, seed: int
    ) -> list[list[int]]:
        """Return each text's ids by BPE dropout: each merge is skipped with probability `dropout`.

        The model sees a word in several segmentations, and so learns how pieces are composed
        (Provilkov et al. 2020). The same seed gives the same ids in every process, which
        sentencepiece's own dropout does not ensure.
        """
        rng, ids = np.random.default_rng(seed), []
        for text in (unicodedata.normalize("NFC", text) for text in texts):
            skips = iter((rng.random(3 * len(text) + 3) < dropout).tolist())
            if self.exact:
                words = text.replace(" ", f" {SPACE}").split(" ")
            else:
                words = [SPACE + word for word in text.split(" ") if word]
            pieces = (_segment(word, self._ids, skips) for word in words)
            ids.append(self.encode([*chain.from_iterable(pieces)]))
        return ids

    def join(self, symbols: Iterable[str]) -> str:
        """Join pieces into a text."""
        text = "".join(symbols).replace(SPACE, " ")
        return text if self.exact else text.strip()


def _segment(word: str, ranks: Mapping[str, int], skips: Iterator[bool]) -> list[str]:
    """Return the pieces of a word by BPE, which always makes the possible merge of lowest rank.

    `skips` says for each merge in turn whether to skip it. A word of n characters has at most n - 1
    possible merges at first, and each merge that is made adds at most two.
    """
    ends, skipped = [*range(len(word) + 1)], set()
    while merges := [
        (ranks[word[a:c]], a, b, c)
        for a, b, c in zip(ends, ends[1:], ends[2:], strict=False)
        if word[a:c] in ranks and (a, b, c) not in skipped
    ]:
        _, *merge = min(merges)
        if next(skips):
            skipped.add((*merge,))
        else:
            ends.remove(merge[1])
    return [word[a:b] for a, b in pairwise(ends)]
