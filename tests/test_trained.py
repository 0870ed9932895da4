"""What `numformer.load` returns, for each kind of text pipeline, and what it refuses."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numformer
from numformer.data import Vocabulary
from numformer.generation import Continuation, Ensemble, Transduction
from numformer.generation.descriptions import pipeline_from
from numformer.generation.text_pipeline import MAX_SYMBOLS
from numformer.layer import pack
from numformer.models import Config, TowerConfig, Transformer
from numformer.models.language_model import LanguageModel
from numformer.models.recurrent import RecurrentEncoderDecoder
from numformer.runs import load_model, save_model
from numformer.runs.checkpoints import save_checkpoint
from numformer.runs.migrations import from_2
from numformer.trained import Trained

SIZES = dict(d_model=8, d_ff=12, heads=2, layers=3, p_drop=0.5)
LETTERS, WORDS = Vocabulary("abcde"), Vocabulary(["one", "two", "three"], " ")
TRANSDUCTION = Transduction(LETTERS, WORDS, max_length=6, longest=4)
CONTINUATION = Continuation(LETTERS, context=8)
TEXTS = [TRANSDUCTION, replace(TRANSDUCTION, beam=3, longest=None), CONTINUATION]
KINDS = ["greedy", "beam", "continuation"]


def model_of(text):
    """A model for a pipeline, with random parameters."""
    if isinstance(text, Continuation):
        model = LanguageModel(LanguageModel.Config(vocabulary=len(LETTERS), **SIZES))
    else:
        sizes = dict(source_vocabulary=len(text.source), target_vocabulary=len(text.target))
        model = Transformer(Config(**sizes, **SIZES, tying="target"))
    flat = pack(model)
    flat.data += 0.3 * np.random.default_rng(6).standard_normal(flat.data.shape).astype("f")
    if isinstance(text, Continuation):  # no special symbol is ever the most probable one
        model.output.weight.data[:4] = 0
        model.output.weight.data[4:] += 1
    return model


@pytest.fixture(params=TEXTS, ids=KINDS)
def run(request, tmp_path) -> Path:
    """The folder of a run."""
    description = {"text": request.param.description(), "best": {"step": 3}}
    save_model(tmp_path / "best.safetensors", model_of(request.param), **description)
    return tmp_path


def test_a_loaded_run_answers_a_text_and_a_list_of_texts(run):
    trained = numformer.load(run)
    text, goes_on = trained.text, isinstance(trained.text, Continuation)
    how = {"length": 3} if goes_on else {"max_length": 5}
    asked = ["ab", "e", "dcba", "ea"]
    answers = trained(asked, **how)
    assert answers == [*map(text.join, text.write(model_of(text), [*map(list, asked)], **how))]
    assert trained(asked[2], **how) == answers[2] == numformer.load(str(run))(asked[2], **how)
    assert numformer.load(run / "best.safetensors")("e", **how) == answers[1]
    assert len({*answers}) > 1 and trained.metadata["best"] == {"step": 3}
    sampled = trained(asked, temperature=3.0, seed=1, **how)
    assert sampled == trained(asked, temperature=3.0, seed=1, **how) != answers
    assert len(trained("ab")) == 202 if goes_on else trained(" ab ") == trained("ab")


def test_an_empty_text_among_others_has_an_empty_answer(run, complaint):
    trained = numformer.load(run)
    goes_on = isinstance(trained.text, Continuation)
    settings = dict(length=3, temperature=2.0) if goes_on else {}
    a, b = trained(["ab", "ea"], **settings)
    assert trained(["ab", "", " \t", "ea"], **settings) == [a, "", "", b]
    assert trained(["", " "], **settings) == ["", ""]
    assert "at least one symbol" in complaint(trained, "", **settings)
    assert "a text is a string" in complaint(trained, ["ab", None], **settings)
    if not goes_on:
        assert trained.n_best(["", "ab"], 2) == [[], *trained.n_best(["ab"], 2)]


def test_a_language_model_samples_as_its_run_does(tmp_path, complaint):
    """With the seed 1, as on the command line; another temperature overrides that of the run."""
    model = model_of(CONTINUATION)
    text = replace(CONTINUATION, temperature=2.0)
    save_model(tmp_path / "best.safetensors", model, text=text.description())
    trained = numformer.load(tmp_path)
    greedy, sampled = (
        CONTINUATION.write(model, [[*"ab"]], 30, temperature=t, seed=1)[0] for t in (0.0, 2.0)
    )
    assert trained("ab", length=30) == "".join(sampled) != "".join(greedy)
    assert trained("ab", length=30, temperature=0.0) == "".join(greedy)
    assert CONTINUATION.write(model, [[*"ab"]], 30) == [greedy]
    for wrong in (-1.0, "1", float("nan"), True):
        save_model(
            tmp_path / "best.safetensors", model, text=text.description() | {"temperature": wrong}
        )
        assert "text pipeline" in complaint(numformer.load, tmp_path)


def test_many_texts_keep_their_order_and_long_ones_are_read_fewer_at_a_time(monkeypatch):
    """Both searches are replaced by functions that copy the source."""
    seen = []

    def copied(name):
        def search(model, source, max_length, *settings):
            seen.append((name, len(source), source.shape[1] - 1, max_length, *settings))
            return [row[: row.index(2)] for row in source.tolist()]

        return search

    monkeypatch.setattr("numformer.generation.transduction.greedy", copied("greedy"))
    monkeypatch.setattr("numformer.generation.transduction.beam_search", copied("beam"))
    rng = np.random.default_rng(0)
    asked = [rng.choice([*"abcde"], rng.integers(1, 9)).tolist() for _ in range(600)]
    text = Transduction(LETTERS, LETTERS, 9, None, beam=5, length_penalty=0.5, penalty="length")
    model = SimpleNamespace(config=SimpleNamespace(longest=None))

    def written(texts, **how):
        del seen[:]
        assert text.write(model, texts, **how) == texts
        return [(rows, width) for _, rows, width, *_ in seen]

    shapes = written(asked)
    assert seen == [("beam", *shape, 9, 5, 0.5, "length", [], None) for shape in shapes]
    assert [rows for rows, _ in shapes] == [250, 250, 100]
    assert 8 == shapes[0][1] >= shapes[1][1] >= shapes[2][1] < 8
    assert [rows for rows, _ in written(asked[:3], beam=417)] == [2, 1]
    assert written([["a"] * 1025, ["b"] * 1030, []], beam=1) == [(1, 1030), (1, 1025), (1, 0)]
    written([["a"] * 511, ["b"], ["c"] * 511, *[["d"] * 511] * 5], beam=1)
    assert seen == [("greedy", 4, 511, 9), ("greedy", 4, 511, 9)]
    model.config.longest = 7  # learned positions end there
    written([["a"] * 6, ["b"]], beam=1)
    assert seen == [("greedy", 2, 6, 7)]


def test_a_text_is_read_up_to_the_context_and_then_its_latest_half(monkeypatch):
    read = []

    def as_many(model, ids, room):
        read.append((ids.shape[1], room))
        return [[4] * room]

    monkeypatch.setattr("numformer.generation.continuation.greedy", as_many)
    for context, form, length, pieces in (
        (8, {}, 14, [(3, 5), (4, 4), (4, 4), (4, 1)]),
        (8, dict(positions="alibi"), 14, [(3, 14)]),
        (1, {}, 3, 3 * [(1, 1)]),
        (2, {}, 3, 3 * [(1, 1)]),
        (5, {}, 3, [(3, 2), (2, 1)]),
    ):
        del read[:]
        model, asked = SimpleNamespace(config=TowerConfig(**form)), [[*"abc"]]
        written = Continuation(LETTERS, context).write(model, asked, length=length)
        assert written == [[*"abc"] + ["a"] * length]
        assert read == pieces and asked == [[*"abc"]]
    monkeypatch.setattr("numformer.generation.continuation.greedy", lambda *_: [[]])
    assert CONTINUATION.write(model, [["a"]]) == [["a"]]  # the model has ended it


def test_notes_on_a_text_are_warnings(run):
    trained = numformer.load(run)
    with pytest.warns(UserWarning, match=r"never saw 'x' 'é' \(in 'axéx'\)") as records:
        trained("axéx")
    assert records[0].filename == __file__
    with pytest.warns(UserWarning) as records:
        trained("x" + "a" * 80)
    assert str(records[0].message) == "training never saw 'x'"  # a long text is not repeated
    assert TRANSDUCTION.notes([*"abcda"]) == ["training saw at most 4 symbols; these are 5"]
    for text, asked in ((TRANSDUCTION, "abcd"), (TEXTS[1], "abcda"), (CONTINUATION, "abcda")):
        assert text.notes([*asked]) == []


def test_invalid_texts_and_settings_are_refused(run, complaint):
    trained = numformer.load(run)
    stripped = isinstance(trained.text, Transduction)
    length = "max_length" if stripped else "length"
    for text, how, words in (
        ([""], {}, "at least one symbol and at most"),
        ("a" * 4097, {}, "at least one symbol and at most"),
        ([5], {}, "a text is a string"),
        ("a", {"colour": 1}, "the settings"),
        ("a", {length: 0}, f"{length} is an integer"),
    ):
        assert words in complaint(trained, text, **how)
    assert len(trained.text.symbols("a" * 4096)) == 4096
    assert trained.text.symbols("a ") == (["a"] if stripped else ["a", " "])


def test_attention_is_that_of_the_model_on_its_own_answer(run, tmp_path, complaint):
    trained = numformer.load(run)
    seen = trained.attention("bad")
    assert seen.text == "bad" and "'bad'" in repr(seen) and "best {'step': 3}" in repr(trained)
    labels = {maps.kind: (maps.query_labels, maps.key_labels) for maps in seen.maps}
    assert seen.kinds == [*labels]
    if isinstance(trained.text, Continuation):
        assert seen.written == "" and labels == {"self_attention": ([*"bad"], [*"bad"])}
        assert_array_equal(np.triu(seen["self_attention"][0, 0], 1), 0)
        latest = trained.attention("ab" * 40 + "cde")
        assert (latest.text, latest.maps[0].key_labels) == ("bababcde", [*"bababcde"])
        figure = seen.draw(tmp_path / "new" / "a.png")
        picture = (tmp_path / "new" / "a.png").read_bytes()
        assert len(picture) > 9999 and picture == seen._repr_png_()
        assert len(figure.axes) == len(seen.draw().axes) > 1
    else:
        assert seen.written == trained("bad")
        written = seen.written.split()
        source, writes = [*"bad", "⊣"], [*written, "⊣"]
        assert labels == {
            "encoder self_attention": (source, source),
            "decoder self_attention": (writes, ["⊢", *written]),
            "decoder cross_attention": (writes, source),
        }
    for maps in seen.maps:
        assert maps.weights.shape == (3, 2, len(maps.query_labels), len(maps.key_labels))
        assert_allclose(maps.weights.sum(axis=-1), 1, rtol=1e-5)
    assert numformer.Attention("bad", "", [])._repr_png_() is None
    assert "Name one of" in complaint(seen.__getitem__, "memory")
    assert "ends in .png, .pdf, .svg" in complaint(seen.draw, tmp_path / "a.bmp")


def test_a_model_without_attention_has_no_maps_and_learned_positions_limit_them(complaint):
    sizes = dict(source_vocabulary=len(LETTERS), target_vocabulary=len(WORDS))
    model = RecurrentEncoderDecoder(RecurrentEncoderDecoder.Config(**sizes, context="fixed"))
    trained = Trained(model, TRANSDUCTION, {"task": "x", "best": 3})
    assert repr(trained) == "Trained(x: Transduction, best 3)"
    assert "received a RecurrentEncoderDecoder without attention" in complaint(
        trained.attention, "ab"
    )
    form = dict(tying="target", positions="learned", max_length=5)
    *_, maps = TRANSDUCTION.maps(Transformer(Config(**sizes, **SIZES, **form)), "ab", ["one"] * 5)
    assert [seen.weights.shape[-2:] for seen in maps] == [(3, 3), (5, 5), (5, 3)]


def test_runs_of_the_same_vocabularies_write_together(tmp_path, complaint):
    for scale, name, text in zip((1, 3, 1), ("one", "two", "other"), TEXTS, strict=True):
        model = model_of(text)
        model.output.weight.data[...] *= scale
        (tmp_path / name).mkdir()
        save_model(tmp_path / name / "best.safetensors", model, text=text.description())
    runs = [tmp_path / name for name in ("one", "two", "two")]
    trained, loaded = numformer.load(*runs), [*map(numformer.load, runs)]
    assert trained.text.description() == loaded[0].text.description()
    model = Ensemble([other.model for other in loaded])
    assert trained("bade") == replace(loaded[0], model=model)("bade")
    for member, other in zip(trained.model.models, model.models, strict=True):
        assert_array_equal(member.output.weight.data, other.output.weight.data)
    assert "attention of one model; received 3 models" in complaint(trained.attention, "bad")
    reordered = Vocabulary(WORDS.symbols[::-1], " "), Vocabulary(WORDS.symbols, "")
    changes = [dict(source=Vocabulary("abcdf")), *(dict(target=other) for other in reordered)]
    for text in (CONTINUATION, *(replace(TRANSDUCTION, **change) for change in changes)):
        path = tmp_path / "other" / "best.safetensors"
        save_model(path, model_of(text), text=text.description())
        assert "same vocabularies" in complaint(numformer.load, runs[0], path)


def test_a_run_that_cannot_be_loaded_says_why(tmp_path, complaint):
    assert "absent, which is not there" in complaint(numformer.load, tmp_path / "absent")
    without = f"received {tmp_path} without one. Name the folder of a run"
    assert without in complaint(numformer.load, tmp_path)
    (tmp_path / "config.json").write_text("{}")  # of a run that has just begun
    without = without.replace(" without", "/config.json without")
    assert without in complaint(numformer.load, tmp_path / "config.json")
    (tmp_path / "last.safetensors").touch()  # a run stopped before its first evaluation
    assert "Continue the run with --resume" in complaint(numformer.load, tmp_path)
    save_model(tmp_path / "best.safetensors", model_of(TRANSDUCTION))
    assert "which does not" in complaint(numformer.load, tmp_path)


def described(symbols, separator="") -> dict:
    """The description of a vocabulary."""
    return {"symbols": symbols, "separator": separator}


@pytest.mark.parametrize("text", TEXTS, ids=KINDS)
def test_a_description_is_accepted_only_if_it_fits_the_model(text):
    config, right = model_of(text).config, text.description()
    assert pipeline_from(right, config).description() == right
    name, lengths = "vocabulary", ["context"]
    wrong = [{"kind": "other"}, {"other": 1}]
    if isinstance(text, Transduction):
        name, lengths = "source", ["max_length", "longest", "beam"]
        wrong += [{"length_penalty": value} for value in (-1, "x", 10, None, True)]
        for most in ({"length_penalty": 0}, {"length_penalty": 9.0}, {"max_length": MAX_SYMBOLS}):
            assert pipeline_from(right | most, config)
    vocabularies = [[*"abcde"], "abcdefghi", None, described([*"abcde"], "-")]
    vocabularies += map(described, ([*"abcd"], [*range(5)], 5))
    wrong += [{name: vocabulary} for vocabulary in vocabularies]
    wrong += [{key: value} for key in lengths for value in (0, "x", MAX_SYMBOLS + 1, True)]
    for other in (None, [], 5, {}, {"kind": "transduction"}, *(right | change for change in wrong)):
        assert pipeline_from(other, config) is None, other
    size = "source_vocabulary" if name == "source" else name
    assert pipeline_from(right, replace(config, **{size: 8})) is None
    with pytest.raises(numformer.InputError, match="'a' twice"):
        pipeline_from(right | {name: described([*"abcda"])}, config)


def test_pipelines_of_format_2_were_saved_in_the_task():
    pronounce = {"kind": "transduction", "source": described("a"), "target": described("B", " ")}
    write, writes = {"name": "write", "context": 8}, {"vocabulary": described("a"), "context": 8}
    for task, left, text in (
        (
            {"characters": "a", "phonemes": "B", "max_length": 9, "data": 1},
            {"name": "pronounce", "data": 1},
            pronounce | {"max_length": 9, "beam": 5},
        ),
        (write | {"symbols": "a"}, write, {"kind": "continuation"} | writes),
        ({"mine": 1}, {"mine": 1}, None),
        (None, None, None),
    ):
        _, metadata = from_2({}, {"task": task, "step": 3})
        assert metadata == {"task": left, "step": 3, "text": text}


def test_the_best_answers_are_those_of_a_beam_with_their_scores(run, complaint):
    trained = numformer.load(run)
    if isinstance(trained.text, Continuation):
        assert "received a model for Continuation" in complaint(trained.n_best, ["a"], 2)
        return
    notes = []
    texts, how = ["ab", "ab", "axe", "axe"], dict(beam=4, max_length=3)
    best, again, other, _ = trained.n_best(texts, 2, notes.append, **how)
    symbols = trained.text.n_best(trained.model, 2 * [[*"ab"]], 2, **how)[0]
    assert [text for _, text in best] == [" ".join(words) for _, words in symbols]
    assert_allclose([score for score, _ in best], [score for score, _ in symbols], rtol=1e-5)
    assert [text for _, text in best] == [text for _, text in again]
    # Rows of one product may differ in their last digits.
    assert_allclose([score for score, _ in best], [score for score, _ in again], rtol=1e-6)
    assert best[0][0] > best[1][0] and len(other) == 2
    assert notes[0] == "training never saw 'x' (in 'axe')" and len(notes) == 1
    assert "The method n_best(texts, count) gives" in complaint(trained, "ab", n_best=2)
    assert "on the command line, --data names a file" in complaint(trained.evaluate, "pairs.tsv")
    settings = "n_best of this model has the settings beam, length_penalty, penalty, max_length;"
    assert settings in complaint(trained.n_best, ["ab"], 2, top_k=2)
    assert "texts are a list of strings; received a string" in complaint(trained.n_best, "ab", 2)
    attention = trained.attention("bad", max_length=1)
    assert attention.written == trained("bad", max_length=1) != trained("bad")
    assert attention["decoder cross_attention"].shape == (3, 2, 2, 4)
    assert "the settings" in complaint(trained.attention, "bad", colour=1)


def test_a_user_s_model_is_identified_by_its_class_and_not_by_its_module(tmp_path, complaint):
    """Earlier versions saved the module, `__main__` for a script."""
    source = "class Own(LanguageModel): pass\nclass Other(LanguageModel): pass"
    script, module = ({"LanguageModel": LanguageModel, "__name__": n} for n in ("__main__", "a.b"))
    for names in (script, module):
        exec(source, names)
    config = LanguageModel.Config(vocabulary=len(LETTERS), **SIZES)
    path, text = tmp_path / "best.safetensors", {"text": CONTINUATION.description()}
    save_model(path, script["Own"](config), **text)
    loaded = numformer.load(path, path, kind=module["Own"]).model.models
    assert [type(model) for model in loaded] == [module["Own"]] * 2
    assert "received 'Own'. Load a model of your own with its class" in complaint(
        numformer.load, path
    )
    for kind, words in (
        (module["Other"], f"must hold the model 'Other'; received {path}, which holds 'Own'"),
        ("Own", "kind is a class of models; received 'Own'. Pass the class itself"),
    ):
        assert words in complaint(numformer.load, path, kind=kind)
    for earlier, opens in (("__main__", True), ("b", True), ("a", False)):
        metadata = {"model": earlier, "config": asdict(config)} | text
        save_checkpoint(path, LanguageModel(config).state_dict(), metadata)
        if opens:
            assert type(load_model(path, module["Own"])[0]) is module["Own"]
        else:
            assert f"which holds {earlier!r}" in complaint(load_model, path, module["Own"])
        assert "must hold the model 'language_model'" in complaint(load_model, path, LanguageModel)
