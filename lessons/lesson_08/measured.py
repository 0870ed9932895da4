"""What lesson 8 shows of the runs in which parts of the recipe are changed or left out."""

from dataclasses import asdict

from lessons.lesson_08.runs import CHANGES, FEW, MANY, SEEDS, train

MODELS: list[str] = []
RUNS = [(name, MANY) for name in CHANGES] + [("the recipe", FEW), ("no dropout", FEW)]


def measure() -> dict:
    return {
        "runs": {
            f"{name}, {sentences} sentences": [
                asdict(train(name, seed, sentences)) for seed in SEEDS
            ]
            for name, sentences in RUNS
        }
    }
