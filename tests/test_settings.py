"""Settings: the rule of a field, its description and what it allows."""

import dataclasses
import inspect
import math

import numpy as np
import pytest

from numformer import settings
from numformer.models import Config, Transformer, fields
from numformer.models.owned_settings import OwnedSettings


@pytest.fixture
def example():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Example(OwnedSettings):
        symbols: int = settings.vocabulary(4)
        width: int = settings.size(8, "of width")
        depth: int | None = settings.size(None, "of depth")
        drop: float = settings.share(0.25, "of drop")
        rate: float = settings.above_zero(0.5, "of rate")
        clip: float | None = settings.above_zero(None, "of clip")
        part: float = settings.weight(0.0, "of part")
        bias: bool = settings.switch(False, "of bias")
        norm: str = settings.choice("post", {"post": 1, "pre": 2}, "of norm")
        turns: tuple = fields.choices("a", {"a": 1, "b": 2}, "of turns")
        mark: int | None = fields.special_id(7, "of mark")
        marks: tuple = fields.without_flag(fields.ids((), "of marks"))
        groups: object = fields.sizes(None, "of groups")
        steps: object = fields.only_with(fields.sizes(4, "of steps"), turns=["b"])
        angles: tuple = fields.frequencies("of angles")
        scaled: bool | None = fields.maybe("of scaled")

    return Example


NUMBERS = [None, "1", [1], math.nan, math.inf, -math.inf, -1]
SIZES = [None, 0, -1, 1.0, True, "1", "5", math.inf]
FLOAT = np.float64(0.5)
# By name: description, type, choices, allowed values, refused values.
FIELDS = {
    "symbols": ("above 4, the number of special ids", int, None, [5, 6], [*SIZES, 4, 5.0]),
    "width": ("an integer of at least 1", int, None, [1, 2], SIZES),
    "depth": ("an integer of at least 1", int, None, [None, 1, 2], SIZES[1:]),
    "drop": ("a number of at least 0 and below 1", float, None, [0, 0.999, FLOAT], [*NUMBERS, 1]),
    "rate": ("a number above 0", float, None, [1e-9, 0.5, 1, 3, FLOAT], [*NUMBERS, 0, 0.0]),
    "clip": ("a number above 0, or None", float, None, [None, 1e-9, 1, 3], [*NUMBERS[1:], 0, 0.0]),
    "part": ("a number of at least 0", float, None, [0, 0.0, 0.5, 3, FLOAT], NUMBERS),
    "bias": ("True or False", bool, None, [False, True], [None, 0, 1, "True"]),
    "norm": ("one of post, pre", str, ("post", "pre"), ["post", "pre"], [None, "", "po", ["pre"]]),
    "turns": (
        "one or several, with commas between them, of a, b",
        str,
        ("a", "b"),
        [("a",), ("b",), ("a", "b"), ("b", "b", "a")],
        [None, (), "", "a,", ",", "c", "a,c", "a b", 1, ("a", ""), ("c",), ["a", "c"], [[]]],
    ),
    "mark": (
        "an integer of at least 0, or None",
        int,
        None,
        [None, 0, 1],
        [-1, 1.0, True, "1", math.inf],
    ),
    "marks": (
        'integers of at least 0 with commas between them, or ""',
        str,
        None,
        [(), (0,), (3, 12)],
        [None, ",", "3,", "3, 12", "-1", "a", 3, ("3",), (-1,)],
    ),
    "groups": (
        "an integer of at least 1, or several with commas between them",
        fields._integer,
        None,
        [None, 1, 2, (1, 2)],
        [0, -1, 1.5, True, "a", "1,", (), (1, 0), ("1", "2")],
    ),
    "angles": (
        'tuples of numbers, such as (1.0, 0.1),(1.0, 0.5), or ""',
        str,
        None,
        [(), ((),), ((0.0, 0.5), ())],
        [None, 1.0, "a", "\n", "1.0", {}, (1.0,), ((1,),), ((-0.5,),), ((math.inf,),), ([0.5],)],
    ),
    "scaled": ("True, False or None", bool, None, [None, True, False], [0, 1, "None"]),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_takes_the_values_that_its_rule_allows(example, name, complaint):
    description, kind, choices, allowed, refused = FIELDS[name]
    (field,) = [field for field in dataclasses.fields(example) if field.name == name]
    rule = field.metadata["rule"]
    assert (rule.description, rule.type, rule.choices) == (description, kind, choices)
    assert rule.several == (name == "turns")
    assert field.metadata.get("flag", True) == (name != "marks")
    assert field.metadata["help"] == ("" if name == "symbols" else f"of {name}")
    for value in allowed:
        assert getattr(example(**({"symbols": 5} | {name: value})), name) is value
    for value in refused:
        message = complaint(example, **({"symbols": 5} | {name: value}))
        assert (
            message == f"{name} is {description}; received {value!r}. Change {name} (see Example)."
        )


@pytest.mark.parametrize("layers", [1, 3, 4])
def test_the_entries_of_a_config_are_those_of_its_matrices(layers):
    """However many mixers take turns."""
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=layers, positions="learned", max_length=20)
    for mixers, groups in (("attention", None), ("attention", 1), ("attention,window", "1,2")):
        config = Config.base(11, mixers=mixers, key_value_heads=groups, **sizes)
        towers = Transformer(config).named_parameters().items()
        for tower, cross in (("encoder", False), ("decoder", True)):
            matrices = [p.size for name, p in towers if name.startswith(tower) and len(p.shape) > 1]
            assert config.entries(cross) == sum(matrices) + 8 * 20


