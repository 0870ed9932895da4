"""Trees of constituents: as symbols and back, as evalb compares them, read, drawn."""

from pathlib import Path

import numpy as np
import pytest

from numformer.generation.parsing import WORD
from tests.toy_tasks.small import tree_of
from toy_tasks.data.grammar import Grammar
from toy_tasks.data.trees import read_trees, tree_from_symbols
from toy_tasks.measures import evalb as measures
from toy_tasks.measures.evalb import brackets
from toy_tasks.reports.tree_pictures import draw_tree

GOLD = """
(S (NP (DT the) (NN man)) (VP (VBD saw) (NP (DT a) (NN cat)) (PP (IN with) (NP (DT a) (NN lens))))
   (. .))"""
OTHER = """
(S (NP (DT the) (NN man)) (VP (VBD saw)
   (NP (NP (DT a) (NN cat)) (PP (IN with) (NP (DT a) (NN lens)))) (. .)))"""


def evalb(written, gold) -> dict[str, float]:
    return {name: measure.value for name, measure in measures.evalb(written, gold).items()}


def test_brackets_are_compared_as_evalb_does():
    gold, other = tree_of(GOLD), tree_of(OTHER)
    assert brackets(gold) == {
        ("S", 0, 9): 1,
        ("NP", 0, 2): 1,
        ("VP", 2, 8): 1,
        ("NP", 3, 5): 1,
        ("PP", 5, 8): 1,
        ("NP", 6, 8): 1,
    }
    # The full stop is left out, so that its place does not matter: 6 of 7 are right, of 6.
    scores = evalb([(other, True)], [gold])
    expected = dict(precision=600 / 7, recall=100, f1=1200 / 13, exact=0, well_formed=100)
    assert scores == pytest.approx(expected)
    # Of both sentences together: 12 of 13, of 12.
    scores = evalb([(gold, True), (other, False)], [gold, gold])
    expected = dict(precision=1200 / 13, recall=100, f1=2400 / 25, exact=50, well_formed=50)
    assert scores == pytest.approx(expected)
    once, twice = tree_of("(NP (DT a) (NN b))"), tree_of("(NP (NP (DT a) (NN b)))")
    assert evalb([(once, True), (twice, True)], [twice, twice])["exact"] == 50


@pytest.mark.parametrize(
    ("written", "gold", "right"),
    [
        # The same bracket twice counts twice; one of two is one.
        ("(NP (NP (DT a) (NN b)))", "(NP (NP (DT a) (NN b)))", (2, 2, 2)),
        ("(NP (DT a) (NN b))", "(NP (NP (DT a) (NN b)))", (1, 1, 2)),
        # Neither tags nor what stands around a tree count.
        ("(S (X a) (Y b))", "(ROOT (S (DT a) (NN b)))", (1, 1, 1)),
        ("(TOP (DT a) (NN b))", "(S (DT a) (NN b))", (0, 0, 1)),
        # A phrase of one word is no tag.
        ("(S (NP (XX he)) (VP (XX ran)))", "(S (NP (PRP he)) (VP (VBD ran)))", (3, 3, 3)),
        ("(S (ADVP (XX up)) (XX b))", "(S (PRT (RP up)) (NN b))", (2, 2, 2)),
        ("(S (NP (XX ``) (XX a) (XX b)))", "(S (`` ``) (NP (DT a) (NN b)))", (2, 2, 2)),
        # Of what stands in quotes nothing is left: no bracket.
        ("(S (NP (XX a)) (X (XX '')))", "(S (NP (NN a)) ('' ''))", (2, 2, 2)),
    ],
)
def test_what_counts_as_a_bracket(written, gold, right):
    scores = evalb([(tree_of(written), True)], [tree_of(gold)])
    count, ours, theirs = right
    expected = 100 * count / max(ours, 1), 100 * count / theirs, 200 * count / (ours + theirs)
    assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx(expected)


def test_a_tree_becomes_symbols_and_comes_back():
    assert " ".join(tree_of(GOLD).to_symbols()) == (
        "(S (NP XX XX )NP (VP XX (NP XX XX )NP (PP XX (NP XX XX )NP )PP )VP XX )S"
    )
    rng = np.random.default_rng(3)
    english = Grammar()
    for tree in filter(None, (english.draw(rng, most=40) for _ in range(200))):
        again, well_formed = tree_from_symbols(tree.to_symbols(), tree.words())
        assert well_formed and again.words() == tree.words()
        assert again.to_symbols() == tree.to_symbols() and brackets(again) == brackets(tree)


