"""The pages of the reference, made from the docstrings and the source of the library."""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numformer
from lessons import COURSE
from lessons.kit.ascii_math import in_latex
from lessons.kit.further import contents, navigation
from lessons.kit.papers import linked
from lessons.reference import PAGES, WIDTH, Entry, entries, examples, imports, run, source

LONG = 12  # an equation with more letters and digits stands on its own line
TOGETHER = r'<span class="together">\1</span>'
LETTERS = numformer.__doc__.split("\n\n")[-1]


def mentioned(html: str) -> str:
    """A lesson's HTML in which each public name in `code` links to its entry.

    Names in exercises do not link, because an entry shows the source.
    """

    def link(found: re.Match) -> str:
        entry = found["name"] and entries().get(found["name"].split(".")[0])
        return f'<a href="{entry.link}">{found[0]}</a>' if entry else found[0]

    left = r"<(a|section|script|svg|summary|figure)\b.*?</\1>"
    return re.sub(rf"{left}|<code>(?P<name>[\w.]+)</code>", link, html, flags=re.DOTALL)


def explanations(course: Mapping[int, Any]) -> dict[Entry, list[str]]:
    """For each entry, links to the sections of lessons that show its lines, or else name it."""
    shown: dict[tuple[bool, Entry], dict[str, None]] = {}
    for number, lesson in course.items():
        parts = re.split(r'<h2 id="([^"]*)">(.*?)</h2>', mentioned(lesson.html), flags=re.DOTALL)
        for place, title, html in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            link = f'<a href="{COURSE[number - 1].page}#{place}">{title}</a> (lesson {number})'
            sources = "".join(re.findall(r'<div class="source">.*?</div>', html, re.DOTALL))
            for lines, text in (True, sources), (False, html):
                for name in re.findall(r'<a href="reference_\w+.html#\w+"><code>(\w+)', text):
                    shown.setdefault((lines, entries()[name]), {})[link] = None
    return {
        entry: [*(shown.get((True, entry)) or shown.get((False, entry), {}))]
        for entry in entries().values()
    }


def named(html: str, own: tuple[str, ...] = ()) -> str:
    """Highlighted code in which names of classes and called functions link to their entries."""

    def link(found: re.Match) -> str:
        name = found["name"]
        entry = None if name in own else entries().get(name)
        return f'<a href="{entry.link}">{name}</a>' if entry else name

    # A name after a dot does not link: it belongs to another object.
    place = r'(?<=<span class="n">)(?<!\.</span><span class="n">)'
    pattern = place + r'(?P<name>[A-Z]\w*(?=<)|\w+(?=</span><span class="p">\())'
    return re.sub(pattern, link, html)


