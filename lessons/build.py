"""The pages of the course: python -m lessons.build --out site

A lesson is a Python file in percent format: cells of Markdown (`# %% [markdown]`) and of code
(`# %%`). Its page shows the text, the code, and below each cell what the cell's functions show. All
that a page needs lies in the folder: a style sheet beside it, scripts within it.
"""

import argparse
import html
import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lessons import COURSE, FOLDER, Entry, load
from lessons.exercise import Exercise
from lessons.lesson import Matrix, Picture, pieces, plain
from lessons.percent import Cell, cells
from lessons.quiz import Question
from lessons.simulation import Simulation
from numformer import __version__
from numformer.errors import InputError, complain
from numformer.training.checkpoints import write_atomically
from toy_tasks.script import exit_code

try:
    from markdown_it import MarkdownIt
    from math_core import LatexToMathML
    from mdit_py_plugins.anchors import anchors_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer
except ModuleNotFoundError as missing:
    complain(
        InputError(
            "pages are built with the packages of the docs extra",
            f"none called {missing.name}",
            "Install them: pip install -e '.[docs]'.",
        )
    )
    sys.exit(2)

SHORT = 8  # lines of code that stand on a page unfolded
IN_A_ROW = (Matrix, Picture)  # several of a kind stand side by side
COUNTED = {"simulation": Simulation, "quiz question": Question, "exercise": Exercise}


class Page:
    """Turns what a lesson is made of into HTML, and gathers the scripts that it needs."""

    def __init__(self):
        self.scripts: list[Path] = []
        self.counts = Counter()
        self._latex = LatexToMathML()
        self._markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
        self._markdown.use(
            dollarmath_plugin,
            renderer=lambda latex, options: self.math(latex, options["display_mode"]),
        )
        self._markdown.use(anchors_plugin, min_level=2, max_level=3)
        self._markdown.add_render_rule(
            "table_open", lambda *_: '<div class="scroll" tabindex="0"><table>'
        )
        self._markdown.add_render_rule("table_close", lambda *_: "</table></div>")
        self._markdown.add_render_rule(
            "fence", lambda _, tokens, index, *rest: self.code(tokens[index].content)
        )

    def markdown(self, text: str) -> str:
        """Markdown with $formulas$ -> HTML."""
        made = self._markdown.render(text)
        made = made.replace('<div class="math block">', '<div class="math block" tabindex="0">')
        # No line may begin with the comma after a formula.
        formula = r'(<span class="math inline">(?:(?!</span>).)*</span>[,.;:?)]+)'
        return re.sub(formula, r'<span class="together">\1</span>', made)

    def inline(self, text: str) -> str:
        """One paragraph of Markdown -> HTML without the paragraph around it."""
        return self._markdown.renderInline(text)

    def math(self, latex: str, display: bool = False) -> str:
        """A formula in LaTeX -> MathML."""
        made = self._latex.convert_with_local_state(latex.strip(), displaystyle=display)
        return made.replace("<math", '<math display="block"', 1) if display else made

    def code(self, python: str) -> str:
        """Python, with its words in the classes that pygments gives them."""
        made = highlight(python, PythonLexer(), HtmlFormatter(cssclass="code", wrapcode=True))
        # What may have to be scrolled sideways can be reached by the keyboard.
        return made.replace("<pre>", '<pre tabindex="0">')

    def script(self, name: str) -> None:
        """Put the module NAME.js, of all pages or of a lesson, into the page, once."""
        (path,) = FOLDER.glob(f"*/{name}.js")
        if path not in self.scripts:
            self.scripts.append(path)

    def cell(self, cell: Cell, module) -> str:
        """A cell of a lesson and what its functions show."""
        if cell.is_markdown:
            return self.markdown(cell.text)
        parts, functions = [], cell.shown(module)
        for function in functions:
            shown = pieces(function)
            self.counts.update(
                name for name, kind in COUNTED.items() for piece in shown if isinstance(piece, kind)
            )
            for kind, run in itertools.groupby(shown, type):
                made = "".join(piece.html(self) for piece in run)
                parts.append(f'<div class="row">{made}</div>' if kind in IN_A_ROW else made)
        code = self.code(cell.text)
        if functions or cell.text.count("\n") >= SHORT:
            about = [function.__doc__.strip().splitlines()[0] for function in functions]
            about = self.inline(" ".join(about) or "What the lesson is built with.")
            code = f'<details class="source"><summary>Code: {about}</summary>{code}</details>'
        return "".join([*parts, code])


