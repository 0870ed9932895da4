"""What every test file shares: random numbers, array modules, and how to provoke a complaint."""

import sys

import cupy_stand_in
import numpy as np
import pytest
from hypothesis import settings

from numformer.backend import dropout_stream
from numformer.errors import InputError
from numformer.layer import saving, training

settings.register_profile("numformer", deadline=None, derandomize=True, database=None)
settings.load_profile("numformer")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_start():
    """Each test begins with the same dropout masks and must leave the modes as they were."""
    dropout_stream.reseed(0, 0)
    yield
    assert training() and saving()


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in for CuPy, which `import cupy` finds."""
    monkeypatch.setitem(sys.modules, "cupy", cupy_stand_in)
    return cupy_stand_in


@pytest.fixture(params=["numpy", "cupy"])
def xp(request):
    """Each module that arrays can be of."""
    return np if request.param == "numpy" else request.getfixturevalue("stand_in")


@pytest.fixture
def complaint():
    """`complaint(function, *args)` calls it, expects InputError, and gives the message."""

    def call(function, *args, **kwargs) -> str:
        with pytest.raises(InputError) as caught:
            function(*args, **kwargs)
        return str(caught.value)

    return call
