"""What lesson 9 shows of the models that learn with a mistake in backward."""

from dataclasses import asdict

from lessons.lesson_09.bugs import BUGS, SEEDS, train

MODELS: list[str] = []


def measure() -> dict:
    return {"runs": {bug: [asdict(train(bug, seed)) for seed in SEEDS] for bug in BUGS}}
