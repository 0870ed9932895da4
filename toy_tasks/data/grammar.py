"""A small English, as a probabilistic grammar: sentences with their trees, and the best parse.

Where a phrase belongs, the words decide. One sees with a telescope and eats with a fork, so these
belong to the verb; but a coat is worn and a sauce is eaten, so these belong to the noun before
them. `the woman saw the man with the telescope` and `... with the scarf` are alike but for one
word, and their trees differ.
"""

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from numformer.errors import InputError
from toy_tasks.data.trees import Tree

# How often a rule is chosen among those of its left side, the left side, what it becomes. What
# stands after a point tells categories of one label apart: NP.food is a noun phrase about food. A
# star stands for every class of nouns, and for the same one in all of a rule.
RULES = """
 8   S         NP.person VP
 3   S         NP.animal VP
 1   S         S CC.and S
 1   S         SBAR.when NP.person VP
 1   S         ADVP.time NP.person VP

 3   VP        VBD.go
 2   VP        VBD.go PP.where
 2   VP        VBD.go ADVP.how
 3   VP        VBD.see NP.*
 3   VP        VBD.see NP.* PP.optic
 2   VP        VBD.eat NP.food
 3   VP        VBD.eat NP.food PP.cutlery
 5   VP        VBD.hold NP.thing
 2   VP        VBD.hold NP.animal
 2   VP        VBD.hold NP.optic
 2   VP        VBD.give NP.person NP.thing
 2   VP        VBD.give NP.thing PP.to
 3   VP        VBD.say SBAR.that
 1   VP        VBD.say S
 3   VP        VBD.be ADJP
 2   VP        VP PP.where
 2   VP        VP PP.when
 1   VP        VP SBAR.when
 1   VP        VP CC.and VP

30   NP.*      DT NN.*
 9   NP.*      DT JJ NN.*
 2   NP.*      DT ADJP.two NN.*
 1   NP.*      NP.* CC.and NP.*
 9   NP.person NNP
 9   NP.person PRP
 6   NP.person NP.person PP.worn
 3   NP.person NP.person PP.optic
 3   NP.person NP.person PP.where
 3   NP.person NP.person SBAR.who
 3   NP.animal NP.animal PP.where
 2   NP.animal NP.animal PP.of
 6   NP.food   NP.food PP.topping
 4   NP.thing  DT NN.place NN.thing
 4   NP.thing  NP.thing PP.of
 4   NP.thing  NP.thing PP.where
 3   NP.thing  NP.thing SBAR.which
 2   NP.place  NP.place PP.of

 1   PP.where    IN.where NP.place
 1   PP.when     IN.when NP.time
 1   PP.optic    IN.with NP.optic
 1   PP.cutlery  IN.with NP.cutlery
 1   PP.topping  IN.with NP.topping
 1   PP.worn     IN.with NP.worn
 1   PP.worn     IN.in NP.worn
 1   PP.to       IN.to NP.person
 1   PP.of       IN.of NP.person
 1   SBAR.that   IN.that S
 1   SBAR.when   IN.while S
 1   SBAR.who    WP VP
 1   SBAR.which  WDT S.gap
 1   S.gap       NP.person VP.gap
 1   VP.gap      VBD.hold
 3   ADJP        JJ
 2   ADJP        RB JJ
 1   ADJP        ADJP CC.and ADJP
 1   ADJP        JJ.of PP.of
 2   ADJP.two    RB JJ
 1   ADJP.two    JJ CC.and JJ
 1   ADVP.time   RB.time
 1   ADVP.how    RB.how
"""
WORDS = """
NN.person   man woman boy girl teacher doctor farmer baker sailor painter king queen soldier singer
            dancer lawyer nurse writer poet judge pilot tailor hunter child brother sister mother
            father cousin neighbour
NN.animal   dog cat horse cow sheep goat fox wolf bear mouse rabbit bird duck goose hen pig donkey
            camel tiger lion
NN.food     pasta rice soup bread fish cake pie salad potato meat sandwich pudding pancake stew
NN.topping  cheese sauce butter cream honey pepper salt mustard jam
NN.cutlery  fork spoon knife ladle chopstick toothpick
NN.optic    telescope microscope camera spyglass lens periscope
NN.worn     hat coat scarf jacket dress shirt cap cloak beard ribbon glove necklace
NN.place    park garden kitchen forest house street school library market village church castle barn
            river bridge station museum theatre harbour tower
NN.time     morning evening night summer winter spring weekend
NN.thing    book letter box ball lamp chair table cup bottle key coin ring basket drum guitar violin
            picture map mirror candle clock bag rope stone stick
NNP         Mary John Peter Anna Paul Julia Robert Clara David Laura Martin Sophie
PRP         he she somebody everybody
DT          the a this that every
JJ          big small young tall red green blue white black brown clever quiet happy sad strange
            pretty famous rich poor strong tired hungry friendly lazy
JJ.of       proud fond tired afraid jealous
RB          very quite rather really terribly
RB.how      slowly quickly quietly happily sadly carefully
RB.time     yesterday today suddenly finally sometimes
VBD.go      slept walked ran laughed danced sang waited arrived smiled stood sat jumped
VBD.see     saw watched noticed spotted observed studied
VBD.eat     ate tasted swallowed devoured cut
VBD.hold    held carried bought sold found lost took liked hid cleaned painted broke
VBD.give    gave offered showed sent brought handed
VBD.say     said thought knew believed claimed heard
VBD.be      was seemed looked became
CC.and      and or
IN.where    in near behind beside under at
IN.when     in on during
IN.with     with
IN.in       in
IN.to       to
IN.of       of
IN.that     that
IN.while    while because before after when
WP          who
WDT         that which
"""


