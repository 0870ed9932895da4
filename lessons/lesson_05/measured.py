"""What lesson 5 shows of five kinds of positions at places beyond training."""

from dataclasses import asdict

from lessons.lesson_05.beyond import SEEDS, WAYS, train

MODELS: list[str] = []


def measure() -> dict:
    return {"runs": {way: [asdict(train(way, seed)) for seed in SEEDS] for way in WAYS}}
