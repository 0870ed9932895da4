"""The norm of a gradient, and clipping to a maximum norm."""

from numformer.backend import array_module, has_kernel

BLOCK = 1 << 18
"""The number of entries in a block of a vector; a process sends one block in each message."""


def blocks_of(size: int) -> list[slice]:
    """Return the slices that divide a vector (size,) into blocks."""
    return [slice(first, min(first + BLOCK, size)) for first in range(0, max(size, 1), BLOCK)]


def clip_global_norm(grad, max_norm: float | None):
    """grad (N) -> its norm (); if this is above max_norm, scales `grad` in place to max_norm."""
    norm = norm_of(block_squares(grad, blocks_of(len(grad))))
    if max_norm is not None:
        grad *= clip_factor(norm, max_norm)
    return norm


@has_kernel
def block_squares(vector, blocks: list[slice]):
    """vector (N), slices of its M adjacent blocks -> the sum of squares of each block (M,)."""
    return array_module(vector).stack([vector[block] @ vector[block] for block in blocks])


@has_kernel
def norm_of(squares):
    """The blocks' sums of squares (M,), added in order -> the norm of the vector, scalar ()."""
    return array_module(squares).sqrt(squares.cumsum()[-1])


@has_kernel
def clip_factor(norm, max_norm: float):
    """norm, scalar () -> the clipping factor, scalar (): max_norm / norm, but at most 1."""
    return max_norm / array_module(norm).maximum(norm, max_norm)
