"""Further kinds of settings: several choices in turn, ids, settings that belong to a choice."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache, partial
from typing import Any

from numformer.errors import InputError
from numformer.settings import Rule, Settings, is_size, setting


def choices(default: str, registry: Collection[str], what: str):
    """Names in a registry of choices, one or several with commas between them."""
    rule = Rule(
        "one or several, with commas between them, of",
        lambda v: type(v) is str and all(name in registry for name in v.split(",")),
        str,
        registry,
        several=True,
    )
    return setting(default, what, rule)


def special_id(default: int | None, what: str):
    """An id with a meaning of its own; None where there is none."""
    words = "an integer of at least 0, or None"
    return setting(default, what, Rule(words, lambda v: v is None or _is_id(v), int))


def ids(default: str, what: str):
    """Ids with commas between them, "" for none."""
    words = 'integers of at least 0 with commas between them, or ""'
    return setting(default, what, Rule(words, _are_ids, str))


def sizes(default: Any, what: str):
    """A whole number of at least 1, or several with commas between them, in turn by layer."""
    words = "an integer of at least 1, or several with commas between them"
    return setting(default, what, Rule(words, _are_sizes, _size_or_text))


def only_with(setting: Any, **owners: Collection[str]) -> Any:
    """The same setting, which belongs to choices: without one of these names it does nothing."""
    setting.metadata = {**setting.metadata, "only_with": owners}
    return setting


def unflagged(setting: Any) -> Any:
    """The same setting without a flag: only weights that others trained ask for it."""
    setting.metadata = {**setting.metadata, "flag": False}
    return setting


@dataclass(frozen=True)
class OwnedSettings(Settings):
    """Settings that may belong to choices; InputError for one whose owner is not chosen."""

    def __post_init__(self):
        super().__post_init__()
        for field in fields(self):
            self._require_owner(field)

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


def classes_of(entries: Iterable[Any]) -> list[type[Settings]]:
    """The classes of settings that entries of registries have, without those that others extend."""
    kinds = [*dict.fromkeys(getattr(entry, "Settings", Settings) for entry in entries)]
    bases = {base for kind in kinds for base in kind.__mro__[1:]}
    return [kind for kind in kinds if kind not in bases and kind is not Settings]


def own_settings(entry: Any) -> tuple[Field, ...]:
    """The fields that only some entries of a registry have, this one among them."""
    return fields(getattr(entry, "Settings", Settings))


def own_names(entry: Any) -> set[str]:
    """The names of these fields."""
    return {setting.name for setting in own_settings(entry)}


@cache
def extended(config: Any, own: tuple[type, ...]) -> Any:
    """The class of configs with the fields of further classes of settings, under the same name."""

    def by_name(self):  # as pickle asks for it
        values = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return partial(config, **values), ()

    names = dict(__module__=config.__module__, __qualname__=config.__qualname__)
    content = dict(names, extends=config, __reduce__=by_name)
    return dataclass(frozen=True, kw_only=True)(type(config.__name__, (config, *own), content))


def _is_id(value) -> bool:
    return type(value) is int and value >= 0


def _are_ids(value) -> bool:
    return type(value) is str and (not value or all(n.isdecimal() for n in value.split(",")))


def _are_sizes(value) -> bool:
    return is_size(value) or (
        type(value) is str and all(n.isdecimal() and int(n) >= 1 for n in value.split(","))
    )


def _size_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
