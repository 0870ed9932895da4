"""The folder of a training run: writing its files, reading them to resume, drawing its losses."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numformer.errors import InputError
from numformer.models import Model
from numformer.plots import loss_curve
from numformer.runs.checkpoints import load_checkpoint, read_config, save_checkpoint, save_model
from numformer.runs.files import PARTIAL, naming
from numformer.runs.metrics_writers import MetricsWriter, Opener
from numformer.runs.resume import State, load_state, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_metrics(path: Path) -> list[dict]:
    """Return the lines of a metrics.jsonl, without the unfinished last line of a killed run."""
    *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines]


def draw_losses(run: str | Path, path: str | Path | None = None) -> "Figure":
    """Draw the losses, the measure and the learning rate of the run in a folder, by step.

    Returns the figure, which a notebook shows; saves it if `path` names a .png, .pdf or .svg. The
    run may still be training. Raises InputError if the folder holds no run.
    """
    folder, measure = Path(run), "held_out_loss"
    if not (folder / "metrics.jsonl").is_file():
        rule, fix = "a run writes metrics.jsonl to its folder", "Name the folder of a run."
        raise InputError(rule, f"{folder}, which has none", fix)
    if (last := folder / "last.safetensors").exists():
        measure = load_checkpoint(last)[1].get("metric", measure)
    return loss_curve(path, read_metrics(folder / "metrics.jsonl"), measure, folder.name)


class RunFolder:
    """The files of a run: metrics.jsonl, last.safetensors (for resuming) and best.safetensors.

    `settings` determine the run's results, so they must be equal when it is resumed: kind and
    config of the model, recipe, seed, parts and task, and the number of steps if the recipe's rates
    depend on it. `text`, the description of the task's `text`, and `extra` are saved with the best
    model. `copies` has functions that open writers for copies of metrics.jsonl.
    """

    copies: Sequence[Opener] = ()

    def __init__(
        self,
        folder: Path,
        settings: dict,
        metric: str,
        text: dict | None = None,
        extra: dict | None = None,
    ):
        self.folder, self.settings, self.metric = folder, settings, metric
        self.text, self.extra = text, extra or {}
        self.writers: list[MetricsWriter] = []
        names = "metrics.jsonl", "last.safetensors", "best.safetensors"
        self.metrics, self.last, self.best = (folder / name for name in names)

    def find(self) -> None:
        """Create the run's folder if it does not exist. Raises InputError on failure."""
        with self._creating():
            self.folder.mkdir(parents=True, exist_ok=True)

    def begin(self) -> None:
        """Create an empty metrics.jsonl. Raises InputError if the folder already holds a run."""
        paths = [
            path.with_name(path.name + ending)
            for path in (self.metrics, self.last, self.best)
            for ending in ("", PARTIAL)
        ]
        present = [path.name for path in paths if os.path.lexists(path)]
        if present and not (present == [self.metrics.name] and self._measured_nothing()):
            raise InputError(
                "a new run begins in a folder without a run, so that nothing saved is lost",
                f"{self.folder}, which holds {present[0]}",
                "Choose another folder, or continue its run with resume=True.",
            )
        with self._creating():
            self.metrics.write_bytes(b"")

    def _measured_nothing(self) -> bool:
        """Whether the run that wrote metrics.jsonl ended before an evaluation and saved nothing."""
        try:
            return not self.evaluations()
        except (OSError, ValueError, LookupError, TypeError):
            return False

    @contextlib.contextmanager
    def _creating(self) -> Iterator[None]:
        """Within the block, turn an OSError into an InputError that names the folder."""
        try:
            yield
        except OSError as problem:
            raise InputError(
                "a run writes to a folder, which it creates",
                f"{self.folder} ({problem.strerror})",
                "Choose another folder.",
            ) from None

    def write(self, line: dict) -> None:
        """Add a line to metrics.jsonl and to its copies; a new copy also gets all earlier lines."""
        with naming(self.metrics), open(self.metrics, "ab") as file:
            file.write(f"{json.dumps(line)}\n".encode())
        lines = [line]
        if self.copies and not self.writers:
            self.writers = [writer(self.folder, self.settings) for writer in self.copies]
            lines = read_metrics(self.metrics)
        for writer in self.writers:
            for each in lines:
                writer.write(each)

    def close(self) -> None:
        """Close the copies of metrics.jsonl."""
        for writer in self.writers:
            writer.close()

    def save(self, tensors: dict[str, np.ndarray], progress: dict) -> None:
        """Write last.safetensors: host arrays, and the run's progress."""
        with naming(self.metrics), open(self.metrics, "ab+") as file:
            os.fsync(file.fileno())  # the file then survives a power cut, like the checkpoint
            file.seek(0)
            metrics = summary(file.read())
        progress = progress | {"metrics": metrics, "metric": self.metric}
        save_checkpoint(self.last, tensors, self.settings | progress)

    def save_best(self, model: Model, best: dict) -> None:
        """Write best.safetensors."""
        metadata = dict(task=self.settings["task"], text=self.text, best=best)
        save_model(self.best, model, **metadata | self.extra)

    def load_best(self, model: Model, best: dict, dtype) -> None:
        """Load best.safetensors into the model. Raises InputError unless it is that of `best`."""
        tensors, metadata = load_checkpoint(self.best, dtype)
        same = metadata.get("best") == best
        if not same or read_config(self.best, metadata, type(model)) != model.config:
            raise InputError(
                "a run's best.safetensors belongs to its last.safetensors",
                f"{self.best}, which does not",
                "Put the run's own file back, or start a new run.",
            )
        model.load_state_dict(tensors)

    def resume(self, model: Model, dtype) -> State | None:
        """Return the state of the saved run, or None if it was killed before it saved anything.

        Raises InputError, and leaves the folder unchanged, unless the folder holds this run and its
        files are complete.
        """
        if self.last.exists():
            return load_state(self.last, self.metrics, model, self.settings, self.metric, dtype)
        if self.best.exists():
            raise InputError(
                "a run is resumed from the last.safetensors that it saved",
                f"{self.folder}, which has only a best.safetensors",
                "Put last.safetensors back, or start a new run.",
            )
        return None

    def cut_back(self, state: State | None) -> None:
        """Cut metrics.jsonl back to the saved state, and remove partial files."""
        if state:
            os.truncate(self.metrics, state.metrics_bytes)
        elif self.metrics.exists() and not self.metrics.is_file():
            raise InputError(
                "a run is resumed with the metrics.jsonl that it wrote",
                f"{self.metrics}, which is not a file",
                "Start a new run.",
            )
        else:
            self.metrics.write_bytes(b"")
        for path in (self.last, self.best):  # a killed run may have left partial files
            path.with_name(path.name + PARTIAL).unlink(missing_ok=True)

    def evaluations(self) -> list[dict]:
        """Return the lines of metrics.jsonl that hold evaluations."""
        return [line for line in read_metrics(self.metrics) if "gradient_norm" not in line]