class Grammar:
    """Rules with probabilities: they draw trees, and find the most probable tree of words.

    `rules` has a weight, a left side and what it becomes on each line; `words` a category and its
    words. Of a left side's rules the weights become probabilities, words of a category are equally
    probable.
    """

    def __init__(self, rules: str = RULES, words: str = WORDS):
        self.words = _by_category(words)
        classes = [c.partition(".")[2] for c in self.words if c.startswith("NN.")]
        found = defaultdict(list)
        for line in filter(None, map(str.split, rules.splitlines())):
            weight, left, *right = line
            for kind in classes if "*" in left + "".join(right) else [""]:
                right_of_kind = [part.replace("*", kind) for part in right]
                starred = right.count("NP.*") and "*" not in left
                share = float(weight) / (len(classes) if starred else 1)
                found[left.replace("*", kind)].append((share, right_of_kind))
        self.rules = {
            left: [(math.log(weight / sum(w for w, _ in of)), right) for weight, right in of]
            for left, of in found.items()
        }

    def draw(self, rng: np.random.Generator, category: str = "S", most: int = 100) -> Tree | None:
        """A random tree; None where it has more than `most` words."""
        count = 0

        def drawn(category: str) -> Tree | None:
            nonlocal count
            if words := self.words.get(category):
                count += 1
                return Tree(label(category), (words[int(rng.random() * len(words))],))
            if count >= most:
                return None
            sums, rules = self.sums[category]
            parts = [drawn(part) for part in rules[bisect(sums, rng.random() * sums[-1])]]
            kept = tuple(part for part in parts if part is not None)
            return Tree(label(category), kept) if len(kept) == len(parts) else None

        tree = drawn(category)
        return tree if count <= most else None

    @cached_property
    def sums(self) -> dict[str, tuple[list[float], list[list[str]]]]:
        """Of each left side the probabilities of its rules added up, and what these become."""
        return {
            left: ([*accumulate(math.exp(log_p) for log_p, _ in of)], [right for _, right in of])
            for left, of in self.rules.items()
        }

    @cached_property
    def chart(self) -> "Chart":
        return Chart(self)

    def parse(self, words: Sequence[str], category: str = "S") -> tuple[Tree, float]:
        """The most probable tree of words and the log of its probability.

        Raises InputError for words that no tree has.
        """
        return self.chart.best(words, category)


