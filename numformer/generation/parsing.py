"""Constituency parsing (section 6.3): a Transduction of a sentence into its tree.

A tree is written as its brackets, (S (NP XX XX )NP (VP XX )VP )S, where XX stands for a word
(Vinyals et al. 2015). So a model learns where constituents begin and end, and need not copy the
words.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from numformer.generation.beam import n_best
from numformer.generation.text_pipeline import Symbols
from numformer.generation.transduction import Transduction

WORD = "XX"
"""The symbol that stands for any word."""
ESCAPED = str.maketrans({"(": "-LRB-", ")": "-RRB-"})
"""How brackets in words are written (Penn Treebank)."""


def is_tree(symbols: Symbols, words: int) -> bool:
    """Whether the symbols form a tree with this many words.

    In a tree every bracket is closed with its own label, no pair of brackets is empty, and one pair
    encloses everything, unless the tree is a single word.
    """
    open_: list[str] = []
    count = 0
    for before, symbol in zip(("", *symbols), symbols, strict=False):
        if symbol[0] == ")":
            if before[:1] == "(" or not open_ or open_.pop() != symbol[1:]:
                return False
        elif symbol[0] == "(":
            if before and not open_:
                return False
            open_.append(symbol[1:])
        else:
            count += 1
            if not open_:
                return words == 1 == len(symbols)
    return not open_ and count == words > 0


@dataclass(frozen=True)
class Parsing(Transduction):
    """Turns the words of a sentence into its tree: brackets, with the words put back between them.

    A tree has at most n + `max_length` symbols if the longest sentence of its batch has n words
    (`max_length` is 300 in section 6.3). Beam search prefers hypotheses that are trees of the
    sentence.
    """

    def symbols(self, text: str) -> list[str]:
        return super().symbols(text.translate(ESCAPED) if isinstance(text, str) else text)

    def length_limit(self, source_length: int) -> int:
        return source_length + self.max_length

    def beam_search(self, model, source, limit, texts):
        """source (B, S) -> each row's best tree, or best hypothesis if none is a tree, as ids."""

        def fits(ids: Sequence[int], row: int) -> bool:
            return is_tree(self.target.decode(ids), len(texts[row]))

        answers = super().beam_search(model, source, limit, texts)
        if broken := [row for row, ids in enumerate(answers) if not fits(ids, row)]:
            found = n_best(model, source[broken], limit, self.beam, *self.settings)
            for row, hypotheses in zip(broken, found, strict=True):
                trees = (h.ids for h in hypotheses if fits(h.ids, row))
                answers[row] = next(trees, answers[row])
        return answers

    def decode(self, ids: Sequence[int], text: Symbols) -> list[str]:
        """Return the symbols of the ids; the next word of the text, if any, replaces each XX."""
        words = iter(text)
        symbols = self.target.decode(ids)
        return [next(words, WORD) if symbol == WORD else symbol for symbol in symbols]

    def encode(self, written: Symbols) -> list[int]:
        return self.target.encode(s if s[0] in "()" else WORD for s in written)

    def answer_symbols(self, text: str) -> list[str]:
        """Split a tree that is written as `join` writes it; each closing bracket gets its label."""
        symbols: list[str] = []
        labels: list[str] = []
        for symbol in re.findall(r"\([^\s()]*|\)|[^\s()]+", text):
            if symbol == ")":
                symbol += labels.pop() if labels else ""
            elif symbol[0] == "(":
                labels.append(symbol[1:])
            symbols.append(symbol)
        return symbols

    def join(self, symbols: Symbols) -> str:
        """Return (S (NP the dog) (VP slept)), for example: closing brackets lose their labels."""
        parts = (")" if symbol[0] == ")" else f" {symbol}" for symbol in symbols)
        return "".join(parts).removeprefix(" ")
