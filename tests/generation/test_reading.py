"""The vectors of texts: pooled, in batches without padding, of every layer."""

import numpy as np
import pytest

import numformer as nf
from numformer.generation import reading
from numformer.generation.continuation import Continuation
from numformer.generation.descriptions import pipeline_from
from numformer.trained import Trained

LETTERS = nf.Vocabulary("abcde_")
SIZES = dict(vocabulary=len(LETTERS), d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.5)
TEXTS = ["abc", "de", "edcba", "cab", "a"]


def trained(kind: type = nf.MaskedLanguageModel, text=None, **changes) -> Trained:
    """A model with random parameters, which reads up to 5 symbols."""
    model = kind(kind.Config(**SIZES | changes))
    nf.pack(model, np.float64).data += 0.3 * np.random.default_rng(6).standard_normal(
        sum(p.size for p in model.named_parameters().values())
    )
    return Trained(model, text or nf.generation.Reading(LETTERS, 5), {})


def by_hand(read: Trained, text: str) -> np.ndarray:
    """The vectors of all layers (layers + 1, T, D)."""
    model, ids = read.model, np.array([LETTERS.encode(text)])
    with nf.inference():
        places = nf.Places(np.ones(ids.shape, bool))
        reach = nf.Reach(places, causal=isinstance(model, nf.LanguageModel))
        x = [model.input.forward(ids, places)]
        for layer in model.tower.layers:
            x.append(layer.forward(x[-1], reach))
        norm = getattr(model.tower, "norm", None)
        x[-1] = norm.forward(x[-1]) if norm else x[-1]
    return np.array(x)[:, 0]


@pytest.mark.parametrize(
    "read",
    [
        trained(),
        trained(norm="pre", padding_id=4),  # "a", here a symbol like others
        trained(nf.LanguageModel, Continuation(LETTERS, 5), norm="pre"),
    ],
    ids=["post", "pre", "causal"],
)
def test_vectors_by_hand(read, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 3)  # "abc" and "cab" are in different batches
    states = [by_hand(read, text) for text in TEXTS]
    for ours, expected in zip(read.hidden(TEXTS), states, strict=True):
        assert ours.shape == expected.shape and np.allclose(ours, expected)
    last = [x[-1] for x in states]
    poolings = dict(
        mean=[x.mean(axis=0) for x in last],
        first=[x[0] for x in last],
        last=[x[-1] for x in last],
        max=[x.max(axis=0) for x in last],
    )
    for pooling, vectors in poolings.items():
        assert np.allclose(read.embed(TEXTS, pooling), vectors)
        lengths = np.linalg.norm(vectors, axis=1)[:, None]
        assert np.allclose(read.embed(TEXTS, pooling, normalized=True), vectors / lengths)
    assert np.array_equal(read.embed(TEXTS), read.embed(TEXTS, "mean", normalized=False))
    assert np.allclose(read.embed(["abcdeabc"]), read.embed(["abcde"]))  # cut to the context
    assert read.model.pending() == 0


def test_texts_of_one_length_share_a_batch(monkeypatch):
    read, shapes = trained(), []
    own = read.model.hidden
    monkeypatch.setattr(
        read.model, "hidden", lambda ids, places: shapes.append(ids.shape) or own(ids, places)
    )
    read.embed(TEXTS)
    assert shapes == [(2, 3), (1, 2), (1, 5), (1, 1)]
    monkeypatch.setattr(reading, "LARGEST", 7)
    read.embed(["abc"] * 5 + ["abcde"] * 2)
    assert shapes[4:] == [(2, 3), (2, 3), (1, 3), (1, 5), (1, 5)]


def test_the_pipeline_has_the_defaults_of_its_model():
    text = nf.generation.Reading(LETTERS, 5, "last", normalized=True)
    read = trained(text=text)
    assert np.array_equal(read.embed(TEXTS), read.embed(TEXTS, "last", normalized=True))
    assert np.array_equal(read.embed(TEXTS, normalized=False), read.embed(TEXTS, "last", False))
    described = text.description()
    assert pipeline_from(described, read.model.config).description() == described
    for change in (dict(pooling="sum"), dict(normalized=1), dict(context=0)):
        assert pipeline_from(described | change, read.model.config) is None
    seen = read.attention("abcdeabc")
    assert (seen.text, seen.written, seen.kinds) == ("abcde", "", ["self_attention"])
    assert seen["self_attention"].shape == (2, 2, 5, 5)


def test_what_has_no_vectors_is_refused(complaint):
    read = trained()
    for method in (lambda: read("abc"), lambda: read.score([("abc", "d")])):
        assert "Call embed(texts)" in complaint(method)
    assert "pooling is one of mean, first, last, max" in complaint(read.embed, TEXTS, "sum")
    for method in (read.embed, read.hidden):
        assert "Write [text]" in complaint(method, "abc")
        assert "at least one symbol" in complaint(method, [""])
        assert "Pass a string" in complaint(method, [5])
        both = Trained(nf.Transformer(nf.Config.base(9, d_model=8, heads=2)), read.text, {})
        assert "come from a single stack; received a Transformer" in complaint(both.embed, TEXTS)
    translator = nf.Transduction(LETTERS, LETTERS, 5)
    assert "single stack" in complaint(trained(text=translator).embed, TEXTS)


def test_a_mask_says_what_is_padding():
    """By default the padding id; with a mask, it is a symbol like others."""
    model, ids = trained().model, np.array([[4, 5, 0, 6], [7, 0, 0, 0]])
    valid = np.array([[1, 1, 1, 1], [1, 0, 0, 0]], bool)
    with nf.inference():
        masked = model.forward(ids, valid=valid)
        other = model.forward(np.where(valid, ids, 9), valid=valid)
        usual = model.forward(ids)
        assert np.array_equal(model.forward(ids, valid=ids != 0), usual)
    assert np.allclose(masked[valid], other[valid])
    assert not np.allclose(masked[0, :2], usual[0, :2]) and np.allclose(masked[1, 0], usual[1, 0])