def prose(page, doc: str) -> str:
    """A docstring as HTML: its paragraphs, with equations as mathematics and links to names."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        if block.startswith("    "):
            blocks.append(page.code(textwrap.dedent(block)))
        elif block.startswith("- "):
            items = re.split(r"\n?^- ", block, flags=re.MULTILINE)[1:]
            blocks.append(f"<ul>{''.join(f'<li>{_text(page, item)}</li>' for item in items)}</ul>")
        else:
            blocks.append(f"<p>{_text(page, block)}</p>")
    return linked("".join(blocks)).replace("<p></p>", "")


def _text(page, text: str) -> str:
    html = []
    for part in re.split(r"(`[^`]*`)", text.replace("\n", " ")):
        if part.startswith("`"):
            html.append(mentioned(f"<code>{escape(part.strip('`'))}</code>"))
            continue
        for piece, is_latex in in_latex(part):
            if not is_latex:
                html.append(_with_names(escape(piece, quote=False).replace("-&gt;", "→")))
            elif len(re.sub(r"\\[a-z]+|\W", "", piece)) > LONG:
                math = page.math(piece, display=True)
                html.append(f'</p><div class="math block" tabindex="0">{math}</div><p>')
            else:
                html.append(f'<span class="math inline">{page.math(piece)}</span>')
    # Punctuation stays with the formula before it; after a formula on its own line it is left out.
    text = re.sub(r"</div><p>[.,;:]\s*", "</div><p>", "".join(html))
    return re.sub(r'(<span class="math inline">.*?</span>[,.;:)]+)', TOGETHER, text)


def _with_names(html: str) -> str:
    """Text in which names of classes that are not English words, such as PairBatch, link."""

    def link(found: re.Match) -> str:
        entry = entries().get(found[0])
        return f'<a href="{entry.link}">{found[0]}</a>' if entry else found[0]

    return re.sub(r"\b[A-Z]\w*[a-z]\w*[A-Z]\w*\b", link, html)


# The parts of an entry


def call(name: str, function: ast.FunctionDef, is_method: bool) -> str:
    """The signature of a function, on one line or with a line for each argument."""
    inputs, arguments = function.args, []
    positional = [*inputs.posonlyargs, *inputs.args]
    defaults = [*(len(positional) - len(inputs.defaults)) * [None], *inputs.defaults]
    for argument, default in zip(positional, defaults, strict=True):
        arguments.append(_argument(argument, default))
    if inputs.vararg or inputs.kwonlyargs:
        arguments.append(f"*{ast.unparse(inputs.vararg) if inputs.vararg else ''}")
    for argument, default in zip(inputs.kwonlyargs, inputs.kw_defaults, strict=True):
        arguments.append(_argument(argument, default))
    if inputs.kwarg:
        arguments.append(f"**{ast.unparse(inputs.kwarg)}")
    is_static = any(ast.unparse(mark) == "staticmethod" for mark in function.decorator_list)
    arguments = arguments[is_method and not is_static :]  # without self or cls
    returned = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    returned = "" if name[0].isupper() else returned
    line = f"{name}({', '.join(arguments)}){returned}"
    inside = "".join(f"    {argument},\n" for argument in arguments)
    return line if len(line) <= WIDTH else f"{name}(\n{inside}){returned}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if argument.annotation else "="
    return ast.unparse(argument) + (f"{equals}{ast.unparse(default)}" if default else "")


@functools.cache
def _node(value: Any) -> Any:
    return ast.parse(textwrap.dedent(source(value)[0])).body[0]


def signature(name: str, value: Any) -> str:
    """The signature of a function or class; for a dataclass, its fields with their help."""
    if not inspect.isclass(value):
        return call(name, _node(value), is_method=False)
    methods = {part.name: part for part in _node(value).body if isinstance(part, ast.FunctionDef)}
    if "__init__" not in methods and (own := own_fields(value)):
        return f"{name}(\n{''.join(own)})"
    owner = next(kind for kind in value.__mro__ if "__init__" in vars(kind))
    if owner.__module__.split(".")[0] != "numformer" or dataclasses.is_dataclass(owner):
        return f"{name}({'...' * dataclasses.is_dataclass(owner)})"
    text = call(name, _node(owner.__init__), is_method=True)
    return text.replace("_Config", f"{name}.Config")


def own_fields(kind: type) -> list[str]:
    """The fields that a class itself declares, one per line; settings have their help texts."""
    settings = {field.name: field for field in getattr(kind, "__dataclass_fields__", {}).values()}
    lines = source(kind)[0].splitlines()
    rows = []
    for part in _node(kind).body:
        if not isinstance(part, ast.AnnAssign) or "ClassVar" in ast.unparse(part.annotation):
            continue
        name = ast.unparse(part.target)
        text = f"    {name}: {ast.unparse(part.annotation)}"
        field = settings.get(name)
        note = field.metadata.get("help", "") if field else ""
        if field and field.default is not dataclasses.MISSING:
            text += f" = {field.default!r}"
        elif part.value and not note:
            text += f" = {ast.unparse(part.value)}" if isinstance(part.value, ast.Constant) else ""
        if not note and (found := re.search("  # (.*)", lines[part.end_lineno - 1])):
            note = found[1]
        row = f"{text},{f'  # {note}' if note else ''}"
        if note and len(row) > WIDTH:
            above = dict(initial_indent="    # ", subsequent_indent="    # ")
            row = f"{textwrap.fill(note, WIDTH, **above)}\n{text},"
        rows.append(f"{row}\n")
    return rows


def members(page, value: Any) -> str:
    """The public methods, properties and classes that a class itself defines."""
    rows = []
    for name, member in vars(value).items():
        if name.startswith("_") and name not in ("__call__", "__getitem__"):
            continue
        function = getattr(member, "fget", None) or getattr(member, "func", None) or member
        function = getattr(function, "__func__", function)
        doc = inspect.cleandoc(getattr(function, "__doc__", None) or "")
        if inspect.isclass(member) and (member.__module__ or "").startswith("numformer"):
            head = signature(f"{value.__name__}.{name}", member)
        elif inspect.isfunction(function) and (doc or name in ("forward", "backward")):
            is_call = function is member or isinstance(member, staticmethod | classmethod)
            head = call(name, _node(function), is_method=True) if is_call else name
        else:
            continue
        rows.append(f"<dt>{named(page.code(head))}</dt><dd>{prose(page, doc) if doc else ''}</dd>")
    return f'<dl class="members">{"".join(rows)}</dl>' if rows else ""


def bases(value: Any) -> str:
    """The library's classes that a class extends."""
    kinds = value.__bases__ if inspect.isclass(value) else ()
    kinds = [kind for kind in kinds if kind.__module__.startswith("numformer")]
    names = [
        f"{kind.__module__}." * (kind.__name__ == value.__name__) + kind.__name__ for kind in kinds
    ]
    links = [mentioned(f"<code>{name}</code>") for name in names]
    return f"<p>Extends {' and '.join(links)}.</p>" if links else ""