def test_an_unknown_field_is_named_with_the_nearest(example, complaint):
    message = complaint(example, widht=3)
    assert "Example has the settings symbols, width, depth, drop, rate," in message
    assert "received widht. Did you mean width?" in message
    assert "received xyzzy. Leave it out." in complaint(example, width=3, xyzzy=1)


def test_choices_in_turn_are_names_of_their_registry():
    rule = fields.choices("a", {"a": 1, "b": 2}, "of turns").metadata["rule"]
    assert rule.several and rule.choices == ("a", "b") and rule.type is str
    assert rule.allows(("a", "b")) and not rule.allows(1) and not rule.allows(("a", "c"))


def test_several_values_are_read_and_saved_as_text_with_commas(example, complaint):
    for text, turns in ("b", ("b",)), ("a,b", ("a", "b")):
        for form in (text, [*turns], turns):
            assert example(symbols=5, turns=form).turns == turns
        assert fields.saved_values(example(symbols=5, turns=turns))["turns"] == text
    for text, marks in ("", ()), ("0", (0,)), ("3,12", (3, 12)):
        for form in (text, [*marks], marks):
            assert example(symbols=5, marks=form).marks == marks
        assert fields.saved_values(example(symbols=5, marks=marks))["marks"] == text
    assert "turns is one or several" in complaint(example, symbols=5, turns="a,")
    for text, groups in ("3", 3), ("1,2", (1, 2)):
        for form in (text, (groups,) if groups == 3 else [*groups], groups):
            assert example(symbols=5, groups=form).groups == groups
    for text, angles in ("(0.5,),()", ((0.5,), ())), ("", ()):
        for form in (text, [*map(list, angles)], angles):
            assert example(symbols=5, angles=form).angles == angles
    saved = fields.saved_values(example(symbols=5, groups=(1, 2), angles="(0.5,),()"))
    assert saved["groups"] == "1,2" and saved["angles"] == "(0.5,),()"


def test_a_setting_that_belongs_to_a_choice_is_refused_without_it(example, complaint):
    assert example(symbols=5, turns=("a", "b"), steps=2).steps == 2
    assert "steps belongs to turns b; received steps 2 with turns a." in complaint(
        example, symbols=5, steps=2
    )


def test_help_explains_fields_those_of_other_classes_last():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Less(settings.Settings):
        norm: str = settings.choice("post", {"post": 1, "pre": 2}, "where norms are")
        symbols: int = settings.vocabulary(4)

    @fields.field_help(Less)
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(Less):
        """A config.

        Of two paragraphs.
        """

        width: int = settings.size(8, "how wide")

    assert More.__doc__ == (
        "A config.\n\nOf two paragraphs.\n\nwidth: how wide\n"
        "norm: where norms are [post, pre]\nsymbols: above 4, the number of special ids"
    )
    assert [*inspect.signature(More).parameters] == ["width", "norm", "symbols"]
