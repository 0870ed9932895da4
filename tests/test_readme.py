"""The README says what is: its code runs, its links lead somewhere, its formula is the code's."""

import ast
import inspect
import re
import shutil
from pathlib import Path

import pytest

import numformer
from numformer.paper import attention

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("[nlt]*/README.md")]
README = (ROOT / "README.md").read_text()
FORMULA, *CODE = (
    code
    for page in (ROOT / "README.md", ROOT / "toy_tasks" / "README.md")
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
)


def test_the_readme_has_at_most_200_lines():
    assert len(README.splitlines()) <= 200 and len(PAGES) == 6


def test_the_formula_is_the_library_s():
    names = "scaled_dot_product_attention", "scaled_dot_product_attention_backward"
    found = []
    for name in names:
        (function,) = ast.parse(inspect.getsource(getattr(attention, name))).body
        function.body, function.decorator_list = function.body[1:], []  # without its docstring
        found.append(ast.unparse(function))
    assert ast.unparse(ast.parse(FORMULA)) == "\n\n".join(found)


@pytest.mark.parametrize("code", CODE, ids=lambda code: code.strip().split("\n")[-1])
def test_its_code_runs(code, tmp_path, monkeypatch, capsys):
    """With a run of reverse that learned nothing, and with fewer steps."""
    monkeypatch.chdir(tmp_path)
    Path("runs/reverse").mkdir(parents=True)
    newest = max((ROOT / "tests" / "runs").glob("format_*"))
    shutil.copy(newest / "best.safetensors", "runs/reverse")
    given = {}
    if "gpt2" in code:
        reason = "the extra published is not installed"
        pytest.importorskip("tests.published.published_texts", reason=reason).gpt2(Path("gpt2"))
        given["numformer"] = numformer
    program = compile(code.replace('"runs/unzip", 500', '"runs/unzip", 9'), "README.md", "exec")
    for _ in range(1 + ("Bigram" in code)):  # with resume=True it can be run again
        exec(program, given)
    printed = capsys.readouterr().out
    if "gpt2" in code:
        assert Path("heads.png").exists() and printed.startswith("To be, or")
    elif "attention.draw" in code:
        assert Path("attention.png").exists() and "(1, 2, " in printed
    elif "Adam" in code:
        assert printed.endswith("[[6, 5, 4], [8, 7]]\n")
    elif "reverse.evaluate" in code:
        assert Path("predictions.tsv").exists() and len(printed.splitlines()) == 2
    elif "Bigram" in code:
        assert printed.endswith("\nshelshelshe\n")
    else:
        (loaded,) = numformer.load("runs/unzip")(["adbecc"])
        assert printed.endswith(f"{loaded}\n") and "held_out_loss" in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_names_of_files_lead_somewhere(page):
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert all((page.parent / link).exists() for link in links) and "<<" not in text
    for name in re.findall(r"python -m ((?:toy_tasks|tests|lessons)[.\w]*)", text):
        module = ROOT / name.rstrip(".").replace(".", "/")
        paths = module.with_suffix(".py"), module / "__main__.py"
        assert name == "toy_tasks.NAME" or any(path.exists() for path in paths), name