def example(page, entry: Entry) -> str:
    """The example of an entry, with its imports and its output."""
    code = examples(entry.page)[1][entry.names[0]]
    printed = escape(run(entry.page, entry.names[0]).rstrip(), quote=False)
    shown = named(page.code(f"{imports(code)}\n{code}"), entry.names)
    return f'{shown}<pre class="printed" tabindex="0">{printed}</pre>'


def section(page, entry: Entry, explained: list[str]) -> str:
    """All that the reference says about an entry."""
    html = []
    for name, value in zip(entry.names, entry.objects, strict=True):
        if not entry.is_constant:
            html.append(named(page.code(signature(name, value)), entry.names))
            html.append(prose(page, entry.docs[entry.names.index(name)]))
            html.append(bases(value))
        if inspect.isclass(value):
            html.append(members(page, value))
    path = entry.home.__name__.replace(".", "/")
    sources = entry.sources
    code = named(page.code("\n\n".join(text.rstrip() for text, _ in sources)), entry.names)
    if entry.is_constant:
        html += [code, *(prose(page, doc) for doc in entry.docs)]
    if explained:
        html.append(f'<p class="explained">Explained in {"; ".join(explained)}.</p>')
    html.append(example(page, entry))
    if not entry.is_constant:
        where = f"Source: <code>{path}.py</code>, line {sources[0][1]}"
        html.append(f'<details class="source"><summary>{where}</summary>{code}</details>')
    heading = f'<h3 id="{entry.names[0]}"><code>{"</code>, <code>".join(entry.names)}</code></h3>'
    return f'<section class="entry">{heading}{"".join(html)}</section>'


@functools.cache
def _of(page: str) -> list[Entry]:
    return [entry for entry in dict.fromkeys(entries().values()) if entry.page == page]


def beginning(page: str) -> str:
    """The code that runs before each example of a page."""
    code = examples(page)[0].split("\n", 1)[1].strip()
    modules = re.match(r"((import|from) .*\n|\n)*", code)[0]
    return f"{modules.strip()}\n{imports(code)}\n{code.removeprefix(modules)}".strip()


def pages(page, course: Mapping[int, Any]) -> Iterator[tuple[str, str, str, list[Entry]]]:
    """The name, title, HTML and entries of each page; the first page links to the others."""
    explained = explanations(course)
    overview = []
    for name, (title, _) in PAGES.items():
        links = ", ".join(
            f'<a href="{entry.link}"><code>{entry.names[0]}</code></a>' for entry in _of(name)
        )
        overview.append(f'<h2><a href="reference_{name}.html">{title}</a></h2><p>{links}</p>')
    letters = prose(page, LETTERS)
    yield "reference", "Reference", f"{INTRODUCTION}{letters}{''.join(overview)}", []
    for name, (title, _) in PAGES.items():
        html, home = [], None
        for entry in _of(name):
            if entry.home is not home:
                home = entry.home
                html.append(f"<h2><code>{home.__name__}</code></h2>{prose(page, home.__doc__)}")
            html.append(section(page, entry, explained[entry]))
        begin = f"<p>The examples begin with</p>{page.code(beginning(name))}"
        yield f"reference_{name}", title, f"{begin}{''.join(html)}", _of(name)


INTRODUCTION = """<p>Every public name of the library: how to call it, what it computes, an example
with its output (computed when this page was built), and its source.</p>"""


def searched() -> list[list[str]]:
    """For the search: the link, page, name and text of each entry."""
    found = []
    for entry in dict.fromkeys(entries().values()):
        text = " ".join(" ".join(entry.docs).replace("`", "").split())
        found.append([entry.link, PAGES[entry.page][0], ", ".join(entry.names), text])
    return found


def reference_page(title: str, html: str, listed: list[Entry]) -> str:
    """A page of the reference, with its names as its table of contents."""
    head = f"<header>{navigation(title)}</header>"
    article = f'<article class="further reference"><h1>{title}</h1>{html}</article>'
    if not listed:
        return f'{head}<main id="content">{article}</main>'
    places = {entry.names[0]: entry.names[0] for entry in listed}
    return f"""{head}<div class="lesson"><main id="content">{article}</main>
{contents(places)}</div>"""
