"""What lesson 3 measures: the accuracy of four score functions that learn the same task."""

from lessons.lesson_03.retrieval import compare

MODELS: list[str] = []


def measure() -> dict:
    return {"accuracy": compare()}
