"""The pages of the course, in a real browser, and what is built anew."""

import re
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import lessons
from lessons import reference
from lessons.kit.lesson import Beside, pieces, plain

LESSONS = [entry for entry in lessons.COURSE if entry.path]
FURTHER = "index", "summary", "glossary", "symbols", "search", "teaching", "published"
FURTHER += "reference", *(f"reference_{page}" for page in reference.PAGES)
FURTHER = [f"{name}.html" for name in FURTHER]
PAGES = [*FURTHER, *(page for entry in LESSONS for page in (entry.page, entry.slides))]
COLOURED = {1: ".question", 2: ".exercise", 4: ".simulation", 7: "ol.beside"}
UNFOLD = "document.querySelectorAll('details').forEach(details => (details.open = true))"


def test_the_pages_are_counted_as_they_are(site):
    folder, last_line = site
    others = {".made", "preview.png", "style.css", "numformer_math.woff2", "numformer_math.txt"}
    assert {path.name for path in folder.iterdir()} == {*PAGES, *others}
    counts = {"lesson": len(LESSONS), "simulation": 0, "quiz question": 0, "exercise": 0}
    for entry in LESSONS:
        text = (folder / entry.page).read_text(encoding="utf-8")
        most = 3 if entry.number == 11 else 1  # the explorer has the weights of its models
        assert len(text.encode()) < most * 1e6, f"{entry.page}: a page has less than {most} MB"
        for kind, least in ("simulation", 1), ("quiz question", 4), ("exercise", 1):
            there = len(re.findall(rf'class="{kind.split()[-1]}[" ]', text))
            counts[kind] += there
            assert there >= least, f"{entry.page}: {there} {kind}s, and a lesson has {least}"
    named = (f"{number} {kind}{'s' * (number != 1)}" for kind, number in counts.items())
    assert last_line == ", ".join(named)


def test_links_lead_somewhere(site):
    """Within a page, to other pages, from each lesson to its neighbours."""
    folder, _ = site
    text = {page: (folder / page).read_text(encoding="utf-8") for page in PAGES}
    places = {page: re.findall(r'\sid="([^"]+)"', text[page]) for page in PAGES}
    for page in PAGES:
        assert len(places[page]) == len(set(places[page]))
        for link in re.findall(r'\shref="([^"]*)"', text[page]):
            name, _, place = link.partition("#")
            if link.startswith(("data:", "https:")):
                continue
            assert (folder / (name or page)).is_file(), link
            assert not place or place in places[name or page], link
    for entry in LESSONS:
        for page in entry.page, "teaching.html":
            assert f'<a href="{entry.slides}">' in text[page]
        around = {entry.number - 1: "prev", entry.number + 1: "next"}
        for other in (other for other in lessons.COURSE if other.number in around):
            assert text[entry.page].count(f"</span> {other.number}. {other.title}") == 2
            link = f'href="{other.page}" rel="{around[other.number]}"'
            assert text[entry.page].count(link) == 2 * bool(other.page)
    parts = re.findall(r"<section>.*?</h2>(.*?)</section>", text["summary.html"], re.DOTALL)
    for entry, part in zip(LESSONS, parts, strict=True):
        _, taken = text[entry.page].split('<h2 id="to-take-with-you">')
        assert part.strip() and taken.split("</h2>", 1)[1].startswith(f"{part}<h2")


def test_the_architecture_and_the_list_lead_to_the_lessons(open_page):
    page = open_page("index.html")
    parts = page.locator(".architecture a").evaluate_all(
        "all => all.map(part => [part.querySelector('circle + text').textContent,"
        " part.getAttribute('href'), part.getAttribute('class')])"
    )
    assert {int(number) for number, *_ in parts} == set(range(1, len(lessons.COURSE) + 1))
    for number, link, kind in parts:
        there = lessons.COURSE[int(number) - 1].page
        assert (link, kind) == ((there, None) if there else (None, "to-come"))
    entries = page.locator(".course > li").all_inner_texts()
    for entry, words in zip(lessons.COURSE, entries, strict=True):
        assert entry.title in words and ("to come" in words) == (entry.path is None)
    page.locator(".course > li").nth(LESSONS[-1].number - 1).locator("a").click()
    assert page.get_by_role("heading", level=1).inner_text() == LESSONS[-1].title


