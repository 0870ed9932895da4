"""The norm of a gradient, and clipping to a maximum norm."""

from numformer.backend import array_module, has_kernel

BLOCK = 1 << 18
"""How many entries of a vector are summed together, and sent by a rank in one message."""


def blocks_of(size: int) -> list[slice]:
    """Return the slices that divide a vector (size,) into blocks."""
    return [slice(first, min(first + BLOCK, size)) for first in range(0, max(size, 1), BLOCK)]


def clip_global_norm(grad, max_norm: float | None):
    """grad (N) -> its norm, scalar (); if it is above max_norm, scale `grad` down to max_norm."""
    norm = norm_of(block_squares(grad, blocks_of(len(grad))))
    if max_norm is not None:
        grad *= clip_factor(norm, max_norm)
    return norm


@has_kernel
def block_squares(vector, blocks: list[slice]):
    """vector (N), M adjacent blocks of it -> the sum of squares of each (M,)."""
    return array_module(vector).stack([vector[block] @ vector[block] for block in blocks])


@has_kernel
def norm_of(squares):
    """squares (M,) of a vector's blocks -> the vector's scalar norm (); adds them in order."""
    return array_module(squares).sqrt(squares.cumsum()[-1])


@has_kernel
def clip_factor(norm, max_norm: float):
    """norm, scalar () -> the factor, at most 1, that scales a vector of this norm to max_norm."""
    return max_norm / array_module(norm).maximum(norm, max_norm)
