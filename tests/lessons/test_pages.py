"""The pages of the course, in a real browser."""

import pytest

import lessons
from lessons.lesson import Beside, pieces, plain

LESSONS = [entry for entry in lessons.COURSE if entry.path]
NAMES = {entry.number: f"{entry.path.stem}.html" for entry in LESSONS}
each_lesson = pytest.mark.parametrize("number", NAMES)


def shown(number: int) -> list:
    """What the cells of a lesson show."""
    marked = [f for f in vars(lessons.load(number)).values() if getattr(f, "shown", False)]
    return [piece for function in marked for piece in pieces(function)]


def test_the_pages_are_counted_as_they_are(site, open_page):
    folder, last_line = site
    wanted = {"index.html", "style.css", *NAMES.values()}
    assert {path.name for path in folder.iterdir()} == wanted
    kinds = {"simulation": 0, "quiz question": 0, "exercise": 0}
    for name in NAMES.values():
        page = open_page(name)
        for kind in kinds:
            kinds[kind] += page.locator(f".{kind.split()[-1]}").count()
    counts = {"lesson": len(NAMES)} | kinds
    named = (f"{number} {kind}{'s' * (number != 1)}" for kind, number in counts.items())
    assert last_line == ", ".join(named)
    assert min(kinds.values()) >= len(NAMES)


def test_the_index_leads_to_each_lesson_and_marks_those_to_come(open_page):
    page = open_page("index.html")
    assert page.locator(".course > li").count() == len(lessons.COURSE)
    assert page.locator(".course > li.to-come").count() == len(lessons.COURSE) - len(LESSONS)
    page.get_by_role("link", name=LESSONS[-1].title).click()
    assert page.get_by_role("heading", level=1).inner_text() == LESSONS[-1].title
    page.get_by_role("link", name="numformer lessons").click()
    assert page.url.endswith("index.html")


@pytest.mark.parametrize("name", ["index.html", *NAMES.values()])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_a_page_fits_its_window_and_everyone_can_use_it(open_page, name, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(name, width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = Axe().run(page, options={"preload": False}).response["violations"]
    serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in serious] == []


@each_lesson
def test_formulas_are_mathml_and_pictures_have_words(number, open_page):
    page = open_page(NAMES[number])
    assert page.locator("math").count() > 20
    text = page.locator("article").inner_text()
    assert "$" not in text and "\\" not in text.replace("\\top", "")
    of_all = "all => all.map(one => one.getAttribute('aria-label'))"
    labels = page.eval_on_selector_all("figure svg[role=img]", of_all)
    assert labels and all(label and len(label) > 40 for label in labels)
    identifiers = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(identifiers) == len(set(identifiers))
    for link in page.locator("a[href^='#']").all():
        assert page.locator(f"[id='{link.get_attribute('href')[1:]}']").count() == 1


@each_lesson
def test_a_page_has_all_that_its_lesson_shows(number, open_page):
    page = open_page(NAMES[number])
    text = page.locator("article").evaluate("article => article.textContent")
    assert "import numpy as np" in text
    for question, form in zip(
        lessons.load(number).quiz(), page.locator(".question").all(), strict=True
    ):
        why = " ".join(form.locator("details").text_content().split())
        assert plain(question.why).split()[0] in why and len(why) > 60
    links = page.locator("nav.contents a").all_inner_texts()
    assert links == page.locator("article h2").all_inner_texts() and len(links) > 5
    assert page.locator("header > nav").inner_text().endswith(f"Lesson {number} of 12")
    assert page.locator(".simulation figcaption").first.inner_text()
    beside = [piece for piece in shown(number) if isinstance(piece, Beside)]
    assert page.locator("ol.beside").count() == len(beside)
    for piece in beside:
        for _, line in piece.rows():
            assert line in text


@each_lesson
def test_without_scripts_pictures_answers_and_text_are_there(number, open_page):
    page = open_page(NAMES[number], java_script_enabled=False)
    assert page.locator(".simulation svg").first.is_visible()
    assert not page.locator(".question button").first.is_visible()
    answer = page.locator(".question details").first
    answer.locator("summary").click()
    assert answer.locator("strong").first.is_visible()


@each_lesson
def test_questions_answer_at_once(number, open_page):
    page = open_page(NAMES[number])
    questions = lessons.load(number).quiz()
    for question, form in zip(questions, page.locator(".question").all(), strict=True):
        verdict = form.locator(".verdict")
        form.locator("button").click()
        assert "first" in verdict.inner_text() or "Write a number" in verdict.inner_text()
        if question.choices:
            choices = form.locator("input")
            choices.nth((question.answer + 1) % len(question.choices)).check()
            form.locator("button").click()
            assert "Not right" in verdict.inner_text()
            assert form.get_attribute("data-verdict") == "wrong"
            choices.nth(question.answer).check()
        else:
            form.locator("input").fill(f"{question.answer + 1.5 * question.tolerance}")
            form.locator("input").press("Enter")
            assert "Not right" in verdict.inner_text()
            assert not form.locator("strong").first.is_visible()
            form.locator("input").fill(f"{2 * question.answer} / 2")
            form.locator("button").click()
            assert form.get_attribute("data-verdict") == "right"
            form.locator("input").fill(f"{question.answer:.4f}".replace(".", ","))
        assert verdict.inner_text() == "" and form.get_attribute("data-verdict") is None
        assert form.locator("strong").first.is_visible() == (not question.choices)
        form.locator("button").click()
        assert "Right" in verdict.inner_text() and form.locator("strong").first.is_visible()
