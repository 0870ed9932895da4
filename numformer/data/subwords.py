"""Subwords: frequent pieces of words as symbols (section 5.1), cut by sentencepiece."""

import base64
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np

from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, Vocabulary
from numformer.errors import InputError

KINDS = "bpe", "unigram"
SPECIAL_IDS = dict(pad_id=PADDING, bos_id=START, eos_id=END, unk_id=UNKNOWN)
SPACE = "▁"  # in a piece: the space before a word
EXACT = dict(
    add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=["\n", "\t"]
)
"""How sentencepiece leaves spaces and line ends where they are."""


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
    """Pieces of words; frequent words are one piece, others several (Sennrich et al. 2016).

    `model` is the content of a sentencepiece model file, whose first four pieces are ours: padding,
    start, end and unknown. Where it is `exact`, pieces joined are the text, with all its spaces and
    line ends; otherwise there is one space between words and none around the text.
    """

    def __init__(self, model: bytes):
        try:
            self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        except RuntimeError as problem:
            raise InputError(
                "subwords are made of a sentencepiece model", problem, "Give it the file's content."
            ) from None
        special = [getattr(self._processor, name)() for name in SPECIAL_IDS]
        if special != [*SPECIAL_IDS.values()]:
            raise InputError(
                "the model's ids 0 to 3 are padding, start, end and unknown",
                special,
                "Make it by Subwords.learned(texts, size).",
            )
        self.model = model
        self.exact = self._processor.encode(" ") != []
        ids = range(UNKNOWN + 1, self._processor.get_piece_size())
        super().__init__(map(self._processor.id_to_piece, ids), " ")

    @classmethod
    def learned(
        cls, texts: Iterable[str], size: int, kind: str = "bpe", exact: bool = False
    ) -> "Subwords":
        """The `size` subwords that fit the texts best, the four special ids among them.

        Where the texts have not so many, all that they have. `kind` is "bpe" (Sennrich et al. 2016:
        pairs of pieces that often stand together become one) or "unigram" (Kudo 2018: pieces of
        which the texts are most probable). Raises InputError where the texts have more characters.
        """
        if kind not in KINDS:
            raise InputError(f"the kind is one of {', '.join(KINDS)}", repr(kind), "Name one.")
        library, written = _sentencepiece(), io.BytesIO()
        try:
            library.SentencePieceTrainer.train(
                sentence_iterator=(unicodedata.normalize("NFC", text) for text in texts),
                model_writer=written,
                vocab_size=min(max(5, size), 10**6),  # what it takes; 5 are always too few
                hard_vocab_limit=False,
                model_type=kind,
                character_coverage=1.0,
                max_sentence_length=2**30,  # a longer one would be left out
                normalization_rule_name="identity",
                minloglevel=2,
                **SPECIAL_IDS,
                **EXACT if exact else {},
            )
        except RuntimeError as problem:
            rule, fix = "subwords are learned from texts", "Give it sentences."
            if least := re.search(r"\d+ vs (\d+)", str(problem)):
                rule = f"subwords are at least {least[1]}: these texts' characters, and 4 ids"
                raise InputError(rule, size, "Ask for more.") from None
            raise InputError(rule, f"such of which sentencepiece says: {problem}", fix) from None
        return cls(written.getvalue())

    def description(self) -> dict:
        return {"sentencepiece": base64.b64encode(self.model).decode()}

    def split(self, text: str) -> list[str]:
        """The pieces of a text, brought to NFC. Raises InputError for one that is no Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError:  # what Python made of bytes of another encoding
            fix = "Write or save it as UTF-8."
            raise InputError("a text is UTF-8", f"{text!r:.80}", fix) from None
        return self._processor.encode(unicodedata.normalize("NFC", text), out_type=str)

    def sampled(self, texts: Sequence[str], dropout: float, seed: int) -> list[list[int]]:
        """The ids of each text, cut at random: each merge of BPE is left out with a probability.

        BPE dropout (Provilkov et al. 2020): the model sees a word in many cuts, and so what its
        pieces are made of. The same seed gives the same ids in every process, which sentencepiece's
        own random numbers do not.
        """
        rng, sampled = np.random.default_rng(seed), []
        for text in (unicodedata.normalize("NFC", text) for text in texts):
            left_out = iter((rng.random(3 * len(text) + 3) < dropout).tolist())
            if self.exact:
                words = text.replace(" ", f" {SPACE}").split(" ")
            else:
                words = [SPACE + word for word in text.split(" ") if word]
            cuts = (_cut(word, self._ids, left_out) for word in words)
            sampled.append(self.encode([*chain.from_iterable(cuts)]))
        return sampled

    def join(self, symbols: Iterable[str]) -> str:
        """The text of the pieces."""
        text = "".join(symbols).replace(SPACE, " ")
        return text if self.exact else text.strip()


def _cut(word: str, ranks: Mapping[str, int], left_out: Iterator[bool]) -> list[str]:
    """A word's pieces by BPE: of the merges that make a piece, that of the lowest rank first.

    `left_out` says of each that comes to its turn whether it is left out: of n characters, up to
    n - 1 at first, and up to two more for each that is made.
    """
    ends, skipped = [*range(len(word) + 1)], set()
    while merges := [
        (ranks[word[a:c]], a, b, c)
        for a, b, c in zip(ends, ends[1:], ends[2:], strict=False)
        if word[a:c] in ranks and (a, b, c) not in skipped
    ]:
        _, *merge = min(merges)
        if next(left_out):
            skipped.add((*merge,))
        else:
            ends.remove(merge[1])
    return [word[a:b] for a, b in pairwise(ends)]
