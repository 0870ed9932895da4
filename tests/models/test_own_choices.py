"""Choices that a script registers, with settings of their own; and configs that extend a Config."""

import pickle
from dataclasses import asdict, dataclass, field, fields, replace

import numpy as np
import pytest

import numformer as nf
from numformer import settings
from numformer.models.config import CHOICES_WITH_SETTINGS
from numformer.models.owned_settings import class_with_settings, own_names, settings_classes
from numformer.runs.checkpoints import load_model, save_model
from tests.training.tiny_runs import Copying
from toy_tasks.command_line import build_parser, settings_from

V = 11
SIZES = dict(d_model=8, d_ff=12, heads=2, layers=2)


@dataclass(frozen=True, kw_only=True)
class Slope(settings.Settings):
    slope: float = settings.above_zero(0.5, "of mine")


class Scaled(nf.Layer):
    """x -> slope x."""

    def __init__(self, slope: float):
        self.slope = slope

    def forward(self, x, *_):
        return self.slope * x

    def backward(self, dy):
        return self.slope * dy


class MineOfMixers(nf.Mixer, Scaled):
    Settings = Slope
    looks_ahead = True

    @classmethod
    def build(cls, config, rng, causal):
        return cls(config.slope)


class MineOfFeedForwards:
    Settings = Slope

    @staticmethod
    def build(config, rng):
        return Scaled(config.slope)

    @staticmethod
    def entries(config):
        return 0


class MineOfNorms(Scaled):
    Settings = Slope

    def __init__(self, d_model: int, epsilon: float, slope: float):
        super().__init__(slope)


MINE = dict(mixers=MineOfMixers, feed_forwards=MineOfFeedForwards, normalization=MineOfNorms)


@pytest.fixture(params=MINE)
def choice(request, monkeypatch):
    """The field that may be "mine" now, after the Configs were made."""
    monkeypatch.setitem(CHOICES_WITH_SETTINGS[request.param], "mine", MINE[request.param])
    return request.param


def slopes(model: nf.Model) -> set[float]:
    return {layer.slope for layer in model.layers_within() if isinstance(layer, Scaled)}


def test_a_config_has_the_settings_of_a_choice_of_one_s_own(choice, complaint):
    config = nf.Transformer.Config.base(V, **SIZES, **{choice: "mine"}, slope=0.3)
    assert config.slope == 0.3
    assert isinstance(config, nf.Transformer.Config)
    assert slopes(nf.Transformer(config)) == {0.3}
    without = nf.Transformer.Config.base(V, **SIZES, **{choice: "mine"})
    assert slopes(nf.Transformer(without)) == {0.5}
    assert replace(without, slope=0.3) == config == replace(config, layers=2)
    assert replace(nf.Transformer.Config.base(V, **SIZES), **{choice: "mine"}) == without
    assert pickle.loads(pickle.dumps(config)) == config
    assert repr(config).startswith("Config(slope=0.3, ")
    assert "slope is a number above 0" in complaint(replace, config, slope=-1.0)
    text = complaint(replace, config, **{choice: fields_of(choice).default})
    assert f"slope belongs to {choice} mine" in text
    assert f"{choice} mine" in complaint(nf.Transformer.Config.base, V, slope=0.3)
    assert "received slpoe. Did you mean slope?" in complaint(replace, config, slpoe=0.3)


def test_pickles_of_the_previous_version_hold_several_values_as_text(choice):
    config = nf.Transformer.Config.base(V, **SIZES, mixers="attention,window")
    other = object.__new__(type(config))
    other.__setstate__(vars(config) | dict(mixers="attention,window"))
    assert other == config and other.mixers == ("attention", "window")


def fields_of(choice: str):
    return next(field for field in fields(nf.Transformer.Config) if field.name == choice)


def test_without_it_no_config_knows_its_settings(complaint):
    assert "received slope" in complaint(nf.Transformer.Config.base, V, slope=0.3)


def test_a_choice_whose_name_contains_another_has_only_its_own_settings(choice, monkeypatch):
    registry = CHOICES_WITH_SETTINGS[choice]
    monkeypatch.setitem(registry, "undermined", next(iter(registry.values())))
    assert not hasattr(nf.Transformer.Config.base(V, **{choice: "undermined"}), "slope")


