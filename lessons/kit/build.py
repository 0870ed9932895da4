"""The pages of the course: python -m lessons.build --out site

A lesson is a Python file in percent format: cells of Markdown (`# %% [markdown]`) and of code
(`# %%`). Its page shows the text and, for each cell of code, what the cell's functions show, then
the code. The folder holds all that a page needs: a style sheet and a font beside the page, scripts
inside it. The folder also keeps the HTML made from each lesson, until one of its sources changes.
"""

import argparse
import base64
import contextlib
import hashlib
import html
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numformer
import toy_tasks
from lessons import COURSE, FOLDER, Entry, load, opening, published
from lessons.kit import further, reference, symbols
from lessons.kit.exercise import Exercise
from lessons.kit.index import index_page, summary_page
from lessons.kit.lesson import Matrix, Picture, Piece, pieces, plain
from lessons.kit.papers import linked
from lessons.kit.percent import Cell, cells, naming
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.kit.slides import slides_page
from lessons.kit.symbols import Marker
from numformer.errors import InputError, complain
from numformer.runs.checkpoints import write_atomically

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
            "Install the extra: pip install 'numformer[docs]'",
        )
    )
    sys.exit(2)

COURSE_IN_A_LINE = f"The Transformer, forward and backward, in {len(COURSE)} lessons"
SHORT = 8  # lines of code; a longer cell is folded on the page
IN_A_ROW = (Matrix, Picture)  # neighbours of the same kind stand side by side
MAKERS = ("numpy", "matplotlib", "markdown-it-py", "mdit-py-plugins", "math-core", "pygments")
LEFT_OUT = {".css", ".js", ".md", ".png", ".pyc", ".woff2"}  # these do not change a lesson's HTML
COUNTED = {"simulation": Simulation, "quiz question": Question, "exercise": Exercise}


class Page:
    """Turns the cells of a lesson into HTML, and collects the scripts that the page needs.

    With the `number` of a lesson, `marker` marks the symbols of its formulas.
    """

    def __init__(self, number: int = 0):
        self.scripts: list[str] = []  # files below FOLDER
        self.counts = Counter()
        self._latex = LatexToMathML()
        self.marker: Marker | None = None
        self.marker = Marker(number, self.math) if number else None
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
        rendered = linked(self._markdown.render(text))
        rendered = self.marker.code(rendered) if self.marker else rendered
        rendered = rendered.replace(
            '<div class="math block">', '<div class="math block" tabindex="0">'
        )
        # On a phone, a name of code in a table breaks after its dots.
        rendered = re.sub(r"(?<=\w)\.(?=[\w.]+</code>(?:</a>)?</td>)", ".<wbr>", rendered)
        # No line may begin with a comma that follows a formula.
        formula = r'(<span class="math inline">(?:(?!</span>).)*</span>[,.;:?)]+)'
        return re.sub(formula, r'<span class="together">\1</span>', rendered)

    def inline(self, text: str) -> str:
        """One paragraph of Markdown -> HTML without the paragraph around it."""
        return self._markdown.renderInline(text)

    def math(self, latex: str, display: bool = False) -> str:
        """A formula in LaTeX -> MathML."""
        mathml = self._latex.convert_with_local_state(latex.strip(), displaystyle=display)
        return self.marker.formula(mathml) if self.marker else mathml

    def code(self, python: str) -> str:
        """Python -> HTML whose words have pygments' classes, for their colours."""
        made = highlight(python, PythonLexer(), HtmlFormatter(cssclass="code", wrapcode=True))
        # A block that may scroll sideways has to be reachable by the keyboard.
        return made.replace("<pre>", '<pre tabindex="0">')

    def script(self, name: str) -> None:
        """Make NAME.js, from page/ or from a lesson's folder, the last script of the page."""
        (path,) = FOLDER.glob(f"*/{name}.js")
        name = str(path.relative_to(FOLDER))
        self.scripts = [*(other for other in self.scripts if other != name), name]

    def cell(self, cell: Cell, module) -> str:
        """A cell of a lesson as HTML: what its functions show, and its text or code."""
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
            about = self.inline(" ".join(about) or "Names that the lesson uses below.")
            code = f'<details class="source"><summary>Code: {about}</summary>{code}</details>'
        return "".join([*parts, code])


