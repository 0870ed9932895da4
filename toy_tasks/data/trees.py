"""Trees of constituents: read from brackets and written as such, and compared as evalb does."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Union

from numformer.errors import InputError
from numformer.generation.parsing import WORD, is_tree
from toy_tasks.data.datasets import read_text

DEEPEST, LONGEST = 100, 256
"""Levels and words of a tree; of the longest sentences of newspapers some 30 and some 140."""
TOP = "TOP", "ROOT", "S1", ""
"""Labels around a whole tree, which say nothing."""
EMPTY = "-NONE-"
"""The tag of what is not written: traces and left-out words."""
PUNCTUATION = ",", ".", ":", "``", "''"
"""Tags of the words that evalb leaves out (its file COLLINS.prm)."""
ALIKE = {"PRT": "ADVP"}
"""Labels that evalb takes for one (COLLINS.prm)."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituent: its label, and the constituents or words that it is made of."""

    label: str
    children: tuple[Union["Tree", str], ...]

    @property
    def is_tag(self) -> bool:
        """Whether it is one word with its part of speech."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def __str__(self) -> str:
        return f"({self.label} {' '.join(map(str, self.children))})"

    def tagged(self) -> list[tuple[str, str]]:
        """Its words, each with its part of speech, "" where the tree has none."""
        if self.is_tag:
            return [(str(self.children[0]), self.label)]
        parts = ([(c, "")] if isinstance(c, str) else c.tagged() for c in self.children)
        return [*chain.from_iterable(parts)]

    def words(self) -> list[str]:
        return [word for word, _ in self.tagged()]

    def linear(self) -> list[str]:
        """The symbols that a model writes, (S (NP XX XX )NP (VP XX )VP )S, without parts of speech.

        As in section 2.2 of Vinyals et al. 2015.
        """
        if self.is_tag and self.label not in TOP:
            return [WORD]
        parts = ([WORD] if isinstance(child, str) else child.linear() for child in self.children)
        return [f"({self.label}", *chain.from_iterable(parts), f"){self.label}"]


def of_symbols(symbols: Sequence[str], words: Sequence[str]) -> tuple[Tree, bool]:
    """The tree that a model wrote for some words, and whether it was well formed.

    It is where each bracket has its other one, with the same label, one constituent holds all, none
    is empty, and there are as many words as were given. What is not is repaired: closing brackets
    that close nothing, constituents without words, those below DEEPEST levels and words too many
    are left out, what is open at the end is closed, words that are missing stand at the end of the
    whole. Each word has the tag XX.
    """
    left = [Tree(WORD, (word,)) for word in reversed(words)]
    open_: list[tuple[str, list[Tree]]] = [("", [])]
    well_formed = is_tree(symbols, len(words))

    def close() -> None:
        label, children = open_.pop()
        if children:
            open_[-1][1].append(Tree(label, (*children,)))

    for symbol in symbols:
        if symbol[0] == "(" and len(open_) <= DEEPEST:
            open_.append((symbol[1:], []))
        elif symbol[0] == "(":
            well_formed = False
        elif symbol[0] == ")" and len(open_) > 1:
            close()
        elif symbol[0] != ")" and left:
            open_[-1][1].append(left.pop())
    while len(open_) > 1:
        close()
    ((_, parts),) = open_
    alone = len(parts) == 1 and not left
    return parts[0] if alone else Tree("TOP", (*parts, *reversed(left))), well_formed


def brackets(tree: Tree, left_out: Collection[int] = ()) -> Counter[tuple[str, int, int]]:
    """The constituents that evalb compares, each as its label, its first word and its end.

    Neither tags nor the top are among them; the words at the places `left_out` do not count.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    count = place = 0

    def walk(part: Tree | str) -> None:
        nonlocal count, place
        if isinstance(part, str) or (part.is_tag and part.label not in TOP):
            count += place not in left_out
            place += 1
            return
        start = count
        for child in part.children:
            walk(child)
        if part.label not in TOP and count > start:
            found[ALIKE.get(part.label, part.label), start, count] += 1

    walk(tree)
    return found


