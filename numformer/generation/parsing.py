"""A sentence in, its constituents out: constituency parsing as a Transduction (section 6.3).

A tree is written as the symbols of its brackets, (S (NP XX XX )NP (VP XX )VP )S, where XX stands
for a word, as Vinyals et al. 2015 have it; so a model learns where constituents begin and end, and
need not repeat the words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from numformer.generation.beam import n_best
from numformer.generation.text import Symbols
from numformer.generation.transduction import Transduction

WORD = "XX"
"""What stands for a word, whatever it is."""
ESCAPED = str.maketrans({"(": "-LRB-", ")": "-RRB-"})
"""Words have no brackets of their own (Penn Treebank)."""


def is_tree(symbols: Symbols, words: int) -> bool:
    """Whether symbols are the tree of so many words.

    Each bracket has its other one, with the same label, none is empty, and one holds all; a single
    word needs none.
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
    """From the words of a sentence to the brackets of its tree, in which the words stand again.

    `max_length` is how many symbols more than the sentence has words may be written; 300 in
    section 6.3. Sentences written together may have as many as the longest of them. Where the best
    hypothesis of a beam is no tree of the sentence, the best one that is a tree is taken.
    """

    def symbols(self, text: str) -> list[str]:
        return super().symbols(text.translate(ESCAPED) if isinstance(text, str) else text)

    def most(self, length: int) -> int:
        """How many symbols are written at most for sentences of up to so many words."""
        return length + self.max_length

    def searched(self, model, source, most, asked):
        """source ids (B, S) -> the ids of B trees, where the beam has any."""

        def fits(ids: Sequence[int], row: int) -> bool:
            return is_tree(self.target.decode(ids), len(asked[row]))

        answers = super().searched(model, source, most, asked)
        if wrong := [row for row, ids in enumerate(answers) if not fits(ids, row)]:
            how = self.beam, self.beam, self.length_penalty, self.penalty
            for row, others in zip(wrong, n_best(model, source[wrong], most, *how), strict=True):
                trees = (other.ids for other in others if fits(other.ids, row))
                answers[row] = next(trees, answers[row])
        return answers

    def decoded(self, ids: Sequence[int], asked: Symbols) -> list[str]:
        """The symbols, each XX replaced by the next word, where there is one."""
        words = iter(asked)
        symbols = self.target.decode(ids)
        return [next(words, WORD) if symbol == WORD else symbol for symbol in symbols]

    def encoded(self, written: Symbols) -> list[int]:
        return self.target.encode(s if s[0] in "()" else WORD for s in written)

    def join(self, symbols: Symbols) -> str:
        """(S (NP the dog) (VP slept)): closing symbols lose their labels."""
        parts = (")" if symbol[0] == ")" else f" {symbol}" for symbol in symbols)
        return "".join(parts).removeprefix(" ")
