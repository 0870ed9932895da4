"""Flags from a file: --config FILE.toml, or the config.json of a run that is to be repeated."""

import argparse
import contextlib
import io
import json
import tomllib

from numformer.errors import InputError
from toy_tasks.command_line.flags import Parser
from toy_tasks.data.datasets import read_text


def from_file(made: Parser, options: argparse.Namespace) -> list[str]:
    """The flags of the file of --config as arguments.

    Raises InputError for what is none of this program's, and for a --preset beside all the flags of
    a run that had another one.
    """
    path, preset = options.config, getattr(options, "preset", None)
    if path.is_dir():
        path /= "config.json"
    text = read_text(path, "Name a file of flags, FILE.toml, or a run's config.json.")
    try:
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        if "options" in settings:
            settings = settings["options"]
            if preset and settings.get("preset") != preset:
                raise ValueError(f"all the flags of a run: leave out --preset {preset}")
        return as_arguments(made, settings)
    except (ValueError, AttributeError, RecursionError) as problem:
        raise InputError(
            "a file of flags has their names and values, as in steps = 500",
            f"{path} ({problem})",
            f"Change it; {made.prog} --help lists the flags.",
        ) from None


def as_arguments(made: Parser, settings: dict) -> list[str]:
    """Flags by name as arguments of a command line. Raises ValueError for what cannot be there."""
    arguments = []
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            for name, value in settings.items():
                arguments += _argument(made, name.replace("-", "_"), value)
            made.parse_args(arguments)
        except SystemExit:
            (line,) = said.getvalue().splitlines()
            raise ValueError(line.removeprefix("error: ").partition(" (")[0]) from None
    return arguments


def _argument(made: Parser, name: str, value) -> list[str]:
    action = made.action(name)
    if name in ("config", "help"):
        made.error(f"{name} stands on the command line alone")
    if action is None:
        made.error(f"unrecognized arguments: --{name.replace('_', '-')}")
    flag, *others = action.option_strings
    if action.nargs == 0:
        if type(value) is not bool:
            made.error(f"{name} is true or false, not {value!r}")
        off = others[-1:] if isinstance(action, argparse.BooleanOptionalAction) else []
        return [flag] if value else off
    if isinstance(value, dict):
        made.error(f"{name} is no flag: a file of flags has no tables")
    if value is None:  # as it is without the flag
        return []
    return [flag, *map(str, value)] if isinstance(value, list) else [f"{flag}={value}"]
