"""The encoder-decoder that listens: sounds of any floating-point dtype, and what it refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import numformer as nf
from numformer.backend import to_host

SIZES = dict(vocabulary=9, bands=3, frames=9, d_model=8, d_ff=12, heads=2, layers=1, p_drop=0.0)
SOUNDS = np.random.default_rng(5).standard_normal((2, 9, 3))
IDS = np.array([[1, 4, 5], [1, 6, 0]])


def small(xp=np) -> nf.SpeechTransformer:
    model = nf.SpeechTransformer(nf.SpeechTransformer.Config(**SIZES))
    nf.pack(model, np.float32, xp)
    return model


@pytest.mark.parametrize("given", [np.float16, np.float32, np.float64])
def test_sounds_become_the_dtype_of_the_weights_where_these_are(given, xp):
    model, sounds = small(xp), SOUNDS.astype(given)
    logits = model.forward(sounds, IDS)
    assert logits.dtype == np.float32 and type(logits) is xp.ndarray
    dsounds = model.backward(xp.ones_like(logits))
    assert dsounds.shape == sounds.shape and dsounds.dtype == np.float32
    assert_allclose(to_host(logits), small().forward(SOUNDS, IDS), rtol=1e-2, atol=1e-2)
    for frames in (1, 4):
        assert model.forward(sounds[:, :frames], IDS).shape == (2, 3, 9)


@pytest.mark.parametrize(
    ("sounds", "ids", "said"),
    [
        (SOUNDS.repeat(2, axis=1), IDS, "F at most 9; received shape (2, 18, 3)"),
        (SOUNDS[:, :0], IDS, "received shape (2, 0, 3)"),
        (SOUNDS[..., :2], IDS, "(B, F, 3) of floating-point numbers"),
        (SOUNDS[0], np.ones((9, 1), int), "received shape (9, 3)"),
        (SOUNDS.astype(int), IDS, "dtype int64"),
        (SOUNDS.tolist(), IDS, "received list"),
        (SOUNDS[:1], IDS, "1 sources and 2 targets"),
        (SOUNDS, IDS[0], "target ids are a NumPy array"),
    ],
)
def test_what_is_no_batch_of_sounds_and_ids_is_refused(sounds, ids, said, complaint):
    assert said in complaint(small().forward, sounds, ids)
    if "target" not in said:
        assert said in complaint(small().start, sounds, 3)


def test_the_longest_sound_and_the_ids_of_a_config(complaint):
    config = nf.SpeechTransformer.Config
    assert [config(**(SIZES | dict(frames=n))).sound_positions for n in (8, 9)] == [4, 5]
    assert "a start id, and an end id" in complaint(config, **SIZES, end_id=0)
    assert (config(vocabulary=9).bands, config(vocabulary=9).frames) == (80, 3000)