def bundle(names: Sequence[str]) -> str:
    """One script of modules, files below FOLDER; what they import comes once, before them.

    A page that was opened from a folder may not import modules from other files. So each module
    becomes a function, which keeps its names to itself and returns what the module exports.
    """
    parts: dict[Path, str] = {}

    def add(path: Path) -> str:
        name = "module_" + re.sub(r"\W", "_", str(path.relative_to(FOLDER)))
        if path in parts:
            return name
        parts[path] = ""  # listed before its imports are added, so that circular imports end

        def imported(match):
            return f"const {match[1]} = {add((path.parent / match[2]).resolve())};"

        text = path.read_text(encoding="utf-8").rstrip() + "\n"
        text = re.sub(r'^import ([^;]*) from "(\.[./\w]+)";$', imported, text, flags=re.MULTILINE)
        exported = re.findall(r"^export (?:function|class|const) (\w+)", text, re.MULTILINE)
        text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
        del parts[path]  # its place is after its imports
        parts[path] = (
            f"const {name} = (() => {{\n{text}return {{ {', '.join(exported)} }};\n}})();\n"
        )
        return name

    for name in names:
        add(FOLDER / name)
    return "".join(parts.values())


def frame(title: str, body: str, description: str, scripts: str = "") -> str:
    """A whole page of HTML around its body."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="{html.escape(description)}">
<meta property="og:title" content="{html.escape(title)}">
<meta property="og:description" content="{html.escape(description)}">
<meta property="og:image" content="preview.png">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
{body}
<footer><p>Built by numformer {numformer.__version__}, which also computed the numbers here.</p>
</footer>
{scripts}</body>
</html>
"""


def style_sheet() -> str:
    """The style of all pages; a lesson's own rules come last."""
    sheets = sorted(FOLDER.glob("page/*.css"), key=lambda path: (path.stem != "style", path))
    sheets += sorted(FOLDER.glob("lesson_*/*.css"))
    return "".join(path.read_text(encoding="utf-8") for path in sheets)


def inline_frame(piece: Piece, title: str) -> str:
    """One piece of a page, with its style and scripts: an iframe for the output of a cell."""
    page = Page()
    body = piece.html(page)
    grow = (
        "new ResizeObserver(() => {"
        " frameElement.style.height = `${document.body.scrollHeight + 40}px`;"
        " }).observe(document.body);"
    )
    font = base64.b64encode((FOLDER / "page" / "numformer_math.woff2").read_bytes()).decode()
    style = style_sheet().replace("numformer_math.woff2", f"data:font/woff2;base64,{font}")
    document = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{style}</style>'
        f'<body>{body}<script type="module">\n{bundle(page.scripts)}{grow}</script></body></html>'
    )
    return (
        f'<iframe title="{html.escape(title)}" srcdoc="{html.escape(document)}" '
        'style="width: 100%; height: 40em; border: 0"></iframe>'
    )


