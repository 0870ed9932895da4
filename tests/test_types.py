"""A script as users write it: it runs, and mypy finds a wrong type in it, but nothing else."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT, ROOT = Path(__file__).with_name("typed_script.py"), Path(__file__).parents[1]


def test_the_script_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert runpy.run_path(str(SCRIPT))["best"]["exact"] == 1
    assert "weight" in capsys.readouterr().out


@pytest.mark.skipif(not importlib.util.find_spec("mypy"), reason="mypy is not installed")
@pytest.mark.parametrize(
    ("added", "words"),
    [
        ("", "Success: no issues found"),
        ("train(model, 3, '', 2)", 'incompatible type "int"; expected "Task"'),
        ("Recipe(warmup='2')", 'incompatible type "str"; expected "int"'),
        ("model.named_parameters()['x'].grat", 'has no attribute "grat"'),
        ("model.config.d_model + ''", 'Unsupported operand types for + ("int" and "str")'),
    ],
)
def test_mypy_finds_wrong_types_alone(added, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT.read_text(encoding="utf-8") + added, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path.parent / "mypy", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert words in done.stdout and (not added or "Found 1 error in" in done.stdout)
