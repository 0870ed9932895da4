"""Settings: what a field says of itself, and that its rule is held to."""

import dataclasses
import math

import numpy as np
import pytest

from numformer import settings


@pytest.fixture
def mine():
    """Settings with a field of every kind."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(settings.Settings):
        symbols: int = settings.vocabulary(4)
        width: int = settings.size(8, "how wide")
        depth: int | None = settings.size(None, "how deep")
        drop: float = settings.share(0.25, "how much is dropped")
        rate: float = settings.above_zero(0.5, "how fast")
        clip: float | None = settings.above_zero(None, "how far")
        part: float = settings.weight(0.0, "how much it counts")
        bias: bool = settings.switch(False, "whether there is one")
        norm: str = settings.choice("post", {"post": 1, "pre": 2}, "where it stands")

    return Mine


@pytest.mark.parametrize(
    ("name", "default", "help", "words", "type", "choices"),
    [
        ("symbols", dataclasses.MISSING, "", "above 4, the number of special ids", int, None),
        ("width", 8, "how wide", "an integer of at least 1", int, None),
        ("depth", None, "how deep", "an integer of at least 1", int, None),
        ("drop", 0.25, "how much is dropped", "a number of at least 0 and below 1", float, None),
        ("rate", 0.5, "how fast", "a number above 0", float, None),
        ("clip", None, "how far", "a number above 0, or None", float, None),
        ("part", 0.0, "how much it counts", "a number of at least 0", float, None),
        ("bias", False, "whether there is one", "True or False", bool, None),
        ("norm", "post", "where it stands", "one of post, pre", str, ("post", "pre")),
    ],
)
def test_a_field_says_what_it_is(mine, name, default, help, words, type, choices):
    """Command lines are made of this."""
    (field,) = [each for each in dataclasses.fields(mine) if each.name == name]
    rule = field.metadata["rule"]
    assert (field.default, field.metadata["help"]) == (default, help)
    assert (rule.says, rule.type, rule.choices) == (words, type, choices)


NUMBERS = [None, "1", [1], math.nan, math.inf, -math.inf, -1]


@pytest.mark.parametrize(
    ("name", "fine", "refused"),
    [
        ("symbols", [5, 6], [None, 4, 0, 5.0, True, "5", math.inf]),
        ("width", [1, 2], [None, 0, -1, 1.0, True, "1", math.inf]),
        ("depth", [None, 1, 2], [0, -1, 1.0, True, "1", math.inf]),
        ("drop", [0, 0.0, 0.5, 0.999, np.float64(0.5)], [*NUMBERS, 1, 1.0, 1.5]),
        ("rate", [1e-9, 0.5, 1, 1.5, 3, np.float64(0.5)], [*NUMBERS, 0, 0.0]),
        ("clip", [None, 1e-9, 0.5, 1, 1.5, 3], [*NUMBERS[1:], 0, 0.0]),
        ("part", [0, 0.0, 0.5, 3, np.float64(0.5)], NUMBERS),
        ("bias", [False, True], [None, 0, 1, "True"]),
        ("norm", ["post", "pre"], [None, "", "po", "mine", 1]),
    ],
)
def test_a_field_holds_what_its_rule_allows_and_nothing_else(mine, name, fine, refused, complaint):
    (rule,) = [f.metadata["rule"] for f in dataclasses.fields(mine) if f.name == name]
    needed = dict(symbols=5)
    for value in fine:
        assert getattr(mine(**(needed | {name: value})), name) is value
    for value in refused:
        assert complaint(mine, **(needed | {name: value})) == (
            f"{name} is {rule.says}; received {value!r}. Change {name} (see Mine)."
        )


def test_settings_and_rules_are_not_changed_once_they_are_made(mine):
    rule = settings.Rule("anything", lambda value: True, int)
    for made, name in ((mine(symbols=5), "symbols"), (rule, "words")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, getattr(made, name))
