"""The table of symbols is complete and without contradiction, and the pages show it."""

import re
from collections import Counter

import pytest

import lessons
from lessons.kit import lesson, symbols

LATEX = r"W^{Q\top}_1 + x_i"


def test_a_symbol_has_one_meaning_in_a_lesson():
    uses = Counter()
    for symbol in symbols.symbols():
        assert symbol.says.endswith("."), symbol
        uses.update((symbol.latex, number) for number in symbol.only or ["elsewhere"])
    assert [use for use, count in uses.items() if count > 1] == []


def test_the_lessons_use_the_symbols_where_the_table_says_so(builder, site):
    folder, _ = site
    used = {e.number: builder.made(e, folder)[0].symbols for e in lessons.COURSE if e.path}
    for symbol in symbols.symbols():
        for number in symbol.only or [symbol.lesson]:
            assert symbol.latex in used[number], f"lesson {number} does not use {symbol.latex}"
            assert symbols.in_lesson(number)[symbol.latex] == symbol


def test_each_part_of_a_symbol_is_marked(builder):
    page = builder.Page(4)
    marks = re.findall(r'data-symbol="(.*?)"[^>]*>(\w|⊤)?', page.math(LATEX))
    assert marks == [("W^Q", "W"), ("W^Q", "Q"), (r"\top", "⊤"), ("x", "x"), ("i", "i")]
    assert page.markdown("`memory`, `me`").count('<code data-symbol="H">memory</code>') == 1
    assert page.marker.used == {"W^Q", r"\top", "x", "i", "H"}
    notes = symbols.notes(page.marker.used, 4, builder.Page().math)
    assert symbols.in_lesson(4)["H"].says in notes


def test_a_letter_that_the_table_lacks_is_refused(builder):
    with pytest.raises(ValueError, match="lesson 4 has a formula with ψ"):
        builder.Page(4).math(r"x + \psi_i")


def test_the_meaning_of_a_symbol_comes_to_mouse_finger_and_keyboard(open_page):
    note = ".symbol-says:popover-open"
    says = symbols.in_lesson(3)["Q"].says
    page = open_page("lesson_03_scaled_dot_product.html")
    formula = page.locator("article > section > .math.block, article > .math.block").first
    query = formula.locator('[data-symbol="Q"]').first
    query.hover()
    assert says in page.locator(note).inner_text()
    page.mouse.move(0, 0)
    assert page.locator(note).count() == 0
    formula.focus()
    place = formula.locator("[data-symbol]").evaluate_all(
        "all => all.findIndex(mark => mark.dataset.symbol === 'Q')"
    )
    for _ in range(place + 1):
        page.keyboard.press("ArrowRight")
    assert says in page.locator(note).inner_text()
    page.keyboard.press("Escape")
    assert page.locator(note).count() == 0
    phone = open_page("lesson_03_scaled_dot_product.html", 390, has_touch=True)
    phone.locator(".math.block [data-symbol='Q']").first.tap()
    assert says in phone.locator(note).inner_text()
    box = phone.locator(note).bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def channels(colour: str) -> list[float]:
    """#1f5fa8 -> its red, green and blue, as linear light (WCAG 2.2, relative luminance)."""
    shares = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]


def contrast(*colours: str) -> float:
    low, high = sorted(
        sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), channels(colour), strict=True))
        for colour in colours
    )
    return (high + 0.05) / (low + 0.05)


def test_colours_have_names_in_one_place_and_enough_contrast():
    style = (lessons.FOLDER / "page" / "style.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", style[style.index(start) :].split("}")[0]))
        for start in (":root {", "prefers-color-scheme: dark")
    )
    for theme in light, dark:
        for name in symbols.COLOURS:
            for ground in "paper", "panel":
                assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
        named = [theme[name] for name in symbols.COLOURS]
        assert len(set(named)) == len(named)
    for name, colour in vars(lesson).items():
        if re.fullmatch("#[0-9a-f]{6}", str(colour)) and name != "INK":
            assert min(contrast(colour, theme["paper"]) for theme in (light, dark)) >= 2.5, name
    literal = re.compile(r"#[0-9a-fA-F]{6}\b|rgb\(\d")
    homes = {"style.css", "lesson.py"}
    files = (path for end in ("css", "js", "py") for path in lessons.FOLDER.rglob(f"*.{end}"))
    written = [p.name for p in files if literal.search(p.read_text(encoding="utf-8"))]
    assert {*written} == homes