def test_a_saved_model_with_it_is_one_again(choice, tmp_path, monkeypatch, complaint):
    """Wherever it is registered first."""
    config = nf.LanguageModel.Config(vocabulary=V, **SIZES, **{choice: "mine"}, slope=0.3)
    model = nf.LanguageModel(config)
    save_model(tmp_path / "model.safetensors", model)
    loaded, _ = load_model(tmp_path / "model.safetensors")
    assert loaded.config == config
    assert slopes(loaded) == {0.3}
    monkeypatch.delitem(CHOICES_WITH_SETTINGS[choice], "mine")
    assert "slope" in complaint(load_model, tmp_path / "model.safetensors")


def test_a_run_with_it_goes_on(choice, tmp_path):
    def run(folder, steps, **how):
        config = nf.Transformer.Config.base(V, **SIZES, **{choice: "mine"}, slope=0.3)
        model = nf.Transformer(config)
        schedule = nf.Schedule(steps, evaluate_every=3)
        nf.train(model, Copying([1.0] * 9), folder, schedule, **how)
        return model.state_dict()

    whole = run(tmp_path / "whole", 6)
    run(tmp_path / "parts", 3)
    gone_on = run(tmp_path / "parts", 6, resume=True)
    assert all((gone_on[name] == array).all() for name, array in whole.items())


def test_its_settings_have_flags(choice):
    parser = build_parser("mine", "", nf.Transformer)
    assert "of mine (default: 0.5)" in parser.format_help()
    vocabularies = dict(source_vocabulary=V, target_vocabulary=V)
    for arguments, slope in (["--slope", "0.3"], 0.3), ([], 0.5):
        options = parser.parse_args([f"--{choice.replace('_', '-')}", "mine", *arguments])
        assert settings_from(options, nf.Transformer.Config, **vocabularies).slope == slope
    plain = settings_from(parser.parse_args([]), nf.Transformer.Config, **vocabularies)
    assert type(plain) is nf.Transformer.Config


@dataclass(frozen=True, kw_only=True)
class Noted(nf.Transformer.Config):
    """A Config with plain fields of dataclasses."""

    note: str = ""
    marks: list = field(default_factory=list)


def test_a_config_may_be_extended_with_plain_fields():
    config = Noted.base(V, **SIZES, note="a", marks=[1])
    assert (config.note, config.marks, asdict(config)["note"]) == ("a", [1], "a")
    assert replace(config, heads=1).note == "a"
    model = nf.Transformer(config)
    assert model.forward(np.array([[4, 2]]), np.array([[1]])).shape == (1, 1, V)

    class Extended(nf.Transformer):
        Config = Noted

    parser = build_parser("extended", "", Extended)
    options = parser.parse_args(["--heads", "1"])
    chosen = settings_from(options, Noted, source_vocabulary=V, target_vocabulary=V)
    assert (chosen.heads, chosen.note, chosen.marks) == (1, "", [])


def test_heads_of_keys_in_turn_are_a_flag():
    parser = build_parser("mine", "", nf.LanguageModel)
    for text, value in ("2", 2), ("1,4", (1, 4)):
        options = parser.parse_args(["--key-value-heads", text])
        config = settings_from(options, nf.LanguageModel.Config, vocabulary=V)
        assert config.key_value_heads == value


def test_every_setting_of_a_choice_has_a_flag():
    parser = build_parser("mine", "", nf.LanguageModel)
    for registry in CHOICES_WITH_SETTINGS.values():
        for entry in registry.values():
            assert all(parser.action(name) for name in own_names(entry))


def test_a_config_has_the_fields_of_chosen_entries_once_and_the_place_of_its_class():
    """Settings of a window are bases of those of a window with global tokens."""
    entries = [nf.Window, nf.GlobalWindow]
    assert settings_classes(entries) == [nf.GlobalWindow.Settings]
    config = class_with_settings.__wrapped__(nf.Config, (nf.Window.Settings,))
    assert config.__module__ == nf.Config.__module__
