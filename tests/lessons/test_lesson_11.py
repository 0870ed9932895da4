"""Lesson 11: its page computes as numformer does, its scores and claims are computed again."""

import base64
import shutil

import numpy as np
import pytest
from lesson_solutions import words_of

import lessons
from lessons.kit import models
from lessons.lesson_11 import costs, explorer, forming, scores, small, translating
from lessons.lesson_11.exercises import induction_score
from numformer import PairBatch, greedy, pad_sources
from numformer.data.vocabulary import END

# Sentences of which nothing is stored: a reader's own.
OWN = """\
A man in a green shirt is reading a newspaper.
two dogs fight over a stick
Several people walk across a bridge in the rain.
a little girl with long hair eats ice-cream
The band plays music, and the people dance.
A woman holds a baby in her arms.
zebras drink at the waterhole
Four boys are climbing a tall, old tree.
a cyclist rides down a steep hill
An artist paints a picture of the sea.""".splitlines()
WORDS = "attention", "kayak", "zq", "level", "x", "transformer"
NOT = {
    "translator": {
        "ein schöner tag": "not “ö”",
        "at 5 o'clock": "not “5”",
        "one. two.": "a full stop only at the end",
        "well ,yes": "one space, or a comma and a space",
        "": "Write words",
        " ".join(["dog"] * 20): "That is 20 pieces. The model takes at most 19",
    },
    "reverse": {"two words": "one word of 1 to 12", "": "one word", "a" * 13: "1 to 12 letters"},
}
TAKE = """(figure, [sentence, text, temperature]) => {
  const { simulation } = figure, [view] = simulation.views;
  simulation.choose("sentence", sentence);
  simulation.choose("temperature", temperature);
  simulation.settle?.();
  const taken = view.take(text);
  simulation.settle?.();
  const all = Object.entries(view.looked).map(([kind, of]) =>
    [kind, [0, 1, 2].map((layer) => [0, 1, 2, 3].map((head) => of(layer, head)))]);
  return { taken, why: view.why.textContent, ids: view.ids, written: view.written,
    weights: Object.fromEntries(all), says: view.made[1].textContent };
}"""
WRITE = """(figure, [model, ids, temperature]) => {
  const reader = figure.simulation.views[0].reader(model);
  reader.read(ids, temperature);
  return reader.write();
}"""
REVERSE = len(explorer.SENTENCES)  # the first sentence of the model that reverses


@pytest.fixture(scope="module")
def site(tmp_path_factory, builder):
    """A page with nothing but the explorer, as `open_page` expects it."""
    folder, page = tmp_path_factory.mktemp("explorer"), builder.Page()
    html = f"<h1>Lesson</h1><h2>Figure</h2>{explorer.simulation().html(page)}"
    lesson_parts = builder.Made(html, page.scripts, {}, [])
    text = builder.lesson_page(lessons.COURSE[10], lesson_parts)
    (folder / "explorer.html").write_text(text, encoding="utf-8")
    sheets = sorted(lessons.FOLDER.glob("page/*.css"), key=lambda p: (p.stem != "style", p))
    sheets += sorted(lessons.FOLDER.glob("lesson_*/*.css"))
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    (folder / "style.css").write_text(style, encoding="utf-8")
    for path in lessons.FOLDER.glob("page/numformer_math.*"):
        shutil.copy(path, folder)
    return folder, ""


@pytest.fixture
def figure(open_page):
    return open_page("explorer.html").locator("#explorer")


