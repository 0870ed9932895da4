"""What runs leave, and what equal ones have in common: all but how long they took."""

from pathlib import Path

from numpy.testing import assert_array_equal

from numformer.runs.checkpoints import load_checkpoint
from numformer.runs.run_folder import read_metrics


def without_seconds(folder: Path) -> dict[str, object]:
    """What the files of a run say, by name, without the seconds that metrics.jsonl tells.

    Nor those in last.safetensors, and its checksum of metrics.jsonl.
    """
    contents = files(folder)
    if "metrics.jsonl" in contents:
        lines = metrics(folder)
        contents["metrics.jsonl"] = [{n: v for n, v in e.items() if n != "seconds"} for e in lines]
    if "last.safetensors" in contents:
        tensors, metadata = last(folder)
        arrays = {name: (array.shape, array.tobytes()) for name, array in tensors.items()}
        progress = {n: v for n, v in metadata.items() if n not in ("seconds", "metrics")}
        contents["last.safetensors"] = arrays, progress
    return contents


def metrics(folder: Path) -> list[dict]:
    return read_metrics(folder / "metrics.jsonl")


def logged(folder: Path, name: str) -> list[float]:
    return [line[name] for line in metrics(folder) if name in line]


def last(folder: Path) -> tuple[dict, dict]:
    return load_checkpoint(folder / "last.safetensors")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same_weights(found: dict, expected: dict):
    assert found.keys() == expected.keys()
    for name in expected:
        assert_array_equal(found[name], expected[name], err_msg=name)


def assert_same_run(found: Path, expected: Path):
    """Weights, the optimizer's state, the best, where the run stands, every line of the metrics."""
    assert_same_weights(last(found)[0], last(expected)[0])
    assert without_seconds(found) == without_seconds(expected)
