"""Settings: frozen dataclasses whose fields have a help text and a rule for their values.

A model's config and the recipe of its training are `Settings`. A field defines how its value is
checked, its flag on the command line and its line in `--help`.
"""

import difflib
import math
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from numformer.errors import InputError


@dataclass(frozen=True)
class Rule:
    """The values that a field may have: a description, a test, and the conversion from text.

    With a `registry`, the values are its names, including those that are added later.
    """

    values: str
    allows: Callable[[Any], bool]
    type: Callable[[str], Any]
    registry: Collection[str] | None = None
    several: bool = False

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The names to choose from; None for a field without a registry."""
        return None if self.registry is None else tuple(self.registry)

    @property
    def description(self) -> str:
        """The allowed values in words, with the names to choose from."""
        return self.values if self.choices is None else f"{self.values} {', '.join(self.choices)}"


def setting(default, help_text: str, rule: Rule) -> Any:
    return field(default=default, metadata={"help": help_text, "rule": rule})


def size(default: Any, help_text: str):
    """Declare an integer of at least 1; None as the default lets other fields determine it."""
    return setting(default, help_text, Rule("an integer of at least 1", is_size, int))


def vocabulary(special: int):
    """Declare a vocabulary's size. It has no default, because the task determines it."""
    values = f"above {special}, the number of special ids"
    return setting(MISSING, "", Rule(values, lambda v: is_size(v) and v > special, int))


def share(default: float, help_text: str):
    """Declare a probability or a rate of decay."""
    values = "a number of at least 0 and below 1"
    return setting(default, help_text, Rule(values, lambda v: _is_number(v) and 0 <= v < 1, float))


def weight(default: float, help_text: str):
    """Declare the weight of a term of a sum; 0 leaves the term out."""
    values = "a number of at least 0"
    return setting(default, help_text, Rule(values, lambda v: _is_number(v) and v >= 0, float))


def above_zero(default: float | None, help_text: str):
    """Declare a positive number, or None if that is the default."""
    values = "a number above 0" if default is not None else "a number above 0, or None"
    return setting(default, help_text, Rule(values, lambda v: _is_number(v) and v > 0, float))


def switch(default: bool, help_text: str):
    """Declare a switch: True or False."""
    return setting(default, help_text, Rule("True or False", lambda v: type(v) is bool, bool))


def choice(default: str, registry: Collection[str], help_text: str):
    """Declare a choice: one of the names in a registry or a tuple."""
    rule = Rule("one of", lambda v: type(v) is str and v in registry, str, registry)
    return setting(default, help_text, rule)


def is_size(value) -> bool:
    return type(value) is int and value >= 1


def _is_number(value) -> bool:
    return isinstance(value, int | float) and value < math.inf


@dataclass(frozen=True)
class Settings:
    """The base class of settings; raises InputError for unknown fields and forbidden values."""

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
            if "rule" not in setting.metadata:  # a subclass may check such a field itself
                continue
            value, rule = getattr(self, setting.name), setting.metadata["rule"]
            unset = value is None and setting.default is None
            if not unset and not rule.allows(value):
                raise InputError(
                    f"{setting.name} is {rule.description}",
                    repr(value),
                    f"Change {setting.name} (see {type(self).__name__}).",
                )
