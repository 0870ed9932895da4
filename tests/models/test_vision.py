"""The vision Transformer: images of any floating-point dtype, and what it refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import to_host
from numformer.layer import pack
from numformer.models.vision import VisionTransformer

SIZES = dict(height=4, width=6, channels=1, classes=3, d_model=8, d_ff=12, heads=2, layers=2)
IMAGES = np.random.default_rng(5).random((3, 4, 6))
LABELS = np.array([2, 0, 1])


def small(dtype=np.float64, xp=np, **changes) -> VisionTransformer:
    """A small model, its parameters shaken."""
    model = VisionTransformer(VisionTransformer.Config(**(SIZES | dict(p_drop=0.0) | changes)))
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    pack(model, dtype, xp)
    return model


@pytest.mark.parametrize("given", [np.float16, np.float32, np.float64])
def test_images_of_the_host_become_the_dtype_of_the_weights_where_these_are(given, xp):
    """Images on the device, and grey ones with their one channel, are as good."""
    model, images = small(np.float32, xp), IMAGES.astype(given)
    logits, targets = model.predictions(images, LABELS)
    assert logits.dtype == np.float32 and type(logits) is xp.ndarray and targets is LABELS
    for same in (xp.asarray(images), images[..., None]):
        assert_array_equal(to_host(model.forward(same)), to_host(logits))
    assert_allclose(
        to_host(logits), small().forward(images.astype(np.float64)), rtol=1e-4, atol=1e-5
    )
    model.clear_saved()
    objective = model.objective()
    objective.forward(images, LABELS)
    dimages = objective.backward()
    assert dimages.shape == images.shape and dimages.dtype == np.float32


def test_a_model_without_a_head_gives_the_vector_of_its_token(complaint):
    model, whole = small(classes=None), small()
    whole.load_state_dict(whole.state_dict() | model.state_dict())
    vector = model.forward(IMAGES)
    assert_allclose(vector, whole.hidden(IMAGES)[:, 0], rtol=1e-12)
    assert_allclose(
        whole.forward(IMAGES), vector @ whole.output.weight.data + whole.output.bias.data
    )
    dimages = model.backward(np.ones_like(vector))
    shifted = IMAGES + 1e-6 * (np.arange(72).reshape(IMAGES.shape) == 31)
    slope = (model.forward(shifted) - vector).sum() / 1e-6
    assert_allclose(dimages.ravel()[31], slope, rtol=1e-4)
    count = sum(parameter.size for parameter in model.named_parameters().values())
    assert model.config.least_parameters < count
    assert whole.config.least_parameters - model.config.least_parameters == 3 * 8
    assert "labels are a NumPy array" in complaint(model.predictions, IMAGES, LABELS)


@pytest.mark.parametrize(
    ("images", "received"),
    [
        (IMAGES[:0], "shape (0, 4, 6)"),
        (IMAGES[:, :2], "shape (3, 2, 6)"),
        (IMAGES.repeat(3, axis=0).reshape(3, 4, 6, 3), "shape (3, 4, 6, 3)"),
        ((9 * IMAGES).astype(int), "dtype int64"),
        (IMAGES.tolist(), "list"),
    ],
)
def test_what_is_no_batch_of_its_images_is_refused(images, received, complaint):
    message = complaint(small().forward, images)
    assert (
        "images are an array (B, 4, 6) of floating-point numbers" in message and received in message
    )
    message = complaint(small(channels=3).forward, IMAGES)
    assert "images are an array (B, 4, 6, 3)" in message and "shape (3, 4, 6)" in message


@pytest.mark.parametrize(
    ("labels", "received"),
    [
        (np.array([0, -1]), "received -1 to 0"),
        (np.array([0, 3]), "received 0 to 3"),
        (np.zeros(0, int), "shape (0,), int64"),
        (np.array([[0, 1]]), "shape (1, 2), int64"),
        (np.array([0.0, 1.0]), "float64"),
        ([0, 1], "list"),
    ],
)
def test_labels_that_are_none_of_the_classes_are_refused(labels, received, complaint):
    message = complaint(small().objective().forward, IMAGES[:2], labels)
    assert "integers from 0 to 2" in message and received in message
    small().objective().forward(IMAGES[:1], np.array([0]))  # one will do


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(patch=4), "images 4 x 6, patch 4"),
        (dict(height=5), "images 5 x 6, patch 2"),
        (dict(max_length=6), "max_length 6 for images of 7 positions"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes, message, complaint):
    assert message in complaint(VisionTransformer.Config, **(SIZES | changes))


def test_sizes_of_a_config_are_held_to_their_rules(complaint):
    message = complaint(VisionTransformer.Config, **(SIZES | dict(classes=0)))
    assert "classes is an integer of at least 1" in message
    nine = VisionTransformer.Config(**(SIZES | dict(height=9, patch=3)))
    assert nine.length == 1 + 3 * 2


def test_factors_of_sublayers_are_small_at_first_and_count_as_norms():
    """A LayerScale has one for each feature, and the norm before it has two."""
    model = VisionTransformer(VisionTransformer.Config(**SIZES, norm="pre_scaled"))
    scales = [p.data for n, p in model.named_parameters().items() if n.endswith(".scale")]
    assert scales and all(np.all(scale == 0.1) for scale in scales)
    norms = 2 * (len(scales) + 1) + len(scales)
    assert model.parameter_counts()["norm"] == norms * model.config.d_model


@pytest.mark.parametrize(
    ("changes", "width"),
    [(dict(mean_head=True, registers=3), 2), (dict(distilled=True, distilled_head=True), 1)],
)
def test_without_classes_the_result_is_what_a_head_reads(changes, width):
    model = small(classes=None, **changes)
    y, x = model.forward(IMAGES), model.hidden(IMAGES)
    assert x.shape[1] == model.config.length  # registers are left out
    expected = np.concatenate([x[:, 0], x[:, 1:].mean(axis=1)], axis=1)
    assert_allclose(y, expected[:, : width * model.config.d_model])


@pytest.mark.parametrize(
    "changes",
    [{}, dict(mean_head=True), dict(distilled=True), dict(distilled=True, distilled_head=True)],
)
def test_the_smallest_number_of_parameters_counts_every_matrix(changes):
    model = small(**changes)
    heads = [model.output, *filter(None, [model.distilled_output])]
    matrices = sum(head.weight.size for head in heads) + model.embedding.weight.size
    least = model.config.entries() + matrices
    assert model.config.least_parameters == least