def test_search_finds_the_sections_that_have_every_word(open_page):
    page = open_page("search.html")
    field, found = page.get_by_role("searchbox"), page.locator(".results li")
    assert found.count() == 0
    field.fill("causal MASK before")
    assert 0 < found.count() <= 30 and "section" in page.locator(".found").inner_text()
    for text in found.all_inner_texts():
        assert "…" in text or "before" in text
    links = found.locator("a").evaluate_all("all => all.map(link => link.getAttribute('href'))")
    assert any("lesson_07" in link for link in links)
    assert page.url.endswith("#causal%20MASK%20before")
    field.fill("causal zyzzyva")
    assert found.count() == 0 and page.locator(".found").inner_text().startswith("No section has")
    field.fill("layer_norm_backward")
    assert found.locator("a").first.get_attribute("href") == "reference_paper.html#layer_norm"
    for misspelled, meant in ("kv-cache", ""), ("sofmtax", "softmax"), ("lable smoothing", "label"):
        field.fill(misspelled)
        assert found.count() and meant in page.locator(".found").inner_text()
    for formula in "q_t k_s", "softmax((QK^T)/sqrt(d_k))V":
        field.fill(formula)
        assert any("lesson_03" in link.get_attribute("href") for link in found.locator("a").all())
    field.fill("(")  # no pattern
    assert page.locator(".found").inner_text()
    field.fill("teacher forcing")
    found.first.locator("a").click()
    assert "search.html" not in page.url
    page.go_back()
    assert page.get_by_role("searchbox").input_value() == "teacher forcing" and found.count()


def test_the_page_for_teachers_has_whole_sentences(site):
    text = (site[0] / "teaching.html").read_text(encoding="utf-8").split('id="the-exercises"')[1]
    cells = re.findall(r"<td>((?:(?!<td>).)*)</td>\s*</tr>", text, re.DOTALL)
    assert len(cells) == sum(len(lessons.load(entry.number).EXERCISES) for entry in LESSONS)
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in cells]
    assert [cell for cell in cells if not re.search(r"(?<!et al)[.?!]$", cell)] == []


def test_a_word_opens_where_it_is_first_used(open_page):
    page = open_page(lessons.COURSE[2].page)
    word = page.locator("button.word", has_text="softmax").first
    says = page.locator(f"#{word.get_attribute('popovertarget')}")
    assert not says.is_visible()
    word.click()
    assert says.is_visible() and says.inner_text().startswith("softmax The function that turns")
    page.keyboard.press("Escape")
    assert not says.is_visible()
    words = page.locator("button.word").all_inner_texts()
    assert len(words) > 10 and len({w.lower().rstrip("s") for w in words}) == len(words)
    assert (
        page.locator(":is(a, code, h2, .exercise, .question, .simulation) button.word").count() == 0
    )


def test_a_lesson_and_the_names_that_it_shows_link_to_each_other(site):
    """But an exercise does not lead to its solution."""
    lesson, paper = (
        (site[0] / name).read_text(encoding="utf-8")
        for name in (lessons.COURSE[2].page, "reference_paper.html")
    )
    name = "scaled_dot_product_attention"
    assert f'<a href="reference_paper.html#{name}"><code>{name}</code></a> in <code>' in lesson
    entry = re.search(rf'<h3 id="{name}">.*?</section>', paper, re.DOTALL)[0]
    assert f'<a href="{lessons.COURSE[2].page}#the-way-back">The way back</a> (lesson 3)' in entry
    exercises = re.findall(r'<section class="exercise.*?</section>', lesson, re.DOTALL)
    assert exercises and "reference_" not in "".join(exercises)


