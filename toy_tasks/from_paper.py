"""Train the Transformer of `numformer.paper` to reverse digits; this file has the whole loop.

python -m toy_tasks.from_paper
"""

import argparse

import numpy as np

from numformer import blas
from numformer.layer import pack
from numformer.paper import Adam, Config, CrossEntropy, Transformer, greedy, warmup_rate
from numformer.randomness import dropout_stream
from numformer.symbols import END, PADDING, SPECIAL, START

DIGITS, LONGEST, BATCH = 10, 8, 64


def batch(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sources (B, S) and targets (B, T): random digits, and the same digits reversed."""
    sources = np.full((BATCH, LONGEST + 1), PADDING)
    targets = np.full((BATCH, LONGEST + 2), PADDING)
    for source, target in zip(sources, targets, strict=True):
        digits = rng.integers(len(SPECIAL), len(SPECIAL) + DIGITS, rng.integers(1, LONGEST + 1))
        source[: len(digits) + 1] = [*digits, END]
        target[: len(digits) + 2] = [START, *digits[::-1], END]
    return sources, targets


def main(arguments: list[str] | None = None) -> float:
    """Train, print the loss now and then, and return the share of new sequences that are right."""
    parser = argparse.ArgumentParser(prog="python -m toy_tasks.from_paper", description=__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="training steps")
    steps = parser.parse_args(arguments).steps
    rng = np.random.default_rng(1)
    config = Config.base(len(SPECIAL) + DIGITS, d_model=64, d_ff=256, heads=4, layers=2)
    model, loss = Transformer(config, seed=1), CrossEntropy(smoothing=0.1)
    adam = Adam(pack(model))
    for step in range(1, steps + 1):
        source, target = batch(rng)
        dropout_stream.reseed(1, step)
        adam.parameters.zero_grad()
        logits = model.forward(source, target[:, :-1])
        value = loss.forward(logits, target[:, 1:], target[:, 1:] != PADDING)
        model.backward(loss.backward())
        adam.step(warmup_rate(step, config.d_model, warmup=400))
        if step % 100 == 0:
            print(f"step {step}: loss {value:.4f}", flush=True)
    source, target = batch(rng)
    written = greedy(model, source, LONGEST + 1)
    pairs = zip(written, target, strict=True)
    right = [[START, *ids, END] == row[row != PADDING].tolist() for ids, row in pairs]
    print(f"exact match {np.mean(right):.4f}")
    return float(np.mean(right))


if __name__ == "__main__":
    with blas.training_threads(1):  # a second thread gains little for matrices as small as these
        main()
