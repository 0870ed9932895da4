"""Labels of texts and of words, and answers within texts, by hand from a model's logits."""

import dataclasses
import json

import numpy as np
import pytest
import tokenizers

import numformer as nf
from numformer import convert
from numformer.data.tokenizers import Tokenizer
from numformer.generation import Labelling
from tests.published import published_texts

TEXT, QUESTION = (
    "the small catsleep again, so",
    "a dog [SEP] to be or not to be, so people run again",
)

LABELS = "good", "bad", "so so"


def classifier(folder, task: str, **changes):
    more = {} if task == "QuestionAnswering" else dict(id2label=dict(enumerate(LABELS)))
    return published_texts.bert(folder, dict(architectures=[f"BertFor{task}"], **more, **changes))


def logits_of(trained, text: str, method: str, segments=None):
    """The symbols of a text, with its marks, and their logits (T, labels) or (labels)."""
    symbols = trained.text.vocabulary.split(text)
    ids = np.array([trained.text.vocabulary.encode(symbols)])
    segments = None if segments is None else np.array([[0] * segments + [1] * 99])[:, : ids.size]
    with nf.inference():
        others = (segments,) if method == "relation_logits" else (None, segments)
        return symbols, getattr(trained.model, method)(ids, *others)[0]


def softmax(x):
    return np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(
        -1, keepdims=True
    )


def test_labels_of_a_text_the_most_probable_first(tmp_path, call):
    trained = nf.load(classifier(tmp_path / "bert", "SequenceClassification"))
    p = softmax(logits_of(trained, TEXT, "relation_logits")[1])
    best_first = sorted(zip(p, LABELS, strict=True), reverse=True)
    expected = "\n".join(f"{label} {share:.4f}" for share, label in best_first)
    assert trained(TEXT) == expected
    assert call(convert.main, f"{tmp_path / 'bert'} --out {tmp_path / 'run'}")[0] == 0
    back = tmp_path / "back"
    assert call(convert.main, f"{tmp_path / 'run'} --to-huggingface --out {back}")[0] == 0
    for other in ("run", "back"):
        assert nf.load(tmp_path / other)([TEXT, ""]) == [expected, ""]
    padded = "the [PAD] dog"  # a mark in a text is a symbol, not padding
    symbols, found = logits_of(trained, padded, "relation_logits")
    ids = np.array([trained.text.vocabulary.encode(symbols)])
    with nf.inference():
        whole = trained.model.relation_logits(ids, valid=np.ones(ids.shape, bool))[0]
    assert abs(whole - found).max() > 1e-3
    assert trained(padded).splitlines()[0].endswith(f" {softmax(whole).max():.4f}")


def test_a_classifier_of_texts_is_scored_and_evaluated(tmp_path, complaint, recwarn, monkeypatch):
    advances: list = []
    monkeypatch.setattr("numformer.generation.labelling.advance", lambda: advances.append(1))
    trained = nf.load(classifier(tmp_path, "SequenceClassification"))
    texts = [TEXT, "a dog", "to be or not to be"]
    best = [trained(text).partition(" 0")[0] for text in texts]
    others = [label for label in LABELS if label != best[0]]
    examples = [*zip(texts, [others[0], *best[1:]], strict=True)]
    advances.clear()
    evaluation = trained.evaluate(examples)
    assert evaluation["accuracy"] == pytest.approx(2 / 3)
    log_p = trained.score(examples)
    for (text, label), score in zip(examples, log_p, strict=True):
        p = softmax(logits_of(trained, text, "relation_logits")[1])
        assert score == pytest.approx(np.log(p[LABELS.index(label)]))
    assert evaluation["loss"] == pytest.approx(-np.mean(log_p))
    assert [row.target for row in evaluation.predictions] == [right for _, right in examples]
    assert not recwarn.list and len(advances) == 3 * 3
    # No symbol has the id of a label. A text that is too long is cut, as in an answer.
    assert trained.text.encode(["bad"]) == [len(trained.text.vocabulary) + 1]
    assert trained.score([("a " * 40, "bad")]) == trained.score([("a " * 22, "bad")])
    message = "the label of a text is one of good, bad, so so; received 'so'. Correct it"
    assert complaint(trained.score, [("a", "so")]).startswith(message)


def test_a_long_text_is_cut_even_if_the_config_allows_more(tmp_path):
    folder = classifier(tmp_path, "SequenceClassification", max_position_embeddings=5000)
    assert nf.load(folder).text.context == 4096


def test_the_label_of_a_word_is_that_of_its_first_symbol(tmp_path):
    trained = nf.load(classifier(tmp_path, "TokenClassification"))
    symbols, logits = logits_of(trained, TEXT, "forward")
    assert any(symbol.startswith("##") for symbol in symbols)
    p = softmax(logits)
    firsts = [n for n, s in enumerate(symbols) if s[0] not in "#["]
    words = ["the", "small", "catsleep", "again", ",", "so"]
    lines = [
        f"{w} {('good', 'bad', 'x')[p[n].argmax()]} {p[n].max():.4f}"
        for w, n in zip(words, firsts, strict=True)
    ]
    assert trained(TEXT).splitlines() == lines