def as_numformer(name: str, found: dict, temperature: float = 1.0, dtype=np.float32) -> None:
    """What the page found for its ids is what numformer finds, with masks of its own."""
    model = small.model(name, dtype)
    small.soften(model, temperature)
    (written,) = greedy(model, pad_sources([found["ids"]]), small.LENGTH)
    assert found["written"] == [*written, END][: small.LENGTH]
    source = np.array([[*found["ids"], END]])
    target = np.array([[1, *found["written"][:-1]]])
    weights = translating.forming.by_kind(
        translating.forming.attention_weights(model, source, target)
    )
    for kind, of_kind in zip(small.KINDS, weights.values(), strict=True):
        page = np.array(found["weights"][kind])
        np.testing.assert_allclose(page, of_kind[:, 0], atol=1e-3, err_msg=kind)
        assert page.shape == of_kind[:, 0].shape


def test_own_sentences_are_cut_and_read_as_numformer_does(figure):
    """Ten sentences that nobody stored, and six words; in float32, with weights of 16 bits."""
    subwords = pytest.importorskip("sentencepiece") and models.measured(11)["sentencepiece"]
    pytest.importorskip("sacremoses")
    from numformer.data import Subwords
    from numformer.generation import Translation

    subwords = Subwords(base64.b64decode(subwords))
    text = Translation(subwords, subwords, 20, 20)
    cut = 0
    for sentence in OWN:
        found = figure.evaluate(TAKE, [0, sentence, 2])
        assert found["taken"], found["why"]
        assert found["ids"] == subwords.encode(text.symbols(sentence)), sentence
        cut += len(found["ids"]) > len(text.symbols(sentence)) or "small pieces" in found["why"]
        as_numformer("translator", found)
        assert found["says"] == subwords.join(subwords.decode(found["written"][:-1]))
    assert cut, "some words are known in pieces alone"
    for word in WORDS:
        found = figure.evaluate(TAKE, [REVERSE, word, 2])
        assert found["taken"] and ("3 to 8" in found["why"]) == (not 3 <= len(word) <= 8)
        as_numformer("reverse", found)


def test_a_temperature_changes_every_head_and_what_is_written(figure):
    texts = set()
    for number, temperature in enumerate(explorer.TEMPERATURES):
        found = figure.evaluate(TAKE, [0, OWN[0], number])
        as_numformer("translator", found, temperature)
        texts.add(found["says"])
    assert len(texts) > 2


@pytest.mark.parametrize(("name", "first"), [("translator", 0), ("reverse", REVERSE)])
def test_the_explorer_says_what_it_cannot_take(name, first, figure):
    for text, words in NOT[name].items():
        found = figure.evaluate(TAKE, [first, text, 2])
        assert found["taken"] is False and words in found["why"], (text, found["why"])
        assert found["ids"] == explorer.texts()[first].ids  # what was there stays


def test_what_a_reader_does(figure):
    """Types, opens a head, picks a word; another sentence of the list ends the own one."""
    page = figure.page
    figure.get_by_label("Your own sentence or word").fill("a dog runs .")
    figure.get_by_role("button", name="Read it").click()
    assert "one space, or a comma" in figure.locator(".why").inner_text()
    figure.get_by_label("Your own sentence or word").fill("a dog runs.")
    page.keyboard.press("Enter")
    read = figure.locator("dd").first
    assert read.inner_text() == "a dog runs ."
    figure.locator(".small").nth(30).click()
    assert figure.locator(".small[aria-pressed=true]").count() == 1
    assert "Cross-attention, layer 2, head 3" in figure.locator(".one h4").inner_text()
    figure.locator(".word").nth(1).click()
    label = figure.locator('[data-control="sentence"] output span').first
    assert label.inner_text() == "your own"
    shown = figure.evaluate("figure => figure.simulation.shown().views[0]")
    assert shown["query"] == 1 and 97 <= sum(shown["percents"]) <= 103
    assert shown["left"][-1] == "⟨end⟩" and shown["right"] == ["a", "dog", "runs", ".", "⟨end⟩"]
    figure.evaluate("figure => figure.simulation.choose('sentence', 3)")
    page.wait_for_function(
        "text => document.querySelector('dd').innerText === text", arg=explorer.SENTENCES[3]
    )


