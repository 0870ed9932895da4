"""Syntax trees: constituents and words, written as symbols or read from treebank files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Union

from numformer.errors import InputError
from numformer.generation.parsing import WORD, is_tree
from toy_tasks.data.text_files import read_text

MAX_DEPTH, MAX_WORDS = 100, 256
"""Limits for a tree. The longest sentences in newspapers have about 30 levels and 140 words."""
TOP = "TOP", "ROOT", "S1", ""
"""Labels of the node that some treebanks put around the tree of a sentence."""
LABEL_WITH_SPACE = re.compile(r"[^-].*[-=|] .+|.+ (-[A-Z]{3}([-=]\w+)*|[=|]\w+)", re.ASCII)
"""A label with a space in it, as in (NP -SBJ (PRP he)) and (NP- SBJ (PRP he))."""
EMPTY = "-NONE-"
"""The tag of tokens that are not words of the sentence, such as traces."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituent: its label and its children, which are constituents or words."""

    label: str
    children: tuple[Union["Tree", str], ...]

    @property
    def is_tag(self) -> bool:
        """Whether this is the part of speech of a single word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def __str__(self) -> str:
        return f"({self.label} {' '.join(map(str, self.children))})"

    def tagged_words(self) -> list[tuple[str, str]]:
        """(word, part of speech) for each word; "" if the tree has no part of speech."""
        if self.is_tag:
            return [(str(self.children[0]), self.label)]
        parts = ([(c, "")] if isinstance(c, str) else c.tagged_words() for c in self.children)
        return [*chain.from_iterable(parts)]

    def words(self) -> list[str]:
        """The words of the sentence, from left to right."""
        return [word for word, _ in self.tagged_words()]

    def to_symbols(self) -> list[str]:
        """The symbols that a model writes, without words and parts of speech.

        (S (NP XX XX )NP (VP XX )VP )S, as in section 2.2 of Vinyals et al. 2015.
        """
        if self.is_tag and self.label not in TOP:
            return [WORD]
        parts = ([WORD] if isinstance(c, str) else c.to_symbols() for c in self.children)
        return [f"({self.label}", *chain.from_iterable(parts), f"){self.label}"]


def tree_from_symbols(symbols: Sequence[str], words: Sequence[str]) -> tuple[Tree, bool]:
    """The tree that a model wrote for a sentence, and whether its symbols were well formed.

    They are well formed if every bracket has a partner with the same label, one constituent holds
    everything, no constituent is empty, and there are as many XX as words. Otherwise they are
    repaired: closing brackets without a partner, constituents without words or below level
    MAX_DEPTH, and surplus words are dropped. Constituents that are open at the end are closed, and
    missing words are appended to the tree. Each word gets the tag XX.
    """
    remaining = [Tree(WORD, (word,)) for word in reversed(words)]
    open_: list[tuple[str, list[Tree]]] = [("", [])]
    well_formed = is_tree(symbols, len(words))

    def close() -> None:
        label, children = open_.pop()
        if children:
            open_[-1][1].append(Tree(label, (*children,)))

    for symbol in symbols:
        if symbol[0] == "(" and len(open_) <= MAX_DEPTH:
            open_.append((symbol[1:], []))
        elif symbol[0] == "(":
            well_formed = False
        elif symbol[0] == ")" and len(open_) > 1:
            close()
        elif symbol[0] != ")" and remaining:
            open_[-1][1].append(remaining.pop())
    while len(open_) > 1:
        close()
    ((_, trees),) = open_
    complete = len(trees) == 1 and not remaining
    return trees[0] if complete else Tree("TOP", (*trees, *reversed(remaining))), well_formed


def read_trees(path: Path) -> list[Tree]:
    """Read the trees of a file in the format of the Penn Treebank, simplified by `simplify`.

    Raises InputError, with the line, for brackets without a partner, words outside of brackets,
    empty constituents, labels with a space, and trees that are too deep or too long.
    """
    fix = "Give trees as in the Penn Treebank: ( (S (NP (PRP he)) (VP (VBD slept))) )"
    trees: list[Tree] = []
    open_: list[tuple[str, list[Tree | str]]] = []
    text, line, last_offset = read_text(path, fix), 1, 0
    for match in re.finditer(r"\(\s*([^\s()]*)|\)|[^\s()]+", text, re.ASCII):
        symbol = match[0]
        line += text.count("\n", last_offset, match.start())
        last_offset = match.start()
        where = f"{path}, line {line}"
        if symbol[0] == "(":
            open_.append((match[1], []))
            if len(open_) > MAX_DEPTH:
                raise InputError(f"{where}: a tree has at most {MAX_DEPTH} levels", len(open_), fix)
        elif not open_:
            raise InputError(f"{where}: every word is in brackets", f"{symbol:.40}", fix)
        elif symbol != ")":
            open_[-1][1].append(symbol)
        else:
            label, children = open_.pop()
            if not children:
                raise InputError(f"{where}: a constituent has children", f"({label:.40})", fix)
            start = f"{label} {children[0]}"
            if (
                len(children) > 1
                and isinstance(children[0], str)
                and LABEL_WITH_SPACE.fullmatch(start)
            ):
                rule, fix = "a label has no space in it", f"Write ({start.replace(' ', ''):.40}."
                raise InputError(f"{where}: {rule}", f"({start:.40}", fix)
            if open_:
                open_[-1][1].append(Tree(label, (*children,)))
            elif tree := simplify(Tree(label, (*children,))):
                if len(tree.words()) > MAX_WORDS:
                    rule, received = f"a tree has at most {MAX_WORDS} words", len(tree.words())
                    raise InputError(f"{where}: {rule}", received, fix)
                trees.append(tree)
    if open_:
        rule = f"{path}: every bracket is closed"
        raise InputError(rule, f"{len(open_)} open at the end", fix)
    return trees


def simplify(tree: Tree) -> Tree | None:
    """Remove function tags, indices (NP-SBJ-1 becomes NP), traces, and the node around the tree.

    Returns None if nothing is left.
    """
    if tree.label == EMPTY:
        return None
    children = [child if isinstance(child, str) else simplify(child) for child in tree.children]
    remaining = tuple(child for child in children if child is not None)
    if not remaining:
        return None
    if tree.label in TOP and len(remaining) == 1 and isinstance(remaining[0], Tree):
        return remaining[0]
    # In labels such as -LRB- the hyphen does not separate a function tag.
    label = tree.label if tree.label[:1] == "-" else re.split(r"[-=|]", tree.label)[0]
    return Tree(label or "TOP", remaining)
