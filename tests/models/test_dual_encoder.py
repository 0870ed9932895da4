"""The two towers of a DualEncoder: what it compares, saves and refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import numformer as nf
from numformer.runs.checkpoints import load_model, save_model

TOWER = dict(d_ff=12, heads=2, layers=1, p_drop=0.0)
TEXTS = dict(vocabulary=9, head=False, d_model=8, norm="pre", **TOWER)
IMAGES = dict(height=4, width=6, channels=1, d_model=6, norm="pre", **TOWER)
END = nf.DualEncoder.Config(texts=TEXTS, images=IMAGES).special.end
IDS = np.array([[4, 5, END, END], [6, END, 7, 8], [5, 4, 5, END]])
PIXELS = np.random.default_rng(3).standard_normal((2, 4, 6, 1))


def small(**changes) -> nf.DualEncoder:
    config = dict(texts=TEXTS, images=IMAGES, width=5) | changes
    model = nf.DualEncoder(nf.DualEncoder.Config(**config))
    nf.pack(model, np.float64)
    return model


def test_a_logit_is_the_cosine_of_two_vectors_times_a_factor():
    """Of a text, the vector at its first end; what follows changes nothing."""
    model = small()
    images, texts = model.embed_images(PIXELS), model.embed_texts(IDS)
    assert images.shape == (2, 5) and texts.shape == (3, 5)
    assert_allclose(model.embed_texts(IDS[:1, :3]), texts[:1])
    assert_allclose(model.embed_texts(IDS[1:2, :2]), texts[1:2])
    images, texts = (x / np.linalg.norm(x, axis=1)[:, None] for x in (images, texts))
    assert_allclose(model.forward(PIXELS, IDS), images @ texts.T / 0.07)


def test_what_is_saved_is_loaded(tmp_path):
    model = small(texts=TEXTS | dict(mixers="window", window=2))
    save_model(tmp_path / "model.safetensors", model)
    again, _ = load_model(tmp_path / "model.safetensors")
    assert type(again) is nf.DualEncoder and again.config == model.config
    assert_allclose(again.forward(PIXELS, IDS), model.forward(PIXELS, IDS))
    assert model.config.longest is None and model.config.d_model == 5
    count = sum(parameter.size for parameter in model.named_parameters().values())
    least = model.config.least_parameters
    in_towers = model.config.texts.least_parameters + model.config.images.least_parameters
    assert least == in_towers + 5 * (8 + 6) and least < count


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(texts=TEXTS | dict(head=True)), "received head True, classes None"),
        (dict(images=IMAGES | dict(classes=3)), "received head False, classes 3"),
        (dict(texts=TEXTS | dict(patch=2)), "received patch"),
        (dict(texts="none"), "texts is a LanguageModel.Config"),
        (dict(width=0), "width is an integer of at least 1"),
    ],
)
def test_other_towers_are_refused(changes, words, complaint):
    assert words in complaint(small, **changes)


def test_a_text_without_an_end_is_refused(complaint):
    texts = np.array([[5, END], [5, 6], [6, END]])
    message = complaint(small().embed_texts, texts)
    assert f"a text has the end id, {END}; received row 1 without it" in message
