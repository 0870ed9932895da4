"""The options of a program: its settings from all sources, merged, checked and ready to save."""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from numformer.errors import InputError
from numformer.optimization.optimizers import ineffective_settings, owners
from numformer.runs.files import write_atomically
from toy_tasks.command_line import conflicts, run_folders
from toy_tasks.command_line.parser import Parser
from toy_tasks.command_line.sources import (
    NOT_SAVED,
    Source,
    config_file,
    latest_run,
    merge,
    resumed_run,
    start_run,
)

# Options that a resumed run may change. None of them changes what a step of training computes, if a
# moved `data` folder has the same data, and if the schedule allows other `steps`: `train` checks
# both.
FREE_TO_CHANGE = {"log_every", "evaluate_every", "no_plots", "data", "length", "temperature"}
FREE_TO_CHANGE |= {"steps", "minutes", "patience", "parallel", "timeout", "log_to"}
BEAM_SETTINGS = "beam", "length_penalty", "penalty"


class QuietOutput(io.TextIOBase):
    """Standard output with --quiet: it ignores all text. `finish` prints to `result_stream`."""

    def __init__(self, result_stream):
        self.result_stream = result_stream

    def write(self, text: str) -> int:
        return len(text)


def parse_options(
    parser: Parser,
    name: Callable[[argparse.Namespace], str],
    arguments: list[str] | None,
    free: Collection[str] = FREE_TO_CHANGE,
) -> argparse.Namespace:
    """The options of a program: each setting from the first source that has it.

    The sources are, in this order: the command line, the file of --config, the run of --start, the
    --preset, the task's defaults. With --resume, the settings of the resumed run come right after
    the command line, which may change only settings that are `free`; `options.out` is the run's
    folder. The result also has `options.name`, the name of a new run's folder from `name(options)`;
    `options.explicit`, the names of the settings on the command line; and `options.program`. With
    --save-settings, this writes the settings to that file and ends the program. With --quiet, a
    QuietOutput replaces standard output until `exit_code` restores it.
    """
    explicit = parser.read(sys.argv[1:] if arguments is None else arguments)
    sources, defaults = (
        [Source("the command line", explicit)],
        [Source("defaults", parser.defaults())],
    )

    def value(setting: str):
        return merge([*sources, *defaults]).get(setting)

    if value("config") and value("resume"):
        rule, fix = "--config is for a new run", "Leave out --config: a run keeps its settings."
        raise InputError(rule, "--resume, too", fix)
    if value("config") and not value("run"):
        sources.append(config_file(parser, value("config"), explicit))
    run_config: object = {}
    if value("start") and not (value("run") or value("resume")):
        source, run_config = start_run(parser, value("start"), merge(sources))
        sources.append(source)
    if preset := value("preset"):
        defaults.insert(0, Source(f"--preset {preset}", parser.presets[preset]))
    options = argparse.Namespace(**merge([*sources, *defaults]), explicit={*explicit})
    conflicts.require_answering(parser, options)
    conflicts.require_one_length(merge(sources))
    conflicts.require_one_rate(options, merge(defaults)["factor"])
    if options.resume:
        changes = merge(sources)
        folder = options.out or latest_run(parser, changes, options.quick)
        run = resumed_run(parser, folder)
        _require_unchanged(parser, changes, run, free)
        run_config = run_folders.read_config(folder).get("config")
        options = argparse.Namespace(**merge([*sources, run, *defaults]), explicit={*explicit})
        options.out = folder
    options.run_config = run_config if isinstance(run_config, dict) else {}
    options.name = name(options) + "-quick" * options.quick
    options.program = parser.prog
    _reset_unused(parser, options, sources)
    conflicts.require_counts(parser, options)
    if options.quick and not options.resume and "steps" not in options.explicit:
        options.steps = min(options.steps, 20)
    if options.save_settings:
        _write_settings(options)
        print(f"settings: {options.save_settings}")
        parser.exit()
    if not options.run and not hasattr(options, "seeds"):  # a study checks each of its rows
        conflicts.require_settings(options, parser.model)
    if options.out and options.out.is_dir() and not options.resume:
        run_folders.require_empty(options.out)
    if options.quiet:
        sys.stdout = QuietOutput(sys.stdout)
    return options


def name_with_data(task: str, options: argparse.Namespace) -> str:
    """The name of a run's folder: the task, and its demo or its first data file, if any."""
    files = options.data if isinstance(options.data, list) else [options.data or ""]
    return f"{task}-{getattr(options, 'demo', None) or Path(files[0]).stem}".rstrip("-")


def beam_settings(options: argparse.Namespace) -> dict:
    """The settings of beam search."""
    return {name: getattr(options, name) for name in BEAM_SETTINGS}


def saved_options(options: argparse.Namespace) -> dict:
    """The options of a run as its config.json has them: paths are strings."""
    saved = {name: value for name, value in vars(options).items() if name not in NOT_SAVED}
    return json.loads(json.dumps(saved, default=str))


def _write_settings(options: argparse.Namespace) -> None:
    """Write the file of --save-settings: the settings of a run's config.json, as TOML."""
    path, saved = options.save_settings, saved_options(options)
    if options.resume or os.path.lexists(path) or path.suffix != ".toml":
        rule, received = "--save-settings writes the settings of a new run to a new FILE.toml", path
        raise InputError(rule, "--resume" if options.resume else received, "Change that.")
    if getattr(options, "epochs", None):  # the epochs determine the steps
        saved = saved | {"epochs": options.epochs, "steps": None}
    if data := saved.get("data"):
        paths = [_travelling(file, path) for file in ([data] if isinstance(data, str) else data)]
        saved["data"] = paths if isinstance(data, list) else paths[0]
    # TOML writes strings, numbers, booleans and lists as JSON does.
    lines = [
        f"{name.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in saved.items()
        if value is not None
    ]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(["[options]\n", *lines]).encode(errors="backslashreplace"))


def _travelling(data: str, settings: str | Path) -> str:
    """Relative to the file of settings, if the data are beside or below it; else absolute."""
    data, folder = os.path.abspath(data), Path(os.path.abspath(settings)).parent
    return str(Path(data).relative_to(folder)) if Path(data).is_relative_to(folder) else data


def _require_unchanged(
    parser: Parser, changes: dict[str, object], run: Source, free: Collection[str]
) -> None:
    """Raise InputError if `changes` change a setting of the run, unless the setting is `free`."""
    for name, value in run.settings.items():
        if name not in free and changes.get(name, value) != value:
            raise InputError(
                f"a resumed run keeps its settings, here {name} = {value}",
                changes[name],
                f"Leave out {parser.flag(name)}, or start a new run.",
            )


def _reset_unused(parser: Parser, options: argparse.Namespace, sources: Sequence[Source]) -> None:
    """Reset to its default each setting that the optimizer does not use.

    A task may have set it for its default optimizer. Raises InputError if one of `sources` sets
    such a setting.
    """
    for name, default in ineffective_settings(vars(options)).items():
        for source in sources:
            if name in source.settings:
                raise InputError(
                    f"{parser.flag(name)} is for --optimizer {', '.join(owners(name))}",
                    f"--optimizer {options.optimizer}, and {parser.flag(name)} from {source.name}",
                    "Choose such an optimizer, or leave out the flag.",
                )
        setattr(options, name, default)
