"""The program of sixty lines that trains with the paper's room alone."""

import ast
from pathlib import Path

import numpy as np

from numformer import blas
from numformer.symbols import PADDING, START
from toy_tasks import from_paper

TEXT = Path(from_paper.__file__).read_text()


def test_it_has_at_most_sixty_lines_and_imports_the_room_and_the_ground_floor_alone():
    imports = [part for part in ast.parse(TEXT).body if isinstance(part, ast.ImportFrom)]
    rooms = {part.module for part in imports} - {"numformer"}  # whose one name is `blas`
    assert len(TEXT.splitlines()) <= 60 and "numformer.paper" in rooms
    assert rooms <= {f"numformer.{n}" for n in ("paper", "layer", "randomness", "symbols")}


def test_targets_are_reversed_sources():
    for source, target in zip(*from_paper.batch(np.random.default_rng(0)), strict=True):
        *digits, end = source[source != PADDING]
        assert target[target != PADDING].tolist() == [START, *digits[::-1], end]


def test_it_learns(capsys, monkeypatch):
    """The loss falls towards the floor of label smoothing; three digits are quick to learn."""
    monkeypatch.setattr(from_paper, "BATCH", 16)
    monkeypatch.setattr(from_paper, "LONGEST", 3)
    with blas.training_threads(1):
        right = from_paper.main(["--steps", "200"])
    *losses, last = capsys.readouterr().out.splitlines()
    first, second = (float(line.split()[-1]) for line in losses)
    assert second < first < 2 and second < 1.3
    assert 0.5 < right <= 1 and last == f"exact match {right:.4f}"
