"""Subwords and tokens: from text to pieces and back, and the same pieces for the same seed."""

import io
import json
import sys
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import sentencepiece

from numformer.data import UNKNOWN, Subwords, moses
from numformer.data.moses import detokenize, tokenize
from numformer.data.subwords import _segment as cut_into_pieces
from numformer.data.vocabulary import SPECIAL
from numformer.errors import InputError
from numformer.generation.descriptions import pipeline_from
from numformer.generation.transduction import Transduction
from numformer.generation.translation import Translation
from numformer.models import Config

TEXTS = [
    f"the {size} {animal} &apos;s {motion} ."
    for size in ("small", "tall", "smallest")
    for animal in ("dog", "cat")
    for motion in ("running", "jumping", "runner", "jumper", "rüben")
]


@pytest.fixture(scope="module", params=[(45, "bpe"), (30, "unigram")], ids=str)
def subwords(request):
    learned = Subwords.train(TEXTS, *request.param)
    assert len(learned) == request.param[0]
    return learned


def test_joined_pieces_are_the_text(subwords):
    for text in TEXTS:
        pieces = subwords.split(text)
        assert subwords.join(pieces) == text and len(pieces) < len(text)
        ids = subwords.encode(pieces)
        assert min(ids) >= len(SPECIAL) and subwords.decode(ids) == pieces
    assert max(len(subwords.split(text)) for text in TEXTS) > 8  # some words are cut
    least, most = (Subwords.train(TEXTS, size) for size in (27, 10**12))  # all that there are
    assert len(least) == 27 < len(most) < 200
    assert most.encode(most.split("the smallest")) == most.encode(["▁the", "▁smallest"])


def test_the_rarest_character_is_a_piece():
    rare = "a \ufb01sh"  # with a ligature, which other rules would write as two letters
    subwords = Subwords.train([*100 * TEXTS, rare], 45)
    assert subwords.decode(subwords.encode(pieces := subwords.split(rare))) == pieces
    assert subwords.join(pieces) == rare


def test_a_letter_is_one_character_however_it_was_typed():
    typed = [f"cafe\N{COMBINING ACUTE ACCENT} {text}" for text in TEXTS]
    composed = [unicodedata.normalize("NFC", text) for text in typed]
    learned = Subwords.train(typed, 45)
    assert learned.symbols == Subwords.train(composed, 45).symbols
    assert learned.split(typed[0]) == learned.split(composed[0])


def test_an_unseen_character_is_unknown_and_named(subwords, complaint):
    assert "a text is UTF-8; received 'the \\udcff'" in complaint(subwords.split, "the \udcff")
    pieces = subwords.split("the ☃ dog")
    (note,) = Transduction(subwords, subwords, 9).notes(pieces)
    assert UNKNOWN in subwords.encode(pieces) and "training never saw" in note and "☃" in note


def test_subwords_are_built_from_their_description(subwords):
    described = Transduction(subwords, subwords, 9, penalty="length").description()
    described, config = json.loads(json.dumps(described)), Config.base(len(subwords))
    again = pipeline_from(described, config)
    assert again.source.split(TEXTS[0]) == subwords.split(TEXTS[0])
    assert again.description() == described and again.penalty == "length"
    assert pipeline_from(described | {"penalty": "other"}, config) is None
    with pytest.raises(InputError, match="need a sentencepiece model"):
        pipeline_from(described | {"source": {"sentencepiece": "AAAA"}}, config)


def test_dropout_varies_the_pieces_and_depends_only_on_the_seed():
    """By NumPy's random numbers, one stream for all texts."""
    bpe = Subwords.train(TEXTS, 45)
    for texts in (TEXTS, [" the  small dog "]):  # several spaces are one
        expected = [bpe.encode(bpe.split(text)) for text in texts]
        assert bpe.encode_with_dropout(texts, 0.0, 1) == expected
    once, again, other = (bpe.encode_with_dropout(TEXTS, 0.3, seed) for seed in (1, 1, 2))
    assert once == again != other
    characters = [len(text.replace("ü", "u")) + 1 for text in TEXTS]  # and the space before all
    assert [*map(len, bpe.encode_with_dropout(TEXTS, 1.0, 1))] == characters
    rng = np.random.default_rng(1)
    for text, ids in zip(TEXTS, once, strict=True):
        left_out, cuts = iter(rng.random(3 * len(text) + 3) < 0.3), []
        for word in text.split():
            cuts += cut_into_pieces(f"▁{word}", bpe._ids, left_out)
        assert bpe.decode(ids) == cuts and bpe.join(cuts) == text


CUTS = {"": "abc d", "0": "abc d", "10": "abc d", "101": "a bc d", "110": "a b cd", "01": "ab cd"}


@pytest.mark.parametrize(("left_out", "pieces"), (CUTS | {"1111": "a b c d"}).items())
def test_merges_follow_their_rank_except_for_skipped_ones(left_out, pieces):
    ranks = {piece: rank for rank, piece in enumerate(["ab", "bc", "abc", "cd", "a", "b"])}
    chances = [*map(int, left_out), *[0] * 12][:12]
    assert cut_into_pieces("abcd", ranks, iter(chances)) == pieces.split()
    assert cut_into_pieces("abc", {"bc": 0, "ab": 1}, iter([0])) == ["a", "bc"]


