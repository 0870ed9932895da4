"""Subwords: frequent pieces of words as symbols (section 5.1), cut by sentencepiece."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np

from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, Vocabulary
from numformer.errors import InputError

KINDS = "bpe", "unigram"
SPECIAL_IDS = dict(pad_id=PADDING, bos_id=START, eos_id=END, unk_id=UNKNOWN)
SPACE = "▁"  # in a piece: the space before a word


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
    start, end and unknown.
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
        ids = range(UNKNOWN + 1, self._processor.get_piece_size())
        super().__init__(map(self._processor.id_to_piece, ids), " ")

    @classmethod
    def learned(cls, texts: Iterable[str], size: int, kind: str = "bpe") -> "Subwords":
        """The `size` subwords that fit the texts best, the four special ids among them.

        `kind` is "bpe" (Sennrich et al. 2016: pairs of pieces that often stand together become one)
        or "unigram" (Kudo 2018: pieces of which the texts are most probable). Raises InputError
        where the texts have not so many pieces, or more characters.
        """
        if kind not in KINDS:
            raise InputError(f"the kind is one of {', '.join(KINDS)}", repr(kind), "Name one.")
        library, written = _sentencepiece(), io.BytesIO()
        try:
            library.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=written,
                vocab_size=size,
                model_type=kind,
                character_coverage=1.0,
                normalization_rule_name="identity",
                minloglevel=2,
                **SPECIAL_IDS,
            )
        except RuntimeError as problem:
            said = str(problem).rpartition("] ")[2].rstrip(".")  # before it stands its source file
            raise InputError(
                "a number of subwords suits the texts",
                f"{size}, of which sentencepiece says: {said}",
                "Ask for another number, or give more text.",
            ) from None
        return cls(written.getvalue())

    def description(self) -> dict:
        return {"sentencepiece": base64.b64encode(self.model).decode()}

    def split(self, text: str) -> list[str]:
        """The pieces of a text. Raises InputError for one that is no Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError:  # what Python made of bytes of another encoding
            fix = "Write or save it as UTF-8."
            raise InputError("a text is UTF-8", f"{text!r:.80}", fix) from None
        return self._processor.encode(text, out_type=str)

    def sampled(self, texts: Sequence[str], dropout: float, seed: int) -> list[list[int]]:
        """The ids of each text, cut at random: each merge of BPE is left out with a probability.

        BPE dropout (Provilkov et al. 2020): the model sees a word in many cuts, and so what its
        pieces are made of. The same seed gives the same ids in every process, which sentencepiece's
        own random numbers do not.
        """
        rng, sampled = np.random.default_rng(seed), []
        for text in texts:
            left_out = iter((rng.random(3 * len(text) + 3) < dropout).tolist())
            cuts = (_cut(SPACE + word, self._ids, left_out) for word in text.split(" ") if word)
            sampled.append(self.encode([*chain.from_iterable(cuts)]))
        return sampled

    def join(self, symbols: Iterable[str]) -> str:
        """The text of the pieces."""
        return "".join(symbols).replace(SPACE, " ").strip()


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
