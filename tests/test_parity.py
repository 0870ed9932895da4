"""numformer beside PyTorch, in float64: every layer, the whole model and ten optimizer steps.

Outputs, every gradient, losses and trained weights must agree. Where torch is installed the
arrays themselves are compared. Everywhere a few numbers of each array are compared with those
stored in parity_reference.json, which torch computed:

    python tests/test_parity.py --store
"""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest

from numformer import training
from numformer.backend import dropout_stream
from numformer.batching import Batch
from numformer.config import Config
from numformer.gradient_cases import CASES, SMALL, VARIATIONS, B, S, T, V
from numformer.gradient_check import GradientCheck
from numformer.layer import pack
from numformer.model import Transformer

STORED = Path(__file__).with_name("parity_reference.json")
STORE = "python tests/test_parity.py --store"

# No field of the optimizer at its default: one that does not arrive is seen.
OPTIMIZER = dict(
    label_smoothing=0.2, beta1=0.8, beta2=0.95, adam_epsilon=1e-5, warmup=4, factor=0.1, clip_norm=3
)
# Training leaves padding out, so its dropout masks have other shapes than torch's.
TRAINING = Config(**(SMALL | OPTIMIZER | dict(p_drop=0.0)))
STEPS, SEED = 10, 5
ALL_CASES = [*CASES, "ten_optimizer_steps"]


class Solved(NamedTuple):
    """One case: what was drawn for it, numformer's results by name, and a call for torch's."""

    drawn: list
    results: dict[str, np.ndarray]
    results_of_torch: Callable[[], dict[str, np.ndarray]]


@functools.cache
def solve(case: str) -> Solved:
    return differentiate(case) if case in CASES else train()


def differentiate(case: str) -> Solved:
    """One forward, and one backward from a random upstream gradient; random gamma, beta, biases.

    The results are "output", and each gradient under the name of its tensor.
    """
    checked = GradientCheck(*CASES[case]())
    variation = next(
        (changes for name, changes in VARIATIONS.items() if case.endswith(f"_{name}")), {}
    )

    def with_torch():
        import torch_reference

        return torch_reference.differentiate(checked, Config(**(SMALL | variation)))

    drawn = [*checked.inputs, *checked.tensors.values(), checked.upstream]
    return Solved(drawn, {"output": checked.output, **checked.gradients}, with_torch)


def train() -> Solved:
    """Ten steps of numformer's own training loop: losses, gradient norms and final weights."""
    rng = np.random.default_rng(SEED)
    batches = [random_batch(rng) for _ in range(STEPS)]
    model = Transformer(TRAINING, SEED)
    task = SimpleNamespace(batch=lambda step: batches[step - 1])
    schedule = training.Schedule(STEPS)
    # The loop trains in float32, too coarse here.
    with mock.patch.object(training, "pack", lambda model, dtype, xp: pack(model, np.float64, xp)):
        trainer = training.Trainer(model, task, None, schedule, SEED, np)
    trainer.parameters.data += 0.1 * rng.standard_normal(trainer.parameters.data.shape)
    initial = model.state_dict()

    norms = []
    for _ in batches:
        trainer.advance()
        norms.append(trainer.norm)
    results = {"losses": np.array(trainer.losses), "norms": np.array(norms), **model.state_dict()}

    def with_torch():
        import torch_reference

        return torch_reference.train(TRAINING, initial, batches, SEED)

    ids = [ids for batch in batches for ids in vars(batch).values()]
    return Solved([*initial.values(), *ids], results, with_torch)


def random_batch(rng: np.random.Generator) -> Batch:
    """B pairs of up to S source and T target symbols, both with the end symbol."""

    def symbols(most):
        return rng.integers(3, V, rng.integers(1, most))

    return Batch.of([(symbols(S), symbols(T)) for _ in range(B)])


def fingerprint(array) -> np.ndarray:
    """An array's norm and its dot products with two random directions (3)."""
    vector = np.ravel(array).astype(np.float64)
    directions = np.random.default_rng(0).standard_normal((2, vector.size))
    return np.array([np.linalg.norm(vector), *directions @ vector])


def fingerprint_of_drawn(drawn: list) -> np.ndarray:
    """The fingerprint of everything drawn together, with some of dropout's choices."""
    dropout_stream.reseed(0, 0)
    kept = dropout_stream.keep((64,), 0.5, like=np.zeros(0)) != 0
    return fingerprint(np.concatenate([np.ravel(array) for array in [*drawn, kept]]))


def assert_agree(found: dict, expected: dict, hint: str = "") -> None:
    """Fail, with a line for each array, where two results differ by more than rounding."""
    assert found.keys() == expected.keys()
    lines = []
    for name, array in expected.items():
        array = np.asarray(array)
        assert found[name].shape == array.shape, name
        difference, scale = np.abs(found[name] - array).max(), np.abs(array).max()
        if not difference <= 1e-10 * scale + 1e-12:  # a NaN disagrees
            lines.append(f"{name}: off by {difference:.2g}, its largest value is {scale:.2g}")
    assert not lines, "\n".join([hint, *lines])


@pytest.mark.parametrize("case", ALL_CASES)
def test_agrees_with_torch(case):
    pytest.importorskip(
        "torch", reason="torch is not installed; the stored reference values stand in"
    )
    solved = solve(case)
    assert_agree(solved.results, solved.results_of_torch())


@pytest.mark.parametrize("case", ALL_CASES)
def test_agrees_with_the_stored_values_of_torch(case):
    stored = json.loads(STORED.read_text())
    assert case in stored, f"nothing is stored for it; where torch is installed: {STORE}"
    solved = solve(case)
    assert_agree(
        {"drawn": fingerprint_of_drawn(solved.drawn)},
        {"drawn": stored[case]["drawn"]},
        f"the stored values are for other random inputs; where torch is installed: {STORE}",
    )
    found = {name: fingerprint(array) for name, array in solved.results.items()}
    assert_agree(found, stored[case]["results"])


def test_nothing_is_stored_for_a_case_that_is_gone():
    assert json.loads(STORED.read_text()).keys() <= set(ALL_CASES), f"run {STORE}"


def test_training_clips_some_steps_and_passes_the_peak_of_the_rate():
    norms = solve("ten_optimizer_steps").results["norms"]
    assert norms.min() < TRAINING.clip_norm < norms.max()
    assert 1 < TRAINING.warmup < STEPS


def store() -> None:
    """Write what torch computes for every case."""

    def rounded(numbers):
        return [float(f"{number:.13g}") for number in numbers]

    lines = []
    for case in sorted(ALL_CASES):
        solved = solve(case)
        results = solved.results_of_torch()
        values = {
            "drawn": rounded(fingerprint_of_drawn(solved.drawn)),
            "results": {name: rounded(fingerprint(results[name])) for name in sorted(results)},
        }
        lines.append(f"{json.dumps(case)}: {json.dumps(values, separators=(',', ':'))}")
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--store"]:
        sys.exit(f"usage: {STORE}")
    store()
