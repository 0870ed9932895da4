"""What the flags say: whether they fit together, and with --resume those of the run before."""

import argparse
import contextlib
import io
import math
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from numformer.errors import InputError
from numformer.optimization.optimizers import owners, without_effect
from toy_tasks.command_line import fine_tuning, run_folders, settings_files
from toy_tasks.command_line.flags import Parser

# Flags that say how a script is called and nothing of the run.
OF_THE_CALL = {"resume", "out", "config", "run", "input", "input_file", "attention", "program"}
OF_THE_CALL |= {"name", "temperature", "top_k", "top_p", "count", "n_best", "given"}
OF_THE_CALL |= {"ensemble", "source", "reference", "built", "tree"}
# What a resumed run may do otherwise than before. Nothing of it decides what is computed, as long
# as a moved `data` folder holds the same data and the schedule allows other `steps`, which train
# looks at.
FREE_TO_CHANGE = {"log_every", "evaluate_every", "no_plots", "data", "length"}
FREE_TO_CHANGE |= {"steps", "minutes", "patience", "parallel", "timeout"}
OF_DATA = {"data", "demo", "language", "languages", "task"}  # flags that say what is learned
MOST_PARTS = 128  # each may be a process
SEARCH = "beam", "length_penalty", "penalty"


def parse_options(
    made: Parser,
    name: Callable,
    arguments: list[str] | None,
    free: Collection[str] = FREE_TO_CHANGE,
) -> argparse.Namespace:
    """The options; with --resume those that the run was started with, its folder as `out`.

    `name(options)` is that of the folder that a run gets; it becomes `options.name`. A resumed run
    may change what is `free`. What is on the command line counts more than what is in the file of
    --config, this more than the sizes of the run of --start, and these more than a preset.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    given = {*made.given(arguments)}
    options, arguments = _read(made, arguments)
    options.given = given
    _require_use(made, options)
    _require_rate(made, options)
    options.name = name(options) + "-quick" * options.quick
    if options.resume:
        run_name, folder = options.name, options.out or _latest(made, options, arguments)
        kept = saved_options(made, folder)
        built = run_folders.read_config(folder).get("config")
        made.set_defaults(built=built if isinstance(built, dict) else {})
        options = made.parse_args(arguments)
        for key in kept:
            if key not in free and getattr(options, key) != kept[key]:
                raise InputError(
                    f"a resumed run keeps its settings, here {key} = {kept[key]}",
                    getattr(options, key),
                    f"Leave out {made.flag(key)}, or start a new run.",
                )
        options.out, options.name = folder, run_name
    _leave_out_what_has_no_effect(made, options, made.given(arguments))
    options.program = made.prog
    _require_counts(made, options)
    if options.quick and not options.resume:
        options.steps = min(options.steps, 20)
    return options


def _leave_out_what_has_no_effect(
    made: Parser, options: argparse.Namespace, given: Collection[str]
) -> None:
    """Set what the optimizer does not look at to its default: a task's own is for its optimizer.

    Raises InputError where it was asked for.
    """
    for name, default in without_effect(vars(options)).items():
        if name in given:
            rule = f"{made.flag(name)} is for --optimizer {', '.join(owners(name))}"
            fix = "Ask for such an optimizer, or leave it out."
            raise InputError(rule, f"--optimizer {options.optimizer}", fix)
        setattr(options, name, default)


def _read(made: Parser, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the arguments with those of the file of --config and the run of --start."""
    options, fixed = made.parse_args(arguments), {}
    if options.config and options.resume:
        rule, fix = "--config is for a new run", "Leave it out: a run keeps its settings."
        raise InputError(rule, "--resume, too", fix)
    if options.config and not options.run:
        arguments = [*settings_files.from_file(made, options), *arguments]
        options = made.parse_args(arguments)
    if options.start and not (options.run or options.resume):
        of_model, built, fixed = fine_tuning.flags_of(made, options.start)
        made.set_defaults(built=built)
        arguments = [*settings_files.as_arguments(made, of_model | fixed), *arguments]
    if preset := getattr(options, "preset", None):
        made.set_defaults(**made.presets[preset])
    options = made.parse_args(arguments)
    for key, value in fixed.items():
        if getattr(options, key) != value:
            raise InputError(
                f"--start takes the vocabulary of a run, here with {made.flag(key)} {value!r}",
                f"{made.flag(key)} {getattr(options, key)!r}",
                f"Leave out {made.flag(key)}, or --start.",
            )
    return options, arguments


def _latest(made: Parser, options: argparse.Namespace, arguments: list[str]) -> Path:
    """The latest run of this task, on the data that the command line names, if it names any."""
    given = made.given(arguments)
    asked = {key: given[key] for key in sorted(OF_DATA & given.keys())}
    task = made.prog.rpartition(".")[2]
    for folder, saved in run_folders.runs_of(task).items():
        same = all(_places(value) == _places(saved.get(key)) for key, value in asked.items())
        if same and saved.get("quick") == options.quick:
            return folder
    words = [f"{made.flag(key)} {' '.join(_listed(value))}" for key, value in asked.items()]
    of_which = "".join(f" with {flag}" for flag in words + ["--quick"] * options.quick)
    raise InputError(
        "--resume continues an earlier run",
        f"no run of {task}{of_which} under runs/",
        "Start one without --resume, or name its folder with --out.",
    )


def _places(value) -> list[str]:
    """Paths, each as the one that it is from any folder."""
    return [*map(os.path.abspath, _listed(value))]


