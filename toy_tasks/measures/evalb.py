"""Compare syntax trees as the program evalb does."""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from numformer.generation.measures import Measure
from toy_tasks.data.trees import TOP, Tree

PUNCTUATION = ",", ".", ":", "``", "''"
"""Tags of words that evalb ignores (its file COLLINS.prm)."""
EQUIVALENT = {"PRT": "ADVP"}
"""Labels that evalb treats as the same (COLLINS.prm)."""


def brackets(tree: Tree, ignored: Collection[int] = ()) -> Counter[tuple[str, int, int]]:
    """The constituents that evalb compares: (label, first word, end), each with its count.

    Parts of speech and the node around a whole tree are left out. `ignored` are the indices of
    words that are left out before the others are numbered.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    count = place = 0

    def walk(part: Tree | str) -> None:
        nonlocal count, place
        if isinstance(part, str) or (part.is_tag and part.label not in TOP):
            count += place not in ignored
            place += 1
            return
        start = count
        for child in part.children:
            walk(child)
        if part.label not in TOP and count > start:
            found[EQUIVALENT.get(part.label, part.label), start, count] += 1

    walk(tree)
    return found


def evalb(written: Sequence[tuple[Tree, bool]], gold: Sequence[Tree]) -> dict[str, Measure]:
    """Compare written trees with the gold trees -> measures by name, in percent.

    `written` has each tree and whether it was well formed. Precision, recall and F1 = 2 P R /
    (P + R) count the brackets of all sentences together; "exact" is the share of trees whose
    brackets are all right.
    """
    rows = []
    for (tree, well_formed), right in zip(written, gold, strict=True):
        ignored = {i for i, (_, tag) in enumerate(right.tagged_words()) if tag in PUNCTUATION}
        ours, theirs = brackets(tree, ignored), brackets(right, ignored)
        counts = (ours & theirs).total(), ours.total(), theirs.total()
        rows.append([*counts, ours == theirs, well_formed])
    columns = np.array(rows, int).reshape(-1, 5).T  # there may be no trees
    correct, written_total, gold_total, exact, well_formed_total = columns
    ones = np.ones_like(exact)
    return {
        "f1": Measure.ratio(2 * correct, written_total + gold_total, 100),
        "precision": Measure.ratio(correct, written_total, 100),
        "recall": Measure.ratio(correct, gold_total, 100),
        "exact": Measure.ratio(exact, ones, 100),
        "well_formed": Measure.ratio(well_formed_total, ones, 100),
    }
