"""Models without a head, whose vectors of texts are pooled as the folder says."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import numformer as nf
from numformer import convert
from numformer.published.saving import save_published
from numformer.published.sentences import LIMIT, MODES, MODULES, POOLING
from tests.published import published_texts
from tests.published.published_cases import LLAMA

LONG = "the small dog runs on the grass and a cat sleeps"


@pytest.mark.parametrize("pooling", MODES)
def test_a_folder_says_how_texts_are_pooled_and_cut(pooling, tmp_path, call):
    """[CLS] and [SEP] are among the symbols; [SEP] is still the last one of a text that is cut."""
    folder = published_texts.sentences(tmp_path / "sentences", pooling)
    trained = nf.load(folder)
    vocabulary = trained.text.vocabulary
    rows = [["[CLS]", *vocabulary.split(text)[1:-1][:7], "[SEP]"] for text in ("", "a", LONG)]
    assert [len(row) for row in rows] == [2, 3, 9]
    x = []
    for row in rows:
        ids = np.array([vocabulary.encode(row)])
        with nf.inference():
            x.append(trained.model.hidden(ids, nf.Places(ids > -1))[0])
    one = dict(mean=lambda x: x.mean(0), first=lambda x: x[0], last=lambda x: x[-1])
    vectors = [one.get(pooling, lambda x: x.max(0))(states) for states in x]
    expected = [vector / np.linalg.norm(vector) for vector in vectors]
    embedded = trained.embed(["", "a", LONG])
    assert np.allclose(embedded, expected, atol=1e-6) and embedded.dtype == np.float32
    assert call(convert.main, f"{folder} --out {tmp_path / 'run'}")[0] == 0
    back = tmp_path / "back"
    assert call(convert.main, f"{tmp_path / 'run'} --to-huggingface --out {back}")[0] == 0
    for other in ("run", "back"):
        assert np.array_equal(nf.load(tmp_path / other).embed(["", "a", LONG]), embedded)
    for path in folder.rglob("*.json"):
        same = back / path.relative_to(folder)
        assert json.loads(path.read_text()) == json.loads(same.read_text())


@pytest.mark.parametrize("normalized", [True, False])
def test_what_sentence_transformers_reads(normalized, tmp_path):
    folder = published_texts.sentences(tmp_path)
    for name in (MODULES, LIMIT, f"{POOLING}/config.json"):
        (folder / name).unlink()
    trained = nf.load(folder)
    metadata = {"published": json.loads((folder / "config.json").read_text())}
    save_published(folder, trained.model, metadata, replace(trained.text, normalized=normalized))
    modules, limit, pooling = (
        json.loads((folder / name).read_text())
        for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
    )
    steps = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
    steps += [("2", "2_Normalize", "Normalize")] * normalized
    module = "sentence_transformers.models."
    assert modules == [
        dict(idx=int(name), name=name, path=path, type=module + kind) for name, path, kind in steps
    ]
    assert limit == dict(max_seq_length=24, do_lower_case=False)
    modes = "mean_tokens", "cls_token", "lasttoken", "max_tokens"
    expected = {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in modes}
    assert pooling == dict(word_embedding_dimension=16) | expected


def test_a_literal_padding_is_a_symbol(tmp_path):
    trained = nf.load(published_texts.sentences(tmp_path))
    with_padding, without = trained.hidden(["a [PAD] dog", "a dog"])
    assert with_padding.shape[1] == without.shape[1] + 1
    assert not np.allclose(with_padding[-1, -1], without[-1, -1])


def test_a_folder_that_says_nothing_has_the_mean_as_it_is(tmp_path):
    """The longest text is what the positions allow."""
    folder = published_texts.sentences(tmp_path)
    (folder / LIMIT).write_text("{}")
    assert nf.load(folder).text.context == 24
    for path in (LIMIT, MODULES):
        (folder / path).unlink()
    text = nf.load(folder).text
    assert (text.context, text.pooling, text.normalized) == (24, "mean", False)
    (folder / LIMIT).write_text('{"max_seq_length": 99}')
    assert nf.load(folder).text.context == 24


def test_a_model_with_a_head_is_only_read_if_its_folder_says_so(tmp_path):
    folder = published_texts.bert(tmp_path / "bert")
    whole = nf.load(folder)
    assert whole("a [MASK]") and whole.embed(["a dog"]).shape == (1, 16)
    shutil.copy(published_texts.sentences(tmp_path / "other") / MODULES, folder)
    shutil.copytree(tmp_path / "other" / POOLING, folder / POOLING)
    assert np.allclose(nf.load(folder).embed(["a"]), whole.embed(["a"], "last", normalized=True))


def test_a_bare_decoder_only_reads(tmp_path, complaint):
    folder = published_texts.gpt2(tmp_path, LLAMA | dict(architectures=["LlamaModel"]))
    trained = nf.load(folder)
    (states,) = trained.hidden(["a dog"])
    assert np.allclose(trained.embed(["a dog"], "last"), states[-1, -1:])
    assert "a model that writes has a head" in complaint(trained, "a dog")


def test_texts_and_images_of_a_clip_are_compared(tmp_path, call, complaint):
    """The vectors of texts are unit vectors at their end; longer texts are cut."""
    folder, texts = published_texts.clip(tmp_path / "clip"), ["a dog", LONG]
    trained = nf.load(folder)
    pixels = np.random.default_rng(2).standard_normal((2, 12, 12, 3))
    ids = nf.pad([trained.text.first_ids(text) for text in texts])
    assert ids.shape == (2, 8) and ids[1, -1] == trained.model.config.special.end
    with nf.inference():
        images, logits = trained.model.embed_images(pixels), trained.model.forward(pixels, ids)
    images /= np.linalg.norm(images, axis=1)[:, None]
    vectors = trained.embed(texts)
    assert np.allclose(np.exp(trained.model.similarity.scale.data) * images @ vectors.T, logits)
    first, second = trained.hidden(texts)
    assert (first.shape[0], first.shape[2], second.shape) == (3, 12, (3, 8, 12))
    assert call(convert.main, f"{folder} --out {tmp_path / 'run'}")[0] == 0
    back = tmp_path / "back"
    assert call(convert.main, f"{tmp_path / 'run'} --to-huggingface --out {back}")[0] == 0
    for other in (tmp_path / "run", back):
        assert np.array_equal(nf.load(other).embed(texts), vectors)
    assert not (back / MODULES).exists()
    (folder / "tokenizer.json").rename(folder / "merges.txt")
    assert "tokenizer.json; received" in complaint(nf.load, folder)


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        (MODULES, lambda modules: [{"type": "x.models.Dense"}], "the module x.models.De"),
        (MODULES, lambda modules: {}, "modules.json (it holds no JSON list)"),
        (MODULES, lambda modules: [5], "the .json files of a published model are unchanged"),
        (f"{POOLING}/config.json", lambda p: p | {"pooling_mode_mean_tokens": True}, "s and pool"),
        (f"{POOLING}/config.json", lambda p: {}, "received none of them in"),
        (LIMIT, lambda limit: {"max_seq_length": "9"}, "(max_seq_length '9')"),
        (LIMIT, lambda limit: {"max_seq_length": 0}, "(max_seq_length 0)"),
        (LIMIT, lambda limit: [], "it holds no JSON object"),
    ],
)
def test_other_modules_and_poolings_are_refused_by_name(path, change, words, tmp_path, complaint):
    folder = published_texts.sentences(tmp_path)
    (folder / path).write_text(json.dumps(change(json.loads((folder / path).read_text()))))
    assert words in complaint(nf.load, folder)
