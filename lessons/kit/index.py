"""The page that leads to the lessons, and the page that gathers what to take from them.

The first of them opens with a translator at work (lessons/opening.py). Below it stands the
architecture of the Transformer, as in the paper's figure 1; each part has the number of its lesson.
"""

from collections.abc import Mapping
from html import escape

from lessons import COURSE, opening
from lessons.kit import further

# Parts of the architecture: words, lesson, left and top edge.
LEFT, RIGHT, WIDTH, HEIGHT = 26, 216, 146, 28
PARTS = [
    ("Recurrence", 1, LEFT, 28),
    ("What it learned", 11, LEFT, 59),
    ("What came after", 12, LEFT, 90),
    ("Long sequences", 13, LEFT, 121),
    ("Many machines", 14, LEFT, 152),
    ("Soft lookup", 2, LEFT, 213),
    ("One head", 3, LEFT, 245),
    ("Several heads", 4, LEFT, 277),
    ("All gradients", 9, RIGHT, 30),
    ("Loss, training", 8, RIGHT, 72),
    ("Softmax", 10, RIGHT, 166),
    ("Linear", 10, RIGHT, 208),
    ("Add & norm", 6, RIGHT, 274),
    ("Feed forward", 6, RIGHT, 308),
    ("Add & norm", 6, RIGHT, 356),
    ("Cross-attention", 7, RIGHT, 390),
    ("Add & norm", 6, RIGHT, 438),
    ("Masked attention", 7, RIGHT, 472),
    ("Add & norm", 6, LEFT, 356),
    ("Feed forward", 6, LEFT, 390),
    ("Add & norm", 6, LEFT, 438),
    ("Self-attention", 4, LEFT, 472),
    ("+ position", 5, LEFT, 528),
    ("+ position", 5, RIGHT, 528),
    ("Embedding", 9, LEFT, 570),
    ("Embedding", 9, RIGHT, 570),
]
FRAMES = [(14, 344, 172), (204, 262, 254), (14, 188, 126)]  # left and top edge, height
LABELS = [
    ("start", 26, 20, "before and after"),
    ("start", 26, 205, "inside attention"),
    ("end", 184, 338, "encoder × N"),
    ("end", 374, 256, "decoder × N"),
    ("middle", 99, 622, "what is read"),
    ("middle", 289, 622, "what is written"),
    ("middle", 289, 136, "how likely each word is"),
]
# Straight on; the residual around each sublayer; from the encoder into cross-attention. Then BACK,
# dashed: the way back, from the loss to the first weights.
ARROWS = (
    "M99 608V600,M99 570V558,M99 528V502,M99 438V420,M289 608V600,M289 570V558,M289 528V502,"
    "M289 438V420,M289 356V338,M289 274V238,M289 208V196,M289 166V144,M289 122V102,"
    "M99 508H20V452H24,M99 429H20V370H24,M289 508H368V452H364,M289 429H368V370H364,"
    "M289 347H368V288H364,M99 356V320H194V404H214"
).split(",")
BACK = "M289 72V60", "M362 44H384V584H364"


def index_page(page, course: Mapping) -> str:
    """The first page of the course. `course` has each lesson as HTML (`build.Made`)."""
    items = ""
    for entry in COURSE:
        title = f"<strong>{entry.title}</strong> <span>{page.inline(entry.question)}</span>"
        if entry.path:
            minutes = course[entry.number].takes
            solved = f'<span data-solved="{entry.page}"></span>'
            items += f'<li><a href="{entry.page}">{title} <em>{minutes}{solved}</em></a></li>'
        else:
            items += f'<li class="to-come"><div>{title} <em>to come</em></div></li>'
    return f"""<main id="content"><article class="index">
<h1>The Transformer, forward and backward</h1>
{opening.figure()}
<p>Fourteen lessons on “Attention Is All You Need” (Vaswani et al. 2017), for readers who know
matrix products, simple neural networks and softmax. Each lesson explains lines of numformer and
derives their gradients by hand. <a href="summary.html">One page to print</a> gathers what to take
with you, a <a href="glossary.html">glossary</a> explains the words, a
<a href="symbols.html">table</a> the symbols, and you can <a href="search.html">search</a> all of
it. <a href="published.html">The same code</a> runs GPT-2, BERT, ViT, T5 and Llama.</p>
<div class="course-map">
<figure class="architecture">{architecture()}
<figcaption>The architecture of the paper’s figure 1. Each part has the number of the lesson that
explains it, and links to that lesson. Dashed lines: the gradients’ way back.</figcaption></figure>
<div><p class="solved" data-solved=""></p><ol class="course">{items}</ol></div>
</div>
{further.paths({number: made.minutes for number, made in course.items()})}
</article></main>"""


def architecture() -> str:
    """The Transformer as a picture whose parts lead to their lessons."""
    drawn = "".join(
        f'<rect class="frame" x="{x}" y="{y}" width="170" height="{height}" rx="10"/>'
        for x, y, height in FRAMES
    )
    drawn += "".join(f'<path d="{path}" marker-end="url(#tip)"/>' for path in ARROWS)
    drawn += "".join(f'<path class="back" d="{path}" marker-end="url(#tip)"/>' for path in BACK)
    drawn += "".join(
        f'<text class="label" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'
        for anchor, x, y, words in LABELS
    )
    for words, number, x, y in PARTS:
        page, end = COURSE[number - 1].page, x + WIDTH - 15
        link = f'href="{page}"' if page else 'class="to-come"'
        drawn += (
            f"<a {link}>"
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x + 8}" y="{y + 18.5}">{escape(words)}</text>'
            f'<circle cx="{end}" cy="{y + HEIGHT / 2}" r="10"/>'
            f'<text x="{end}" y="{y + 18.5}" text-anchor="middle">{number}</text></a>'
        )
    return (
        '<svg viewBox="6 4 388 626" role="group" aria-label="The architecture of the Transformer, '
        'each part with its lesson"><defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" '
        'markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z"/></marker></defs>'
        f"{drawn}</svg>"
    )


def summary_page(course: Mapping) -> str:
    """What to take from each lesson, on one page."""
    parts = "".join(
        f'<section><h2><a href="{entry.page}">{entry.number}. {entry.title}</a></h2>'
        f"{course[entry.number].summary}</section>"
        for entry in COURSE
        if entry.path and course[entry.number].summary
    )
    return f"""<header>{further.navigation("Summary")}</header>
<main id="content"><article class="summary">
<h1>To take with you</h1>
<p>The Transformer, forward and backward. A d before a name means the gradient of the loss with
respect to it.</p>
<div class="gathered">{parts}</div>
</article></main>"""