@dataclass(frozen=True)
class Made:
    """A lesson turned into HTML: its text, its scripts, how many of COUNTED it has, its symbols."""

    html: str
    scripts: list[str]  # files below FOLDER
    counts: dict[str, int]
    symbols: list[str]  # in LaTeX

    @property
    def minutes(self) -> int:
        """How long it takes to read: 180 words a minute, half a minute for a formula on its own
        line, three for a simulation.
        """
        text = re.sub(r"<(script|svg|pre)\b.*?</\1>", " ", self.html, flags=re.S)
        formulas = text.count('<div class="math block"')
        text = re.sub(r"<math\b.*?</math>", "formula", text, flags=re.S)
        words = len(re.sub(r"<[^>]*>", " ", text).split())
        read = words / 180 + formulas / 2 + 3 * self.counts.get("simulation", 0)
        return 5 * round(read / 5)

    @property
    def takes(self) -> str:
        """How long its text takes to read, and its exercises to do, a quarter of an hour each."""
        to_do = 15 * self.counts.get("exercise", 0)
        return f"{self.minutes} minutes to read, {to_do} for its exercises"

    @property
    def summary(self) -> str:
        """Its section "To take with you", without the heading."""
        section = re.search(r'<h2 id="to-take-with-you">.*?</h2>(.*?)(?=<h2|$)', self.html, re.S)
        return section[1] if section else ""


def make(entry: Entry) -> Made:
    """Compute a lesson and turn it into HTML."""
    with naming(entry.path):
        module, page = load(entry.number), Page(entry.number)
        body = "".join(page.cell(cell, module) for cell in cells(entry.path))
    used = sorted(page.marker.used) if page.marker else []
    return Made(body, page.scripts, dict(page.counts), used)


def origin(entry: Entry) -> str:
    """A hash of all that the HTML of a lesson depends on.

    That is every source file of the three packages, except those of lessons that this one does not
    name, directly or through others; and the versions of Python and of the packages in MAKERS.
    """
    examples = FOLDER / "reference"  # for the reference's pages, which are made every time
    sources, versions = {}, [sys.version, *(f"{name} {version(name)}" for name in MAKERS)]
    for folder in (FOLDER, Path(numformer.__file__).parent, Path(toy_tasks.__file__).parent):
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix not in LEFT_OUT and path.parent != examples:
                sources[str(path.relative_to(folder.parent))] = path.read_bytes()
    needed, of_lesson = {f"{entry.number:02d}"}, re.compile(r"\blesson_(\d\d)")
    while True:
        own = {
            name: text
            for name, text in sources.items()
            if not (of := of_lesson.search(name)) or of[1] in needed
        }
        named = {
            of
            for name, text in own.items()
            if of_lesson.search(name)
            for of in of_lesson.findall(text.decode(errors="replace"))
        }
        if named <= needed:
            break
        needed |= named
    digest = hashlib.sha256(repr(versions).encode())
    for name, text in sorted(own.items()):
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def made(entry: Entry, out: Path) -> tuple[Made, bool]:
    """The lesson as HTML, and whether it was made now; `out` keeps it for the next time."""
    path, key = out / ".made" / f"{entry.path.stem}.json", origin(entry)

    def seal(text: str) -> str:
        return hashlib.sha256(f"{key}{text}".encode()).hexdigest()

    with contextlib.suppress(OSError, ValueError):  # no kept file, or not two lines
        kept, text = path.read_text(encoding="utf-8").split("\n", 1)
        if kept == seal(text):
            return Made(**json.loads(text)), False
    lesson = make(entry)
    text = json.dumps(vars(lesson))
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, f"{seal(text)}\n{text}".encode())
    return lesson, True


def neighbours(entry: Entry) -> str:
    """Links to the lessons before and after; a lesson to come is named without a link."""
    parts = []
    for number, kind, mark in ((entry.number - 1, "prev", "←"), (entry.number + 1, "next", "→")):
        if not 1 <= number <= len(COURSE):
            parts.append("<span></span>")
            continue
        other = COURSE[number - 1]
        link = f' href="{other.page}" rel="{kind}"' if other.page else ' class="to-come"'
        name = f"{number}. {other.title}" + ("" if other.page else ", to come")
        parts.append(f'<a{link}><span aria-hidden="true">{mark}</span> {name}</a>')
    return "".join(parts)


def script(*names: str, kind: str = "module") -> str:
    """The HTML element of scripts below FOLDER; a module runs after the whole page was read."""
    return f'<script type="{kind}">\n{bundle(names)}</script>\n'


