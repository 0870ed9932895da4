"""The pages beside the lessons: search, glossary, and the one for teachers."""

import json
import re
from collections.abc import Mapping
from html import escape, unescape
from typing import NamedTuple
from xml.etree import ElementTree

from lessons import COURSE, FOLDER, load

QUIET = "a button code details figure label math pre script style svg summary table".split()
QUIET += ["h1", "h2", "h3", "section"]  # a section is a question or an exercise
"""Inside these tags no word of the glossary opens."""


class Word(NamedTuple):
    """An entry of the glossary: a word, its lesson, and what it means, in plain text."""

    name: str
    lesson: int
    says: str

    @property
    def place(self) -> str:
        return re.sub(r"\W+", "-", self.name.lower())


def words() -> list[Word]:
    """The entries of the glossary, in alphabetical order."""
    lines = (FOLDER / "glossary.md").read_text(encoding="utf-8").splitlines()
    entries = [re.fullmatch(r"\*\*(.+?)\*\* \((\d+)\) (.+)", line) for line in lines if line]
    return [Word(entry[1], int(entry[2]), entry[3]) for entry in entries]


def opened(html: str) -> str:
    """The text of a lesson in which a word of the glossary opens where it is first used.

    A button opens its meaning in a popover, which needs no script. A browser without popovers shows
    all meanings below the text. Only words in paragraphs and lists open, and none in the section
    "To take with you".
    """
    left, opened, stack = {word.name.lower(): word for word in words()}, [], []
    names = "|".join(sorted(map(re.escape, left), key=len, reverse=True))
    pattern = re.compile(rf"(\(?)(?<![\w-])(({names})s?)(?![\w-])([.,;:?!)]*)", re.I)
    html, *rest = re.split('(?=<h2 id="to-take-with-you">)', html)
    parts = re.split(r"(<!--.*?-->|<[^>]*>)", html)

    def opens(match) -> str:
        before, written, name, after = match.groups()
        word = left.pop(name.lower(), None)
        if word is None:
            return match[0]
        opened.append(word)
        target = f'popovertarget="word-{word.place}"'
        button = f'{before}<button type="button" class="word" {target}>{written}</button>{after}'
        # A line may break on either side of a button, but not between a word and its comma.
        return f'<span class="whole-word">{button}</span>' if before or after else button

    for at, part in enumerate(parts):
        tag = re.match(r"<(/?)(\w+)[^>]*?(/?)>", part)
        if tag and not tag[3] and tag[2] not in ("br", "img", "input", "wbr", "hr"):
            if tag[1]:
                while stack and stack.pop() != tag[2]:
                    pass
            else:
                stack.append(tag[2])
        elif not tag and {"p", "li"} & {*stack} and not {*QUIET} & {*stack}:
            parts[at] = pattern.sub(opens, part)
    slanted = r"(\(?<(em|strong)>[^<]{0,30}<button [^<]*</button></\2>[.,;:?!)]*)"
    html = re.sub(slanted, r'<span class="whole-word">\1</span>', "".join(parts))
    notes = "".join(
        f'<div popover class="word-says" id="word-{word.place}"><p><strong>{escape(word.name)}'
        f"</strong> {escape(word.says)} {_lesson(word.lesson)}</p></div>"
        for word in opened
    )
    return "".join([html, *rest, notes])


def _lesson(number: int) -> str:
    entry = COURSE[number - 1]
    name = f"Lesson {number}"
    return f'<a href="{entry.page}">{name}</a>' if entry.page else f"{name}, to come"


def glossary_page() -> str:
    """All words, each with the lesson that explains it."""
    listed = "".join(
        f'<dt id="{word.place}">{escape(word.name)}</dt>'
        f"<dd>{escape(word.says)} {_lesson(word.lesson)}</dd>"
        for word in words()
    )
    symbols = '<p><a href="symbols.html">Symbols and colours</a> have a page of their own.</p>'
    return page_of("Glossary", f'{symbols}<dl class="glossary">{listed}</dl>')


def search_page(course: Mapping, more: Mapping[str, tuple[str, str]], names: list) -> str:
    """A field, and the texts of all sections: the page searches them by itself.

    `more` has the title and the text of further pages, by the name of the page; `names` has the
    entries of the reference.
    """
    sections = []
    for entry in COURSE:
        if entry.path:
            for place, title, text in _sections(course[entry.number].html):
                name = f"{entry.number}. {entry.title}"
                sections.append([f"{entry.page}#{place}", name, title, text])
    for page, (name, html) in more.items():
        sections += [[f"{page}#{place}", name, *words] for place, *words in _sections(html)]
    sections += [[f"glossary.html#{w.place}", "Glossary", w.name, w.says] for w in words()]
    sections += names
    data = json.dumps(sections, ensure_ascii=False).replace("</", "<\\/")
    return page_of(
        "Search",
        '<form class="search" role="search"><label>Words to look for '
        '<input type="search" name="for" autocomplete="off"></label></form>'
        '<p class="found" role="status"></p><ol class="results"></ol>'
        f'<script type="application/json" id="sections">{data}</script>',
    )


