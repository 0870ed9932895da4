"""What every lesson says and shows in a terminal and in a notebook, and what it is made of."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import second_entries
from lesson_solutions import LESSONS
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import lessons
from lessons.__main__ import main
from lessons.kit import facts
from lessons.kit.lesson import INK, Beside, Matrix, Picture, Piece, plain, table
from lessons.kit.papers import AUTHORS, PAPERS
from lessons.kit.percent import cells
from lessons.kit.run import run
from toy_tasks import ablation

# Numbers and claims that a lesson makes, as a terminal shows them; other tests compute them anew.
QUOTATIONS = {
    1: """
    1.41 at *good*, 1.03 at *very*, 1.02 at *not* … left after 10 words in the RNN and after 27
    words in the LSTM (
    """,
    2: """
    pours cherry: price 4, vitamin C 1 … that is 1.746 … (−0.444) … step 29 % … | banana | 0.28 |
    +0.09 | … 0.478 cherry, 0.163 banana, 0.359 lemon
    """,
    3: """
    The query of *it* is (−1, 2, 0), the key of *cat* is (0, 2, 0) … 0.204 · 4 + 0.064 · (−5) ≈
    0.47. So … [0.411, 0.185, 0.336, 0.0679] … 0.971 … and that is nan … [0.5, 0.5, 0, 0, 0]. Zeroed
    afterwards they are [0.0616, 0.0616, 0, 0, 0] … 0.647210 | 0.022483 … 0.999903 | 0.000009 … 1 ·
    10^-5 without the scale and 0.27 with it … 0.96 without it, 0.25 with it
    """,
    4: """
    *plural* is 0.70. In … it is 3 numbers, from one word to the next 6 … | that | 14 | 15 | 16 | …
    | bark | 31 | 32 | 33 | … | h = 16 | 25.8 | 0 | −0.3 … | d_k = 32 | 25.4 | −0.4 | −1.5 … = 1024
    | 26.0 | +0.2 | +1.1 … | h = 1 | 24.9 | −0.9 | … It is 64 MiB for … it is 512 MiB … was 0.9 BLEU
    worse
    """,
    5: """
    *man* the weight 0.28 … *dog* 0.10 … 1.74, 0.75, 0.66, 0.41 … 710 places … 113.0000 turns …
    0.00006 … 7.3 apart … 1.47 away … so its row gets (1, 1) …
    from 0.28 to 0.13 … 1.4 places … 177 places … 6.3 places …
    60,611 … They are 0.97 and 0.49
    """,
    6: """
    (−0.4125, −0.4575, 0.0325, −0.1025, 0.94) … a fifth of it −1.03 … together (−5.15, 0.45,
    0, −4.7, 0) … *purrs* fits verb + sound alone, *the* fits definite and neither. … The key
    *animal* fits none … 63,045,632 … 67 % of an encoder layer … 30 % of the model … 63.0M … 3,817
    more … 100.9M … 7.1M only … 14.2M … saves 4.7M … about 49 % of it … 0.35, 0.53 … 0.99, 1.00 …
    3.4 times … costs 2.30
    """,
    8: """
    The loss is -log 0.5, which is 0.693 … is 0.5 − 0.85 = −0.35 … or 2.83, above … gap is 12.7 …
    0.1 · 10 = 1.244 … or 0.3439, so m̂ is 3.62 … n̂ is 5.15 … *shorter*, 0.70 … last step is 0.53 …
    by 1.30 … is 0.00070, in step 4,000 … has p_drop 0.1 … 1.00, 0.67, 0.52 at first
    """,
    7: """
    2 · (−0.0734), or −0.1468 … saves 1,049,600 parameters
    """,
    10: """
    0.6 · 0.4 = 0.24. But *der hund* has 0.4 · 0.9 = 0.36. … 0.25 / 0.36 = 0.694 … 0.5 / 0.8 =
    0.625 … −4 / 1.36 ≈ −2.94 and −5 / 1.93 ≈ −2.59 … | exact | −0.200 | 0.180 | 0.160 | −0.140 |
    … sum to 1, but to 0.847. The right numbers are [0.598, 0.220, 0.133, 0.049]. … | couple | 1 |
    *ein paar tanzt in einem leeren parkplatz auf einem leeren parkplatz .* | −3.47 | … | 32 | −7.08
    | 38.53 |
    """,
    11: """
    The translator has 548,160 weights … The model that reverses words has 63,936 weights … (0.7 +
    0.8 + 0.6) / 3 = 0.70 … | output.weight |
    """,
    13: """
    | 2,048 | 4,194,304 | 16 | 16.1 | … 0.1353 · 2 + 0.0183 · 1 + 1.0000 · 1 ≈ 1.289 … = 2.117.
    Only now divide: 2.117 / 1.289 ≈ 1.642. The plain formula gives 1.642 … 0.776 · 0 ≈ 0.54. … +
    (−0.552) · 2 ≈ 0.54. … The cache has 64 GiB. With 8 heads of keys and values it has 16, with
    one 2. … | 256 | 0.310 | 0.005 | 1.000 | 0.006 | … Seven layers reach 7 · 3 = 21 back.
    """,
    14: """
    6. Machine 2 adds its own: 6 + 3 = 9. … = 1.5 times as long as one gradient … 1,560 MB, both …
    | base | 65 million | 1,040 | 585 | 528 | … 86 % of the sending hides … | base |
    64 | 0.016 | 4.095 | 0.409 | 0.041 | … K is 0.25 at 1 Gbit/s, 2.5 at 10 and 25 at 100. … 64 ≈
    5.7 days. At 100 Gbit/s it takes 20, or 16 if … At 10 Gbit/s it takes 151 days. … are 55 times
    as fast … at 100 Gbit/s and with the paper's batch, you gain 16 % … 51 % of the memory, not 2 %
    """,
    12: """
    = 2362368 parameters … = 124439808: exactly … says 73,944,309 … | decoder | 140,544 | 140,544 |
    281,088 | … | encoder only | 200,128 | 125 | … | 100 % | 0 % | … | recurrent | 202,080 | 100 |
    … near log 2 ≈ 0.69 … can reach 0.077 at best … 0.6 times as many operations … Of 18 rows only 5
    differ … and 4 of these agree … correlation of −0.10 … it is −0.68 … so 9.5 · 10^17 in 100,000
    steps … 29 % of what … 42 % … 1,831,424 parameters, reads 29,000 pairs 8.3 times … 17 subwords
    … and needs 4.5 · 10^13 … 38.7 BLEU … 63.0M … 100.9M … 7.1M … 14.2M … 1.993 … 1.937 … 25 times
    """,
    9: """
    p - p^* is (0.787, −0.893, 0.107) … = 3.148. Is that right? … | *c* | 0.117 | 0 | 0 | … |
    encoder 1: attention | 0.219 | 0.178 | 0.297 | … From the logits, a gradient of length 0.557 …
    | decoder 1: keys | 0.103 | 0 | … 0.002 = −0.45028 … the sum is missing” … | less than 10^-8 |
    3.08 |
    """,
}


def overprinted(figure) -> list[str]:
    """The texts of a picture that lie on other texts or are crossed by an arrow."""
    texts = [text for axes in figure.axes for text in axes.texts]
    if len(texts) < 2:
        return []
    arrows = [text.arrow_patch for text in texts if getattr(text, "arrow_patch", None)]
    if arrows:
        figure.draw_without_rendering()
    else:  # without arrows, placing the axes places the texts
        figure.get_layout_engine().execute(figure)
        for axes in figure.axes:
            axes.apply_aspect()
            axes.get_xlim()  # computes the limits
    paths = [arrow.get_transform().transform_path(arrow.get_path()) for arrow in arrows]
    texts = [text for text in texts if text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    boxes = [box.padded(-0.15 * box.height) for box in boxes]
    crossed = [any(path.intersects_bbox(box, filled=False) for path in paths) for box in boxes]
    covers = [(ground := text.get_bbox_patch()) and ground.get_fill() for text in texts]
    return [
        text.get_text()
        for text, box, line, ground in zip(texts, boxes, crossed, covers, strict=True)
        if (line and not ground) or sum(box.overlaps(other) for other in boxes) > 1
    ]


@pytest.mark.parametrize("number", LESSONS)
def test_a_lesson_in_a_terminal(number, call, tmp_path, monkeypatch):
    """Its pictures are saved, its headings in order; what it says and reckons by hand is so."""
    pyplot.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    figures, make = [], Picture.figure
    monkeypatch.setattr(Picture, "figure", lambda self: figures.append(make(self)) or figures[-1])
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: path.touch())
    code, lines, err = call(main, str(number))
    assert (code, err) == (0, [])
    assert [names for names in map(overprinted, figures) if names] == []
    out = "\n".join(lines)
    paths = {line.split(": ")[0] for line in lines if line.startswith("runs/lessons/")}
    assert paths == {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")}
    headings = re.findall(r"^# ##? (.*)$", Path(lessons.load(number).__file__).read_text(), re.M)
    lost = [heading for heading in headings if plain(heading) not in out]
    assert lost == [] and "To take with you" in headings, f"headings, of which {lost} are not shown"
    places = [out.find(f"\n{plain(heading)}\n---") for heading in headings]
    places = [place for place in places if place >= 0]
    assert places == sorted(places), "its headings stand in another order than in its file"
    # Formulas in letters, nothing bold; a power in code has its exponent after the stars.
    marks = re.search(r".{0,40}(?:[$\\]|(?<! )\*\*(?![\w-])).{0,40}", out)
    assert not marks, f"markup in a terminal: {marks[0]}"
    text = " ".join(out.split())
    quotations = " ".join(QUOTATIONS.get(number, "").split()).split(" … ")
    assert [words for words in quotations if words not in text] == [], text
    checks = re.findall(r"\|.* (?:relative error|largest difference) .*\n((?:\|.*\n)+)", out)
    powers = [int(power) for rows in checks for power in re.findall(r"10\^-(\d+)", rows)]
    assert powers and min(powers) >= 9, f"a gradient check that fails: {checks}"
    by_hand = text.replace("−", "-").replace("·", "*").replace("²", "**2")
    digits = r"((?<![\w.(^])[-(]*\d[-\d.()*+/ ]*[*+/-][-\d.()*+/ ]*?) ?[≈=] ?(-?\d+(?:\.\d+)?)"
    sums = re.findall(digits, by_hand)
    off = [
        f"{left} = {right}"
        for left, right in sums  # by hand, from digits that were rounded
        if abs(eval(left) - float(right)) > 0.7 * 10.0 ** -len(right.partition(".")[2])
    ]
    assert sums and off == [], f"arithmetic that does not come out: {off}"


def test_a_fact_of_a_paper_is_the_one_that_was_entered_twice():
    assert {name: fact.value for name, fact in facts.FACTS.items()} == second_entries.FACTS
    assert {fact.paper for fact in facts.FACTS.values()} <= PAPERS.keys()
    table = [tuple(map(float, row.split())) for row in second_entries.TABLE_3.split(",")]
    assert [(perplexity, bleu) for _, perplexity, bleu in ablation.ROWS.values()] == table
    for number, sentences in second_entries.SENTENCES.items():
        text = Path(lessons.load(number).__file__).read_text().replace("\n#", " ")
        assert [words for words in sentences if words not in " ".join(text.split())] == []


def test_a_paper_s_link_leads_to_the_paper_of_its_title():
    """As entered twice; and a title that a text gives beside the authors is that paper's."""
    lines = [line.split(" ", 1) for line in second_entries.ARXIV.split("\n") if line]
    titles = {name.partition(": ")[0]: name.partition(": ")[2] for _, name in lines}
    links = {name.partition(": ")[0]: f"https://arxiv.org/abs/{number}" for number, name in lines}
    assert links | second_entries.OTHER_PAPERS == PAPERS
    authors = set()
    for number in LESSONS:
        text = Path(lessons.load(number).__file__).read_text().replace("\n#", " ")
        for author, year, title in re.findall(AUTHORS + r",\s\*([^*]+)\*", text):
            if title_of := titles.get(f"{author} {year}"):
                authors.add(author)
                short, long = sorted((" ".join(title.lower().split()), title_of.lower()), key=len)
                assert long.startswith(short), (author, year, title)
    assert len(authors) > 20


@pytest.mark.parametrize("number", LESSONS)
def test_answers_of_a_quiz_are_those_that_were_entered_twice(number):
    answers = [question.answer for question in lessons.load(number).quiz()]
    assert answers == pytest.approx(second_entries.ANSWERS[number], abs=1e-6)


def test_the_lesson_runs_as_a_notebook_does(capsys, monkeypatch):
    """Cell after cell in one namespace; a notebook shows what it can."""
    module, outputs = lessons.load(11), []
    names = {"__name__": "__main__", "get_ipython": object()}
    ipython = SimpleNamespace(display=outputs.append)
    with monkeypatch.context() as patches:
        patches.setitem(sys.modules, "IPython", SimpleNamespace(display=ipython))
        patches.setitem(sys.modules, "IPython.display", ipython)
        for cell in cells(Path(module.__file__)):
            if not cell.is_markdown:
                exec(compile(cell.text, "<cell>", "exec"), names)
    assert capsys.readouterr().out == ""
    assert all(isinstance(piece, Piece) for piece in outputs)
    pictures = [piece for piece in outputs if isinstance(piece, Picture)]
    assert pictures[0]._repr_png_().startswith(b"\x89PNG")


def doubled(x):
    """A function to be explained."""
    y = x + x  # once more
    return y


def test_lines_that_the_lesson_does_not_explain_stop_it(page):
    notes = {"y = x + x": "Twice.", "return": ""}
    shown = Beside(doubled, notes)
    assert "<p>Twice.</p>\n</div><pre>y = x + x  # once more</pre></li>" in shown.html(page)
    assert "Twice.\n\n    y = x + x  # once more\n\n" in shown.markdown()
    for other in ({"y = 2 * x": "", "return": ""}, {"y = x": ""}, notes | {"more": ""}):
        with pytest.raises(ValueError, match=r"doubled has .* mend the lesson"):
            Beside(doubled, other).rows()


def test_a_text_cell_without_its_sign_stops_the_page(tmp_path):
    file = tmp_path / "lesson.py"
    file.write_text("# %% [markdown]\n# Text.\nx = 1\n")
    with pytest.raises(ValueError, match="'x = 1'"):
        cells(file)


TABLE = "| a | $b_{t,s}$ |\n|---|---:|\n| 1 | −2 |\n| | 4 |"
CODE = "```\nprice = '$'\n\n\nprint(price)\n```"


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("## A *title*", "A *title*\n---------"),
        (r"With $\sqrt{d_k}$ and **bold** `code`.", "With √d_k and bold code."),
        (r"$$\sum_{i=1}^{d_k} \frac{\partial L}{x_i} \ne 0$$", "    Σ(i=1..d_k) (∂ L) / (x_i) ≠ 0"),
        ("1. one\n   more\n2. two $A_{t,s}$", "1. one more\n2. two A_t,s"),
        (TABLE, "| a | b_t,s |\n| - | ----- |\n| 1 |    −2 |\n|   |     4 |"),
        (CODE, CODE),
        ("    a  b\n    c", "    a  b\n    c"),
    ],
)
def test_markdown_in_a_terminal(markdown, shown):
    assert plain(markdown) == shown
    assert plain(f"Before.\n\n{markdown}\n\nAfter.") == f"Before.\n\n{shown}\n\nAfter."


