"""Where settings come from: the command line, a file, another run, a preset, a task's defaults."""

import json
import os
import tomllib
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from numformer.errors import InputError
from numformer.models.fields import saved_values
from numformer.published import is_published
from numformer.trained import model_of_run
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.parser import Parser
from toy_tasks.data.datasets import read_text

NOT_SAVED = {"resume", "out", "config", "run", "input", "input_file", "attention", "program"}
NOT_SAVED |= {"quiet", "epochs", "name", "top_k", "top_p", "count", "n_best", "explicit"}
NOT_SAVED |= {"save_settings", "ensemble", "source", "reference", "run_config", "tree"}
"""Options that say nothing about a run, only how its program was called."""
DATA_SETTINGS = "data", "demo", "language", "languages", "task"
EXCLUSIVE = ("epochs", "steps"), ("epochs", "quick"), ("rate", "factor"), ("data", "demo")
EXCLUSIVE += (("words", "subwords"),)
"""Pairs of settings that exclude each other."""
VOCABULARY_SETTINGS = {"words", "hole", "subwords", "vocabulary", "cased"}


@dataclass(frozen=True)
class Source:
    """A source of settings: its name in error messages, and its settings by name."""

    name: str
    settings: dict[str, object]


def merge(sources: Iterable[Source]) -> dict[str, object]:
    """All settings, each from the first source that has it."""
    return dict(ChainMap(*(source.settings for source in sources)))


def config_file(parser: Parser, path: Path, explicit: Mapping[str, object]) -> Source:
    """The flags in the file of --config: FILE.toml, or the config.json of a run or its folder.

    The command line's `explicit` settings replace the file's settings that they exclude. Raises
    InputError for an entry that is not a flag of this program, or a run with another --preset.
    """
    preset = explicit.get("preset")
    if path.is_dir():
        path /= "config.json"
    text = read_text(path, "Name a file of flags, FILE.toml, or a run's config.json.")
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        if "options" in values:
            values = values["options"]
            if preset and values.get("preset") != preset:
                raise ValueError(f"it holds all the flags of a run: leave out --preset {preset}")
            if isinstance(values, dict) and "row" in values:
                raise ValueError("it is of one model of a study: name the folder of the study")
        if path.suffix != ".json":
            values = {name: _beside(path, v) if name == "data" else v for name, v in values.items()}
        pairs = [pair for one, two in EXCLUSIVE for pair in ((one, two), (two, one))]
        excluded = {other for name, other in pairs if name in explicit}
        settings = parser.read_values(values).items()
        kept = {name: value for name, value in settings if name not in excluded}
        return Source(f"--config {path}", kept)
    except (ValueError, AttributeError, RecursionError) as problem:
        raise InputError(
            "a file of flags has their names and values, as in steps = 500",
            f"{path} ({problem.args[0]})",
            f"Change it; {parser.prog} --help lists the flags.",
        ) from None


def _beside(file: Path, data: object) -> object:
    """The path or paths `data` of a file of flags; relative ones start at the file's folder."""
    if isinstance(data, list):
        return [_beside(file, path) for path in data]
    return str(file.parent / data) if isinstance(data, str) else data


def start_run(parser: Parser, run: Path, settings: Mapping[str, object]) -> tuple[Source, dict]:
    """The sizes and vocabulary that --start takes from a run, and the config of its model.

    Raises InputError if `settings`, which are from other sources, change the vocabulary.
    """
    config = saved_values(model_of_run(run)[0].config)
    values = {name: value for name, value in config.items() if name in parser.earlier_defaults}
    has_options = not is_published(run) and (run / "config.json").exists()
    options = run_folders.read_config(run).get("options", {}) if has_options else {}
    for name in sorted(VOCABULARY_SETTINGS & options.keys()):
        if parser.action(name) is None:
            continue
        value = values[name] = options[name]
        other = settings.get(name, parser.get_default(name) if value is None else value)
        if other != value:
            flag = parser.flag(name)
            raise InputError(
                f"--start takes the vocabulary of a run, here with {flag} {value!r}",
                f"{flag} {other!r}",
                f"Leave out {flag}, or --start.",
            )
    return Source(f"--start {run}", parser.read_values(values)), config


def resumed_run(parser: Parser, folder: Path) -> Source:
    """The settings that the run in a folder was started with.

    Raises InputError for a folder without a run, for a run of another program, and for
    settings that no flags can set.
    """
    config = run_folders.read_config(folder)
    options, task = config.get("options"), run_folders.task_of(config)
    if task not in (None, parser.prog.rpartition(".")[2]):
        raise InputError(
            "a run is resumed by the script that began it",
            f"{folder}, a run of {task}",
            f"Use python -m toy_tasks.{task}, or name another folder with --out.",
        )
    try:
        values, defaults = parser.earlier_defaults | options, parser.defaults()
        names = defaults.keys() & values.keys() - NOT_SAVED - {"backend"}
        values = {name: values[name] for name in values if name in names}
        if type(values["steps"]) is int:  # an earlier --resume may have changed it
            values["steps"] = run_folders.last_state(folder).get("steps", values["steps"])
        nulls = {name: None for name, value in values.items() if value is None}
        for name in nulls:
            if defaults[name] is not None and parser.earlier_defaults.get(name, name) is not None:
                raise ValueError(f"{name} is null")
        return Source(f"the run {folder}", nulls | parser.read_values(values))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise run_folders.not_a_run(folder, problem.args[0]) from None


def latest_run(parser: Parser, settings: Mapping[str, object], quick: bool) -> Path:
    """The latest run of this task; if the settings name data, the latest run on those data."""
    data = {name: settings[name] for name in sorted(DATA_SETTINGS) if name in settings}
    task = parser.prog.rpartition(".")[2]
    for folder, saved in run_folders.runs_of(task).items():
        same = all(_paths(value) == _paths(saved.get(name)) for name, value in data.items())
        if same and saved.get("quick") == quick:
            return folder
    flags = [f"{parser.flag(name)} {' '.join(_texts(value))}" for name, value in data.items()]
    conditions = "".join(f" with {flag}" for flag in flags + ["--quick"] * quick)
    raise InputError(
        "--resume continues an earlier run",
        f"no run of {task}{conditions} under runs/",
        "Start one without --resume, or name its folder with --out"
        f"{'' if quick else ' (for a quick run, add --quick)'}.",
    )


def _paths(value) -> list[str]:
    """Absolute paths, so that two paths to one file are equal."""
    return [*map(os.path.abspath, _texts(value))]


def _texts(value) -> list[str]:
    return [*map(str, value)] if isinstance(value, list) else [str(value)]
