"""The opening of the home page computes as numformer does, moves by itself, and learns."""

import gzip
import re

import numpy as np
import pytest

import lessons
from lessons import opening, running
from lessons.lesson_11 import explorer, small
from numformer import PairBatch, pack
from numformer.data.vocabulary import END, START
from numformer.layer import mode
from numformer.optimization.optimizers import Adam

# Sentences of which nothing is stored.
OWN = "Two girls climb a wet rock, and a man waits.", "zebras drink at the waterhole"
WANTED = "zebras trinken am wasserloch."
OPENING = "document.querySelector('.opening').opening"
READ = f"{OPENING}.mode === 'read' && {OPENING}.complete"
SHOWN = f"{OPENING}.words.map(({{ shown }}) => shown).join(' ')"
STATE = f"""(({{ known, words, losses, mode, clock, segments }}) => ({{
    words, losses, mode, clock, segments: segments.length, source: known.source,
    arrays: Object.fromEntries(Object.entries(known).filter(([, all]) => all.buffer)
      .map(([name, all]) => [name, [...all]])) }}))({OPENING})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory, builder):
    """A folder with the home page alone, as `open_page` expects it."""
    folder = tmp_path_factory.mktemp("opening")
    course = {entry.number: builder.Made("", [], {}, []) for entry in lessons.COURSE}
    page = builder.home_page(course)
    (folder / "index.html").write_text(page, encoding="utf-8")
    (folder / "style.css").write_text(builder.style_sheet(), encoding="utf-8")
    font = lessons.FOLDER / "page" / "numformer_math.woff2"
    (folder / font.name).write_bytes(font.read_bytes())
    return folder, ""


def translate(page, sentence: str) -> dict:
    """Let the page read a sentence -> what it then knows."""
    page.get_by_role("textbox", name="English").fill(sentence)
    page.get_by_role("button", name="Translate").click()
    read = f"'{sentence.lower()}'.startsWith({OPENING}.known.source[0])"
    page.wait_for_function(f"{READ} && {read}")
    return page.evaluate(STATE)


def ids_of(shown: list[str]) -> list[int]:
    """The ids of pieces as the page shows them: "‑" stands before a piece within a word."""
    ids = {symbol: n for n, symbol in enumerate(small.symbols("translator"))} | {"▁⟨end⟩": END}
    return [ids[piece[1:] if piece[0] == "‑" else f"▁{piece}"] for piece in shown]


def test_an_own_sentence_is_translated_as_by_the_library(open_page):
    page = open_page("index.html")
    for sentence in OWN:
        found = translate(page, sentence)
        source, written = (
            ids_of(shown) for shown in (found["source"], [w["shown"] for w in found["words"]])
        )
        assert running.ids(sentence) == source[:-1]
        assert (*written,) == small.written("translator", (*source[:-1],))
        model = small.model("translator")
        with mode(training=False, saving=True):
            read = small.encode(model, small.padded(source))
            target = small.padded([START, *written][: small.LENGTH])
            wrote = small.decode(model, small.padded(source), read["memory"], target)
        chances = wrote["chances"][np.arange(len(written)), written]
        assert [word["chance"] for word in found["words"]] == pytest.approx(chances, abs=1e-3)
        for name in ("encoder", "decoder", "cross", "encoder streams", "decoder streams"):
            right = (read | wrote)[name]
            ours = np.reshape(found["arrays"][name], right.shape)
            rows = len(source) if name.startswith("encoder") else len(written)
            axis = 1 if name.endswith("streams") else 2
            near = [np.take(array, range(rows), axis) for array in (ours, right)]
            np.testing.assert_allclose(*near, atol=1e-3)


def test_a_step_is_the_library_s_on_the_pair_without_padding():
    source, target = [40, 50, 60], [70, 80, 90, 100]
    objective = small.model("translator").objective()
    flat = pack(objective.model, np.float64)
    weights = flat.data.copy()
    with mode(training=False, saving=True):
        loss = objective.forward(*PairBatch.of([(source, target)]).inputs)
        objective.backward()
        ids = [*source, END], [START, *target], [*target, END]
        state = weights, 0 * weights, 0 * weights, np.zeros(1)
        arrays = opening.learn(*state, *map(small.padded, ids))
    Adam(flat).step(opening.RATE)
    assert arrays["loss"] == pytest.approx(loss, abs=1e-12)
    np.testing.assert_allclose(arrays["weights after"], flat.data, atol=1e-9)


def test_back_and_train_are_the_library_s_steps(open_page):
    page = open_page("index.html")
    translate(page, OWN[1])
    before = page.evaluate(SHOWN)
    page.get_by_role("textbox", name="Right German").fill(WANTED)
    page.get_by_role("button", name="Back").click()
    page.wait_for_function(f"{OPENING}.mode === 'back'")
    found = page.evaluate(STATE)
    source, wanted = (
        ids_of(shown) for shown in (found["source"], [w["shown"] for w in found["words"]])
    )
    weights = small.weights("translator").astype(float)
    state, losses = [weights, 0 * weights, 0 * weights, np.zeros(1)], []
    texts = [small.padded(ids) for ids in (source, [START, *wanted[:-1]], wanted)]
    for _ in range(3):
        with mode(training=False, saving=True):
            arrays = opening.learn(*state, *texts)
        losses.append(float(arrays["loss"]))
        if len(losses) == 1:
            for kind in ("encoder", "decoder"):
                name = f"{kind} streams back"
                ours = np.reshape(found["arrays"][name], arrays[name].shape)
                np.testing.assert_allclose(ours, arrays[name], atol=1e-6)
        state = [arrays[f"{name} after"] for name in ("weights", "mean", "square", "steps")]
    page.get_by_role("button", name="Train").click()
    page.wait_for_function(f"{READ} && {OPENING}.taught", timeout=120_000)
    again = page.evaluate(STATE)
    assert again["losses"][:3] == pytest.approx(losses, abs=1e-6)
    assert again["losses"][-1] < 0.5 * losses[0]
    assert ids_of([word["shown"] for word in again["words"]]) == wanted
    page.get_by_role("button", name="Forget").click()
    page.wait_for_function(f"{READ} && {SHOWN} === '{before}'")


def test_the_first_sentence_is_as_it_is_said_to_be():
    """Its words are whole pieces, as the page shows them before the worker answers; neckties."""
    words = re.findall(r"\w+|[.]", opening.ENGLISH)
    written = small.written("translator", (*ids_of(words),))
    assert explorer.small_text("translator", written) == "eine frau tanzt mit einem krawatten ."


def test_it_moves_by_itself_and_can_be_paused(open_page):
    page = open_page("index.html")
    page.wait_for_function(f"{OPENING}.clock > 0.2")
    page.get_by_role("button", name="Pause").click()
    paused = page.evaluate(f"{OPENING}.clock")
    page.wait_for_timeout(200)
    assert page.evaluate(f"{OPENING}.clock") == paused


def test_without_motion_it_stands_still_and_goes_in_steps(open_page):
    page = open_page("index.html", reduced_motion="reduce")
    page.wait_for_function(READ)
    whole = f"{OPENING}.clock === {OPENING}.length"
    assert page.evaluate(whole)
    image = f"{OPENING}.stage.canvas.toDataURL()"
    before = page.evaluate(image)
    page.wait_for_timeout(300)
    assert page.evaluate(image) == before
    page.get_by_role("button", name="Next step").click()
    assert not page.evaluate(whole) and page.evaluate(image) != before


def test_it_comes_in_time(site):
    """At most 2 MB; and the script that moves stands before the weights."""
    text = (site[0] / "index.html").read_text(encoding="utf-8")
    assert len(gzip.compress(text.encode())) < 2e6
    assert text.index("new Opening(") < text.index('id="translator"')
