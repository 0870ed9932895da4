"""Vocabularies of published models: ids, unknown symbols, descriptions."""

import json
import sys

import pytest

import numformer as nf
from numformer.data import Subwords
from numformer.data.tokenizers import MarianVocabulary, PublishedVocabulary, Tokenizer
from numformer.generation.descriptions import pipeline_from

tokenizers = pytest.importorskip("tokenizers", reason="the extra published is not installed")


def content(model, marks=()) -> str:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if marks:
        tokenizer.post_processor = tokenizers.processors.BertProcessing(*marks)
    return tokenizer.to_str()


WORDS = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "dog": 3, "runs": 5}


def words(marked=True, size=7) -> Tokenizer:
    model = tokenizers.models.WordLevel(WORDS, unk_token="[UNK]")
    return Tokenizer(content(model, (("[SEP]", 2), ("[CLS]", 1))), size, marked)


def test_symbols_have_their_ids(complaint):
    vocabulary = words()
    assert len(vocabulary) == 7 and vocabulary.unknown == 0
    assert vocabulary.symbols == ["[UNK]", "[CLS]", "[SEP]", "dog", "<4>", "runs", "<6>"]
    assert vocabulary.split("dog runs cat") == ["[CLS]", "dog", "runs", "[UNK]", "[SEP]"]
    assert words(marked=False).split("dog") == ["dog"]
    assert vocabulary.encode(["dog", "runs", "<6>", "cat"]) == [3, 5, 6, 0]
    assert vocabulary.decode([5, 4]) == ["runs", "<4>"] and vocabulary.join(["dog"]) == "dog"
    without = PublishedVocabulary({0: "a"}, 1, None)
    assert without.encode("a") == [0] and "others" in complaint(without.encode, "b")
    assert vocabulary.separator == ""
    message = complaint(words, size=5)
    assert message.startswith("a model has an embedding for each symbol; received 6 symbols, 5 ")
    assert "describes a tokenizer" in complaint(Tokenizer, "{}", 3, True)
    empty = tokenizers.models.WordLevel({}, unk_token="[UNK]")
    assert Tokenizer(content(empty), 1, True).symbols == ["<0>"]
    assert len(Tokenizer(content(empty), 1, True)) == 1
    assert json.loads(Tokenizer(content(empty), 1, True).model) == json.loads(content(empty))
    assert type(Tokenizer(content(empty), 1, True).model) is bytes


def test_a_text_is_cut_before_it_gets_its_marks():
    text = "dog runs dog"
    assert words().shorten(text, 4) == ["[CLS]", "dog", "runs", "[SEP]"]
    assert words().shorten(text, 1) == ["[CLS]", "[SEP]"]
    assert words(marked=False).shorten(text, 2) == ["dog", "runs"]
    assert words(marked="before").shorten(text, 3) == ["[CLS]", "dog", "[SEP]"]
    empty = tokenizers.models.WordLevel({"a": 0}, "a")
    assert Tokenizer(content(empty), 1, "before").split("") == []


def test_added_tokens_have_ids_like_others(complaint):
    tokenizer = tokenizers.Tokenizer.from_str(content(tokenizers.models.WordLevel({"dog": 0})))
    tokenizer.add_tokens(["<one>"])
    tokenizer.add_special_tokens(["<two>"])
    vocabulary = Tokenizer(tokenizer.to_str(), 4, True)
    assert vocabulary.symbols == ["dog", "<one>", "<two>", "<3>"]
    assert vocabulary.encode(vocabulary.split("dog <two> <one>")) == [0, 2, 1]
    assert "received 3 symbols, 2 " in complaint(Tokenizer, tokenizer.to_str(), 2, True)


def test_a_text_is_neither_truncated_nor_padded(complaint, monkeypatch):
    tokenizer = tokenizers.Tokenizer.from_str(content(tokenizers.models.WordLevel(WORDS)))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    assert Tokenizer(tokenizer.to_str(), 7, True).split("dog runs dog") == ["dog", "runs", "dog"]
    assert Tokenizer(tokenizer.to_str(), 7, True).split("dog") == ["dog"]
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "pip install 'numformer[published]'" in complaint(tokenizer_from, tokenizer.to_str())


def tokenizer_from(content: str) -> Tokenizer:
    return Tokenizer(content, 7, True)


def test_the_unknown_is_an_id_or_a_symbol():
    pieces = [("a", 0.0), ("b", -1.0), ("<unk>", -2.0)]
    unigram = tokenizers.models.Unigram(pieces, unk_id=2, byte_fallback=False)
    assert Tokenizer(content(unigram), 3, False).unknown == 2
    assert words().unknown == 0
    assert Tokenizer(content(tokenizers.models.BPE({"a": 0}, [])), 1, False).unknown is None


def test_pieces_and_their_ids(complaint):
    model = Subwords.train(["a dog runs", "a cat"], 20).model
    cut = Subwords(model).symbols
    ids = {name: n for n, name in enumerate(["</s>", ">>fr<<", *cut, "<unk>"])}
    vocabulary = MarianVocabulary(model, ids, len(ids))
    assert vocabulary.unknown == len(ids) - 1
    plain = vocabulary.split("a dog")
    assert vocabulary.split(">>fr<< a dog") == [">>fr<<", *plain]
    assert vocabulary.join(plain) == "a dog" and {*plain} < {*cut}
    assert vocabulary.join(["▁Hund", "▁a", "▁", "<unk>", "▁Katze"]) == "Hund a  Katze"
    json.dumps(vocabulary.description())
    assert vocabulary.split(">>xx<< a dog")[0] != ">>xx<<"
    assert MarianVocabulary(model, ids, len(ids), "</s>").unknown == 0
    for wrong in ({"a": -1}, {"a": len(ids)}, {"a": "0"}):
        refusal = complaint(MarianVocabulary, model, wrong, len(ids))
        assert "every id in vocab.json is an id of the model" in refusal
    assert "sentencepiece models" in complaint(MarianVocabulary, b"none", ids, len(ids))


def test_a_pipeline_of_published_vocabularies_is_built_from_its_description():
    model = Subwords.train(["a dog runs", "a cat"], 20).model
    ids = {name: n for n, name in enumerate(["</s>", *Subwords(model).symbols, "<unk>"])}
    pieces = MarianVocabulary(model, ids, len(ids))
    config = nf.Config.base(len(ids), d_model=8, heads=2)
    again = pipeline_from(nf.Transduction(pieces, pieces, 9).description(), config)
    assert type(again.source) is MarianVocabulary
    assert again.source.description() == pieces.description()
    config = nf.LanguageModel.Config(vocabulary=7, d_model=8, heads=2)
    for tokenizer, symbols in (
        (words(), ["[CLS]", "dog", "[SEP]"]),
        (words(marked=False), ["dog"]),
    ):
        again = pipeline_from(nf.Continuation(tokenizer, 9).description(), config)
        assert type(again.vocabulary) is Tokenizer
        assert again.vocabulary.description() == tokenizer.description()
        assert again.vocabulary.split("dog") == symbols