def test_invalid_training_of_subwords_is_refused(complaint, monkeypatch):
    rule = "subwords are at least 27: the texts' characters and 4 special ids"
    for few in (-1, 26):
        assert f"{rule}; received {few}. Choose" in complaint(Subwords.train, TEXTS, few)
    assert "learned from texts; received texts" in complaint(Subwords.train, [], 45)
    assert "one of bpe, unigram" in complaint(Subwords.train, TEXTS, 45, "words")
    written, train = io.BytesIO(), sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=iter(TEXTS), model_writer=written, vocab_size=30, minloglevel=2)
    assert "received [-1, 1, 2, 0]" in complaint(Subwords, written.getvalue())
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert "numformer[translate]" in complaint(Subwords.train, TEXTS, 45)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    moses._moses.cache_clear()
    assert "numformer[translate]" in complaint(tokenize, "a", "fr")


SENTENCES = [  # the language, a sentence, its tokens; curly quotation marks become straight ones
    ("en", "A man, who isn't old.", "a man , who isn &apos;t old ."),
    ("en", 'It\'s "3.5" km!', "it &apos;s &quot; 3.5 &quot; km !"),
    ("de", "Ein Mann (aus Köln) läuft.", "ein mann ( aus köln ) läuft ."),
    ("fr", "L'homme court.", "l&apos; homme court ."),
    ("en", "The girl’s “hat” – red…", "the girl &apos;s &quot; hat &quot; - red ..."),
    ("en", "a “hat”, 3\u00a0500 of them", "a &quot; hat &quot; , 3 500 of them"),
    ("de", "„Hut“ sagt er.", "&quot; hut &quot; sagt er ."),
    ("fr", "L'e\u0301te\u0301.", "l&apos; \xe9t\xe9 ."),  # accents as macOS writes file names
    ("tr", "İstanbul", "i\u0307stanbul"),
    ("th", "วันนี้อากาศดีมาก, ข้าว", "วันนี้อากาศดีมาก , ข้าว"),
    ("km", "ខ្ញុំចូលចិត្ត!", "ខ្ញុំចូលចិត្ត !"),
    ("fa", "می\u200cخواهم.", "می\u200cخواهم ."),
    ("hi", "मैं अच्छा हूँ।", "मैं अच्छा हूँ ।"),
]


@pytest.mark.parametrize(("language", "sentence", "tokens"), SENTENCES)
def test_tokens_are_those_of_moses_and_stay_unchanged(sentence, language, tokens):
    moses._moses.cache_clear()  # what was made before would hide how it is made
    assert tokenize(sentence, language) == tokens == tokenize(tokens, language)
    if not {*sentence} & {*"“„।"}:
        sentence = unicodedata.normalize("NFC", sentence)
        assert detokenize(tokens, language) == sentence.lower()


def test_without_a_language_sentences_stay_unchanged_and_escapes_are_undone_with_one():
    assert tokenize(" A  man’s\n", "") == "A man’s"
    assert detokenize("&amp; A", "") == "&amp; A" and detokenize("l&amp;apos; A", "fr") == "l'A"
    assert detokenize("l&amp;amp;amp;apos; A", "fr") == "l'A"


def test_a_translation_reads_and_writes_sentences(subwords, complaint):
    text, pieces = Translation(subwords, subwords, 9, to="en"), subwords.split(TEXTS[0])
    sentence = "The small dog's running."
    assert text.symbols(sentence) == pieces and text.join(pieces) == sentence.lower()
    assert "a text is a string" in complaint(text.symbols, 3)
    config = Config.base(len(subwords))
    assert text.fits(config) and not text.fits(Config.base(len(subwords) + 1))
    for wrong in (dict(to=3), dict(from_=None), dict(max_length=0)):
        assert not replace(text, **wrong).fits(config)


@pytest.mark.parametrize(("from_", "to"), [("fr", "en"), ("en", "fr")])
def test_each_side_of_a_translation_has_the_rules_of_its_language(from_, to):
    words = Subwords.train(["l&apos; homme &apos;s", "l &apos;homme"] * 9, 22)
    text, tokens = Translation(words, words, 9, from_=from_, to=to), "l&apos; homme"
    assert (words.join(text.symbols("L'homme")) == tokens) == (from_ == "fr")
    assert (text.join(words.split(tokens)) == "l'homme") == (to == "fr")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_exact_subwords_keep_every_space_line_end_and_tab(kind):
    """In every segmentation, also of a long line; letters are normalised (NFC)."""
    texts = ["if x:\n\ty =  'ab'", "  if x:", "ab " * 2000 + "ç", "cafe\N{COMBINING ACUTE ACCENT}"]
    lines = [line.strip() for text in texts for line in text.split("\n")]
    words = Subwords.train(lines, 60, kind, exact=True)  # which has no line end and no tab
    for text in [*texts[:2], " x\n\n", "\tif  x ", " "]:
        assert words.join(words.split(text)) == text
        assert UNKNOWN not in words.encode(words.split(text))
        for dropout in (0.0, 0.7):
            (ids,) = words.encode_with_dropout([text], dropout, 1)
            assert words.join(words.decode(ids)) == text
            assert dropout or kind != "bpe" or ids == words.encode(words.split(text))
    assert words.encode_with_dropout(texts[3:], 1.0, 1) == [words.encode([*"caf\xe9"])]
    assert words.join(words.split(texts[3])) == "caf\xe9" and "ç" in words.symbols
    assert Subwords(words.model).exact and not Subwords.train(TEXTS, 45).exact
