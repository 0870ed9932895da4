"""A probabilistic grammar of a small part of English: random trees, and best parses.

The words decide what a phrase attaches to. People see with a telescope and eat with a fork, so
`with the telescope` attaches to the verb; people wear scarves, so `with the scarf` attaches to the
noun before it. `the woman saw the man with the telescope` and `the woman saw the man with the
scarf` differ in one word, but their trees have different shapes.
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

# On each line: the weight of a rule among the rules with the same left side, its left side, and its
# right side. The part of a category after the dot does not appear in trees: NP.food is a noun
# phrase about food. A star stands for any class of nouns, the same one throughout a rule.
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
    """A probabilistic context-free grammar: it draws trees, and finds the best tree of a sentence.

    `rules` and `words` have the format of RULES and WORDS. A rule's probability is its share of
    the weights of all rules with the same left side. All words of a category are equally probable.
    """

    def __init__(self, rules: str = RULES, words: str = WORDS):
        self.words = _by_category(words)
        classes = [c.partition(".")[2] for c in self.words if c.startswith("NN.")]
        weights = defaultdict(list)
        for line in filter(None, map(str.split, rules.splitlines())):
            weight, left, *right = line
            for noun_class in classes if "*" in left + "".join(right) else [""]:
                right_side = [part.replace("*", noun_class) for part in right]
                is_shared = right.count("NP.*") and "*" not in left
                share = float(weight) / (len(classes) if is_shared else 1)
                weights[left.replace("*", noun_class)].append((share, right_side))
        self.rules = {
            left: [(math.log(w / sum(w for w, _ in options)), right) for w, right in options]
            for left, options in weights.items()
        }

    def draw(self, rng: np.random.Generator, category: str = "S", most: int = 100) -> Tree | None:
        """A random tree, or None if it would have more than `most` words."""
        count = 0

        def expand(category: str) -> Tree | None:
            nonlocal count
            if words := self.words.get(category):
                count += 1
                return Tree(label(category), (words[int(rng.random() * len(words))],))
            if count >= most:
                return None
            sums, right_sides = self.cumulative[category]
            parts = [expand(part) for part in right_sides[bisect(sums, rng.random() * sums[-1])]]
            subtrees = tuple(part for part in parts if part is not None)
            return Tree(label(category), subtrees) if len(subtrees) == len(parts) else None

        tree = expand(category)
        return tree if count <= most else None

    @cached_property
    def cumulative(self) -> dict[str, tuple[list[float], list[list[str]]]]:
        """For each left side, running sums of its rules' probabilities, and their right sides."""
        return {
            left: ([*accumulate(math.exp(p) for p, _ in rules)], [right for _, right in rules])
            for left, rules in self.rules.items()
        }

    @cached_property
    def chart(self) -> "Chart":
        return Chart(self)

    def parse(self, words: Sequence[str], category: str = "S") -> tuple[Tree, float]:
        """The most probable tree of a sentence, and the logarithm of its probability.

        Raises InputError if the grammar has no tree for the sentence.
        """
        return self.chart.best(words, category)


class Chart:
    """The CKY algorithm: finds the best tree of every span from the trees of shorter spans.

    The algorithm needs rules with two parts on the right side. So X -> A B C becomes
    X -> A |X|A|B|C and |X|A|B|C -> B C; |X|A|B|C is not a constituent. A rule with one part, such
    as NP -> PRP, always spans one word.
    """

    def __init__(self, grammar: Grammar):
        binary: list[tuple[str, str, str, float]] = []
        self.unary: dict[str, list[tuple[str, float]]] = defaultdict(list)
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
                    self.unary[first].append((left, log_p))
        binary = sorted({rule: None for rule in binary})
        names = sorted({name for rule in binary for name in rule[:3]} | {*grammar.words})
        self.number = {name: place for place, name in enumerate(names)}
        self.names = names
        self.rules = np.array([[self.number[name] for name in rule[:3]] for rule in binary]).T
        self.log_p = np.array([rule[3] for rule in binary])
        # The first rule of each left side; rules with the same left side are adjacent.
        self.begins = np.flatnonzero(np.r_[True, np.diff(self.rules[0]) != 0])
        self.tags: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for category, words in grammar.words.items():
            for word in words:
                self.tags[word].append((category, -math.log(len(words))))

    def best(self, words: Sequence[str], category: str) -> tuple[Tree, float]:
        """The most probable tree with this category at the top, and its log probability."""
        count = len(words)
        scores = np.full((count + 1, count + 1, len(self.names)), -np.inf)
        for place, word in enumerate(words):
            for tag, log_p in self.tags.get(word, ()):
                scores[place, place + 1, self.number[tag]] = log_p
                for left, rule_log_p in self.unary[tag]:
                    cell = scores[place, place + 1]
                    cell[self.number[left]] = max(cell[self.number[left]], log_p + rule_log_p)
        parents = self.rules[0, self.begins]
        for length in range(2, count + 1):
            starts = np.arange(count - length + 1)[:, None]
            middles = starts + np.arange(1, length)
            split_scores = self._split_scores(scores, starts, middles, starts + length)
            best = np.maximum.reduceat(split_scores.max(axis=1), self.begins, axis=1)
            scores[starts, starts + length, parents] = best
        log_p = scores[0, count, self.number[category]] if count else -np.inf
        if log_p == -np.inf:
            fix = "Use only words and rules of the grammar."
            raise InputError("the grammar has a tree for the sentence", " ".join(words), fix)
        (tree,) = self._tree(words, scores, 0, count, category)
        return tree, float(log_p)

    def _split_scores(self, scores, starts, middles, ends):
        """The log probability of each span split at each middle, under each rule: (..., rules)."""
        _, first, second = self.rules
        return scores[starts, middles][..., first] + scores[middles, ends][..., second] + self.log_p

    def _tree(self, words, scores, start: int, end: int, category: str) -> list[Tree]:
        """The best constituent of a span; or the parts that a name such as |X|A|B|C stands for."""
        score = scores[start, end, self.number[category]]
        if end == start + 1:
            for tag, log_p in self.tags[words[start]]:
                leaf = Tree(label(tag), (words[start],))
                if tag == category:
                    return [leaf]
                for left, rule_log_p in self.unary[tag]:
                    if left == category and log_p + rule_log_p == score:
                        return [Tree(label(category), (leaf,))]
        middles = np.arange(start + 1, end)
        split_scores = self._split_scores(scores, start, middles, end)
        split_scores[:, self.rules[0] != self.number[category]] = -np.inf
        place, rule = np.unravel_index(split_scores.argmax(), split_scores.shape)
        spans = (start, middles[place]), (middles[place], end)
        parts = [
            part
            for span, number in zip(spans, self.rules[1:, rule], strict=True)
            for part in self._tree(words, scores, *map(int, span), self.names[number])
        ]
        return parts if category.startswith("|") else [Tree(label(category), tuple(parts))]


def label(category: str) -> str:
    """The label of a category in a tree: NP for NP.food."""
    return category.partition(".")[0]


def _by_category(words: str) -> dict[str, list[str]]:
    """The words of each category. A line that begins with spaces continues the line before."""
    found: dict[str, list[str]] = {}
    category = ""
    for line in filter(str.strip, words.splitlines()):
        parts = line.split()
        if not line.startswith(" "):
            category, *parts = parts
            found[category] = []
        found[category] += parts
    return found