def test_words_whose_first_symbol_has_a_mark_of_its_blank():
    tokenizer = published_texts.unigram(70)
    vocabulary = Tokenizer(tokenizer.to_str(), 70, marked=True)
    sizes = dict(d_model=8, d_ff=8, heads=2, layers=1, labels=2)
    model = nf.MaskedLanguageModel(nf.MaskedLanguageModel.Config(vocabulary=70, **sizes))
    trained = nf.Trained(model, Labelling(vocabulary, 99, ["a", "b"], "positions"), {})
    lines = [line.split() for line in trained("dogs sleep again, so").splitlines()]
    assert [word for word, _, _ in lines] == ["dogs", "sleep", "again,", "so"]
    assert len(vocabulary.split("dogs sleep again, so")) > 5


def test_the_first_word_of_a_text_may_have_no_mark_of_a_blank():
    """And an answer has no blank before it, although the first of its symbols has."""
    tokenizer = published_texts.byte_level(280, ("<s>", "</s>"))
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    vocabulary = Tokenizer(tokenizer.to_str(), 280, marked=True)
    sizes = dict(d_model=8, d_ff=8, heads=2, layers=1, labels=2)
    model = nf.MaskedLanguageModel(nf.MaskedLanguageModel.Config(vocabulary=280, **sizes))
    trained = nf.Trained(model, Labelling(vocabulary, 99, ["a", "b"], "positions"), {})
    lines = trained("dogs sleep again").splitlines()
    assert [line[: line.rindex(" ") - 2] for line in lines] == ["dogs", "sleep", "again"]
    spans = nf.Trained(model, Labelling(vocabulary, 99, ["", ""], "spans"), {})
    assert spans("dogs</s></s> sleep sleep")[0] != " "


@pytest.mark.parametrize("segments", [1, 2])
def test_the_best_answer_within_a_text(segments, tmp_path, complaint):
    """In the second segment, if the model has two; it does not end before it begins."""
    trained = nf.load(classifier(tmp_path, "QuestionAnswering", type_vocab_size=segments))
    first = trained.text.vocabulary.split(QUESTION).index("[SEP]") + 1
    symbols, logits = logits_of(trained, QUESTION, "forward", first if segments == 2 else None)
    start, end = softmax(logits[first:-1].T)
    pairs = [(start[i] * end[j], i, j) for i in range(len(start)) for j in range(i, len(end))]
    p, i, j = max(pairs)
    answer = trained.text.vocabulary.join(symbols[first + i : first + j + 1])
    assert trained(QUESTION) == f"{answer} {p:.4f}"
    for text in ("a dog", "a dog [SEP]"):
        assert "a question and a text have [SEP] between them" in complaint(trained, text)


def test_an_answer_is_short(tmp_path, monkeypatch):
    """Of a model that has no segments and finds the whole text most probable, then half of it."""
    sizes = dict(type_vocab_size=1, max_position_embeddings=99)
    trained = nf.load(classifier(tmp_path, "QuestionAnswering", **sizes))
    symbols = trained.text.vocabulary.split(QUESTION)
    logits, first = np.zeros((len(symbols), 2)), symbols.index("[SEP]") + 1
    logits[[first, -2], [0, 1]], logits[first + 4, 1] = 9, 8
    monkeypatch.setattr(Labelling, "_logits", lambda *a: logits)
    assert trained(QUESTION).startswith("to be or not to be, so people run again ")
    join, longer = trained.text.vocabulary.join, "a [SEP]" + 40 * " dog"
    symbols = trained.text.vocabulary.split(longer)
    logits, first = np.zeros((len(symbols), 2)), symbols.index("[SEP]") + 1
    logits[first, 0], logits[:, 1] = 99, np.arange(len(symbols))
    monkeypatch.setattr(Labelling, "_logits", lambda *a: logits)
    assert trained(longer).startswith(f"{join(symbols[first : first + 30])} 0.")


def test_a_long_text_is_cut_before_its_last_mark(tmp_path):
    trained = nf.load(classifier(tmp_path, "SequenceClassification"))
    long = "a " * 40
    assert trained(long) == trained("a " * 22)  # with two marks, 24 positions
    attention = trained.attention(long)
    assert attention[attention.kinds[0]].shape[-1] == 24
    symbols = trained.text.vocabulary.split(long)
    drawn, written, _ = trained.text.maps(trained.model, symbols)
    assert drawn == [*symbols[:23], "[SEP]"] and written == []


def test_what_a_classifier_lacks_is_said(tmp_path, complaint):
    folder = classifier(tmp_path, "SequenceClassification")
    trained = nf.load(folder)
    fits, config = trained.text.fits, trained.model.config
    assert fits(config)
    for changes in (dict(labels=["a"]), dict(classifies="words"), dict(context=0)):
        kind = type(trained.text)
        assert not kind(**{**vars(trained.text), **changes}).fits(config)
    words = nf.load(classifier(tmp_path / "words", "TokenClassification"))
    message = "only classifiers of texts are evaluated; received a classifier of positions. Call"
    assert complaint(words.score, [("a", "good")]).startswith(message)
    assert not dataclasses.replace(words.text, classifies="words").fits(words.model.config)
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | dict(id2label={"1": "a", "2": "b", "3": "c"}))
    )
    assert str(folder) in complaint(nf.load, folder)
