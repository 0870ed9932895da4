"""Patches of images, by plain loops."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.layers import Patches


@pytest.mark.parametrize(("size", "height", "width"), [(3, 6, 9), (2, 4, 2), (1, 2, 3)])
def test_a_patch_holds_its_pixels_row_after_row(size, height, width, rng):
    images = rng.standard_normal((2, height, width, 2))
    layer = Patches(size)
    found = layer.forward(images)
    corners = [(y, x) for y in range(0, height, size) for x in range(0, width, size)]
    assert found.shape == (2, len(corners), size * size * 2)
    for number, (y, x) in enumerate(corners):
        patch = images[:, y : y + size, x : x + size]
        assert_array_equal(found[:, number], patch.reshape(2, -1))
    dimages = layer.backward(found)
    assert_array_equal(dimages, images)
    assert not np.shares_memory(dimages, found)