def bundle(paths: Sequence[Path]) -> str:
    """JavaScript modules, and before them, each once, those that they import, in one script.

    A page that was opened from a folder may not import modules from other files, so each becomes a
    function, whose names are its own, that returns what the module exports.
    """
    parts: dict[Path, str] = {}

    def add(path: Path) -> str:
        name = "module_" + re.sub(r"\W", "_", str(path.relative_to(FOLDER)))
        if path in parts:
            return name
        parts[path] = ""  # before what it imports, so that a circle ends

        def imported(match):
            return f"const {match[1]} = {add((path.parent / match[2]).resolve())};"

        text = path.read_text(encoding="utf-8")
        text = re.sub(r'^import ([^;]*) from "(\.[./\w]+)";$', imported, text, flags=re.MULTILINE)
        exported = re.findall(r"^export (?:function|class|const) (\w+)", text, re.MULTILINE)
        text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
        del parts[path]  # after what it imports
        parts[path] = (
            f"const {name} = (() => {{\n{text}return {{ {', '.join(exported)} }};\n}})();\n"
        )
        return name

    for path in paths:
        add(path)
    return "".join(parts.values())


def frame(title: str, body: str, description: str, scripts: str = "") -> str:
    """A whole page around its body."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="{html.escape(description)}">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
{body}
<footer><p>Built by numformer {__version__}, which also computed the numbers here.</p></footer>
{scripts}</body>
</html>
"""


def lesson_page(entry: Entry) -> tuple[str, Counter]:
    """The page of a lesson, and how many simulations, questions and exercises are on it."""
    module, page = load(entry.number), Page()
    body = "".join(page.cell(cell, module) for cell in cells(entry.path))
    first, rest = re.fullmatch(
        r"(.*?</h1>\s*(?:<blockquote>.*?</blockquote>)?)(.*)", body, re.S
    ).groups()
    headings = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', rest)
    contents = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in headings)
    scripts = f'<script type="module">\n{bundle(page.scripts)}</script>\n' if page.scripts else ""
    made = f"""<header><nav aria-label="Course"><a href="index.html">numformer lessons</a>
<span>Lesson {entry.number} of {len(COURSE)}</span></nav></header>
<main id="content"><article>
{first}
<nav class="contents" aria-label="On this page"><ol>{contents}</ol></nav>
{rest}
</article></main>"""
    title = f"{entry.number}. {entry.title} · numformer"
    return frame(title, made, plain(entry.question), scripts), page.counts


def index_page() -> str:
    """The twelve lessons, those to come marked so."""
    items, page = [], Page()
    for entry in COURSE:
        title = f"<strong>{entry.title}</strong> <span>{page.inline(entry.question)}</span>"
        if entry.path:
            items.append(f'<li><a href="{entry.path.stem}.html">{title}</a></li>')
        else:
            items.append(f'<li class="to-come"><div>{title} <em>to come</em></div></li>')
    body = f"""<main id="content"><article>
<h1>The Transformer, forward and backward</h1>
<p>Twelve lessons on “Attention Is All You Need” (Vaswani et al. 2017), for those who know matrix
products, simple neural networks and softmax. A lesson shows the lines of numformer that it is about
and, where they have gradients, derives these by hand.</p>
<ol class="course">{"".join(items)}</ol>
</article></main>"""
    return frame("numformer lessons", body, "The Transformer, forward and backward, in 12 lessons")


def build(out: Path) -> str:
    """Write the pages into the folder `out` -> the last line to print. Raises InputError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError("--out is a folder to write in", problem, "Give another.") from None
    counts = Counter()
    for entry in COURSE:
        if entry.path:
            started = time.perf_counter()
            page, found = lesson_page(entry)
            counts += found + Counter(lesson=1)
            write_atomically(out / f"{entry.path.stem}.html", page.encode())
            print(
                f"{out / entry.path.stem}.html  {time.perf_counter() - started:.1f} s", flush=True
            )
    style = "".join(
        path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*/*.css"), reverse=True)
    )
    write_atomically(out / "style.css", style.encode())
    write_atomically(out / "index.html", index_page().encode())
    named = [(counts[name], name) for name in ("lesson", *COUNTED)]
    return ", ".join(f"{number} {name}{'s' * (number != 1)}" for number, name in named)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lessons.build",
        description="Build the pages of the course. Open index.html in the folder afterwards; no "
        "server and no network is needed.",
    )
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder (default: site)")
    out = parser.parse_args(arguments).out
    print(build(out))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
