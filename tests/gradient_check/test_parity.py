"""numformer compared with PyTorch, in the cases of parity_cases.py.

In float64 outputs, every gradient, losses and trained weights must agree to the last digits, and a
run of 200 steps must keep agreeing. In float32 rounding errors must be no larger than torch's.
Where torch is not installed, some numbers of it stand in, stored in parity_reference.json by

    python tests/gradient_check/test_parity.py --store
"""

import functools
import importlib.util
import json
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import parity_cases as cases
import pytest

from numformer.models import Config
from numformer.models.fields import parse_value
from numformer.optimization import Recipe
from numformer.randomness import dropout_stream

STORED = Path(__file__).with_name("parity_reference.json")
STORE = "python tests/gradient_check/test_parity.py --store"
NO_TORCH = "torch is not installed; the stored reference values stand in"


def fingerprint(array) -> np.ndarray:
    """An array's norm and its dot products with two random directions (3)."""
    vector = np.ravel(array).astype(np.float64)
    directions = np.random.default_rng(0).standard_normal((2, vector.size))
    return np.array([np.linalg.norm(vector), *directions @ vector])


def fingerprint_of_drawn(drawn: list) -> np.ndarray:
    """The fingerprint of all random numbers of a case, with some of dropout's masks."""
    dropout_stream.reseed(0, 0)
    kept = dropout_stream.mask((64,), 0.5, like=np.zeros(0)) != 0
    return fingerprint(np.concatenate([np.ravel(array) for array in [*drawn, kept]]))


def stored_form(case: str, results: dict) -> dict[str, np.ndarray]:
    """The stored form of a case's results, small enough for the repository."""
    if case not in cases.EXACT_CASES:
        return {name: results[name] for name in ("losses", "typical") if name in results}
    if case in cases.LARGE_CASES:  # one fingerprint of everything
        arrays = [np.ravel(results[name]) for name in sorted(results)]
        return {"all results": fingerprint(np.concatenate(arrays))}
    return {name: fingerprint(results[name]) for name in sorted(results)}


@functools.cache
def stored_file() -> dict:
    return json.loads(STORED.read_text())


def stored_values(case: str) -> dict[str, np.ndarray]:
    """Torch's stored results for a case; its inputs must not have changed since."""
    stored = stored_file()
    assert case in stored, f"nothing is stored for it; where torch is installed: {STORE}"
    assert_agree(
        {"drawn": fingerprint_of_drawn(cases.solve(case).drawn)},
        {"drawn": stored[case]["drawn"]},
        f"the stored values are for other random inputs; where torch is installed: {STORE}",
    )
    return {name: np.array(values) for name, values in stored[case]["results"].items()}


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


HAS_TORCH = importlib.util.find_spec("torch")


@pytest.mark.parametrize("case", [*cases.EXACT_CASES][: None if HAS_TORCH else 1])
def test_agrees_with_torch(case):
    pytest.importorskip("torch", reason=NO_TORCH)
    solved = cases.solve(case)
    assert_agree(solved.results, solved.results_of_torch())


@pytest.mark.parametrize("case", cases.EXACT_CASES)
def test_agrees_with_the_stored_values_of_torch(case):
    assert_agree(stored_form(case, cases.solve(case).results), stored_values(case))


@pytest.fixture(params=["torch", "stored"])
def of_torch(request):
    """`of_torch(case)`: torch's results in the stored form, computed now or stored earlier."""
    if request.param == "stored":
        return stored_values
    pytest.importorskip("torch", reason=NO_TORCH)
    return lambda case: stored_form(case, cases.solve(case).results_of_torch())


def test_two_hundred_steps_agree(of_torch):
    # Training multiplies rounding errors, here to 2e-15; a mistake in a single step shows.
    losses, expected = cases.solve("trajectory").results["losses"], of_torch("trajectory")["losses"]
    np.testing.assert_allclose(losses, expected, rtol=1e-11, atol=0)
    assert losses[-20:].mean() < 0.5  # a guess among ten digits has 2.3


@pytest.mark.parametrize("norm", ["post_norm", "pre_norm"])
def test_float32_rounds_no_worse_than_torch(norm, of_torch):
    # Typical errors over six batches, since the largest ones are luck: at most 1.2 times torch's in
    # any tensor, 0.9 times in the median one. Twice leaves room for other orders of summation.
    typical = cases.solve(f"rounding_{norm}").results["typical"]
    assert (typical <= 2 * of_torch(f"rounding_{norm}")["typical"]).all()


@pytest.mark.parametrize("norm", ["post_norm", "pre_norm"])
def test_float32_is_exact_but_for_rounding(norm):
    # In units of epsilon and of a tensor's largest entry; up to 35 and 8 at the time of writing.
    results = cases.solve(f"rounding_{norm}").results
    assert results["largest"].max() <= 200
    assert results["typical"].max() <= 20


def test_random_configs_cover_every_choice():
    def drawn(name):
        return {(vars(config) | vars(recipe))[name] for config, recipe in cases.RANDOM_SETTINGS}

    for field in (*fields(Config), *fields(Recipe)):
        name, choices = field.name, cases.choices_of(field)
        assert choices, f"no random Config has another {name}: add it to VALUES"
        rare = field in fields(Config) and bool(Config.base(5).owners(field))  # as its choices are
        some = len(drawn(name)) > (1 if rare else 2) and (rare or len(choices) > 5)
        assert drawn(name) >= {parse_value(field, value) for value in choices} or some, name
    assert {size % 2 for size in drawn("d_model")} == {0, 1}
    batches = (
        cases.random_inputs(cases.stream(n, "inputs"), cases.RANDOM_SETTINGS[n][0])
        for n in cases.WITHOUT_DROPOUT
    )
    assert {
        bool((batch.source == batch.special.padding).all(axis=1).any()) for batch in batches
    } == {False, True}


def store() -> None:
    """Write what torch computes for every case."""

    def rounded(numbers):
        return [float(f"{number:.13g}") for number in numbers]

    lines = []
    for case in sorted(cases.ALL_CASES):
        solved = cases.solve(case)
        results = stored_form(case, solved.results_of_torch())
        values = {
            "drawn": rounded(fingerprint_of_drawn(solved.drawn)),
            "results": {name: rounded(values) for name, values in results.items()},
        }
        lines.append(f"{json.dumps(case)}: {json.dumps(values, separators=(',', ':'))}")
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--store"]:
        sys.exit(f"usage: {STORE}")
    store()