class Chart:
    """CKY with probabilities: the best tree of every span, from those of its two parts.

    It wants two parts on each right side: of X -> A B C it makes X -> A X|B C, whose second part
    is no constituent, and what becomes one part alone (NP -> PRP) spans one word.
    """

    def __init__(self, grammar: Grammar):
        binary: list[tuple[str, str, str, float]] = []
        self.ones: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for left, rules in grammar.rules.items():
            for log_p, (first, *others) in rules:
                parent = left
                while len(others) > 1:
                    rest = "|".join(("", parent, first, *others))
                    binary.append((parent, first, rest, log_p))
                    parent, (first, *others), log_p = rest, others, 0.0
                if others:
                    binary.append((parent, first, *others, log_p))
                else:
                    self.ones[first].append((left, log_p))
        binary = sorted({rule: None for rule in binary})
        names = sorted({name for rule in binary for name in rule[:3]} | {*grammar.words})
        self.number = {name: place for place, name in enumerate(names)}
        self.names = names
        self.rules = np.array([[self.number[name] for name in rule[:3]] for rule in binary]).T
        self.log_p = np.array([rule[3] for rule in binary])
        # Rules of one left side stand together: where each of these begins, and which it is.
        self.begins = np.flatnonzero(np.r_[True, np.diff(self.rules[0]) != 0])
        self.tags: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for category, words in grammar.words.items():
            for word in words:
                self.tags[word].append((category, -math.log(len(words))))

    def best(self, words: Sequence[str], category: str) -> tuple[Tree, float]:
        """The most probable tree of words below a category, and the log of its probability."""
        count = len(words)
        scores = np.full((count + 1, count + 1, len(self.names)), -np.inf)
        for place, word in enumerate(words):
            for tag, log_p in self.tags.get(word, ()):
                scores[place, place + 1, self.number[tag]] = log_p
                for left, of_rule in self.ones[tag]:
                    cell = scores[place, place + 1]
                    cell[self.number[left]] = max(cell[self.number[left]], log_p + of_rule)
        parents = self.rules[0, self.begins]
        for length in range(2, count + 1):
            starts = np.arange(count - length + 1)[:, None]
            middles = starts + np.arange(1, length)
            through = self._through(scores, starts, middles, starts + length).max(axis=1)
            best = np.maximum.reduceat(through, self.begins, axis=1)
            scores[starts, starts + length, parents] = best
        whole = scores[0, count, self.number[category]] if count else -np.inf
        if whole == -np.inf:
            fix = "Ask for a sentence of its words, built by its rules."
            raise InputError("the grammar has a tree for the words", " ".join(words), fix)
        (tree,) = self._tree(words, scores, 0, count, category)
        return tree, float(whole)

    def _through(self, scores, starts, middles, ends):
        """How probable each rule makes spans by way of their middles: (..., rules)."""
        _, first, second = self.rules
        return scores[starts, middles][..., first] + scores[middles, ends][..., second] + self.log_p

    def _tree(self, words, scores, start: int, end: int, category: str) -> list[Tree]:
        """The best constituent of a span; of one that stands for several parts, these."""
        score = scores[start, end, self.number[category]]
        if end == start + 1:
            for tag, log_p in self.tags[words[start]]:
                leaf = Tree(label(tag), (words[start],))
                if tag == category:
                    return [leaf]
                for left, of_rule in self.ones[tag]:
                    if left == category and log_p + of_rule == score:
                        return [Tree(label(category), (leaf,))]
        middles = np.arange(start + 1, end)
        through = self._through(scores, start, middles, end)
        through[:, self.rules[0] != self.number[category]] = -np.inf
        place, rule = np.unravel_index(through.argmax(), through.shape)
        spans = (start, middles[place]), (middles[place], end)
        parts = [
            part
            for span, number in zip(spans, self.rules[1:, rule], strict=True)
            for part in self._tree(words, scores, *map(int, span), self.names[number])
        ]
        return parts if category.startswith("|") else [Tree(label(category), tuple(parts))]


def label(category: str) -> str:
    """NP of NP.food: what stands in a tree."""
    return category.partition(".")[0]


def _by_category(words: str) -> dict[str, list[str]]:
    """Lines that begin with a category; those that begin with spaces go on with the one before."""
    found: dict[str, list[str]] = {}
    category = ""
    for line in filter(str.strip, words.splitlines()):
        parts = line.split()
        if not line.startswith(" "):
            category, *parts = parts
            found[category] = []
        found[category] += parts
    return found
