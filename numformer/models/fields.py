"""Kinds of config fields beyond those of `settings`: several values, ids, fields without a flag.

A field of several values holds a tuple. In files and on command lines the values are one text with
commas, such as "window,attention". A config accepts this text, too; `saved_values` uses it.
"""

import ast
import contextlib
import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, asdict, fields
from typing import Any, TypeVar

from numformer.settings import Rule, is_size, setting

Kind = TypeVar("Kind")


def field_help(*last: type) -> Callable[[type[Kind]], type[Kind]]:
    """Decorate Settings: `help` explains each field. Fields of the classes `last` come last."""
    less = {field.name for kind in last for field in fields(kind)}

    def document(kind: Any) -> Any:
        ordered = sorted(fields(kind), key=lambda field: field.name in less)
        lines = [f"{field.name}: {_meaning(field.metadata)}" for field in ordered]
        kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__), "", *lines])
        signature = inspect.signature(kind.__init__)
        names = "self", *(field.name for field in ordered)
        parameters = [signature.parameters[name] for name in names]
        kind.__init__.__signature__ = signature.replace(parameters=parameters)
        return kind

    return document


def _meaning(metadata: Any) -> str:
    rule = metadata["rule"]
    choices = f" [{', '.join(rule.choices)}]" if rule.choices else ""
    return (metadata["help"] or rule.values) + choices


def choices(default: str, registry: Collection[str], what: str):
    """Declare a tuple of names of a registry; the layers use these entries in turn."""
    rule = Rule(
        "one or several, with commas between them, of",
        lambda v: type(v) is tuple and v != () and all(name in [*registry] for name in v),
        str,
        registry,
        several=True,
    )
    return _with(setting((default,), what, rule), parse=_split_names)


def ids(default: tuple[int, ...], what: str):
    """Declare a tuple of ids, which may be empty."""
    words = 'integers of at least 0 with commas between them, or ""'
    return _with(setting(default, what, Rule(words, _are_ids, str)), parse=_split)


def sizes(default: Any, what: str):
    """Declare an integer of at least 1, or a tuple of integers that the layers use in turn."""
    words = "an integer of at least 1, or several with commas between them"
    return _with(setting(default, what, Rule(words, _are_sizes, _integer)), parse=_one_or_several)


def frequencies(what: str):
    """Declare a tuple with a tuple of numbers for each layer; () for those of a base."""
    words = 'tuples of numbers, such as (1.0, 0.1),(1.0, 0.5), or ""'
    return _with(setting((), what, Rule(words, _are_frequencies, str)), parse=_tuples)


def maybe(what: str):
    """Declare a switch that another field sets if it is None."""
    return setting(None, what, Rule("True, False or None", lambda v: type(v) is bool, bool))


def special_id(default: int | None, what: str):
    """Declare the id of a special symbol; None if there is no such symbol."""
    words = "an integer of at least 0, or None"
    return setting(default, what, Rule(words, lambda v: v is None or _are_ids((v,)), int))


def config_of(model: Any):
    """Declare the Config of a model; its values may also be a dict."""
    rule = Rule(f"a {model.__name__}.Config", lambda v: isinstance(v, model.Config), str)
    parse = lambda v: model.Config(**v) if isinstance(v, dict) else v  # noqa: E731
    return _with(setting(MISSING, "", rule), parse=parse)


def only_with(setting: Any, **owners: Collection[str]) -> Any:
    """Mark a setting that has an effect only with some choices, such as mixers=["window"]."""
    return _with(setting, only_with=owners)


def without_flag(setting: Any) -> Any:
    """Mark a setting that has no flag: only published weights need a non-default value."""
    return _with(setting, flag=False)


def parse_value(field: Field, value: Any) -> Any:
    """Return the value of a field; if the field may have several values, text is split at commas.

    A value that breaks the rule is returned unchanged; the check of the config reports it.
    """
    if "parse" in field.metadata:
        result = field.metadata["parse"](value)
        return result if field.metadata["rule"].allows(result) else value
    return value


def saved_value(value: Any) -> Any:
    """Return the value of a field for files and flags: several values as text with commas."""
    return ",".join(map(str, value)) if type(value) is tuple else value


def saved_values(config: Any) -> dict[str, Any]:
    """Return the values of a config by name, for JSON."""
    return {name: saved_value(value) for name, value in asdict(config).items()}


def _with(setting: Any, **metadata: Any) -> Any:
    setting.metadata = {**setting.metadata, **metadata}
    return setting


def _split_names(value):
    """Text with commas, or a list -> a tuple; another value -> itself."""
    if isinstance(value, str):
        return tuple(value.split(",")) if value else ()
    return tuple(value) if isinstance(value, list) else value


def _split(value):
    """Like `_split_names`, but numbers in a text become integers."""
    names = _split_names(value)
    return tuple(map(_integer, names)) if isinstance(value, str) else names


def _one_or_several(value):
    """Like `_split`, but a tuple of one value becomes that value."""
    values = _split(value)
    return values[0] if isinstance(values, tuple) and len(values) == 1 else values


def _tuples(value):
    """Text with tuples, or lists -> tuples; another value -> itself."""
    with contextlib.suppress(ValueError, SyntaxError, TypeError):
        rows = ast.literal_eval(f"{value},") if isinstance(value, str) and value else value
        return tuple(map(tuple, rows)) if isinstance(value, list | str) else value
    return value


def _integer(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _are_frequencies(value) -> bool:
    return type(value) is tuple and all(
        type(layer) is tuple and all(type(n) is float and 0 <= n < math.inf for n in layer)
        for layer in value
    )


def _are_ids(value) -> bool:
    return type(value) is tuple and all(type(n) is int and n >= 0 for n in value)


def _are_sizes(value) -> bool:
    return is_size(value) or (type(value) is tuple and value != () and all(map(is_size, value)))