def test_the_page_writes_what_was_computed_when_it_was_built(figure):
    for number, text in enumerate(explorer.texts()):
        for temperature in explorer.TEMPERATURES[::2]:
            written = figure.evaluate(WRITE, [text.model, [*text.ids], temperature])
            stored = explorer.compute(number, temperature)["written"]
            assert written == [n for n in stored.tolist() if n], text.words


def test_a_score_is_a_mean_and_shuffled_rows_keep_their_weights(rng):
    weights = rng.dirichlet(np.ones(6), (2, 3, 5))
    seen = np.arange(6) < np.array([4, 6])[:, None, None, None]
    weights = np.where(seen, weights, 0)
    places = np.array([[-1, 0, 1, 2, 3], [5, -1, -1, 0, 0]])
    by_hand = [
        [weights[b, h, t, places[b, t]] for b in range(2) for t in range(5) if places[b, t] >= 0]
        for h in range(3)
    ]
    np.testing.assert_allclose(scores.share(weights, places), np.mean(by_hand, axis=1))
    dealt = [scores.shuffled(weights, seen, np.random.default_rng(n)) for n in range(2000)]
    for one in dealt[:3]:
        np.testing.assert_array_equal(np.sort(one), np.sort(weights))
        assert (one[np.broadcast_to(~seen, one.shape)] == 0).all()
    chance = weights.sum(axis=-1, keepdims=True) / seen.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(np.mean(dealt, axis=0), np.where(seen, chance, 0), atol=0.02)


def test_places_by_position():
    there = scores.self_places(np.array([4, 2]), 4, causal=False)
    np.testing.assert_array_equal(there["the word before"], [[-1, 0, 1, 2], [-1, 0, -1, -1]])
    np.testing.assert_array_equal(there["the word after"], [[1, 2, 3, -1], [1, -1, -1, -1]])
    np.testing.assert_array_equal(there["the end mark"], [[3, 3, -1, -1], [-1, -1, -1, -1]])
    written = scores.self_places(np.array([4]), 4, causal=True)
    np.testing.assert_array_equal(written["what was written last"], [[0, 1, 2, 3]])
    np.testing.assert_array_equal(written["the start mark"], [[-1, -1, 0, 0]])


def test_pieces_that_go_together():
    """Of three pairs; ids below 4 are marks."""
    pairs = [([4, 5, 2], [7, 8, 2]), ([4, 6, 2], [7, 9, 2]), ([5, 2], [8, 2])]
    dice = translating.together(pairs, 10)
    assert dice[4, 7] == 1 and dice[5, 8] == 1 and dice[4, 8] == pytest.approx(2 / 4)
    batch = PairBatch.of(pairs[:2])
    found = translating.goes_with(batch, dice, batch.target_out)
    np.testing.assert_array_equal(found[:, :2], [[0, 1], [0, 1]])
    assert (found[:, 2] == -1).all()  # the end mark


def test_gates_are_what_moving_them_says(rng):
    """On the whole model that reverses: W^O of one head scaled a little, up and down."""
    model = small.model("reverse")
    ids = [*map(small.symbols("reverse").index, "window")]
    batch, objective = PairBatch.of([(ids, ids[::-1])]), model.objective()
    with translating.gate_gradients(model) as found:
        objective.forward(*batch.inputs)
        objective.backward()
    for place, layer in enumerate(translating.attentions(model)):
        head, losses = int(rng.integers(small.HEADS)), []
        rows = layer.output.weight.data.reshape(small.HEADS, -1, layer.output.weight.shape[1])
        before = rows[head].copy()
        for gate in 1 + 1e-5, 1 - 1e-5:
            rows[head] = gate * before
            losses.append(objective.forward(*batch.inputs))
            objective.clear_saved()
        rows[head] = before
        slope = (losses[0] - losses[1]) / 2e-5
        assert found[place][head] == pytest.approx(slope, rel=1e-4, abs=1e-8)
    translating.prune(model, [(4, 2)])
    output = translating.attentions(model)[4].output.weight.data
    assert (output[16:24] == 0).all() and (output[:16] != 0).any()


