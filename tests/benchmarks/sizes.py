"""The models of the benchmarks: their sizes and their batches."""

from typing import NamedTuple

import numpy as np

from numformer.data.batching import PairBatch
from toy_tasks.data.windows import Windows


class Size(NamedTuple):
    """Vocabulary, d_model, heads, layers, d_ff, a batch of B sequences of length T, model."""

    V: int
    D: int
    heads: int
    layers: int
    F: int
    B: int
    T: int
    model: str = "transformer"


SIZES = {
    "toy64": Size(16, 64, 4, 2, 128, 64, 12),
    "toy": Size(32, 128, 4, 2, 512, 64, 12),
    "tiny": Size(10000, 128, 4, 4, 256, 128, 16),
    "base": Size(10000, 512, 8, 6, 2048, 32, 32),
    "wide": Size(37000, 512, 8, 6, 2048, 16, 64),
    "long": Size(1000, 256, 4, 2, 1024, 2, 1024),
    "gpt": Size(65, 128, 4, 4, 512, 12, 64, "gpt"),
    "gptq": Size(65, 256, 4, 4, 1024, 16, 256, "gpt"),
    "gpt2": Size(50257, 768, 12, 12, 3072, 4, 256, "gpt"),
    "lstm": Size(32, 128, 0, 1, 0, 64, 12, "lstm"),
    # 25,000 tokens of each language a batch (section 5.1): for a GPU
    "paper_base": Size(37000, 512, 8, 6, 2048, 390, 64),
    "paper_big": Size(37000, 1024, 16, 6, 4096, 390, 64),
}
LENGTHS = {"full": "all sequences T long", "padded": "of lengths T / 2 to T"}
P_DROP = 0.1


def batches(size: Size, lengths: str, count: int = 8):
    """Batches of source, target_in, target_out (B, T); for a gpt, of ids and the following ids."""
    rng = np.random.default_rng(0)
    if size.model == "gpt":
        ids = rng.integers(4, size.V, (count, size.B, size.T + 1))
        return [Windows(batch[:, :-1], batch[:, 1:]) for batch in ids]

    def sequence(shortest):  # without the end id
        return rng.integers(4, size.V, rng.integers(shortest, size.T))

    shortest = size.T - 1 if lengths == "full" else size.T // 2
    return [
        PairBatch.of([(sequence(first), sequence(first)) for first in [size.T - 1, *others]])
        for others in count * [(size.B - 1) * [shortest]]
    ]