def lesson_page(entry: Entry, lesson: Made) -> str:
    """The page of a lesson: its text, its contents, and links to other lessons."""
    headings = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', lesson.html)
    contents = dict(headings)
    beside = neighbours(entry)
    here = f"Lesson {entry.number} of {len(COURSE)}, {lesson.takes}"
    here += f'<span data-solved="{entry.page}"></span>'
    body = f"""<header>{further.navigation(here)}
<nav class="neighbours" aria-label="Previous and next">{beside}</nav></header>
<div class="lesson">
<main id="content"><article>
{further.opened(reference.mentioned(lesson.html))}
</article>
<p><a href="{entry.slides}">Slides of this lesson</a></p>
<nav class="neighbours" aria-label="Where to go on">{beside}</nav></main>
{further.contents(contents)}
</div>"""
    scripts = symbols.notes(lesson.symbols, entry.number, Page().math)
    scripts += script("page/contents.js", "page/symbols.js")
    if lesson.scripts:
        scripts += script(*lesson.scripts)
    title = f"{entry.number}. {entry.title} · numformer"
    return frame(title, body, plain(entry.question), scripts)


def home_page(course: dict[int, Made]) -> str:
    """The page that leads to the lessons. Its script runs before the weights have come."""
    scripts = (
        script("page/progress.js")
        + script("page/opening.js", kind="text/javascript")
        + opening.data()
    )
    return frame("numformer lessons", index_page(Page(), course), COURSE_IN_A_LINE, scripts)


def build(out: Path) -> str:
    """Write the pages into the folder `out` -> the last line to print. Raises InputError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError("--out is a folder to write in", problem, "Choose another.") from None
    course, counts = {}, Counter()
    for entry in COURSE:
        if entry.path:
            started = time.perf_counter()
            course[entry.number], now = made(entry, out)
            counts += Counter(course[entry.number].counts) + Counter(lesson=1)
            write_atomically(out / entry.page, lesson_page(entry, course[entry.number]).encode())
            deck = slides_page(entry, course[entry.number].html)
            deck = frame(
                f"Slides: {entry.title}", deck, plain(entry.question), script("page/slides.js")
            )
            write_atomically(out / entry.slides, deck.encode())
            took = f"{time.perf_counter() - started:.1f} s" if now else "unchanged"
            print(f"{out / entry.page}  {took}", flush=True)

    known, names = published.published_page(Page()), reference.searched()
    searched = {"published.html": known}
    others = {
        "summary": ("Summary", summary_page(course), "To print and to keep"),
        "glossary": ("Glossary", further.glossary_page(), "The words of the course, explained"),
        "symbols": (
            "Symbols",
            further.page_of("Symbols", symbols.symbols_page(Page().math)),
            "The symbols of the course, explained",
        ),
        "search": (
            "Search",
            further.search_page(course, searched, names),
            "Search",
            script("page/search.js"),
        ),
        "teaching": ("For teachers", further.teaching_page(Page()), "A plan for twelve weeks"),
        "published": (known[0], further.page_of(*known), "GPT-2, BERT, ViT, T5 and Llama"),
    }
    for name, title, text, listed in reference.pages(Page(), course):
        body = reference.reference_page(title, text, listed)
        others[name] = title, body, "The library's names", script("page/contents.js") * bool(listed)
    for name, (title, *page) in others.items():
        write_atomically(out / f"{name}.html", frame(f"{title} · numformer", *page).encode())
    write_atomically(out / "index.html", home_page(course).encode())
    write_atomically(out / "style.css", style_sheet().encode())
    # The font with its licence, and the picture that previews a link to a page.
    for path in [*FOLDER.glob("page/numformer_math.*"), *FOLDER.glob("page/preview.png")]:
        write_atomically(out / path.name, path.read_bytes())
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
