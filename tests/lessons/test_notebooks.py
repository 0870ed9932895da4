"""Lessons as notebooks: how they are written; that each runs from its first cell to its last."""

import ast
import dis
import json
from importlib import util
from pathlib import Path
from types import CodeType

import pytest

import lessons
from lessons.__main__ import main
from lessons.kit.notebook import exercise_notebook, lesson_notebook
from lessons.kit.percent import cells
from lessons.kit.simulation import Simulation
from lessons.lesson_12 import landscape

LESSONS = [entry.number for entry in lessons.COURSE if entry.path]
SECONDS = 240  # for a cell


def executed(text: str) -> list[dict]:
    """The outputs of a notebook's code cells, run by a kernel of Jupyter."""
    reason = "the extra notebook is not installed"
    nbformat = pytest.importorskip("nbformat", reason=reason)
    client = pytest.importorskip("nbclient", reason=reason).NotebookClient
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    client(notebook, timeout=SECONDS, kernel_name="python3").execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def verdicts(outputs: list[dict]) -> list[str]:
    return [o["data"]["text/plain"] for o in outputs if o["output_type"] == "execute_result"]


@pytest.mark.parametrize("number", LESSONS)
def test_a_lesson_runs_as_a_notebook(number):
    """Its exercises are not begun; its simulations run in their cells."""
    module = lessons.load(number)
    outputs = executed(lesson_notebook(module))
    checked = verdicts(outputs)[-len(module.EXERCISES) :]
    assert checked == ["Not begun yet."] * len(module.EXERCISES)
    shown = [output["data"] for output in outputs if output["output_type"] == "display_data"]
    assert any("image/png" in data for data in shown)
    if util.find_spec("markdown_it"):
        assert any(data.get("text/html", "").startswith("<iframe") for data in shown)


def test_solved_exercises_are_right_in_a_notebook():
    outputs = executed(exercise_notebook("", lessons.load(3).EXERCISES, solved=True))
    words = verdicts(outputs)
    assert {text.partition(":")[0] for text in words} == {"Right"} and len(words) == 4


@pytest.mark.parametrize("number", LESSONS)
def test_what_a_cell_shows_needs_nothing_from_later_cells(number):
    """A notebook runs a cell before it knows the cells below."""
    module, known = lessons.load(number), {"__name__"}
    for cell in cells(Path(module.__file__)):
        if not cell.is_markdown:
            known |= {name for node in ast.parse(cell.text).body for name in names_of(node)}
        for function in cell.shown(module):
            late = (global_names(function.__code__) & vars(module).keys()) - known
            assert not late, f"{function.__name__} needs {late} from a later cell"


def names_of(node: ast.stmt) -> set[str]:
    """The names that a statement defines at the top of a lesson."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def global_names(code: CodeType) -> set[str]:
    """The global names that a function and the functions within it read."""
    within = (const for const in code.co_consts if isinstance(const, CodeType))
    own = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return own.union(*map(global_names, within))


def test_all_lessons_are_written_once_and_not_begun(call, tmp_path):
    folder = tmp_path / "new"
    code, out, err = call(main, "notebooks", "--out", str(folder))
    assert (code, err) == (0, []) and [Path(line) for line in out] == sorted(folder.iterdir())
    assert len(out) == len(LESSONS)
    notebook = json.loads((folder / "lesson_03_scaled_dot_product.ipynb").read_text("utf-8"))
    first, second, *_, last = notebook["cells"]
    assert first["source"].startswith("# Scaled dot-product attention\n\n> A word")
    assert second["metadata"] == {"jupyter": {"source_hidden": True}}
    assert last["source"].startswith("lessons.check(3, ")
    code, done, err = call(main, "progress", *out)
    assert (code, err) == (1, []) and done[-1] == "0 of 47 exercises solved"
    assert "not right yet" not in " ".join(done)
    code, out, err = call(main, "notebooks", "--out", str(folder))
    assert (code, out) == (2, []) and "lesson_01_recurrence.ipynb, which exists" in err[0]
    (tmp_path / "file").write_text("")
    code, out, err = call(main, "notebooks", "--out", str(tmp_path / "file"))
    assert (code, out) == (2, []) and "--out is a folder to write in" in err[0]


def test_a_simulation_is_a_picture_where_pages_cannot_be_built(monkeypatch):
    budgets = landscape.budgets
    assert isinstance(budgets, Simulation)
    monkeypatch.setattr("lessons.kit.simulation.find_spec", lambda name: None)
    assert budgets._repr_html_() is None and budgets._repr_png_().startswith(b"\x89PNG")