def test_a_matrix_shows_its_numbers(page):
    matrix = Matrix("M", np.array([[-1.25, 0.001], [0, -np.inf]]), ["a", "b"], ["c", "d"])
    assert matrix.cells() == [["−1.25", "0.00"], ["0", "−∞"]]
    shown = Matrix("M", np.array([[-2, 1, 0], [3, -4, 5]]), ["a", "b"], ["c", "d", "e"]).html(page)
    head, *body = shown.split("<tr>")[1:]
    assert re.findall(r">(\w)</th>", head) == ["c", "d", "e"]
    rows = [re.findall(r">([\w−]+)</t", row) for row in body]
    assert rows == [["a", "−2", "1", "0"], ["b", "3", "−4", "5"]]
    assert "| --- | ---: |" in table(["of", "length"], [["a", "1.5"], ["all", ""]]).text


def test_a_picture_has_its_words_and_the_colour_of_the_text_around_it(page, empty_folder, capsys):
    drawn = Picture("drawn", lambda figure: figure.subplots(), "What is <seen>.", "Look for it.")
    html = drawn.html(page)
    assert html.count('<svg role="img" aria-label="What is &lt;seen&gt;."') == 1
    assert html.endswith("<figcaption><p>Look for it.</p>\n</figcaption></figure>")
    assert html.count("currentColor") > 3 and INK not in html
    Path("runs").touch()  # no folder can be made in a file
    drawn.present()
    assert "drawn.png (not saved: " in capsys.readouterr().out


def test_where_there_is_a_window_pictures_open_in_it(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("agg")
    monkeypatch.setattr(FigureCanvasAgg, "required_interactive_framework", "a window")
    monkeypatch.setattr(pyplot, "show", lambda: opened.extend(pyplot.get_fignums()))
    opened, lesson = [], lessons.load(3)
    cell = SimpleNamespace(is_markdown=False, shown=lambda _: [lesson.stepper])
    monkeypatch.setattr("lessons.kit.run.cells", lambda path: [cell])
    try:
        run(lesson)
        (figure,) = map(pyplot.figure, pyplot.get_fignums())
        assert len(opened) == 1 and len(figure.widgets) >= 3
    finally:
        pyplot.close("all")
    assert "window attention: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
