"""The losses that lesson 6 shows, of encoders with 12 layers that learn or do not."""

from lessons.lesson_06.depth import RUNS, learn

MODELS: list[str] = []


def measure() -> dict:
    return {"losses": {name: learn(*run) for name, run in RUNS.items()}}
