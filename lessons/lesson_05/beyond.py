"""How well positions work at places beyond training: a small experiment, and a long one.

The small one: a decoder of two blocks repeats, at each place, the letter of the place before. It
trains on sequences of 12 letters and is tested on 48.

The long one is `python -m toy_tasks.lengths`; lengths.md is the table.md of one such run.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit import models
from numformer import Adam, CrossEntropy, LanguageModel, pack

LETTERS, TRAINED, TESTED = 8, 12, 48
STEPS, BATCH, RATE, TESTS = 200, 32, 0.006, 128
SEEDS = 0, 1
WAYS = "sinusoidal", "learned", "rotary", "alibi", "none"


def draw(rng: np.random.Generator, batch: int, length: int):
    """-> ids of letters, the letter to say at each place, whether that place counts; all (B, T)."""
    ids = rng.integers(4, 4 + LETTERS, (batch, length))  # 0 to 3 are special, such as padding
    before = np.roll(ids, 1, axis=1)
    return ids, before, np.broadcast_to(np.arange(length) > 0, ids.shape)


@dataclass(frozen=True)
class Run:
    """What a trained model does on new sequences, at each place from the second on."""

    right: list[float]  # (TESTED - 1,): how often the letter is right
    before: list[float]  # (TESTED - 1,): the weight on the place before, in the head with the most
    two_before: float  # the share of wrong letters that are the letter two places before


@threadpool_limits.wrap(limits=1, user_api="blas")  # a second thread gains nothing here
def train(positions: str, seed: int) -> Run:
    config = LanguageModel.Config(
        vocabulary=4 + LETTERS,
        d_model=32,
        d_ff=64,
        heads=4,
        layers=2,
        norm="pre",
        p_drop=0.0,
        positions=positions,
        **({"max_length": TESTED} if positions == "learned" else {}),
    )
    of_weights, of_data, held_out = np.random.SeedSequence(seed).spawn(3)
    model, loss = LanguageModel(config, of_weights), CrossEntropy(0)
    adam, rng = Adam(pack(model)), np.random.default_rng(of_data)
    for step in range(STEPS):
        ids, target, counts = draw(rng, BATCH, TRAINED)
        model.zero_grad()
        loss.forward(model.forward(ids), target, counts)
        model.backward(loss.backward())
        adam.step(RATE * min(1, (step + 1) / 20, 2 * (STEPS - step) / STEPS))
    ids, target, _ = draw(np.random.default_rng(held_out), TESTS, TESTED)
    said = model.forward(ids).argmax(axis=-1)[:, 1:]
    weights = [
        each.saved[0]["weights"]
        for each in model.layers_within()
        if each.saved and "weights" in each.saved[0]
    ]
    before = np.concatenate(weights, axis=1).diagonal(-1, axis1=2, axis2=3).mean(axis=0)
    before = before[before[:, : TRAINED - 1].mean(axis=1).argmax()]
    model.clear_saved()
    right = said == target[:, 1:]
    two_before = (said == np.roll(target, 1, axis=1)[:, 1:])[~right].mean()
    right, before = right.mean(axis=0).round(4), before.astype(float).round(4)
    return Run(right.tolist(), before.tolist(), round(float(two_before), 4))


def trained() -> dict[str, list[Run]]:
    """The stored runs of each of WAYS, one for each of SEEDS."""
    stored = models.measured(5)["runs"]
    return {way: [Run(**run) for run in stored[way]] for way in WAYS}


def measured() -> dict[tuple[str, str], dict[str, tuple[float, float, float]]]:
    """lengths.md as {(task, way): {column: (mean, lowest, highest)}}, over the seeds."""
    lines = (Path(__file__).parent / "lengths.md").read_text(encoding="utf-8").splitlines()
    (_, *columns), _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    cells = ([tuple(map(float, re.findall(r"[\d.]+", cell))) for cell in row[1:]] for row in rows)
    found = (dict(zip(columns, each, strict=True)) for each in cells)
    return {tuple(row[0].split()): each for row, each in zip(rows, found, strict=True)}
