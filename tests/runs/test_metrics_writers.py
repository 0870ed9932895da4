"""Copies of metrics.jsonl for other programs; small stand-ins replace their packages."""

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from numformer.runs import metrics_writers
from tests.equal_runs import metrics
from tests.toy_tasks.small import copying
from tests.training.tiny_runs import MEASURES, Copying, interrupt, run


class Board:
    """Stands in for tensorboardX's SummaryWriter and for a wandb run."""

    opened: list["Board"] = []  # noqa: RUF012

    def __init__(self, folder=None, **settings):
        self.scalars, self.closed, self.settings = set(), False, {"dir": folder} | settings
        self.opened.append(self)

    def add_scalar(self, name, value, step):
        self.scalars.add((step, name, value))

    def log(self, line, step):
        for name in line:
            self.add_scalar(name, line[name], step)

    def close(self):
        self.closed = True

    finish = close


def scalars_in_csv(folder) -> set:
    rows = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    return {(int(row["step"]), n, float(row[n])) for row in rows for n in row if row[n]}


def scalars_in_board(folder) -> set:
    """Also checks the settings: TensorBoard drops earlier lines; wandb gets the run's settings."""
    latest = Board.opened[-1]
    if "config" in latest.settings:
        assert latest.settings["mode"] == "offline" and latest.settings["config"]["seed"] == 1
    else:
        assert latest.settings["purge_step"] == 0
    assert latest.settings["dir"].startswith(str(folder)) and latest.closed
    return latest.scalars


@pytest.fixture
def packages(monkeypatch):
    monkeypatch.setattr(Board, "opened", [])
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Board))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Board))


@pytest.mark.parametrize("name", metrics_writers.METRICS_WRITERS)
def test_a_copy_has_every_line_also_of_a_run_that_was_interrupted(name, packages, tmp_path):
    read = scalars_in_csv if name == "csv" else scalars_in_board
    interrupt(tmp_path, 8, MEASURES, steps=14, log_to=[name])
    run(tmp_path, 14, task=Copying(MEASURES[1:]), resume=True, log_to=name)
    lines = metrics(tmp_path)
    assert {(s, n, v) for s, n, v in read(tmp_path) if n != "step"} == {
        (line["step"], n, line[n]) for line in lines for n in line if n != "step"
    }
    opened = len(Board.opened)
    run(tmp_path, 14, resume=True, log_to=[name])  # it is finished
    assert len(Board.opened) == opened == 2 * (name != "csv")


def test_a_missing_package_is_named_first(monkeypatch, call, complaint, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("tensorboardX", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    for name, package in {"tensorboard": "tensorboardX", "wandb": "wandb"}.items():
        code, out, (error,) = call(copying, f"--log-to csv {name}")
        assert (code, out, [*Path().iterdir()]) == (2, [], [])
        assert f"log_to (--log-to) needs {package}; received no" in error
        assert f"pip install {package}." in error
    assert "csv, tensorboard, wandb; received 'x'" in complaint(run, "run", log_to=["x"])
