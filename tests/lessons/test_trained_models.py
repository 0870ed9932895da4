"""The models that lessons show: trained once, resumed, measured, and stored by a command."""

import json
from types import SimpleNamespace

import pytest

from lessons import train
from lessons.kit import models
from numformer.errors import InputError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and one small model to train into it."""
    monkeypatch.setattr(models, "CACHE", tmp_path / "cache")
    small = models.TaskRun("pairs", "--demo dates --quick --no-plots", 0.1)
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
    told = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    assert told["command"] == "python -m lessons.train --measure 77"
    assert told["measured"] == module.measure()


def test_a_training_goes_on_and_one_that_fails_is_told(call, cache, monkeypatch):
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
        told = json.loads(models.stored(module).read_text(encoding="utf-8"))
        number = int(module.__name__.split(".")[1][-2:])
        assert told["command"] == f"python -m lessons.train --measure {number}"
        assert models.measured(number) == told["measured"] and {*module.MODELS} <= {*models.MODELS}