def evalb(written: Sequence[tuple[Tree, bool]], gold: Sequence[Tree]) -> dict[str, float]:
    """How good trees are, each with whether it was well formed, beside the right ones, in percent.

    As evalb does it, precision, recall and F1 = 2 P R / (P + R) are of all sentences' brackets
    together; exact are the trees without any wrong or missing bracket.
    """
    right = ours_in_all = theirs_in_all = exact = 0
    for (tree, _), wanted in zip(written, gold, strict=True):
        left_out = {i for i, (_, tag) in enumerate(wanted.tagged()) if tag in PUNCTUATION}
        ours, theirs = brackets(tree, left_out), brackets(wanted, left_out)
        right += (ours & theirs).total()
        ours_in_all += ours.total()
        theirs_in_all += theirs.total()
        exact += ours == theirs
    shares = {
        "f1": (2 * right, ours_in_all + theirs_in_all),
        "precision": (right, ours_in_all),
        "recall": (right, theirs_in_all),
        "exact": (exact, len(gold)),
        "well_formed": (sum(well_formed for _, well_formed in written), len(gold)),
    }
    return {name: 100 * part / max(1, whole) for name, (part, whole) in shares.items()}


def read_trees(path: Path) -> list[Tree]:
    """The trees of a file in the Penn Treebank's format, without what is not written.

    Functions and indices are taken off labels (NP-SBJ-1 is NP). Raises InputError, with the line,
    for brackets that do not fit together, a word outside of all, and trees too deep or too long.
    """
    fix = "Give trees as in the Penn Treebank: ( (S (NP (PRP he)) (VP (VBD slept))) )"
    trees: list[Tree] = []
    open_: list[tuple[str, list[Tree | str]]] = []
    text, line, counted = read_text(path, fix), 1, 0
    for match in re.finditer(r"\(\s*([^\s()]*)|\)|[^\s()]+", text):
        symbol = match[0]
        line += text.count("\n", counted, match.start())
        counted = match.start()
        where = f"{path}, line {line}"
        if symbol[0] == "(":
            open_.append((match[1], []))
            if len(open_) > DEEPEST:
                raise InputError(f"{where}: a tree has at most {DEEPEST} levels", "more", fix)
        elif not open_:
            raise InputError(f"{where}: all stands in brackets", f"{symbol:.40}", fix)
        elif symbol != ")":
            open_[-1][1].append(symbol)
        else:
            label, children = open_.pop()
            if not children:
                raise InputError(f"{where}: a constituent holds something", f"({label:.40})", fix)
            if open_:
                open_[-1][1].append(Tree(label, (*children,)))
            elif tree := plain(Tree(label, (*children,))):
                if len(tree.words()) > LONGEST:
                    rule, received = f"a tree has at most {LONGEST} words", len(tree.words())
                    raise InputError(f"{where}: {rule}", received, fix)
                trees.append(tree)
    if open_:
        rule = f"{path}: every bracket is closed"
        raise InputError(rule, f"{len(open_)} open at the end", fix)
    return trees


def plain(tree: Tree) -> Tree | None:
    """A tree of the treebank without functions, indices, traces and an outer bracket around it.

    None where nothing is left.
    """
    if tree.label == EMPTY:
        return None
    parts = [child if isinstance(child, str) else plain(child) for child in tree.children]
    kept = tuple(part for part in parts if part is not None)
    if not kept:
        return None
    if tree.label in TOP and len(kept) == 1 and isinstance(kept[0], Tree):
        return kept[0]
    # A label such as -LRB- begins with what separates functions in others.
    label = tree.label if tree.label[:1] == "-" else re.split(r"[-=|]", tree.label)[0]
    return Tree(label or "TOP", kept)
