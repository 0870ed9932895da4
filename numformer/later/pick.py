"""Select some positions of a batch, for layers that need only these."""

from numformer.arithmetic import rows
from numformer.backend import array_module
from numformer.layer import Array, Layer


def pick(x, places):
    """x (..., D), places (N,) -> y (N, D): the rows of x at the places."""
    return rows(x).take(places, axis=0)


def pick_backward(dy, places, shape):
    """dy (N, D), distinct places (N,), the shape of x -> dx: dy at the places, 0 elsewhere."""
    xp = array_module(dy)
    dx = xp.zeros(shape, dtype=dy.dtype)
    rows(dx)[places] = dy  # y = x[places]
    return dx


class Pick(Layer):
    """x (..., D), places (N,) -> (N, D): the rows of x at distinct places.

    `places` is a host array of integers: position 1 of sequence 2 in x (B, T, D) is place 2 T + 1.
    """

    def forward(self, x: Array, places: Array) -> Array:
        places = array_module(x).asarray(places)
        self.save(places=places, shape=x.shape)
        return pick(x, places)

    def backward(self, dy: Array) -> Array:
        return pick_backward(dy, **self.pop_saved())
