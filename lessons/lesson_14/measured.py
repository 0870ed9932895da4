"""What lesson 14 shows of larger batches: the steps until a small model has learned."""

from lessons.lesson_14.wires import BATCHES, train

MODELS: list[str] = []


def measure() -> dict:
    return {"steps": [train(size) for size in BATCHES]}
