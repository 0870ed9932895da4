"""The reference: every public name of numformer, with an example that runs.

The pages follow the rooms of the library. PAGE.py, in percent format, has the examples of a page:
a cell `# %% NAME` shows NAME, and the lines before the first cell run before each example. These
files do not import public names: `imports` writes the lines that a reader needs.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import io
import itertools
import pkgutil
import re
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import numformer
from lessons.kit.percent import naming
from numformer import gradient_check, published
from numformer.randomness import dropout_stream

FOLDER = Path(__file__).parent
PAGES = {  # the title of each page, and the modules whose names it explains
    "layers": ("Layers and parameters", "layer errors backend interception"),
    "paper": ("The paper", "paper"),
    "later": ("What came later", "later"),
    "recurrence": ("What the Transformer replaced", "recurrence"),
    "data": ("Data", "symbols data"),
    "models": ("Models", "models"),
    "training": ("Training", "optimization training runs"),
    "generation": ("Generation", "generation"),
    "trained": ("Trained and published models", "trained plots published"),
    "gradient_check": ("The gradient check", "gradient_check"),
}
ROOM = {room: page for page, (_, rooms) in PAGES.items() for room in rooms.split()}
PACKAGES = numformer, gradient_check, published
WIDTH = 74  # the most characters in a line on the page
WITH_FORMULAS = "paper", "later", "recurrence"
MORE = """
symbols.PADDING symbols.START symbols.END symbols.UNKNOWN layer.Array
backend.array_module interception.intercept
paper.attention.split_heads paper.attention.merge_heads paper.positions.sinusoidal_table
later.activations.gelu_tanh later.attention.rotary.rotary_turns later.attention.alibi.alibi
later.registries.ACTIVATIONS later.registries.NORMALIZATIONS later.registries.POSITIONS
later.registries.POSITIONS_IN_ATTENTION later.registries.ATTENTIONS later.registries.MIXERS
later.registries.FEED_FORWARDS models.kinds.MODELS
optimization.optimizers.OPTIMIZERS optimization.recipe.cosine_rate
optimization.recipe.DECAYS
plots.loss_curve published.loading.load_published published.saving.save_published
gradient_check.gradients.TOLERANCE
"""
"""Public names that are in no `__all__` and have no backward."""
CELL = re.compile(r"^# %% (?P<name>\w+)\n(?P<code>(?:(?!# %% ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A public name, or a formula and its backward, or the constants of one statement."""

    names: tuple[str, ...]
    home: ModuleType

    @property
    def page(self) -> str:
        return ROOM[self.home.__name__.split(".")[1]]

    @property
    def link(self) -> str:
        return f"reference_{self.page}.html#{self.names[0]}"

    @property
    def objects(self) -> list[Any]:
        return [getattr(self.home, name) for name in self.names]

    @property
    def is_constant(self) -> bool:
        return not inspect.isroutine(self.objects[0]) and not inspect.isclass(self.objects[0])

    @property
    def sources(self) -> list[tuple[str, int]]:
        """The source of each name with the number of its first line."""
        if self.is_constant:
            return [_assignment(self.home, self.names[0])]
        return [*map(source, self.objects)]

    @property
    def docs(self) -> list[str]:
        """The docstring of each name, or the text or comment that follows a constant."""
        if self.is_constant:
            ((source, _),) = self.sources
            comment = re.search(r"  # (.*)$|^\"\"\"(.*)\"\"\"$", source, re.MULTILINE | re.DOTALL)
            return [(comment[1] or comment[2] or "").strip()] if comment else []
        return [*map(_docstring, self.objects)]


def _docstring(value: Any) -> str:
    """The docstring in the source, without the fields that `help` lists after it."""
    (definition,) = ast.parse(textwrap.dedent(source(value)[0])).body
    return ast.get_docstring(definition) or inspect.getdoc(value) or ""


@functools.cache
def source(value: Any) -> tuple[str, int]:
    """The source of a function or class, and the number of its first line."""
    lines, first = inspect.getsourcelines(value)
    return "".join(lines), first


