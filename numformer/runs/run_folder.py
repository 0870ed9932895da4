"""What a training run writes into its folder, and what of it a resumed run must find."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from numformer.errors import InputError
from numformer.models import Model
from numformer.runs.checkpoints import (
    config_of,
    load_checkpoint,
    save_checkpoint,
    save_model,
)
from numformer.runs.files import PARTIAL, named
from numformer.runs.resume import State, saved_state, summary


def read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics.jsonl; a last line that a killed run left unfinished is left out."""
    *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines]


class RunFolder:
    """metrics.jsonl, last.safetensors (all that resuming needs) and best.safetensors of a run.

    `settings` decide how the run goes on, so they must be the same when it is resumed: kind and
    config of the model, recipe, seed, parts and task, and steps where the recipe knows the end.
    `text` describes what the model does with texts, `kept` is what else is saved with the best.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict,
        metric: str,
        text: dict | None = None,
        kept: dict | None = None,
    ):
        self.folder, self.settings, self.metric = folder, settings, metric
        self.text, self.kept = text, kept or {}

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    def find(self, resume: bool) -> None:
        """Make the folder of a new run; that of a resumed one is there. Otherwise InputError."""
        if resume and not self.folder.is_dir():
            raise InputError(
                "a run is resumed in the folder that it writes to",
                f"{self.folder}, where there is no folder",
                "Name the run's folder, or start a new run.",
            )
        if not resume:
            with self._new():
                self.folder.mkdir(parents=True, exist_ok=True)

    def begin(self) -> None:
        """Nothing has been measured yet. Raises InputError where the folder holds a run already."""
        of_runs = [
            path.with_name(path.name + unfinished)
            for path in (self.metrics, self.last, self.best)
            for unfinished in ("", PARTIAL)
        ]
        present = [path.name for path in of_runs if os.path.lexists(path)]
        if present and not (present == [self.metrics.name] and self._measured_nothing()):
            raise InputError(
                "a new run begins in a folder that holds none, so that nothing saved is lost",
                f"{self.folder}, which holds {present[0]}",
                "Choose another folder, or go on with its run by resume=True.",
            )
        with self._new():
            self.metrics.write_bytes(b"")

    def _measured_nothing(self) -> bool:
        """Whether metrics.jsonl is of a run that ended before it had anything to save."""
        try:
            return not self.evaluated()
        except (OSError, ValueError, LookupError, TypeError):
            return False

    @contextlib.contextmanager
    def _new(self) -> Iterator[None]:
        """Within the block an OSError says that no run can begin in the folder."""
        try:
            yield
        except OSError as problem:
            raise InputError(
                "a run writes to a folder, which is made where there is none",
                f"{self.folder} ({problem.strerror})",
                "Choose another folder.",
            ) from None

    def write(self, line: dict) -> None:
        """Add a line to metrics.jsonl."""
        with named(self.metrics), open(self.metrics, "ab") as file:
            file.write(f"{json.dumps(line)}\n".encode())

    def save(self, tensors: dict[str, np.ndarray], stands: dict) -> None:
        """Write last.safetensors: host arrays, and where the run stands."""
        stands = stands | {"metrics": summary(self._metrics_on_disk()), "metric": self.metric}
        save_checkpoint(self.last, tensors, self.settings | stands)

    def save_best(self, model: Model, best: dict) -> None:
        """Write best.safetensors."""
        told = dict(task=self.settings["task"], text=self.text, best=best)
        save_model(self.best, model, **told | self.kept)

    def load_best(self, model: Model, best: dict, dtype) -> None:
        """Load best.safetensors into the model. Raises InputError unless it measured `best`."""
        tensors, metadata = load_checkpoint(self.best, dtype)
        belongs = metadata.get("best") == best
        if not belongs or config_of(self.best, metadata, type(model)) != model.config:
            raise InputError(
                "a run's best.safetensors belongs to its last.safetensors",
                f"{self.best}, which does not",
                "Put the run's own back, or start a new run.",
            )
        model.load_state_dict(tensors)

    def resume(self, model: Model, dtype) -> State | None:
        """Where the saved run stands; None where it was killed before it saved anything.

        Raises InputError, with the folder as it was, unless the run is the one that was started
        and its files are whole.
        """
        if self.last.exists():
            return saved_state(self.last, self.metrics, model, self.settings, self.metric, dtype)
        if self.best.exists():
            raise InputError(
                "a run is resumed from the last.safetensors that it saved",
                f"{self.folder}, which has none beside its best.safetensors",
                "Put it back, or start a new run.",
            )
        return None

    def cut_back(self, state: State | None) -> None:
        """Bring the folder to where the saved run stands."""
        if state:
            os.truncate(self.metrics, state.written)
        elif self.metrics.exists() and not self.metrics.is_file():
            raise InputError(
                "a run is resumed with the metrics.jsonl that it wrote",
                f"{self.metrics}, which is no file",
                "Start a new run.",
            )
        else:
            self.metrics.write_bytes(b"")
        for path in (self.last, self.best):  # what a kill may have left half written
            path.with_name(path.name + PARTIAL).unlink(missing_ok=True)

    def evaluated(self) -> int:
        """The step of the latest evaluation in metrics.jsonl; 0 where there is none."""
        lines = read_metrics(self.metrics)
        return max((line["step"] for line in lines if "gradient_norm" not in line), default=0)

    def _metrics_on_disk(self) -> bytes:
        """What metrics.jsonl holds, once it is safe from a power cut."""
        with named(self.metrics), open(self.metrics, "ab+") as file:
            os.fsync(file.fileno())
            file.seek(0)
            return file.read()
