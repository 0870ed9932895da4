"""Filling holes: the windows that are read, the order, and the symbols."""

from types import SimpleNamespace

import numpy as np
import pytest

import numformer as nf
from numformer.generation.descriptions import pipeline_from

LETTERS = nf.Vocabulary("abcde_")
TEXT = nf.Infilling(LETTERS, "_", context=8)


@pytest.fixture
def model() -> nf.MaskedLanguageModel:
    """A small model with random parameters."""
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.5)
    model = nf.MaskedLanguageModel(nf.MaskedLanguageModel.Config(vocabulary=len(LETTERS), **sizes))
    flat = nf.pack(model)
    flat.data += 0.3 * np.random.default_rng(6).standard_normal(flat.data.shape).astype("f")
    return model


class Alphabet:
    """Stands in for a model: predicts the letter after the one to the left; records its inputs.

    It is surest of holes next to a letter, and then of those further left in the text.
    """

    def __init__(self):
        self.seen = []

    def forward(self, ids, asked, valid):
        assert valid.all() and valid.shape == ids.shape  # a padding id in a text is a symbol
        self.seen.append(("".join(LETTERS.decode(ids.ravel())), asked.tolist()))
        logits = np.zeros((len(asked), len(LETTERS)))
        logits[:, :4] = logits[:, LETTERS.encode("_")[0]] = 99  # ids that no text has
        for row, place in zip(logits, asked, strict=True):
            before = ids.ravel()[place - 1] if place % ids.shape[1] else LETTERS.encode("e")[0]
            sure = before != LETTERS.encode("_")[0]
            row[4 + (before - 3) % 5] = 50 + 20 * sure - place / 10
        return logits


def test_a_surer_hole_is_filled_first_and_helps_with_the_next():
    model = Alphabet()
    assert TEXT.write(model, [[*"ab__b_"], [*"_"], [*"abc"]]) == [[*"abcdbc"], [*"a"], [*"abc"]]
    first = [("ab__b_", [2, 3, 5]), ("abc_b_", [3, 5]), ("abcdb_", [5])]
    assert model.seen == [*first, ("_", [0])]


@pytest.mark.parametrize(
    ("text", "asked"), [("a_b_c_d_" * 3, [12, 9, 6, 4, 3, 2, 1]), ("_" * 300, [256, 44])]
)
def test_a_quarter_of_the_holes_is_filled_at_once_in_batches_of_256(text, asked):
    model = Alphabet()
    TEXT.write(model, [[*text]])
    assert [len(places) for _, places in model.seen][: len(asked)] == asked


def test_the_model_s_special_ids_decide_what_is_written():
    model = Alphabet()
    model.config = SimpleNamespace(special=nf.SpecialIds(end=None))
    assert TEXT.write(model, [["_"]]) == [["<end>"]]
    model.config = SimpleNamespace(special=nf.SpecialIds(end=4, unwritten=(0, 1, 2, 3, 5)))
    assert TEXT.write(model, [["_"]]) == [["c"]]


LONG, WINDOWS = "abcde" * 4, {0: "_bcdeabc", 9: "abcd_abc", 10: "bcde_bcd", 19: "cdeabcd_"}


def holed(*places: int) -> list[str]:
    return ["_" if place in places else letter for place, letter in enumerate(LONG)]


def test_a_hole_in_a_long_text_is_in_the_middle_of_its_own_window():
    windows = {(place,): (window, [window.index("_")]) for place, window in WINDOWS.items()}
    windows[4, 15] = "abcd_abc" + "bcde_bcd", [4, 8 + 4]
    for places, window in windows.items():
        alphabet = Alphabet()
        assert TEXT.write(alphabet, [holed(*places)]) == [[*LONG]]
        assert alphabet.seen[0] == window


def test_a_saved_run_fills_holes_and_shows_where_it_looked(model, tmp_path):
    nf.save_model(tmp_path / "best.safetensors", model, text=TEXT.description())
    trained = nf.load(tmp_path)
    answer, seen = trained("ab_d_"), trained.attention("ab_d_")
    assert (answer[:2], answer[3]) == ("ab", "d") and {*answer[2::2]} <= {*"abcde"}
    assert trained(["ab_d_", "_"])[0] == answer and len(answer) == 5
    (maps,) = seen.maps
    assert (seen.text, seen.written, seen.kinds) == ("ab_d_", answer, ["self_attention"])
    assert maps.query_labels == maps.key_labels == [*"ab_d_"] and maps.weights.shape == (2, 2, 5, 5)
    assert (maps.weights > 0).all()  # both sides
    for place, window in WINDOWS.items():
        assert trained.attention("".join(holed(place))).text == window
    assert trained.attention(LONG).text == LONG[:8]
    asked, *_ = nf.Infilling(LETTERS, "_", context=1).maps(model, [*"abc"])
    assert asked == ["a"] and model.pending() == 0


def test_a_description_is_taken_only_where_the_model_fits_it(model):
    described = TEXT.description()
    assert described["kind"] == "infilling" and pipeline_from(described, model.config).hole == "_"
    fewer = {"vocabulary": {"symbols": [*"ab_"], "separator": ""}}
    for change in ({"hole": "x"}, {"hole": 5}, {"context": 0}, {"context": "8"}, fewer):
        assert pipeline_from(described | change, model.config) is None


def test_notes_name_unseen_symbols_and_missing_holes():
    unseen, nothing = "training never saw 'é'", "there is no '_' to fill"
    for text, notes in (("ab_", []), ("aé_", [unseen]), ("aé", [unseen, nothing])):
        assert TEXT.notes([*text]) == notes
