"""Parsing: the grammar and its best parses, the data, the program."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from numformer.models import RecurrentEncoderDecoder, Transformer
from numformer.trained import load
from tests.toy_tasks.small import tree_of
from toy_tasks import parse
from toy_tasks.command_line.answers import task_of
from toy_tasks.data.grammar import Grammar, label
from toy_tasks.data.splits import is_held_out
from toy_tasks.data.trees import Tree

ENGLISH = Grammar()
SMALL = Grammar(
    """
    3 S  NP VP
    1 S  S CC S
    2 NP DT NN
    1 NP NN
    2 NP NP PP
    1 NP NP CC NP
    2 VP VB
    2 VP VB NP
    1 VP VB NP PP
    1 VP VP PP
    1 PP IN NP
    """,
    """
DT the
NN man saw hat
VB saw slept
IN with in
CC and
""",
)


def derivations(grammar: Grammar, category: str, words: list[str]):
    """Every tree of the words that a category can become, and its probability."""
    of_category = grammar.words.get(category, [])
    if words[1:] == [] and words[0] in of_category:
        yield 1 / len(of_category), Tree(label(category), (words[0],))
    for log_p, right in grammar.rules.get(category, []):
        for p, parts in sequences(grammar, right, words):
            yield math.exp(log_p) * p, Tree(label(category), parts)


def sequences(grammar: Grammar, categories: list[str], words: list[str]):
    """Every way in which categories side by side become the words."""
    first, *others = categories
    if not others:
        yield from ((p, (tree,)) for p, tree in derivations(grammar, first, words))
        return
    for middle in range(1, len(words) - len(others) + 1):
        for p, tree in derivations(grammar, first, words[:middle]):
            for rest, parts in sequences(grammar, others, words[middle:]):
                yield p * rest, (tree, *parts)


def log_p_of(grammar: Grammar, tree: Tree, category: str) -> float:
    """How probable the tree is, by the categories that make it most probable."""
    if tree.label != label(category):
        return -math.inf
    if tree.is_tag:
        words = grammar.words.get(category, [])
        return -math.log(len(words)) if tree.children[0] in words else -math.inf
    return max(
        (
            log_p + sum(map(log_p_of, [grammar] * len(right), tree.children, right))
            for log_p, right in grammar.rules.get(category, [])
            if len(right) == len(tree.children)
        ),
        default=-math.inf,
    )


AMBIGUOUS = [
    "the man saw the man with the hat",
    "man saw saw with hat in the hat",
    "saw saw saw and saw slept",
    "man and hat and saw slept in the hat",
]


def test_the_best_parse_is_the_best_of_all_derivations():
    rng, sentences = np.random.default_rng(1), {*AMBIGUOUS}
    while len(sentences) < 24:
        if (tree := SMALL.draw(rng, most=9)) and len(tree.words()) > 5:
            sentences.add(" ".join(tree.words()))
    several = 0
    for sentence in sentences:
        every = [*derivations(SMALL, "S", sentence.split())]
        best = max(p for p, _ in every)
        tree, log_p = SMALL.parse(sentence.split())
        assert log_p == pytest.approx(math.log(best), rel=1e-13)
        assert str(tree) in {str(t) for p, t in every if p > best * (1 - 1e-12)}
        several += len(every) > 1
    assert several >= 8


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_a_word_of_two_categories_has_the_more_probable_one(order):
    """Of both ways to NP, through A and through B, whichever the grammar lists first."""
    words = dict(A="A x", B="B x y")
    grammar = Grammar("1 S NP NP\n1 NP A\n1 NP B", "\n".join(words[name] for name in order))
    tree, log_p = grammar.parse(["x", "x"])
    assert str(tree) == "(S (NP (A x)) (NP (A x)))" and log_p == pytest.approx(math.log(1 / 4))


def test_a_drawn_tree_is_never_more_probable_than_the_best_parse():
    rng, drawn = np.random.default_rng(2), []
    while len(drawn) < 60:
        if tree := ENGLISH.draw(rng, most=20):
            drawn.append(tree)
    more = 0
    for tree in drawn:
        best, log_p = ENGLISH.parse(tree.words())
        own = log_p_of(ENGLISH, tree, "S")
        assert -math.inf < own <= log_p + 1e-9 and best.words() == tree.words()
        assert log_p_of(ENGLISH, best, "S") == pytest.approx(log_p)
        more += own < log_p - 1e-9
    assert 0 < more < 20  # some sentences are ambiguous, most are not


@pytest.mark.parametrize(
    ("word", "verb_phrase"),
    [
        ("telescope", "(VP (VBD saw) {man} {phrase})"),
        ("scarf", "(VP (VBD saw) (NP {man} {phrase}))"),
    ],
)
def test_the_word_decides_where_a_phrase_belongs(word, verb_phrase):
    tree, _ = ENGLISH.parse(f"the woman saw the man with the {word}".split())
    man = "(NP (DT the) (NN man))"
    phrase = f"(PP (IN with) (NP (DT the) (NN {word})))"
    right = verb_phrase.format(man=man, phrase=phrase)
    assert str(tree) == f"(S (NP (DT the) (NN woman)) {right})"


@pytest.mark.parametrize("grammar", [ENGLISH, SMALL])
def test_the_rules_of_a_category_share_its_probability(grammar):
    for category, rules in grammar.rules.items():
        assert sum(math.exp(log_p) for log_p, _ in rules) == pytest.approx(1), category
    if grammar is ENGLISH:  # "3 VP VBD.see NP.*" is all its kinds together as "3 VP VBD.go" is
        of_verb = {verb: 0.0 for verb in ("VBD.go", "VBD.see")}
        for log_p, right in grammar.rules["VP"]:
            if right[0] in of_verb:
                of_verb[right[0]] += math.exp(log_p)
        assert of_verb["VBD.see"] / of_verb["VBD.go"] == pytest.approx(6 / 7)


def test_what_is_no_sentence_is_refused(complaint):
    for words in (["the"], "the dog slept xyzzy".split(), []):
        assert "the grammar has a tree for the sentence" in complaint(ENGLISH.parse, words)


def test_sentences_that_are_measured_are_never_trained_on():
    data = parse.grammar_data(300, 100)
    texts = {name: {" ".join(s.words) for s in sentences} for name, sentences in data.items()}
    counts = {"train": 300, "development": 2, "test": 5, "longer": 1}
    assert {name: len(some) for name, some in texts.items()} == counts
    assert sum(counts.values()) == len(set.union(*texts.values()))
    assert all(map(is_held_out, texts["test"] | texts["development"]))
    assert not any(map(is_held_out, texts["train"]))
    for name, sentences in data.items():
        lengths = [len(sentence.words) for sentence in sentences]
        assert min(lengths) > 40 and max(lengths) <= 60 if name == "longer" else max(lengths) <= 40
    other = parse.grammar_data(1, 100)
    assert all(other[name] == data[name] for name in parse.EVALUATION_SENTENCES)


class Repeating:
    """Draws sentences of 2 words, in every third draw of 50, and each of them twice."""

    def __init__(self):
        self.draws = 0

    def draw(self, rng, most):
        self.draws += 1
        number = self.draws // (1 + self.draws % 2)
        words = [f"w{number}"] * (2 if number % 3 else 50)
        return Tree("S", tuple(Tree("NN", (word,)) for word in words))


def test_a_sentence_that_is_drawn_again_stays_in_its_part(monkeypatch):
    monkeypatch.setattr(parse, "Grammar", Repeating)
    data = parse.grammar_data.__wrapped__(400, 5)
    texts = [" ".join(s.words) for sentences in data.values() for s in sentences]
    assert len({*texts}) == len(texts)
    assert {len(s.words) for s in data["test"] + data["development"]} == {2}
    assert {len(s.words) for s in data["longer"]} == {50}


def treebank(folder: str, sections: dict[str, int]) -> None:
    """Files of some sections of drawn trees, each with one word that no other has."""
    rng = np.random.default_rng(5)
    for file, count in sections.items():
        drawn = (ENGLISH.draw(rng, most=9) for _ in range(10 * count))
        path = Path(folder, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [f"( {tree} )" for tree in drawn if tree][:count]
        path.write_text("\n".join(["( (S (NN rare) (NN word)) )", *texts]))


SECTIONS = {"02/wsj_0201.mrg": 9, "21/wsj_2101.mrg": 9, "22/wsj_2200.mrg": 3, "wsj_2300.mrg": 4}


def test_the_sections_of_a_treebank_are_split_by_their_names(complaint, monkeypatch):
    treebank("bank", SECTIONS | {"00/wsj_0001.mrg": 7, "24/wsj_2400.mrg": 2})
    Path("bank/notes.mrg").write_text("none of it")
    data = parse.treebank_data(Path("bank"))
    assert {name: len(of) for name, of in data.items()} == {
        "train": 20,
        "development": 4,
        "test": 5,
        "longer": 0,
    }
    monkeypatch.setattr(parse, "LONGEST", 2)
    parse.treebank_data.cache_clear()
    longer = parse.treebank_data(Path("bank"))["longer"]
    assert longer == [s for s in data["test"] if len(s.words) > 2] != []
    task = parse.ParseTask(data, 20, 99, 1)
    assert task.text.source.encode(["rare"]) != [3] and task.text.source.encode(["xyzzy"]) == [3]
    task = parse.ParseTask(data, 9, 99, 1)  # the first file alone: seen once
    assert task.text.source.encode(["rare"]) == [3]
    treebank("no test", {"wsj_0201.mrg": 3, "wsj_2201.mrg": 3})
    assert "section 23 of the Penn Treebank, for test" in complaint(
        parse.treebank_data, Path("no test")
    )


class Writer:
    """Stands in for a Parsing that writes what it is told to."""

    def __init__(self, written: dict[str, str]):
        self.written = written

    def write(self, model, texts, **how):
        return [self.written[" ".join(words)].split() for words in texts]


def test_malformed_trees_are_counted_in_the_scores():
    trees = [tree_of("(S (NP (PRP he)) (VP (VBD slept)))"), tree_of("(S (NN up) (NN b))")]
    data = {name: [parse.Sentence.from_tree(t) for t in trees] for name in ("train", "development")}
    task = parse.ParseTask(data, 2, 9, 1)
    task.text = Writer({"he slept": "(S (NP he )NP (VP slept )VP )S", "up b": "(S (NP up b )S"})
    scores = task.evaluate(None)
    # Written are (S up b) and (NP up b) in place of (S up b): 4 of 5 brackets, of 4.
    assert scores == {"f1": pytest.approx(800 / 9), "well_formed": 50}


def test_each_part_of_the_data_has_its_figures(monkeypatch, tmp_path):
    """The best parses are those of SMALL: of each part another number of them is right."""
    monkeypatch.setattr(parse, "Grammar", lambda: SMALL)
    attached = {
        "train": "(S (NP (DT the) (NN man)) (VP (VB slept)))",
        "development": "(S (NP (NN saw)) (VP (VB slept)))",
        "test": "(S (NP (NN man)) (VP (VB saw) (NP (NN hat))))",
        "longer": "(S (NP (NN man)) (VP (VP (VB saw) (NP (NN hat))) (PP (IN in) (NP (NN hat)))))",
    }
    data = {name: [parse.Sentence.from_tree(tree_of(tree))] for name, tree in attached.items()}
    task = parse.ParseTask(data, 1, 20, 1)
    scores = {name: dict.fromkeys(parse.FIGURES, place) for place, name in enumerate(data)}
    task.score = lambda model, name: scores[name]
    measured = parse.measure(None, task, tmp_path)
    best = dict(zip(parse.FIGURES, measured.pop("ceiling"), strict=True))
    assert measured == scores["test"] | {"longer": 3, "longer_well_formed": 3}
    assert best["f1"] == best["exact"] == best["longer_well_formed"] == 100 > best["longer"] > 50

    drawn = []
    monkeypatch.setattr(parse.charts, "draw_chart", lambda *how, **axis: drawn.append(how[2]))
    for by_grammar, ceiling in enumerate([{}, {"ceiling": [*best.values()]}]):
        results = {f"{model} 500": [measured | ceiling] for model in parse.MODELS}
        parse.draw(results, tmp_path)
        for name, titles in parse.TITLES.items():
            curves = drawn[-1][titles[1 - by_grammar]]
            assert [curves[model] for model in parse.MODELS] == [[([500], [measured[name]])]] * 2
            assert curves.get("best parse") == ([([500], [best[name]])] if by_grammar else None)


@pytest.fixture
def studied(monkeypatch):
    """The page with short outputs, and no picture of each run."""
    monkeypatch.setattr(parse, "EXTRA_SYMBOLS", 9)
    monkeypatch.setattr("toy_tasks.command_line.training.loss_curve", lambda *how: None)


TINY = "--quick --d-model 8 --d-ff 8 --heads 1 --layers 1 --max-tokens 200 --steps 2 --beam 2"


def test_parsing_is_studied_and_used(studied, succeed, call, refuse):
    output = " ".join(" ".join(succeed(parse.main, "--help")).split())
    assert "training steps; every row has its own --max-tokens" in output
    out = succeed(parse.main, TINY)
    folder = Path("runs/parse-quick")
    assert {"table.md", "parse.png"} < {*os.listdir(folder)}
    assert [line.split("|")[1].strip() for line in out if line.startswith("|")] == [
        "",
        "-----------",
        "Transformer",
        "recurrent",
        "best parse",
    ]
    assert [line.split()[0] for line in out[-3:]] == ["ceiling", "well", "F1"]
    kinds = [load(folder / name).model for name in ("Transformer-320-1", "recurrent-320-1")]
    assert [*map(type, kinds)] == [Transformer, RecurrentEncoderDecoder]
    use = f"--run {folder}/Transformer-320-1"
    code, out, err = call(
        parse.main, f"{use} --tree tree.png --attention map.png --input", "the dog saw a ragbag"
    )
    assert code == 0 and len(out) == 1
    assert err == ["note: training never saw 'ragbag' (in 'the dog saw a ragbag')"]
    assert {"tree.png", "map.png"} < {*os.listdir()}
    out = succeed(parse.main, f"{use} --n-best 2 --input", "the dog slept")
    assert len(out) == 2 and float(out[0].split("\t")[0]) >= float(out[1].split("\t")[0])
    refuse(parse.main, f"{use} --tree tree.png --input a b", "--tree draws", "2 with --input")
    refuse(parse.main, "--tree tree.png", "--tree is for a trained model")
    refuse(parse.main, f"--run {folder} --input a", "which holds 2 runs")


def test_a_treebank_is_learned_without_a_ceiling(studied, succeed, refuse, monkeypatch):
    treebank("bank", SECTIONS)
    out = succeed(parse.main, f"{TINY} --data bank --no-plots")
    assert not any("ceiling" in line or "best parse" in line for line in out)
    assert out[-1].startswith("F1 ")
    for name in ("Transformer-20-1", "recurrent-20-1"):
        metadata = load(Path("runs/parse-quick", name)).metadata
        assert task_of(metadata)["count"] == 20
    Path("bank/wsj_0300.mrg").write_text("(S")
    parse.treebank_data.cache_clear()
    refuse(parse.main, f"{TINY} --data bank", "bank/wsj_0300.mrg: every bracket is closed")
    refuse(parse.main, f"{TINY} --data absent", "section 02 of the Penn Treebank, for train")


@pytest.mark.parametrize(
    ("total", "steps"),
    [
        (300, {300: 2000}),
        (501, {501: 4000, 500: 2000}),
        (8000, {8000: 8000, 2000: 4000, 500: 2000}),
        (40000, {40000: 22000, 8000: 8000, 2000: 4000, 500: 2000}),
    ],
)
def test_rows_use_all_sentences_and_have_each_number_once(total, steps):
    rows = parse.rows_for(total)
    assert {r["sentences"]: r["steps"] for row, r in rows.items() if "Tr" in row} == steps
    assert [*rows] == [f"{model} {count}" for count in steps for model in parse.MODELS]


def test_the_transformer_is_judged_by_the_ceiling():
    def run(f1, well_formed):
        return {"f1": f1, "well_formed": well_formed, "ceiling": [97.5]}

    for figures, reached in (
        ([(96.5, 99.5), (96.6, 98.5)], True),
        ([(96.4, 100)], False),
        ([(97.5, 98.9)], False),
    ):
        results = {"Transformer 32000": [run(*pair) for pair in figures]}
        _, values, (target, verdict) = parse.verdict(results)
        assert verdict is reached and target == "F1 96.5, 99 % well formed"
        assert [*values] == ["ceiling", "well formed", "F1"] and values["ceiling"] == "97.50"