@functools.cache
def _assignment(module: ModuleType, name: str) -> tuple[str, int]:
    """The lines that assign a constant, with a string below them, and the first line's number."""
    lines = inspect.getsource(module).splitlines()
    body = ast.parse("\n".join(lines)).body
    for node, following in itertools.pairwise([*body, ast.Pass()]):
        targets = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in targets:
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            end = following.end_lineno if is_text else node.end_lineno
            return "\n".join(lines[node.lineno - 1 : end]), node.lineno
    raise LookupError(f"{module.__name__} assigns no {name}")


@functools.cache
def entries() -> dict[str, Entry]:
    """The entry of every public name, in the order of the pages."""
    homes: dict[str, str] = {}
    more = dict(reversed(path.rsplit(".", 1)) for path in MORE.split())
    for package in PACKAGES:
        for name in package.__all__:
            homes[name] = getattr(getattr(package, name), "__module__", "numformer.")
    homes |= {name: f"numformer.{home}" for name, home in more.items()}
    for room in WITH_FORMULAS:
        package = importlib.import_module(f"numformer.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            backwards = [name for name in vars(module) if name.endswith("_backward")]
            for name in (name.removesuffix("_backward") for name in backwards):
                if getattr(vars(module).get(name), "__module__", "") == module.__name__:
                    homes[name] = module.__name__
    unsorted = [_entry(name, importlib.import_module(home)) for name, home in homes.items()]
    order = list(dict.fromkeys(entry.home for entry in unsorted))  # __all__ is in reading order

    def place(entry: Entry) -> tuple[int, int, int]:
        return [*PAGES].index(entry.page), order.index(entry.home), entry.sources[0][1]

    return {name: entry for entry in sorted(set(unsorted), key=place) for name in entry.names}


def _entry(name: str, home: ModuleType) -> Entry:
    formula = name.removesuffix("_backward")
    if inspect.isfunction(getattr(home, formula, None)) and hasattr(home, f"{formula}_backward"):
        return Entry((formula, f"{formula}_backward"), home)
    if name in ("PADDING", "START", "END", "UNKNOWN"):
        return Entry(("PADDING", "START", "END", "UNKNOWN"), home)
    return Entry((name,), home)


def _text(page: str) -> str:
    return (FOLDER / f"{page}.py").read_text(encoding="utf-8")


@functools.cache
def examples(page: str) -> tuple[str, dict[str, str]]:
    """The lines that precede all examples of a page, and each example by its name."""
    cells = {cell["name"]: cell["code"].strip() for cell in CELL.finditer(_text(page))}
    return CELL.split(_text(page), maxsplit=1)[0], cells


def imports(code: str) -> str:
    """The lines that import the public names in code, each from where a user imports it."""
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    sources: dict[str, set[str]] = {}
    for name in sorted({node.id for node in names} & entries().keys() - own):
        packages = [package for package in PACKAGES if name in package.__all__]
        source = [*packages, entries()[name].home][0].__name__
        sources.setdefault(source, set()).add(name)
    lines = ""
    for source, found in sorted(sources.items()):
        line = f"from {source} import {', '.join(sorted(found))}\n"
        inside = "".join(f"    {name},\n" for name in sorted(found))
        lines += line if len(line) <= WIDTH else f"from {source} import (\n{inside})\n"
    return lines


def run(page: str, name: str) -> str:
    """Run the example of a name in an empty folder; return what it prints."""

    def only(cell: re.Match) -> str:
        return cell[0] if cell["name"] == name else "\n" * cell[0].count("\n")

    code = CELL.sub(only, _text(page))
    names: dict[str, Any] = {"__name__": page}
    printed, progress = io.StringIO(), io.StringIO()
    dropout_stream.reseed(0, 0)
    path = FOLDER / f"{page}.py"
    with (
        naming(f"{path}, example {name}"),
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        np.printoptions(precision=3, suppress=True),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(progress),
    ):
        exec(imports(code), names)
        exec(compile(code, path, "exec"), names)
    return printed.getvalue()