def _listed(value) -> list[str]:
    return [*map(str, value)] if isinstance(value, list) else [str(value)]


def _require_counts(made: Parser, options: argparse.Namespace) -> None:
    """Raise InputError for seeds, sizes of batches and numbers of processes that cannot be."""
    several = hasattr(options, "seeds")
    seeds = options.seeds if several else [options.seed]
    if min(seeds) < 0:
        raise InputError("a seed is at least 0", min(seeds), f"Change --seed{'s' * several}.")
    if len({*seeds}) < len(seeds):
        raise InputError("every seed is another one", seeds, "Change --seeds.")
    if options.batch_size < 1:
        raise InputError(
            "a batch size is at least 1", options.batch_size, f"Change {made.flag('batch_size')}."
        )
    most = MOST_PARTS if several else min(options.batch_size, MOST_PARTS)
    flag, to = ("jobs", "") if several else ("parts", "the batch size and ")
    count = getattr(options, flag)
    if count is not None and not 1 <= count <= most:
        rule = f"--{flag} is from 1 to {to}at most {MOST_PARTS}, here {most}"
        raise InputError(rule, count, f"Change --{flag}.")


def _require_rate(made: Parser, options: argparse.Namespace) -> None:
    """Raise InputError for a highest rate that cannot be, or that is given in two ways."""
    if options.rate is not None and not (0 < options.rate < math.inf):
        raise InputError("--rate is a number above 0", options.rate, "For example --rate 0.001")
    if options.rate is not None and options.factor != made.get_default("factor"):
        rule, fix = "the highest rate is given by --rate or by --factor", "Leave out one of them."
        raise InputError(rule, "both", fix)


def _require_use(made: Parser, options: argparse.Namespace) -> None:
    """Raise InputError for flags of a trained model without one, of training with one."""
    of_use = {action.dest for action in made.use._group_actions}
    if not options.run:
        # What has a default is what is trained, too: the beam of a test, the length of an example.
        of_use = {name for name in of_use if made.get_default(name) is None}
        for name in sorted(options.given & of_use):
            fix = "Name the folder of a run, for example --run runs/reverse."
            raise InputError(f"{made.flag(name)} is for a trained model", "no --run", fix)
        return
    of_use |= made.writing | {"backend"}
    if "temperature" in made.writing:
        seed = "seeds" if hasattr(options, "seeds") else "seed"
        of_use.add(seed)
        temperature, cuts = options.temperature, {"top_k", "top_p"} & options.given
        drawn = bool(cuts) if temperature is None else temperature != 0
        for name in () if drawn else sorted({seed, "count", *cuts} & options.given):
            rule = f"{made.flag(name)} is for answers that are drawn at random"
            fix = f"Draw them, for example with --temperature 0.8; or leave out {made.flag(name)}."
            raise InputError(rule, "none that are", fix)
    for name in sorted(options.given - of_use):
        fix = "Leave that out; or leave out --run, to train."
        raise InputError("--run uses a model as it was trained", made.flag(name), fix)
    others = ("attention", "temperature", "top_k", "top_p") if "n_best" in options.given else ()
    for name in options.given.intersection(others):
        rule = f"--n-best goes without {made.flag(name)}"
        raise InputError(rule, "both", "Leave out one of them.")
    texts = [options.input_file] if getattr(options, "input_file", None) else options.input or []
    if options.attention and len(texts) != 1:
        raise InputError(
            "--attention draws where the model looks in one text",
            f"{len(texts)} with {made.flag('input')}",
            "Give it one text.",
        )


def beam_settings(options: argparse.Namespace) -> dict:
    """The settings of beam search that the flags say."""
    return {name: getattr(options, name) for name in SEARCH}


def plain(options: argparse.Namespace) -> dict:
    """The flags of a run as JSON."""
    kept = {key: value for key, value in vars(options).items() if key not in OF_THE_CALL}
    return {key: _plain(value) for key, value in kept.items()}


def _plain(value):
    if isinstance(value, list):
        return [*map(_plain, value)]
    return str(value) if isinstance(value, Path) else value


def saved_options(made: argparse.ArgumentParser, folder: Path) -> dict:
    """The flags that a run was started with, which become the defaults of `made`, a script's."""
    options = run_folders.read_config(folder).get("options")
    try:
        known = vars(made.parse_args([])).keys() - OF_THE_CALL - {"backend"}
        saved = {key: value for key, value in (made.before | options).items() if key in known}
        for key, value in saved.items():
            left_out = value is None and made.before.get(key, key) is None
            if not left_out and not _fits(value, made.get_default(key)):
                raise ValueError(f"no run has {key} {value!r}")
        if type(saved["steps"]) is int:  # there may be more by now
            saved["steps"] = run_folders.stands(folder).get("steps", saved["steps"])
        # As text, numbers go through the same reading as on a command line.
        made.set_defaults(**{k: str(v) if type(v) in (int, float) else v for k, v in saved.items()})
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                options = made.parse_args([])
            except SystemExit:
                raise ValueError(said.getvalue().splitlines()[-1]) from None
        return {key: getattr(options, key) for key in saved}
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise run_folders.no_run(folder, problem) from None


def _fits(value, default) -> bool:
    """Whether config.json can hold this value of a flag with this default."""
    if bool in (type(value), type(default)):
        return type(value) is type(default)
    if type(default) is list or (type(value) is list and value):
        kind = type(default[0]) if default else str
        lists = type(default) in (type(None), list) and type(value) is list and value != []
        return lists and all(type(item) is kind for item in value)
    return type(value) in (int, float, str) or value == default
