"""Subwords and tokens: text to pieces and back, the same pieces for the same seed."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import sentencepiece

from numformer.data import UNKNOWN, Subwords, moses
from numformer.data.moses import detokenized, tokenized
from numformer.data.subwords import _cut as cut_into_pieces
from numformer.data.vocabulary import SPECIAL
from numformer.errors import InputError
from numformer.generation.described import text_of
from numformer.generation.transduction import Transduction
from numformer.generation.translation import Translation

TEXTS = [f"the {a} {b} &apos;s {c} ." for a in ("small", "tall", "smallest") for b in ("dog", "cat")
         for c in ("running", "jumping", "runner", "jumper", "rüben")]  # fmt: skip


@pytest.fixture(scope="module", params=[(45, "bpe"), (30, "unigram")], ids=["bpe", "unigram"])
def subwords(request):
    made = Subwords.learned(TEXTS, *request.param)
    assert len(made) == request.param[0]
    return made


def test_a_text_is_its_pieces_put_together(subwords):
    assert len(subwords.symbols) == len(subwords) - len(SPECIAL)
    for text in TEXTS:
        pieces = subwords.split(text)
        assert subwords.join(pieces) == text and len(pieces) < len(text)
        ids = subwords.encode(pieces)
        assert min(ids) >= len(SPECIAL) and max(ids) < len(subwords)
        assert subwords.decode(ids) == pieces
    assert max(len(subwords.split(text)) for text in TEXTS) > 8  # some words are cut


def test_the_rarest_character_is_kept_as_it_is():
    rare = "a \ufb01sh"  # with a ligature, which other rules would write as two letters
    subwords = Subwords.learned([*100 * TEXTS, rare], 45)
    assert UNKNOWN not in subwords.encode(subwords.split(rare))
    assert subwords.join(subwords.split(rare)) == rare


def test_what_was_never_seen_is_unknown_and_named(subwords, complaint):
    assert "a text is UTF-8; received 'the \\udcff'" in complaint(subwords.split, "the \udcff")
    pieces = subwords.split("the ☃ dog")
    assert UNKNOWN in subwords.encode(pieces) and "☃" in "".join(pieces)
    text = Transduction(subwords, subwords, 9)
    (note,) = text.notes(pieces)
    assert "training never saw" in note and "☃" in note


def test_a_description_makes_the_same_subwords_again(subwords):
    described = Transduction(subwords, subwords, 9, penalty="length").description()
    described = json.loads(json.dumps(described))
    sizes = dict.fromkeys(("source_vocabulary", "target_vocabulary"), len(subwords))
    config = SimpleNamespace(**sizes)
    again = text_of(described, config)
    assert again.source.symbols == subwords.symbols and again.penalty == "length"
    assert again.source.split(TEXTS[0]) == subwords.split(TEXTS[0])
    assert again.description() == described
    assert text_of(described | {"penalty": "other"}, config) is None
    with pytest.raises(InputError, match="made of a sentencepiece model"):
        text_of(described | {"source": {"sentencepiece": "AAAA"}}, config)


def test_dropout_cuts_the_same_text_in_other_ways():
    subwords = Subwords.learned(TEXTS, 45)
    usual = [subwords.encode(subwords.split(text)) for text in TEXTS]
    assert subwords.sampled(TEXTS, 0.0, 1) == usual
    once, again, other = (subwords.sampled(TEXTS, 0.3, seed) for seed in (1, 1, 2))
    assert once == again != other
    assert [subwords.join(subwords.decode(ids)) for ids in once] == TEXTS
    lengths = [sum(map(len, found)) for found in (usual, subwords.sampled(TEXTS, 0.1, 1), once)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[1] < lengths[2]
    assert sum(map(len, subwords.sampled(TEXTS, 1.0, 1))) == sum(
        len(text.replace("rüben", "ruben")) + 1 for text in TEXTS
    )  # characters alone, and the space before the first word


@pytest.mark.parametrize(
    ("left_out", "pieces"),
    [("", "abc d"), ("0", "abc d"), ("10", "abc d"), ("101", "a bc d"), ("110", "a b cd"),
     ("01", "ab cd"), ("1111", "a b c d")],
)  # fmt: skip
def test_merges_are_made_by_their_rank_but_for_those_left_out_in_their_turn(left_out, pieces):
    ranks = {piece: rank for rank, piece in enumerate(["ab", "bc", "abc", "cd", "a", "b"])}
    chances = [*map(int, left_out), *[0] * 12][:12]
    assert cut_into_pieces("abcd", ranks, iter(chances)) == pieces.split()


def test_dropout_cuts_alike_in_every_process_so_that_a_run_can_be_resumed(tmp_path):
    subwords, path = Subwords.learned(TEXTS, 45), tmp_path / "subwords.model"
    path.write_bytes(subwords.model)
    said = "import sys; from pathlib import Path; from numformer.data import Subwords; "
    said += "print(Subwords(Path(sys.argv[1]).read_bytes()).sampled(sys.argv[2:], 0.3, 7))"
    command = [sys.executable, "-c", said, path, *TEXTS]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert found.strip() == str(subwords.sampled(TEXTS, 0.3, 7))


def test_what_cannot_be_learned_is_told(complaint, monkeypatch):
    assert "suits the texts; received 9, of which" in complaint(Subwords.learned, TEXTS, 9)
    said = complaint(Subwords.learned, TEXTS, 90000)
    assert "says: Vocabulary size too high" in said and ".. " not in said
    assert "one of bpe, unigram" in complaint(Subwords.learned, TEXTS, 45, "words")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert "numformer[translate]" in complaint(Subwords.learned, TEXTS, 45)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    assert "numformer[translate]" in complaint(tokenized, "a", "fr")


def test_a_model_with_other_special_pieces_is_refused(complaint):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, vocab_size=30, minloglevel=2
    )
    assert "received [-1, 1, 2, 0]" in complaint(Subwords, written.getvalue())


@pytest.mark.parametrize(
    ("sentence", "language", "tokens"),
    [
        ("A man, who isn't old.", "en", "a man , who isn &apos;t old ."),
        ('It\'s "3.5" km!', "en", "it &apos;s &quot; 3.5 &quot; km !"),
        ("Ein Mann (aus Köln) läuft.", "de", "ein mann ( aus köln ) läuft ."),
    ],
)
def test_tokens_are_moses_s_and_stay_what_they_are(sentence, language, tokens):
    assert tokenized(sentence, language) == tokens
    assert tokenized(tokens, language) == tokens
    assert detokenized(tokens, language) == sentence.lower()


def test_quotation_marks_and_dashes_become_those_of_a_keyboard():
    moses._moses.cache_clear()  # what was made before would hide how it is made
    assert tokenized("The girl’s “hat” – red…", "en") == (
        "the girl &apos;s &quot; hat &quot; - red ..."
    )
    assert tokenized("a “hat”, 3\u00a0500 of them", "en") == ("a &quot; hat &quot; , 3 500 of them")
    assert tokenized("„Hut“ sagt er.", "de") == "&quot; hut &quot; sagt er ."


def test_a_translation_reads_and_writes_sentences(subwords, complaint):
    text, pieces = Translation(subwords, subwords, 9, to="en"), subwords.split(TEXTS[0])
    sentence = "The small dog's running."
    assert text.symbols(sentence) == pieces and text.join(pieces) == sentence.lower()
    assert "a text is a string" in complaint(text.symbols, 3)
    config = SimpleNamespace(source_vocabulary=len(subwords), target_vocabulary=len(subwords))
    assert text.fits(config)
    for wrong in (dict(to=3), dict(from_=None), dict(max_length=0)):
        assert not replace(text, **wrong).fits(config)
