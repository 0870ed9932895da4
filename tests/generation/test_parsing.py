"""Sentences in, brackets out: what a Parsing reads, how long it writes, and what it gives back."""

import dataclasses
import json

import numpy as np
import pytest

import numformer as nf
from numformer.errors import InputError
from numformer.generation import Hypothesis, Parsing
from numformer.generation import parsing as page
from numformer.generation.descriptions import pipeline_from
from numformer.models import Config

WORDS = nf.Vocabulary(["the", "dog", "-LRB-", "-RRB-"], " ")
SYMBOLS = nf.Vocabulary(["(S", ")S", "(NP", ")NP", "XX"], " ")
TEXT = Parsing(WORDS, SYMBOLS, 3, 4, beam=2, length_penalty=0.3)
OPEN, CLOSE, OPEN_NP, CLOSE_NP, WORD = range(4, 9)


def model(**changes):
    sizes = dict(d_model=8, d_ff=8, heads=2, layers=1, tying="none")
    vocabularies = dict(source_vocabulary=len(WORDS), target_vocabulary=len(SYMBOLS))
    return nf.Transformer(Config(**sizes, **vocabularies, **changes))


@pytest.mark.parametrize(
    ("asked", "written", "text"),
    [
        ("the dog", [OPEN, OPEN_NP, WORD, WORD, CLOSE_NP, CLOSE], "(S (NP the dog))"),
        ("cat XX", [OPEN, OPEN_NP, WORD, CLOSE_NP, WORD, CLOSE], "(S (NP cat) XX)"),
        (":-)", [OPEN, WORD, CLOSE], "(S :--RRB-)"),
        ("the", [CLOSE, WORD, WORD, OPEN], ") the XX (S"),  # malformed: shown as it is
    ],
)
def test_words_are_put_back_into_the_tree(asked, written, text):
    words = TEXT.symbols(asked)
    symbols = TEXT.decode(written, words)
    assert TEXT.join(symbols) == text
    assert TEXT.encode(symbols) == written


def test_brackets_of_a_sentence_are_words_of_the_treebank():
    assert TEXT.symbols(" (the dog )") == ["-LRB-the", "dog", "-RRB-"]
    with pytest.raises(InputError, match="a text is a string"):
        TEXT.symbols(["the", "dog"])


@pytest.mark.parametrize("how", [dict(beam=1), dict(beam=3), dict(temperature=1.0), {}])
def test_the_length_limit_grows_with_the_sentence(how, monkeypatch):
    """With a model that never ends a text."""
    endless = model()

    def step(ids, state):
        logits = np.zeros((len(ids), len(SYMBOLS)))
        logits[:, WORD] = 50
        return logits

    monkeypatch.setattr(endless, "step", step)
    for words in (1, 4):
        for most in (3, 5):
            (written,) = TEXT.write(endless, [["dog"] * words], max_length=most, **how)
            assert written == ["dog"] * words + ["XX"] * most
    # Together each has its own words, and as many symbols as the longest.
    several = TEXT.write(endless, [["the"], ["dog"] * 4], **how)
    assert several == [["the"] + ["XX"] * 6, ["dog"] * 4 + ["XX"] * 3]
    short = model(positions="learned", max_length=6)
    monkeypatch.setattr(short, "step", step)
    assert [len(TEXT.write(short, [["dog"] * words])[0]) for words in (1, 4)] == [4, 6]


@pytest.mark.parametrize(
    ("symbols", "words", "tree"),
    [
        ("(S XX (NP XX )NP )S", 2, True),
        ("XX", 1, True),
        ("XX XX", 2, False),  # nothing holds both
        ("XX", 2, False),
        ("(S XX )S", 2, False),
        ("(S XX XX )S", 1, False),
        ("(S XX", 1, False),
        ("(S XX )NP", 1, False),
        ("(S XX )S )S", 1, False),
        (")S (S XX )S", 1, False),
        ("(S XX )S (S XX )S", 2, False),
        ("(S XX )S XX", 2, False),
        ("(S (NP )NP XX )S", 1, False),
        ("(S )S", 0, False),
        ("", 1, False),
        ("", 0, False),
    ],
)
def test_what_is_a_tree(symbols, words, tree):
    assert page.is_tree(symbols.split(), words) is tree


def test_beam_search_prefers_the_best_tree(monkeypatch):
    """The first hypothesis of the longest sentence, which comes first, is a tree; of the next two
    sentences it is the third, before another tree; the last has none and keeps its best one."""
    fits, broken = [OPEN, WORD, CLOSE], [[OPEN, WORD], [OPEN, WORD, WORD, CLOSE], [CLOSE]]
    other, longer = [OPEN_NP, WORD, CLOSE_NP], [OPEN_NP, WORD, WORD, CLOSE_NP]
    ranked = [[broken[1], fits], [broken[2], fits, broken[1], longer]]
    ranked += [[*broken[:2], fits, other], broken]

    def search(model, source, most, *how):
        assert how == (4, 0.3, "paper", [], None)
        return [of[0] for of in ranked]

    def n_best(model, source, most, count, *how):
        assert len(source) == 3 and count == 4
        return [[Hypothesis(-place, ids) for place, ids in enumerate(of)] for of in ranked[1:]]

    monkeypatch.setattr("numformer.generation.transduction.beam_search", search)
    monkeypatch.setattr(page, "n_best", n_best)
    texts = [["the"], ["the", "dog"], ["dog"], ["dog", "the"]]
    written = [" ".join(symbols) for symbols in TEXT.write(model(), texts, beam=4)]
    assert written == ["(S the )S", "(S the dog )S", "(S dog", "(S dog the )S"]


def test_the_best_trees_have_their_words():
    for _, symbols in TEXT.n_best(model(), [["the", "dog"]], 4)[0]:
        assert [s for s in symbols if s[0] not in "()"][:2] in ([], ["the"], ["the", "dog"])


def test_maps_have_words_and_brackets_as_labels():
    written = "(S the dog )S".split()
    asked, again, maps = TEXT.maps(model(), ["the", "dog"], written)
    assert (asked, again) == (["the", "dog"], written)
    (cross,) = (kind for kind in maps if kind.kind == "decoder cross_attention")
    assert cross.query_labels == [*written, "⊣"] and cross.key_labels == ["the", "dog", "⊣"]
    np.testing.assert_allclose(cross.weights.sum(axis=-1), 1, rtol=1e-5)


def test_a_pipeline_is_built_from_its_description():
    described = json.loads(json.dumps(TEXT.description()))
    again = pipeline_from(described, model().config)
    assert type(again) is Parsing and again.description() == TEXT.description()
    assert described["kind"] == "parsing" and described.keys() == {
        "kind",
        *(field.name for field in dataclasses.fields(nf.Transduction)),
    }
    assert pipeline_from(described | {"target": {"symbols": ["XX"]}}, model().config) is None