def test_the_score_of_the_exercise_is_that_of_the_task(rng):
    task = forming.induction.InductionTask(8, 1)
    ids, _, valid = task.held_out[1].inputs
    weights = rng.dirichlet(np.ones(ids.shape[1]), (len(ids), 2, ids.shape[1]))
    again = np.flatnonzero(valid[0])
    # The task counts from the second letter of the repetition on, with what came after the first.
    wanted = weights[:, :, again, again - len(again)].mean(axis=-1)
    for row in range(3):
        counted = np.zeros(2)
        for t in again:
            before = np.flatnonzero(ids[row, :t] == ids[row, t])[-1]
            assert before + 1 == t - len(again)
            counted += weights[row, :, t, before + 1] / len(again)
        np.testing.assert_allclose(counted, wanted[row])
        assert induction_score(weights[row], ids[row]).shape == (2,)


def test_costs_are_those_of_the_products(rng):
    """Multiplications, counted in every product of forward."""
    from unittest import mock

    from numformer import arithmetic
    from numformer.paper import attention, linear

    for name, layer in costs.layers().items():
        counted = []

        def matmul(a, b, *out, own=arithmetic.matmul, counted=counted):
            result = own(a, b, *out)
            counted.append(result.size * a.shape[-1])
            return result

        if "LSTM" in name:
            continue
        with mock.patch.object(attention, "matmul", matmul):
            with mock.patch.object(linear, "matmul", matmul):
                layer.forward(rng.standard_normal((1, 32, costs.WIDTH)))
        assert sum(counted) == costs.products(32)[name]


def test_what_is_said_of_heads_is_what_was_measured():
    results = models.measured(11)
    exact, share = results["reversal"]["exact"], np.array(results["reversal"]["share"])
    assert exact[0] < 0.01 and exact[-1] > 0.99
    assert share[-1, 2].min() > 0.8 and share[-1, 0].max() < 0.4 and share[0].max() < 0.25
    two, one = results["repetition"]["2"], results["repetition"]["1"]
    assert np.max(two["matching"][-1][1]) > 0.9 > 0.2 > np.max(two["matching"][-1][0])
    assert np.max(two["before"][-1][0]) > 0.8 and two["copying"][-1] > 0.98 > one["copying"][-1]
    assert np.min(two["writes"][1]) > 0.8 and two["writes"][0][0] < 0.1
    assert results["rounding"] < 0.02 and results["bleu"] > 28
    pruned = np.array(results["pruned"]["by importance"])
    drawn = np.array(results["pruned"]["at random"])[..., 1].mean(axis=0)
    assert pruned[12, 1] > drawn[3] and pruned[-1, 1] < 2
    encoder = np.array(results["pruned"]["encoder"])  # all that read, gone: most of it is left
    assert encoder[-1, 1] > 0.7 * encoder[0, 1]
    best = lessons.load(11).best_roles("translator")
    clear = np.array([score >= 3 * chance for _, score, chance in best])
    assert clear[-12:].sum() >= 8 and not clear[int(np.argmax(results["pruned"]["alone"]))]
    importance, alone = (
        np.ravel(results["pruned"]["importance"]),
        np.array(results["pruned"]["alone"]),
    )
    ranks = [np.argsort(np.argsort(x)) for x in (importance, alone)]
    assert np.corrcoef(*ranks)[0, 1] > 0.8
    powers = {
        name: costs.exponent(costs.LENGTHS[-3:], times[-3:])
        for name, times in results["costs"].items()
    }
    assert powers["attention"] > 1.5 > 1.25 > max(powers[n] for n in powers if n != "attention")
    text = words_of(11, "two_layers_and_one")
    assert "| 2 layers: 2.1 |" in text and "in 26" in text
