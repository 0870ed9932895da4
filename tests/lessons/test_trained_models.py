"""The models that lessons show: trained once, resumed, measured, and stored by a command."""

import json
from types import SimpleNamespace

import pytest

from lessons import train
from lessons.kit import models
from lessons.lesson_10 import measured as lesson_10
from lessons.lesson_11 import measured as lesson_11
from lessons.lesson_12 import measured as lesson_12
from numformer.errors import InputError
from toy_tasks import pairs
from toy_tasks.data.dates import dates


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and one small model to train into it."""
    monkeypatch.setattr(models, "CACHE", tmp_path / "cache")
    monkeypatch.setitem(pairs.DEMOS, "dates", (lambda: dates(400), 0.99))
    flags = "--demo dates --quick --no-plots --parts 1 --d-model 8 --d-ff 8 --heads 1 --layers 1"
    small = models.TaskRun("pairs", flags, 0.1)
    monkeypatch.setattr(models, "MODELS", {"small": small})
    monkeypatch.setattr(train, "reuse_freed_memory", lambda: None)
    models.model.cache_clear()
    yield models.CACHE
    models.model.cache_clear()


def test_a_model_is_trained_once_and_then_measured(call, cache, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="the model small is trained once"):
        models.model("small")
    code, out, err = call(train.main)
    assert code == 0 and out[0].startswith("small: ") and (cache / "small" / models.DONE).is_file()
    assert isinstance(models.model("small")("21 nov 2026"), str)
    module = SimpleNamespace(
        __name__="lessons.lesson_77.measured",
        __file__=str(tmp_path / "measured.py"),
        measure=lambda: {"answer": models.model("small")("21 nov 2026")},
    )
    monkeypatch.setattr(models, "measuring", lambda: [module])
    code, out, err = call(train.main, "--measure 77")
    assert (code, out, err) == (0, [f"{tmp_path / 'measured.json'} is written"], [])
    record = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    assert record["command"] == "python -m lessons.train --measure 77"
    assert record["measured"] == module.measure()


def test_a_training_goes_on_and_one_that_fails_is_reported(call, cache, monkeypatch):
    run, folder = models.MODELS["small"], cache / "small"
    assert run.arguments(folder, None)[-2:] == ["--out", str(folder)]
    assert "--data" not in run.arguments(folder, cache)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    assert "--resume" in run.arguments(folder, None)
    code, _, err = call(train.main)
    assert code == 2 and err[-1].startswith("error: ")
    assert models.missing(["small"]) == ["small"]


def test_what_is_stored_says_by_which_command():
    for module in models.measuring():
        record = json.loads(models.stored(module).read_text(encoding="utf-8"))
        number = int(module.__name__.split(".")[1][-2:])
        assert record["command"] == f"python -m lessons.train --measure {number}"
        assert models.measured(number) == record["measured"] and {*module.MODELS} <= {
            *models.MODELS
        }


def by_narrow_beams() -> dict:
    trained, data = models.model("translator"), lesson_10.corpus(models.folder("translator"))
    asked = trained.text.symbols(lesson_10.SOURCE)
    (written,) = trained.text.write(trained.model, [asked], beam=1)
    begun = lesson_10.next_words(trained)["sure"]["written"]
    assert [lesson_10.shown(symbol) for symbol in written[: len(begun)]] == begun
    rows = lesson_10.by_beam(trained, data["test"][: lesson_10.SENTENCES], (1, 2))
    return {
        "next": {"sure": {"written": begun}},
        "beams": [{name: row[name] for name in ("beam", "log_p", "none", "paper")} for row in rows],
    }


def of_the_explorer() -> dict:
    trained = models.model("small_translator")
    subwords, results = trained.text.source, models.measured(11)
    data = lesson_11.translating.corpus(models.folder("small_translator"))
    assert lesson_11.half(trained.model).shape == lesson_11.small.weights("translator").shape
    return {
        "pieces": [*subwords.symbols],
        "sentences": {text: subwords.encode(subwords.split(text)) for text in results["sentences"]},
        "bleu": lesson_11.translating.bleu(trained, data["test"]),
    }


QUICK = {  # what is measured in seconds
    10: by_narrow_beams,
    11: of_the_explorer,
    12: lambda: {"translator": lesson_12.of_translator()},
}


@pytest.mark.parametrize("lesson", QUICK)
def test_what_is_stored_is_what_the_models_give(lesson):
    """Other processors train to other bits, by which BLEU differs by one or two points."""
    (module,) = (m for m in models.measuring() if f"lesson_{lesson}." in m.__name__)
    if absent := models.missing(module.MODELS):
        pytest.skip(f"not trained here by python -m lessons.train: {', '.join(absent)}")

    def compare(stored, again):
        if isinstance(again, dict):
            for name, value in again.items():
                compare(stored[name], value)
        elif isinstance(again, list | tuple):
            for entry, entry_again in zip(stored[: len(again)], again, strict=True):
                compare(entry, entry_again)
        elif isinstance(again, float):
            assert stored == pytest.approx(again, rel=0.06)
        else:
            assert stored == again

    compare(models.measured(lesson), QUICK[lesson]())