def _sections(html: str):
    """The place, the title and the plain text of each section of a page."""
    html = re.sub(r"<(script|svg|style|pre)\b.*?</\1>", " ", html, flags=re.S)
    html = re.sub(r"<math\b.*?</math>", lambda formula: _in_a_line(formula[0]), html, flags=re.S)
    for place, title, text in re.findall(r'<h2 id="([^"]*)">(.*?)</h2>(.*?)(?=<h2|$)', html, re.S):
        yield (
            place,
            *(" ".join(unescape(re.sub(r"<[^>]*>", " ", t)).split()) for t in (title, text)),
        )


def _in_a_line(formula: str) -> str:
    """MathML as people type it: d_k, K^T, a/(b + c), sqrt(d_k)."""
    signs = dict(msub="_", munder="_", msup="^", msubsup="_^", munderover="_^", mfrac="/")
    short = re.compile(r"sqrt\(.*\)|\w+|.")

    def line(part: ElementTree.Element) -> str:
        inner = [line(each) for each in part]
        if part.tag == "msqrt":
            return f"sqrt({''.join(inner)})"
        if part.tag in signs:
            first, *others = (x if short.fullmatch(x) else f"({x})" for x in inner)
            return first + "".join(map("".join, zip(signs[part.tag], others, strict=True)))
        return (part.text or "") + "".join(inner)

    formula = re.sub(r"&\w+;", lambda name: escape(unescape(name[0])), formula)  # XML lacks most
    return line(ElementTree.fromstring(formula)).replace("⊤", "T")


def teaching_page(page) -> str:
    """The page for teachers, with the first sentence of each exercise."""
    title, text = (FOLDER / "teaching.md").read_text(encoding="utf-8").split("\n", 1)
    rows = ["| lesson | exercise | its task begins |", "|---|---|---|"]
    for entry in COURSE:
        for exercise in load(entry.number).EXERCISES if entry.path else ():
            first = re.match(r".*?(?<!\bet al)[.?!](?=\s|$)", " ".join(exercise.task.split()))[0]
            rows.append(f"| [{entry.number}]({entry.page}) | {exercise.title} | {first} |")
    decks = ", ".join(f"[{entry.number}]({entry.slides})" for entry in COURSE if entry.path)
    text = text.replace("{{slides}}", decks)
    text += "\n\n## The exercises\n\nEach takes about a quarter of an hour.\n\n"
    return page_of(title.removeprefix("# "), page.markdown(text + "\n".join(rows)))


def page_of(title: str, body: str) -> str:
    """A page beside the lessons."""
    return f"""<header>{navigation(title)}</header>
<main id="content"><article class="further"><h1>{title}</h1>
{body}</article></main>"""


FURTHER = {"summary": "Summary", "glossary": "Glossary", "reference": "Reference"}
FURTHER |= {"search": "Search"}
"""The pages to which every page links."""


def contents(places: Mapping[str, str]) -> str:
    """A page's table of contents: links to `places`, which have titles in HTML."""
    links = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in places.items())
    return (
        '<nav class="contents" aria-label="On this page"><details>\n'
        f"<summary>On this page<span></span></summary><ol>{links}</ol></details></nav>"
    )


def navigation(here: str) -> str:
    """Links to the index and to the pages beside the lessons, and the name of this page."""
    links = " ".join(
        f'<a href="{name}.html"{" aria-current=page" * (title == here)}>{title}</a>'
        for name, title in FURTHER.items()
    )
    return (
        f'<nav aria-label="Course"><a href="index.html">numformer lessons</a>\n'
        f"<span>{here}</span>\n{links}</nav>"
    )


def paths(minutes: Mapping[int, int]) -> str:
    """Ways through the course for those who have an hour, a weekend or a term."""
    page = {entry.number: entry.page for entry in COURSE}
    hours = round(sum(minutes.values()) / 60)
    return f"""<section class="paths"><h2>How much time have you got?</h2>
<dl><dt>An hour</dt>
<dd><a href="{page[2]}">Lesson 2</a>, what attention is; <a href="{page[3]}">lesson 3</a> up to its
first simulation; then play with <a href="{page[9]}#whole">the whole model</a>.</dd>
<dt>A weekend</dt>
<dd>All lessons in order, about {hours} hours to read, and an exercise of each if you like.</dd>
<dt>A term</dt>
<dd>A lesson a week with its exercises: <a href="teaching.html">a plan for teachers</a>.</dd></dl>
</section>"""
