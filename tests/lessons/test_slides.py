"""The slides of each lesson, in a real browser, and what is printed."""

import re

import pytest

import lessons

TOO_LARGE = """[...document.querySelectorAll(".sheet > div, .points > *, .scroll")].filter((part) =>
    part.scrollWidth > part.clientWidth + 1 ||
    (part.matches(".sheet > div") && part.scrollHeight > part.clientHeight + 1)
).map((part) => part.textContent)"""


@pytest.mark.parametrize("entry", lessons.COURSE, ids=lambda entry: entry.number)
def test_a_lesson_has_slides_with_what_it_shows(entry, open_page):
    """Its headings, equations, pictures and questions; keys and clicks turn the slides."""
    lesson, deck = (open_page(name) for name in (entry.page, entry.slides))
    shown = "article > .math.block, article > :is(.picture, .row) svg, .simulation-picture svg"
    assert deck.locator(".math.block, svg[role=img]").count() == lesson.locator(shown).count() > 0
    questions = deck.get_by_role("heading", name="Question", exact=True).count()
    assert questions == lesson.locator("form.question").count()
    for title in lesson.locator(".exercise h3").all_text_contents():
        assert title.removeprefix("Exercise: ") in deck.locator(".deck").inner_text()
    titles = {*deck.locator("h2").all_text_contents(), "Questions"}
    assert {*lesson.locator("article :is(h1, h2)").all_text_contents()} <= titles
    links = deck.locator(".points a", has_text="▶").evaluate_all("all => all.map(a => a.hash)")
    names = lesson.locator("article figure.simulation").evaluate_all("all => all.map(f => f.id)")
    assert links == [f"#{name}" for name in names]
    count = deck.locator(".slide").count()
    assert deck.get_by_text(f"{count} / {count}", exact=True).count() == 1
    deck.evaluate("document.fonts.ready.then(() => null)")
    assert deck.evaluate(TOO_LARGE) == []
    turns = ("ArrowRight", 2), (" ", 3), ("ArrowLeft", 2), ("End", count), ("Home", 1)
    for key, at in turns:
        deck.keyboard.press(key)
        deck.wait_for_function(f"location.hash === '#{at}'")
    for x, at in (900, 2), (100, 1):
        deck.mouse.click(x, 880)
        deck.wait_for_function(f"location.hash === '#{at}'")
    assert printed(deck) == count
    lesson.emulate_media(media="print")  # each simulation once, as its picture
    assert not lesson.locator(".simulation-stage, .question button").filter(visible=True).count()
    assert lesson.locator(".simulation-picture").filter(visible=True).count() == len(names)


def printed(page) -> int:
    """The number of pages."""
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf()))


def test_the_summary_is_one_page(open_page):
    assert printed(open_page("summary.html")) == 1
