"""Images as sequences: patches, a class token before them, and what a head reads of these."""

import numpy as np

from numformer.backend import array_module
from numformer.later.activations import halves
from numformer.layer import Array, Layer, Parameter


def split_patches(images, size: int):
    """images (B, height, width[, C]) -> patches (B, N, size^2 C), row by row.

    The pixels of a patch are in row order, too, each with its C channels.
    """
    batch, height, width = images.shape[:3]
    grid = images.reshape(batch, height // size, size, width // size, size, -1)
    patch_by_patch = grid.swapaxes(2, 3)
    return patch_by_patch.reshape(batch, height * width // size**2, -1)


def split_patches_backward(dpatches, shape, size: int):
    """dpatches (B, N, size^2 C), the shape of the images -> dimages (B, height, width[, C])."""
    batch, height, width = shape[:3]
    patch_by_patch = dpatches.reshape(batch, height // size, width // size, size, size, -1)
    grid = patch_by_patch.swapaxes(2, 3)
    return grid.copy().reshape(shape)  # a copy: with one column of patches, reshape returns a view


class Patches(Layer):
    """images (B, height, width[, C]) -> (B, N, size^2 C): adjacent squares of pixels.

    height and width are multiples of `size`.
    """

    def __init__(self, size: int):
        self.size = size

    def forward(self, images: Array) -> Array:
        self.save(shape=images.shape)
        return split_patches(images, self.size)

    def backward(self, dpatches: Array) -> Array:
        return split_patches_backward(dpatches, **self.pop_saved(), size=self.size)


def prepend(x, token):
    """x (B, N, D), token (D) -> y (B, 1 + N, D): the token comes first in every sequence."""
    xp = array_module(x)
    return xp.concatenate([xp.broadcast_to(token, (len(x), 1, len(token))), x], axis=1)


def prepend_backward(dy):
    """dy (B, 1 + N, D) -> dx (B, N, D), dtoken (D)."""
    return dy[:, 1:].copy(), dy[:, 0].sum(axis=0)  # all sequences share the token


class ClassToken(Layer):
    """x (B, N, D) -> (B, 1 + N, D): prepends a trained vector, at whose position the class is read.

    Its initial values are normal with standard deviation D^-0.5, like those of learned positions.
    """

    def __init__(self, d_model: int, rng: np.random.Generator):
        self.token = Parameter(rng.normal(0, d_model**-0.5, d_model))

    def forward(self, x: Array) -> Array:
        self.save()
        return prepend(x, self.token.data)

    def backward(self, dy: Array) -> Array:
        self.pop_saved()
        dx, dtoken = prepend_backward(dy)
        self.token.grad += dtoken
        return dx


def token_and_mean(x):
    """x (B, 1 + N, D) -> (B, 2 D): the first position, then the mean of the others.

    What DINOv2's linear classifiers read (Oquab et al. 2023, appendix B.3).
    """
    return array_module(x).concatenate([x[:, 0], x[:, 1:].mean(axis=1)], axis=-1)


def token_and_mean_backward(dy, count: int):
    """dy (B, 2 D), count N -> dx (B, 1 + N, D)."""
    xp, (dtoken, dmean) = array_module(dy), halves(dy)
    dothers = xp.repeat(dmean[:, None] / count, count, axis=1)  # mean = sum(others) / count
    return xp.concatenate([dtoken[:, None], dothers], axis=1)


class TokenAndMean(Layer):
    """x (B, 1 + N, D) -> (B, 2 D): the class token's position, and the mean of all others."""

    def forward(self, x: Array) -> Array:
        self.save(count=x.shape[1] - 1)
        return token_and_mean(x)

    def backward(self, dy: Array) -> Array:
        return token_and_mean_backward(dy, **self.pop_saved())
