"""The program of sixty lines that trains with the paper's room alone."""

import ast
from pathlib import Path

from numformer import blas
from toy_tasks import from_paper

TEXT = Path(from_paper.__file__).read_text()


def test_it_has_at_most_sixty_lines_and_imports_the_room_and_the_ground_floor_alone():
    imports = [part for part in ast.parse(TEXT).body if isinstance(part, ast.ImportFrom)]
    rooms = {part.module for part in imports} - {"numformer"}  # whose one name is `blas`
    assert len(TEXT.splitlines()) <= 60 and "numformer.paper" in rooms
    assert rooms <= {f"numformer.{n}" for n in ("paper", "layer", "randomness", "symbols")}


def test_it_learns(capsys):
    """Its loss falls towards what label smoothing leaves; a thousand steps reverse every digit."""
    with blas.training_threads(1):
        assert 0 <= from_paper.main(["--steps", "200"]) <= 1
    lines = capsys.readouterr().out.splitlines()
    first, second = (float(line.split()[-1]) for line in lines[:2])
    assert second < first < 2.6 and second < 1.9 and lines[-1].startswith("exact match ")
