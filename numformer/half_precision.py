"""Products of matrices in half precision (Micikevicius et al. 2018)."""

import contextlib
from collections.abc import Iterator

import numpy as np

from numformer.arithmetic import matrix_product
from numformer.backend import on_host


@contextlib.contextmanager
def half_products(half: bool = True) -> Iterator[None]:
    """Compute products with a single matrix in half precision, within the block and this thread.

    Only the products inside attention (queries with keys, weights with values), which multiply
    many pairs of matrices, stay float32.
    """
    token = matrix_product.set(HalfProduct() if half else None)
    try:
        yield
    finally:
        matrix_product.reset(token)


class HalfProduct:
    """Computes `half_product` in one half_products() block, and holds the block's rounded copies.

    `rounded_copies` maps the id of an array to a weak reference to the array and its rounded copy
    (numformer/kernels/half.py). A new block starts without copies, because the update changes the
    weights.
    """

    def __init__(self) -> None:
        self.rounded_copies: dict[int, tuple] = {}

    def __call__(self, a, b):
        return half_product(a, b)


def half_product(a, b):
    """a (M, N), b (N, P) -> a @ b (M, P), with all numbers rounded to float16, in the dtype of `a`.

    float16 has 11 significant bits and ranges from 6e-8 to 65504: smaller numbers become 0, larger
    ones infinite. Sums are computed in float32, then rounded (a GPU's kernel does not round them).
    A GPU's tensor cores compute such products many times as fast as float32 products. NumPy would
    multiply float16 numbers one by one, so on the host the rounded numbers are converted to float32
    again: the result is the same, but this is slower than float32 without rounding.
    """
    with np.errstate(over="ignore"):
        x, y = a.astype(np.float16), b.astype(np.float16)
        if on_host(a):
            x, y = x.astype(np.float32), y.astype(np.float32)
        return (x @ y).astype(np.float16).astype(a.dtype)
