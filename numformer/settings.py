"""Settings: frozen dataclasses whose fields have a help text and a rule for their values.

A model's config and the recipe of its training are such classes. A field gives the check of its
value, its flag on a command line and the line of `--help`.
"""

import difflib
import math
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from numformer.errors import InputError


@dataclass(frozen=True)
class Rule:
    """The values that a field may have: a description, a test, and a flag's conversion of text.

    A choice is one of the names in `registry`, including those that are added to it later.
    """

    values: str
    allows: Callable[[Any], bool]
    type: Callable[[str], Any]
    registry: Collection[str] | None = None
    several: bool = False

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The names to choose from; None for a field that is no choice."""
        return None if self.registry is None else tuple(self.registry)

    @property
    def description(self) -> str:
        """The values in words, with the names to choose from."""
        return self.values if self.choices is None else f"{self.values} {', '.join(self.choices)}"


def setting(default, help_text: str, rule: Rule) -> Any:
    return field(default=default, metadata={"help": help_text, "rule": rule})


def size(default: Any, help_text: str):
    """A whole number of at least 1; a default of None means that other fields give the number."""
    return setting(default, help_text, Rule("an integer of at least 1", is_size, int))


def vocabulary(special: int):
    """The size of a vocabulary, which the task determines: it has no default."""
    values = f"above {special}, the number of special ids"
    return setting(MISSING, "", Rule(values, lambda v: is_size(v) and v > special, int))


def share(default: float, help_text: str):
    """A probability or a rate of decay."""
    values = "a number of at least 0 and below 1"
    return setting(default, help_text, Rule(values, lambda v: _is_number(v) and 0 <= v < 1, float))


def weight(default: float, help_text: str):
    """The weight of a part of a sum; 0 leaves the part out."""
    values = "a number of at least 0"
    return setting(default, help_text, Rule(values, lambda v: _is_number(v) and v >= 0, float))


def above_zero(default: float | None, help_text: str):
    """A positive number; a default of None means that there is none."""
    values = "a number above 0" if default is not None else "a number above 0, or None"
    return setting(default, help_text, Rule(values, lambda v: _is_number(v) and v > 0, float))


def switch(default: bool, help_text: str):
    """True or False."""
    return setting(default, help_text, Rule("True or False", lambda v: type(v) is bool, bool))


def choice(default: str, registry: Collection[str], help_text: str):
    """One of the names in a registry (or tuple) of choices."""
    rule = Rule("one of", lambda v: type(v) is str and v in registry, str, registry)
    return setting(default, help_text, rule)


def is_size(value) -> bool:
    return type(value) is int and value >= 1


def _is_number(value) -> bool:
    return isinstance(value, int | float) and value < math.inf


@dataclass(frozen=True)
class Settings:
    """Raises InputError for an unknown field, and where a value breaks its field's rule."""

    def __new__(cls, *_, **values):
        names = [setting.name for setting in fields(cls)]
        for name in values.keys() - names:
            near = difflib.get_close_matches(name, names)
            raise InputError(
                f"{cls.__name__} has the settings {', '.join(names)}",
                name,
                f"Did you mean {near[0]}?" if near else "Leave it out.",
            )
        return super().__new__(cls)

    def __post_init__(self):
        for setting in fields(self):
            if "rule" not in setting.metadata:  # a subclass may check its own fields
                continue
            value, rule = getattr(self, setting.name), setting.metadata["rule"]
            unset = value is None and setting.default is None
            if not unset and not rule.allows(value):
                raise InputError(
                    f"{setting.name} is {rule.description}",
                    repr(value),
                    f"Change {setting.name} (see {type(self).__name__}).",
                )
