"""Settings that belong to certain choices, as `window` belongs to mixers with a window."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache, partial
from typing import Any, ClassVar

from numformer.errors import InputError
from numformer.models.fields import parse_value
from numformer.settings import Settings


@dataclass(frozen=True)
class OwnedSettings(Settings):
    """Settings that may belong to a choice; raises InputError if one is set without its choice."""

    registries: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The registry of each field whose choices may have settings of their own."""

    def __new__(cls, *_, **values):
        """Make a config of this class, or of a subclass with the settings of the chosen entries.

        An entry that was registered after this class was defined may have settings, too.
        """
        entries: list[Any] = []
        for name, registry in cls.registries.items():
            field = cls.__dataclass_fields__[name]
            chosen = parse_value(field, values.get(name, field.default))
            chosen = chosen if isinstance(chosen, tuple) else (chosen,)
            for choice, entry in registry.items():
                if choice in chosen or own_names(entry) & values.keys():
                    entries.append(entry)
        own = [kind for kind in settings_classes(entries) if not issubclass(cls, kind)]
        kind: Any = cls
        if own:
            kind = class_with_settings(kind, (*own,))
        return super().__new__(kind, **values)

    def __setstate__(self, values: dict[str, Any]) -> None:
        """Accept pickles of the previous version, which hold several values as text with commas."""
        for field in fields(self):
            object.__setattr__(self, field.name, parse_value(field, values[field.name]))

    def __post_init__(self):
        for field in fields(self):
            if "parse" in field.metadata:
                object.__setattr__(self, field.name, parse_value(field, getattr(self, field.name)))
        super().__post_init__()
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                self._require_owner(field)

    def owners(self, setting: Field) -> Mapping[str, Collection[str]]:
        """Return, by config field, the names of the choices with which a setting has an effect."""
        for field, registry in self.registries.items():
            names = {name for name, entry in registry.items() if setting.name in own_names(entry)}
            if names:
                return {field: names}
        return setting.metadata.get("only_with", {})

    def _require_owner(self, setting: Field) -> None:
        """Raise InputError for a setting that has no effect, since its choice is not made."""
        value = getattr(self, setting.name)
        for owner, names in self.owners(setting).items():
            chosen = getattr(self, owner)
            chosen = [*map(str, chosen if isinstance(chosen, tuple) else [chosen])]
            if not {*names} & {*chosen}:
                raise InputError(
                    f"{setting.name} belongs to {owner} {' or '.join(sorted(names))}",
                    f"{setting.name} {value!r} with {owner} {','.join(chosen)}",
                    f"Leave {setting.name} out, or change {owner}.",
                )


def settings_classes(entries: Iterable[Any]) -> list[type[Settings]]:
    """Return the Settings classes of registry entries, without those that are bases of others."""
    kinds = [*dict.fromkeys(getattr(entry, "Settings", Settings) for entry in entries)]
    bases = {base for kind in kinds for base in kind.__mro__[1:]}
    return [kind for kind in kinds if kind not in bases]


def own_settings(entry: Any) -> tuple[Field, ...]:
    """Return the settings that belong to an entry of a registry."""
    return fields(getattr(entry, "Settings", Settings))


@cache
def own_names(entry: Any) -> frozenset[str]:
    """Return the names of the settings that belong to an entry of a registry."""
    return frozenset(setting.name for setting in own_settings(entry))


@cache
def class_with_settings(config: Any, own: tuple[type, ...]) -> Any:
    """Return a subclass of a config class, with its name, and with the fields of more Settings."""

    def reduce(self):  # for pickle, which cannot find this class by its name
        values = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return partial(config, **values), ()

    content = dict(__module__=config.__module__, __reduce__=reduce)
    return dataclass(frozen=True)(type(config.__name__, (config, *own), content))
