"""Activations against their definitions, number by number."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.later.activations import GEGLU, GELU, GELUTanh, SwiGLU

VALUES = [-40.0, -12.5, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 12.5, 40.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [GELU, GELUTanh])
def test_gelu_is_a_line_far_from_0(kind, dtype):
    """There the density must be 0: a small one times a large number would not be small."""
    layer = kind()
    assert_array_equal(layer.forward(np.array([-1e35, -50, 50, 1e35], dtype))[:2], 0)
    assert_array_equal(layer.backward(np.ones(4, dtype)), [0, 0, 1, 1])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0


def nearly_normal(x: float) -> float:
    """GELU's probability by way of a tanh."""
    return (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "share"), [(SwiGLU, sigmoid), (GEGLU, nearly_normal)])
def test_gated_activations_multiply_one_half_by_the_gate_of_the_other(kind, share, dtype):
    """A gate far from 0 overflows in neither forward nor backward."""
    gate, value = np.array([*VALUES, -1e30, 1e30], dtype), np.linspace(-2, 3, 13, dtype=dtype)
    layer = kind()
    found = layer.forward(np.concatenate([gate, value]))
    gates = np.array([x * share(x) for x in gate.tolist()])
    assert_allclose(found, gates * value, rtol=2e-5, atol=1e-6)
    dx = layer.backward(np.ones(13, dtype))
    assert dx.dtype == dtype and np.isfinite(dx).all()
    assert_array_equal(dx[[11, 12]], [0, value[12]])  # its opening is 0 there, or the gate itself
