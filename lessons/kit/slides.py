"""A deck of slides for each lesson, made from what the lesson's page shows.

A slide has the heading of a section, key sentences, equations and at most one figure. Key sentences
are the first of a section, those with bold words, those that lead to an equation, and the first of
each point of a list. A simulation is shown as its picture, with a link to it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lessons import Entry

ROOM = 6  # for texts on a slide: a sentence takes 1, an equation with the words before it 2


@dataclass
class Slide:
    """A title, texts below each other, and a figure; all are HTML."""

    title: str
    texts: list[str] = field(default_factory=list)
    figure: str = ""
    room: int = ROOM

    def html(self, number: int, last: int) -> str:
        parts = [("points", "".join(self.texts)), ("shown", self.figure)]
        shown = "".join(f'<div class="{kind}">{html}</div>' for kind, html in parts if html)
        return (
            f'<section class="slide" id="{number}"><div class="sheet"><h2>{self.title}</h2>'
            f"{shown}<small>{number} / {last}</small></div></section>\n"
        )


def elements(html: str) -> Iterator[tuple[str, str, str]]:
    """The outermost elements: the tag, the class and the whole of each."""
    depth = 0
    for part in re.finditer(r"<(script|svg|math|pre)\b.*?</\1>|<(/?)(\w+)([^>]*)>", html, re.S):
        if part[1] or part[3] in ("br", "img", "input", "wbr", "hr"):
            continue
        if not part[2] and not depth:
            kind = re.search('class="([^"]*)"', part[4])
            begin, tag = part.start(), part[3]
        depth += -1 if part[2] else 1
        if not depth:
            yield tag, kind[1] if kind else "", html[begin : part.end()]


def sentences(html: str) -> list[str]:
    """The sentences of a paragraph; each has whole tags."""
    found: list[str] = []
    for part in re.split(r"\s+(?=[A-Z“(<])", html.strip()):
        before = re.sub("<[^<]*/>", "", found[-1]) if found else ""
        ended = re.search(r"(?<!et al)[.?!][”)]?(</\w+>)*$", before)
        label = re.fullmatch(r"<strong>[^<]{,25}</strong>", before)  # it needs the next sentence
        if ended and not label and before.count("<") == 2 * before.count("</"):
            found.append(part)
        else:
            found[-1:] = [" ".join([*found[-1:], part])]
    return found


def slides(html: str) -> Iterator[Slide]:
    """The slides of a lesson, given as the HTML of its text."""
    slide, paragraphs, lead = Slide(""), [], ""

    def add(*texts: str, size: int = 1, figure: str = "") -> Iterator[Slide]:
        """Put texts or a figure on the slide; a full slide is yielded first."""
        nonlocal slide
        if slide.room < size or (figure and slide.figure):
            yield slide
            slide = Slide(slide.title)
        slide.texts += texts
        slide.figure = slide.figure or figure
        slide.room -= size

    for tag, kind, element in elements(html):
        inner = element[element.index(">") + 1 : element.rindex("<")]
        if tag in ("h1", "h2", "h3"):
            if paragraphs and (slide.texts, slide.figure) == ([f"<p>{paragraphs[0][0]}</p>"], ""):
                first = [parts[0] for parts in paragraphs]
                prose = first if paragraphs[1:] else paragraphs[0]
                slide.texts = [f"<p>{sentence}</p>" for sentence in prose[:4]]
            yield slide
            slide, paragraphs, lead = Slide(inner), [], ""
        elif kind == "simulation":
            if len(slide.texts) > 1 or slide.figure:
                yield slide
                slide = Slide(slide.title)
            title, about = re.search(r"<h3>(.*?)</h3>\s*<p>(.*?)</p>", element, re.S).groups()
            name = re.search(r'id="([^"]*)"', element)[1]
            link = f'<p><a href="#{name}">▶ {title}</a></p>'
            slide.texts += [f"<p>{sentences(about)[0]}</p>", link]
            picture = re.search(r'<div class="simulation-picture">(<svg.*?</svg>)', element, re.S)
            slide.figure = f'<figure class="picture">{picture[1]}</figure>'
            yield slide
            slide = Slide(slide.title)
        elif tag == "p":
            parts = sentences(inner)
            paragraphs.append(parts)
            for n, sentence in enumerate(parts):
                if "<strong>" in sentence or (len(paragraphs) == 1 and not n):
                    yield from add(f"<p>{sentence}</p>")
                    lead = ""
                else:
                    lead = f"<p>{sentence}</p>"
        elif kind == "math block":
            yield from add(lead, element, size=1 + bool(lead))
            lead = ""
        elif tag == "blockquote":
            yield from add(element)
        elif tag in ("ul", "ol") and not kind:
            for point in re.findall(r"<li>(.*?)</li>", inner, re.S):
                yield from add(f"<p>{sentences(point)[0]}</p>")
        elif kind in ("scroll", "row", "picture"):
            yield from add(size=0, figure=element)
        elif kind == "question":
            question = re.search("<legend>(.*?)</legend>", element, re.S)[1]
            choices = re.findall(r'type="radio".*?<span>(.*?)</span></label>', element, re.S)
            listed = "".join(f"<li>{choice}</li>" for choice in choices)
            answer = re.search("<details>.*?(?=<p>Other answers|</details>)", element, re.S)[0]
            yield Slide("Question", [f"<p>{question}</p><ul>{listed}</ul>{answer}</details>"])
        elif kind == "exercise":
            yield from add(f"<p>{re.search('<h3>Exercise: (.*?)</h3>', element, re.S)[1]}</p>")
    yield slide


def slides_page(entry: Entry, html: str) -> str:
    """The deck of a lesson, given the HTML of its text."""
    deck = [slide for slide in slides(html) if slide.texts or slide.figure]
    shown = "".join(slide.html(n, len(deck)) for n, slide in enumerate(deck, start=1))
    shown = shown.replace('<a href="#', f'<a href="{entry.page}#')
    return f'<main id="content" class="deck" tabindex="0">{shown}</main>'
