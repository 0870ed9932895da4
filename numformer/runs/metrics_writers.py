"""Copies of a run's metrics for other programs: a CSV file, TensorBoard, Weights & Biases.

A writer gets each line of metrics.jsonl. An entry of METRICS_WRITERS is a function: it imports the
package that its writer needs, and returns a second function, which takes the run's folder and
settings and opens the writer.
"""

import contextlib
import csv
import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from numformer.errors import InputError


class MetricsWriter(Protocol):
    """Copies the lines of metrics.jsonl; a line is a dict with "step" and numbers by name."""

    def write(self, line: dict) -> None: ...

    def close(self) -> None: ...


Opener = Callable[[Path, dict], MetricsWriter]


class CsvFile:
    """metrics.csv, with a column for every name; a cell is empty if its line lacks the name."""

    def __init__(self, folder: Path, settings: dict):
        self.path = folder / "metrics.csv"
        self.lines: list[dict] = []
        self.columns: list[str] = []

    def write(self, line: dict) -> None:
        self.lines.append(line)
        new = [name for name in line if name not in self.columns]
        self.columns += new
        with open(self.path, "w" if new else "a", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, self.columns)
            if new:
                table.writeheader()
            table.writerows(self.lines if new else [line])

    def close(self) -> None:
        """Do nothing: each line is already in the file."""


class TensorBoard:
    """Scalars by step, written by a SummaryWriter."""

    def __init__(self, summary_writer: Any):
        self.summary_writer = summary_writer

    def write(self, line: dict) -> None:
        for name in line.keys() - {"step"}:
            self.summary_writer.add_scalar(name, line[name], line["step"])

    def close(self) -> None:
        self.summary_writer.close()


class WeightsAndBiases:
    """The history of a wandb run."""

    def __init__(self, run: Any):
        self.run = run

    def write(self, line: dict) -> None:
        self.run.log(line, step=line["step"])

    def close(self) -> None:
        self.run.finish()


def tensorboard() -> Opener:
    """Write to the folder `tensorboard` in the run's folder."""
    kind = _package("tensorboardX", "torch.utils.tensorboard").SummaryWriter
    # A resumed run writes its earlier lines again, so TensorBoard must drop those that it has.
    return lambda folder, settings: TensorBoard(kind(str(folder / "tensorboard"), purge_step=0))


def wandb() -> Opener:
    """Write to the folder `wandb` in the run's folder; offline, unless WANDB_MODE is set."""
    package, mode = _package("wandb"), os.environ.get("WANDB_MODE", "offline")
    return lambda folder, settings: WeightsAndBiases(
        package.init(
            project="numformer", name=folder.name, dir=str(folder), mode=mode, config=settings
        )
    )


METRICS_WRITERS: dict[str, Callable[[], Opener]] = {
    "csv": lambda: CsvFile,
    "tensorboard": tensorboard,
    "wandb": wandb,
}


def metrics_writers(names: str | Iterable[str]) -> list[Opener]:
    """Return these writers' openers. Raises InputError for an unknown name or a missing package."""
    names = [names] if isinstance(names, str) else [*names]
    if unknown := [name for name in names if name not in METRICS_WRITERS]:
        rule = f"metrics are also written to {', '.join(METRICS_WRITERS)}"
        raise InputError(rule, repr(unknown[0]), "Change log_to.")
    return [METRICS_WRITERS[name]() for name in names]


def _package(*names: str) -> Any:
    """Import the first of these packages that is installed."""
    for name in names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    rule, fix = f"this choice of log_to (--log-to) needs {names[0]}", f"Run pip install {names[0]}."
    raise InputError(rule, "no such package", fix)
