"""Measured for lesson 9: how models with a wrong backward learn, and what the check says."""

from dataclasses import asdict

from lessons.lesson_09.bugs import BUGS, SEEDS, check_model, train

MODELS: list[str] = []


def measure() -> dict:
    return {
        "runs": {bug: [asdict(train(bug, seed)) for seed in SEEDS] for bug in BUGS},
        "reports": {bug: asdict(check_model(bug)) for bug in BUGS},
    }
