"""Settings: frozen dataclasses whose fields say what they are and what may stand in them.

What a model is made of and how it is trained are such classes. From a field come the check of its
value, its flag on a command line and the line of `--help`.
"""

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
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


def _setting(default, what: str, rule: Rule) -> Any:
    return field(default=default, metadata={"help": what, "rule": rule})


def size(default: Any, what: str):
    """A whole number of at least 1; a default of None stands for "derived from others"."""
    return _setting(default, what, Rule("an integer of at least 1", _is_size, int))


def vocabulary(special: int):
    """The size of a vocabulary, which belongs to the task and has no default."""
    words = f"above {special}, the number of special ids"
    return _setting(MISSING, "", Rule(words, lambda v: _is_size(v) and v > special, int))


def share(default: float, what: str):
    """A probability or a rate of decay."""
    words = "a number of at least 0 and below 1"
    return _setting(default, what, Rule(words, lambda v: _is_number(v) and 0 <= v < 1, float))


def weight(default: float, what: str):
    """What multiplies a part of a sum, which 0 leaves out."""
    words = "a number of at least 0"
    return _setting(default, what, Rule(words, lambda v: _is_number(v) and v >= 0, float))


def above_zero(default: float | None, what: str):
    """A positive number; a default of None stands for "without"."""
    words = "a number above 0" if default is not None else "a number above 0, or None"
    return _setting(default, what, Rule(words, lambda v: _is_number(v) and v > 0, float))


def switch(default: bool, what: str):
    """True or False."""
    return _setting(default, what, Rule("True or False", lambda v: type(v) is bool, bool))


def choice(default: str, registry: Collection[str], what: str):
    """One of the names in a registry (or tuple) of choices."""
    return _setting(
        default, what, Rule("one of", lambda v: type(v) is str and v in registry, str, registry)
    )


def choices(default: str, registry: Collection[str], what: str):
    """Names in a registry of choices, one or several with commas between them."""
    rule = Rule(
        "one or several, with commas between them, of",
        lambda v: type(v) is str and all(name in registry for name in v.split(",")),
        str,
        registry,
        several=True,
    )
    return _setting(default, what, rule)


def special_id(default: int | None, what: str):
    """An id with a meaning of its own; None where there is none."""
    words = "an integer of at least 0, or None"
    return _setting(default, what, Rule(words, lambda v: v is None or _is_id(v), int))


def ids(default: str, what: str):
    """Ids with commas between them, "" for none."""
    words = 'integers of at least 0 with commas between them, or ""'
    return _setting(default, what, Rule(words, _are_ids, str))


def sizes(default: Any, what: str):
    """A whole number of at least 1, or several with commas between them, in turn by layer."""
    words = "an integer of at least 1, or several with commas between them"
    return _setting(default, what, Rule(words, _are_sizes, _size_or_text))


def only_with(setting: Any, **owners: Collection[str]) -> Any:
    """The same setting, which belongs to choices: without one of these names it does nothing."""
    setting.metadata = {**setting.metadata, "only_with": owners}
    return setting


def unflagged(setting: Any) -> Any:
    """The same setting without a flag: only weights that others trained ask for it."""
    setting.metadata = {**setting.metadata, "flag": False}
    return setting


def _is_id(value) -> bool:
    return type(value) is int and value >= 0


def _are_ids(value) -> bool:
    return type(value) is str and (not value or all(n.isdecimal() for n in value.split(",")))


def _is_size(value) -> bool:
    return type(value) is int and value >= 1


def _are_sizes(value) -> bool:
    return _is_size(value) or (
        type(value) is str and all(n.isdecimal() and int(n) >= 1 for n in value.split(","))
    )


def _size_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


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
        for setting in fields(self):
            self._require_owner(setting)

    def owners(self, setting: Field) -> Mapping[str, Collection[str]]:
        """The choices that a setting belongs to: for another field, the names that it has then."""
        return setting.metadata.get("only_with", {})

    def _require_owner(self, setting: Field) -> None:
        """Raise InputError for a setting that does nothing, since its owner is not chosen."""
        value = getattr(self, setting.name)
        for owner, names in self.owners(setting).items():
            chosen = getattr(self, owner)
            if value != setting.default and not {*names} & {*str(chosen).split(",")}:
                raise InputError(
                    f"{setting.name} belongs to {owner} {' or '.join(sorted(names))}",
                    f"{setting.name} {value!r} with {owner} {chosen}",
                    f"Leave {setting.name} out, or change {owner}.",
                )


def classes_of(*registries: Mapping[str, Any]) -> list[type[Settings]]:
    """The classes of settings that entries of registries have, without those that others extend."""
    entries = [entry for registry in registries for entry in registry.values()]
    kinds = [*dict.fromkeys(getattr(entry, "Settings", Settings) for entry in entries)]
    extended = {base for kind in kinds for base in kind.__mro__[1:]}
    return [kind for kind in kinds if kind not in extended and kind is not Settings]
