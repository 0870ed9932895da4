"""Products of matrices in half precision (Micikevicius et al. 2018)."""

import contextlib
from collections.abc import Iterator

import numpy as np

from numformer.arithmetic import matrix_product
from numformer.backend import on_host


@contextlib.contextmanager
def half_products(half: bool = True) -> Iterator[None]:
    """Within the block, in this thread, products with one matrix are made in half precision.

    These are all but the products inside attention, queries with keys and weights with values,
    which stay float32.
    """
    token = matrix_product.set(half_product if half else None)
    try:
        yield
    finally:
        matrix_product.reset(token)


def half_product(a, b):
    """a (M, N), b (N, P) -> a @ b (M, P) of numbers rounded to float16, of the dtype of `a`.

    float16 has 11 bits and reaches from 6e-8 to 65504: smaller numbers become 0, larger ones
    infinite. The sums are made in float32 and rounded, too (a GPU's kernel does not round them). A
    GPU's tensor cores make such products many times as fast as those of float32. NumPy would
    multiply float16 numbers one by one, so here numbers that were rounded are float32 again: the
    same arithmetic, and slower than without it.
    """
    with np.errstate(over="ignore"):
        x, y = a.astype(np.float16), b.astype(np.float16)
        if on_host(a):
            x, y = x.astype(np.float32), y.astype(np.float32)
        return (x @ y).astype(np.float16).astype(a.dtype)
