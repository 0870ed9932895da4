"""What two equal runs have in common: all but how long they took."""

from pathlib import Path

from numformer.training.checkpoints import load_checkpoint
from numformer.training.run_folder import read_metrics


def without_seconds(folder: Path) -> dict[str, object]:
    """What the files of a run say, by name, without the seconds that metrics.jsonl tells.

    Nor those in last.safetensors, and its checksum of metrics.jsonl.
    """
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    if "metrics.jsonl" in files:
        lines = read_metrics(folder / "metrics.jsonl")
        files["metrics.jsonl"] = [{n: v for n, v in e.items() if n != "seconds"} for e in lines]
    if "last.safetensors" in files:
        tensors, metadata = load_checkpoint(folder / "last.safetensors")
        arrays = {name: (array.shape, array.tobytes()) for name, array in tensors.items()}
        told = {n: v for n, v in metadata.items() if n not in ("seconds", "metrics")}
        files["last.safetensors"] = arrays, told
    return files