@pytest.mark.parametrize(
    ("symbols", "tree"),
    [
        ("(S XX (NP XX )NP )S", None),
        ("(S XX (NP XX )S )S", "(S a (NP b))"),  # a wrong label
        ("(S XX (NP XX )NP", "(S a (NP b))"),  # open at the end
        ("(S XX (NP XX )NP )S )S", "(S a (NP b))"),  # closes nothing
        (")S (S XX XX )S", "(S a b)"),
        ("(S (NP )NP XX XX )S", "(S a b)"),  # holds nothing
        ("(S XX XX XX )S", "(S a b)"),  # a word too many
        ("(S XX )S", "(TOP (S a) b)"),  # a word too few
        ("(S XX )S (NP XX )NP", "(TOP (S a) (NP b))"),  # no whole
        ("", "(TOP a b)"),
        ("XX XX", "(TOP a b)"),
        ("(S " * 4000 + "XX XX", None),  # far deeper than any tree
    ],
)
def test_what_is_malformed_is_told_and_repaired(symbols, tree):
    result, well_formed = tree_from_symbols(symbols.split(), ["a", "b"])
    assert result.words() == ["a", "b"]
    assert well_formed is (symbols == "(S XX (NP XX )NP )S")
    if tree:
        assert str(result).replace(f"({WORD} a)", "a").replace(f"({WORD} b)", "b") == tree


TREEBANK = """
( (S
    (NP-SBJ-1 (NNP Ms.) (NNP Haag) )
    (VP (VBZ plays)
      (NP=2 (-NONE- *T*-1) (NN Elianti) )
      (ADVP|PRT-TMP (-NONE- *) (SBAR (-NONE- 0))))
    (-LRB- -LRB-) (PRP$ its) (-RRB- -RRB-) (. .) ))
( (FRAG (-NONE- *)) )
(TOP (NN Yes))
( (S (ADVP|PRT-TMP (RB up)) (PRT|ADVP=1 (RP in))) )
( (S (NP (PRP he)) (VP (VBD slept))) (. .) )
( (S (NP -5 \u2028 1\xa000\u3000) (: -) (NP - USA) (NNP -USA)) )
"""


def test_a_treebank_is_read_without_traces_functions_and_indices():
    Path("a.mrg").write_text(TREEBANK)
    assert [*map(str, read_trees(Path("a.mrg")))] == [
        "(S (NP (NNP Ms.) (NNP Haag)) (VP (VBZ plays) (NP (NN Elianti))) "
        "(-LRB- -LRB-) (PRP$ its) (-RRB- -RRB-) (. .))",
        "(NN Yes)",
        "(S (ADVP (RB up)) (PRT (RP in)))",
        "(TOP (S (NP (PRP he)) (VP (VBD slept))) (. .))",
        "(S (NP -5 \u2028 1\xa000\u3000) (: -) (NP - USA) (NNP -USA))",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(S (NN a))\n(S\n (NN a)", ["every bracket is closed", "1 open at the end"]),
        ("(S (NN a))\n)", ["line 2: every word is in brackets; received )"]),
        ("(S (NN a))\n\nhello (S (NN b))", ["line 3: every word is in brackets; received hello"]),
        ("(S (NN a)\n())", ["line 2: a constituent has children; received ()"]),
        ("(S (NN))", ["line 1: a constituent has children; received (NN)"]),
        *(
            (f"(S ({label} (PRP he)))", ["line 1: a label has no space in it", f"({label}", fix])
            for label, fix in [
                ("NP -SBJ", "(NP-SBJ."),
                ("NP -SBJ-1", "(NP-SBJ-1."),
                ("NP- SBJ", "(NP-SBJ."),
                ("NP =2", "(NP=2."),
                ("ADVP |PRT", "(ADVP|PRT."),
            ]
        ),
        ("\n" + "(S " * 200_000, ["line 2: a tree has at most 100 levels", "received 101"]),
        (f"(S {'(NN a) ' * 257})", ["line 1: a tree has at most 256 words; received 257"]),
        ("(" * 10**7, ["line 1: a tree has at most 100 levels"]),
        ("x" * 10**7, ["line 1: every word is in brackets; received xxx"]),
    ],
)
def test_files_that_hold_no_trees_are_refused(text, words, complaint):
    Path("bad.mrg").write_text(text)
    message = complaint(read_trees, Path("bad.mrg"))
    assert all(some in message for some in ["bad.mrg", *words]) and len(message) < 250


def test_a_long_line_of_trees_is_read():
    tree = "(S (NP (PRP he)) (VP (VBD slept)))"
    Path("long.mrg").write_text(tree * 5000)
    assert [*map(str, read_trees(Path("long.mrg")))] == [tree] * 5000


def test_trees_are_drawn(pixels):
    for number, text in enumerate((GOLD, "(NN $x_1$)", "(S (NP (NN 中文)) ok)")):
        draw_tree(Path(f"{number}.png"), tree_of(text))
        assert Path(f"{number}.png").read_bytes().startswith(b"\x89PNG")
