"""Further kinds of settings: of models that the paper does not have, or that others trained."""

from collections.abc import Collection
from typing import Any

from numformer.settings import Rule, setting


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


def unflagged(field: Any) -> Any:
    """The same setting without a flag: only weights that others trained ask for it."""
    field.metadata = {**field.metadata, "flag": False}
    return field


def _is_id(value) -> bool:
    return type(value) is int and value >= 0


def _are_ids(value) -> bool:
    return type(value) is str and (not value or all(n.isdecimal() for n in value.split(",")))