def fits_and_is_for_everyone(page, coloured: str | None, part: str = "html"):
    """At the widths of a phone and of a screen; to measure colours takes long, so of a part."""
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate(UNFOLD)
    for width, scheme in (375, "dark"), (1280, "light"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colours on their way
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width, f"wider than {width}"
        runs = [(part, {"rules": {"color-contrast": {"enabled": False}}})] * (width == 375)
        runs += [(coloured, {"runOnly": ["color-contrast"]})] * bool(coloured)
        for place, rules in runs:
            options = {"preload": False, "resultTypes": ["violations"], **rules}
            violations = Axe().run(page, place, options).response["violations"]
            serious = [rule for rule in violations if rule["impact"] in ("serious", "critical")]
            assert [(rule["id"], rule["nodes"][0]["html"]) for rule in serious] == []


@pytest.mark.parametrize("name", FURTHER)
def test_a_page_beside_the_lessons_fits_its_window(open_page, name):
    part = "section.entry:first-of-type" if name.startswith("reference_") else "html"
    fits_and_is_for_everyone(open_page(name, 375), part, part)


@pytest.mark.parametrize("entry", LESSONS, ids=lambda entry: entry.number)
def test_a_page_has_all_that_its_lesson_shows(entry, open_page):
    page, module = open_page(entry.page, 375), lessons.load(entry.number)
    article = page.locator("article")
    text, seen = article.evaluate("article => article.textContent"), article.inner_text()
    assert "import numpy as np" in text
    assert "$" not in seen and "\\" not in seen.replace("\\top", "")
    links = page.locator("nav.contents a").all_text_contents()
    assert links == page.locator("article h2").all_text_contents()
    assert page.locator(".simulation figcaption").first.inner_text()
    labels = "all => all.map(picture => picture.getAttribute('aria-label') ?? '')"
    labels = page.eval_on_selector_all("svg[role=img]", labels)
    short = [label for label in labels if len(label) <= 40]
    assert labels and short == [], "a picture says in more than 40 characters what one sees"
    explains = [f for f in vars(module).values() if getattr(f, "shown", False)]
    # Those that measure something would take long.
    explains = [function for function in explains if "Beside" in function.__code__.co_names]
    beside = [piece for f in explains for piece in pieces(f) if isinstance(piece, Beside)]
    assert page.locator("ol.beside").count() >= len(beside) > 0
    assert [line for piece in beside for _, line in piece.rows() if line not in text] == []
    for question, form in zip(module.quiz(), page.locator(".question").all(), strict=True):
        why = " ".join(form.locator("details").text_content().split())
        assert plain(question.why).split()[0] in why, f"{question.question}: another's answer"
    wide = """all => all.filter(each => each.scrollWidth > 1.5 * each.clientWidth)
        .map(each => each.textContent)"""
    assert page.eval_on_selector_all(".math.block", wide) == [], "too wide for a phone"
    broken = """all => all.filter(code => [...code.childNodes].some(part => {
        const name = new Range();
        name.selectNodeContents(part);
        return part.data && !part.data.includes(" ") && name.getClientRects().length > 1;
    })).map(code => code.textContent)"""
    assert page.eval_on_selector_all("td code", broken) == [], "a name breaks within a word"
    loose = """all => all.filter(word => !word.closest(".whole-word")).filter(word => {
        const { previousSibling: left, nextSibling: right, parentElement: slanted } = word;
        return /^[.,;:?!)]/.test((right ?? slanted.nextSibling)?.data)
            || /\\($/.test((left ?? slanted.previousSibling)?.data);
    }).map(word => word.textContent)"""
    assert page.eval_on_selector_all("button.word", loose) == [], "a comma may begin a line"
    edge = "all => all.filter(part => part.getBoundingClientRect().left < 20).length"
    assert page.eval_on_selector_all("main > :not(article)", edge) == 0, "text at the edge"
    tabs = """() => [...document.querySelectorAll("a[href], button, input, [tabindex='0']")]
        .filter((each) => each.checkVisibility())
        .findIndex((each) => each.matches(".simulation-stage *"))"""
    assert page.evaluate(tabs) <= 11, "the keyboard takes long to the first simulation"
    fits_and_is_for_everyone(page, COLOURED.get(entry.number))
    formulas_are_drawn_with_the_font_of_the_site(page)


def formulas_are_drawn_with_the_font_of_the_site(page):
    """Every sign of them, whatever fonts a reader has; and an index stands lower, and is small."""
    page.evaluate("document.fonts.ready.then(() => null)")
    protocol = page.context.new_cdp_session(page)
    for domain in ("DOM", "CSS"):
        protocol.send(f"{domain}.enable")
    root = protocol.send("DOM.getDocument")["root"]["nodeId"]
    formulas = protocol.send("DOM.querySelectorAll", {"nodeId": root, "selector": "math"})
    for node in formulas["nodeIds"]:
        fonts = protocol.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
        if not all(font["isCustomFont"] for font in fonts):
            pytest.fail(protocol.send("DOM.getOuterHTML", {"nodeId": node})["outerHTML"])
    lower = """all => all.filter(sign => sign.checkVisibility()).map(sign => {
        const [base, index] = [...sign.children].map(part => part.getBoundingClientRect().bottom);
        const sizes = [...sign.children].map(part => parseFloat(getComputedStyle(part).fontSize));
        return index > base && sizes[1] < sizes[0];
    })"""
    lower = page.eval_on_selector_all("msub:has(> mi:first-child + mi)", lower)
    assert lower and all(lower)


@pytest.mark.parametrize(("width", "folded"), [(1280, False), (375, True)])
def test_the_contents_stay_and_mark_the_section(width, folded, open_page):
    page = open_page(LESSONS[0].page, width)
    nav, titles = page.locator("nav.contents"), page.locator("article h2").all_text_contents()
    for at in (2, 1):
        if folded:
            nav.locator("summary").click()
        nav.locator("a").nth(at).click()
        marked = "title => document.querySelector('.contents [aria-current]')?.textContent == title"
        page.wait_for_function(marked, arg=titles[at])
        assert nav.locator("[aria-current]").count() == 1
        assert nav.locator("ol").is_hidden() == folded
        heading, box = page.locator("article h2").nth(at).bounding_box(), nav.bounding_box()
        assert box["y"] == 0 <= heading["y"]
        assert heading["y"] >= box["height"] if folded else heading["x"] >= box["width"]


def test_without_scripts_pictures_and_answers_are_there(open_page):
    page = open_page(LESSONS[2].page, java_script_enabled=False)
    assert page.locator(".simulation svg").first.is_visible()
    assert not page.locator(".question button").first.is_visible()
    page.locator(".question details summary").first.click()
    assert page.locator(".question details strong").first.is_visible()


@pytest.mark.parametrize("number", [6, 8])
def test_questions_answer_at_once(number, open_page):
    """Choices and numbers: a large one, a negative one, wrong ones with a reply and without."""
    page, questions = open_page(LESSONS[number - 1].page), lessons.load(number).quiz()
    for question, form in zip(questions, page.locator(".question").all(), strict=True):
        check, verdict = form.locator("button"), form.locator(".verdict")
        fields, solution = form.locator("input"), form.locator("strong").first
        check.click()
        assert re.search("Choose one first|Write a number", verdict.inner_text())
        right, count = question.answer, len(question.choices)
        wrong, rights = [given for given in question.replies if given != right], [right]
        if not count:
            wrong = map(str, [right + 1.5 * question.tolerance, *wrong])
            comma = f"{right:.4f}".replace(".", ",")
            rights = [f"{2 * right} / 2", comma, f"{right:,}", question.solution]
        given = [(answer, "wrong") for answer in wrong] + [(answer, "right") for answer in rights]
        for answer, judged in given:
            fields.nth(answer).check() if count else fields.fill(answer)
            assert verdict.inner_text() == "" and form.get_attribute("data-verdict") is None
            check.click() if count else fields.press("Enter")
            assert form.get_attribute("data-verdict") == judged
            assert ("Not right" in verdict.inner_text()) == (judged == "wrong")
            reply = question.reply(answer if count else question.read(answer))
            reply = reply or ("Try again" if judged == "wrong" else "Here is why")
            words = " ".join(plain(reply).replace("*", "").split())
            assert "$" in reply or words in verdict.inner_text()
            assert solution.is_visible() == (judged == "right")


@pytest.fixture
def course(tmp_path, monkeypatch, builder):
    """Two small lessons, of which the second names the first; and which of them were built."""
    build, folder, built = builder, tmp_path / "lessons", []
    shutil.copytree(Path(lessons.FOLDER) / "page", folder / "page")
    for name, text in (
        ("lesson_01_one.py", "# %% [markdown]\n# # One\n#\n# ## To take with you\n#\n# $x_1$\n"),
        ("lesson_02_two.py", "# %% [markdown]\n# # Two\n# %%\nimport lessons.lesson_01.data\n"),
        ("lesson_01/data.py", "x = 1\n"),
        ("lesson_02/data.py", ""),
        ("reference/paper.py", ""),
        ("../numformer/layer.py", ""),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    library = SimpleNamespace(__file__=str(tmp_path / "numformer/__init__.py"), __version__="1")
    for module in (lessons, build):
        monkeypatch.setattr(module, "FOLDER", folder)
    monkeypatch.setattr(build, "numformer", library)
    monkeypatch.setattr(build, "load", lambda number: built.append(number) or ModuleType("any"))
    monkeypatch.setattr(build.further, "load", lambda number: SimpleNamespace(EXERCISES=[]))
    monkeypatch.setattr(build.reference, "pages", lambda page, course: [])
    monkeypatch.setattr(build, "home_page", lambda course: "")

    def run() -> tuple[list[int], str]:
        built.clear()
        last = build.build(tmp_path / "site")
        return list(built), last

    return SimpleNamespace(run=run, folder=folder, site=tmp_path / "site", build=build)


BOTH = "lesson_01_one.py lesson_01/data.py ../numformer/layer.py".split()
CHANGES = {name: [1, 2] for name in BOTH} | {"lesson_02/new.py": [2]}
CHANGES |= {name: [] for name in ("page/dom.js", "page/style.css", "reference/paper.py")}
CHANGES = [(name, lambda text: text + b"\n", anew) for name, anew in CHANGES.items()]
DAMAGE = lambda t: b"\xff\n{}", lambda t: t[:-9], lambda t: t.replace(b"Tw", b"tw")
DAMAGE = [("../site/.made/lesson_02_two.json", damage, [2]) for damage in DAMAGE]


@pytest.mark.parametrize(("name", "change", "anew"), CHANGES + DAMAGE)
def test_only_what_changed_or_is_damaged_is_built_anew(name, change, anew, course, monkeypatch):
    last_line = "2 lessons, 0 simulations, 0 quiz questions, 0 exercises"
    assert course.run() == ([1, 2], last_line)
    pages = {path.name: path.read_bytes() for path in course.site.glob("*.html")}
    (course.site / "lesson_01_one.html").write_text("spoilt")
    assert course.run() == ([], last_line)
    file = course.folder / name
    file.write_bytes(change(file.read_bytes() if file.exists() else b""))
    assert course.run() == (anew, last_line)
    assert {path.name: path.read_bytes() for path in course.site.glob("*.html")} == pages
    assert course.run() == ([], last_line)
    monkeypatch.setattr(course.build, "version", lambda name: "another")
    assert course.run() == ([1, 2], last_line)


def test_an_error_names_the_lesson_or_the_example(course, monkeypatch):
    (course.folder / "lesson_02_two.py").write_text("# %% [markdown]\nno text\n")
    with pytest.raises(RuntimeError, match=r"lesson_02_two.py: ValueError: lesson_02_two.py: a"):
        course.run()
    monkeypatch.setattr(reference, "_text", lambda page: "# %% pack\n1 / 0\n")
    with pytest.raises(RuntimeError, match=r"layers.py, example pack: ZeroDivisionError: div"):
        reference.run("layers", "pack")


def test_a_page_gets_the_scripts_as_they_are_now(course):
    kept = course.build.Made("", ["page/new.js"], {}, [])
    for script in "first();", "second();":
        (course.folder / "page/new.js").write_text(script)
        assert script in course.build.lesson_page(lessons.COURSE[0], kept)
