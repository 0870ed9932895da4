"""Settings: frozen dataclasses whose fields say what they are and what may stand in them.

What a model is made of and how it is trained are such classes. From a field come the check of its
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
    """What may stand in a field: in words, as a test, and as the type of a command line's text.

    A choice is one of the names in `registry`, those included that are added to it later.
    """

    words: str
    holds: Callable[[Any], bool]
    type: Callable[[str], Any]
    registry: Collection[str] | None = None
    several: bool = False

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The names that may be chosen, where the field is a choice."""
        return None if self.registry is None else tuple(self.registry)

    @property
    def says(self) -> str:
        """The rule in words, with the names that may be chosen."""
        return self.words if self.choices is None else f"{self.words} {', '.join(self.choices)}"


def setting(default, what: str, rule: Rule) -> Any:
    return field(default=default, metadata={"help": what, "rule": rule})


def size(default: Any, what: str):
    """A whole number of at least 1; a default of None stands for "derived from others"."""
    return setting(default, what, Rule("an integer of at least 1", is_size, int))


def vocabulary(special: int):
    """The size of a vocabulary, which belongs to the task and has no default."""
    words = f"above {special}, the number of special ids"
    return setting(MISSING, "", Rule(words, lambda v: is_size(v) and v > special, int))


def share(default: float, what: str):
    """A probability or a rate of decay."""
    words = "a number of at least 0 and below 1"
    return setting(default, what, Rule(words, lambda v: _is_number(v) and 0 <= v < 1, float))


def weight(default: float, what: str):
    """What multiplies a part of a sum, which 0 leaves out."""
    words = "a number of at least 0"
    return setting(default, what, Rule(words, lambda v: _is_number(v) and v >= 0, float))


def above_zero(default: float | None, what: str):
    """A positive number; a default of None stands for "without"."""
    words = "a number above 0" if default is not None else "a number above 0, or None"
    return setting(default, what, Rule(words, lambda v: _is_number(v) and v > 0, float))


def switch(default: bool, what: str):
    """True or False."""
    return setting(default, what, Rule("True or False", lambda v: type(v) is bool, bool))


def choice(default: str, registry: Collection[str], what: str):
    """One of the names in a registry (or tuple) of choices."""
    return setting(
        default, what, Rule("one of", lambda v: type(v) is str and v in registry, str, registry)
    )


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
            if "rule" not in setting.metadata:  # of a subclass that checks its own fields
                continue
            value, rule = getattr(self, setting.name), setting.metadata["rule"]
            left_out = value is None and setting.default is None
            if not left_out and not rule.holds(value):
                raise InputError(
                    f"{setting.name} is {rule.says}",
                    repr(value),
                    f"Change {setting.name} (see {type(self).__name__}).",
                )
