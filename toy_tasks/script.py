"""What every script does: flags, run folders, errors without tracebacks, exit codes."""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path

from numformer.backend import (
    BACKENDS,
    default_backend,
    find_backend,
    memory,
    reuse_freed_memory,
    seed_sequence,
)
from numformer.errors import BrokenNumbers, InputError, complain
from numformer.models import Model
from numformer.plots import loss_curve
from numformer.settings import Settings
from numformer.training.checkpoints import require_numbers
from numformer.training.files import PARTIAL, locked, write_atomically
from numformer.training.loop import Interrupted, Schedule, Task, train
from numformer.training.optimizers import OPTIMIZERS, vectors_of
from numformer.training.parts import usual_parts
from numformer.training.recipe import Recipe
from numformer.training.run_folder import read_metrics

# What a resumed run may do otherwise than before: nothing of it decides what is computed, as long
# as a moved `data` folder holds the same data (train compares what describes it).
FREE_TO_CHANGE = {"log_every", "evaluate_every", "no_plots", "data", "length"}
MOST_PARTS = 128  # each may be a process


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The description as it is written, and the default of every flag that has one."""

    def _get_help_string(self, action):
        shown = action.default is not None and action.default is not False
        return super()._get_help_string(action) if shown else action.help


def integer(text: str) -> int:
    """A flag's integer, small enough that the arithmetic of floating-point numbers can take it."""
    try:
        number = int(text)
    except ValueError:  # also where there are thousands of digits
        number = sys.maxsize
    if abs(number) >= sys.maxsize:
        raise argparse.ArgumentTypeError(f"an integer below {sys.maxsize}, not {text!r}")
    return number


def path(text: str) -> Path:
    """A flag's path."""
    if "\0" in text:
        raise argparse.ArgumentTypeError("no path has a NUL")
    return Path(text)


def parser(name: str, description: str, model: type[Model], **defaults) -> argparse.ArgumentParser:
    """The flags that every script has, and those of a kind of model and of the recipe.

    `defaults` replaces their defaults.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m toy_tasks.{name}",
        description=description,
        formatter_class=_Help,
        epilog="exit codes: 0 reached the target, 1 missed it, 2 wrong usage or input, "
        "3 the numbers broke, 130 stopped by Ctrl-C or SIGTERM after saving",
    )
    add = made.add_argument
    add("--steps", type=integer, default=1000, help="training steps")
    add("--batch-size", type=integer, default=64, help="sequences in a batch")
    add("--seed", type=integer, default=1, help="for initial weights, data order and dropout")
    add("--log-every", type=integer, default=50, help="steps between two lines of metrics.jsonl")
    add("--evaluate-every", type=integer, default=250, help="steps between two evaluations")
    add("--backend", choices=BACKENDS, default=default_backend(), help="where to compute")
    add("--parts", type=integer, help="parts of a batch, each computed by a process of its own "
        "where there are cores; 2 with numpy on Linux, otherwise 1, unless given")  # fmt: skip
    add("--out", type=path, help="run folder; default: the next free one under runs/")
    add("--resume", action="store_true", help="continue the run in --out, or the latest run")
    add("--quick", action="store_true", help="a few steps, to see that all works; judges nothing")
    add("--no-plots", action="store_true", help="draw no pictures")
    for title, settings in (("model", model.Config), ("training", Recipe)):
        group = made.add_argument_group(f"{title} ({settings.__module__}.{settings.__name__})")
        for field in _flags(settings):
            _add_flag(group, field)
    made.set_defaults(**defaults)
    return made


def _flags(settings: type[Settings]) -> list[Field]:
    """The fields that a user chooses; those without a default belong to the task."""
    return [field for field in fields(settings) if field.default is not MISSING]


def _add_flag(group, field: Field) -> None:
    rule, name = field.metadata["rule"], f"--{field.name.replace('_', '-')}"
    settings = dict(default=field.default, help=field.metadata["help"])
    if rule.type is bool:
        group.add_argument(name, action=argparse.BooleanOptionalAction, **settings)
    else:
        type_ = integer if rule.type is int else rule.type
        group.add_argument(name, type=type_, choices=rule.choices, **settings)


def chosen(options: argparse.Namespace, settings: type[Settings], **of_task) -> Settings:
    """The config or the recipe that the flags describe; `of_task` are its other fields."""
    by_flags = {field.name: getattr(options, field.name) for field in _flags(settings)}
    return settings(**by_flags, **of_task)


def parse(made: argparse.ArgumentParser, name: str, arguments: list[str] | None):
    """The options; with --resume those that the run was started with, its folder as `out`.

    `name` is that of the run's folder, in which {flag} stands for the value of a flag.
    """
    options = made.parse_args(arguments)
    if options.resume:
        folder = options.out or _latest_folder(name.format(**vars(options)))
        kept = _saved_options(made, folder)
        options = made.parse_args(arguments)
        for key in kept:
            if key not in FREE_TO_CHANGE and getattr(options, key) != kept[key]:
                raise InputError(
                    f"a resumed run keeps its settings, here {key} = {kept[key]}",
                    getattr(options, key),
                    f"Leave out --{key.replace('_', '-')}, or start a new run.",
                )
        options.out = folder
    if options.seed < 0:
        raise InputError("a seed is at least 0", options.seed, "Change --seed.")
    if options.batch_size < 1:
        raise InputError("a batch size is at least 1", options.batch_size, "Change --batch-size.")
    most = min(options.batch_size, MOST_PARTS)
    if options.parts is not None and not 1 <= options.parts <= most:
        raise InputError(
            f"--parts is from 1 to the batch size and at most {MOST_PARTS}, here {most}",
            options.parts,
            "Change --parts.",
        )
    if options.quick:
        options.steps = min(options.steps, 20)
    return options


def _saved_options(made: argparse.ArgumentParser, folder: Path) -> dict:
    """The options of a run's config.json, which become the defaults of `made`."""
    try:
        if not (folder / "config.json").is_file():
            raise ValueError("it holds no such file")
        settings = json.loads((folder / "config.json").read_text())
        if settings.pop("crc32") != _checksum(settings):
            raise ValueError("its checksum says that config.json was changed")
        saved = {key: value for key, value in settings["options"].items() if key != "backend"}
        for key, value in saved.items():
            if not _fits(value, made.get_default(key)):
                raise ValueError(f"no run has {key} {value!r}")
        # As text, numbers go through the same reading as on a command line.
        made.set_defaults(**{k: str(v) if type(v) in (int, float) else v for k, v in saved.items()})
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                options = made.parse_args([])
            except SystemExit:
                raise ValueError(said.getvalue().splitlines()[-1]) from None
        return {key: getattr(options, key) for key in saved}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise InputError(
            "--resume continues a run folder with its config.json as it was written",
            f"{folder} ({problem})",
            "Name the folder with --out, or start a new run without --resume.",
        ) from None


def _fits(value, default) -> bool:
    """Whether config.json can hold this value of a flag with this default."""
    if bool in (type(value), type(default)):
        return type(value) is type(default)
    return type(value) in (int, float, str) or value == default


def _checksum(settings: dict) -> int:
    return zlib.crc32(json.dumps(settings).encode())


def _new_folder(name: str, out: Path | None) -> Path:
    number = 1
    while True:
        folder = out or Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as problem:
            if out and out.is_dir():
                return out
            if out and os.path.lexists(out):
                raise _occupied(out) from None
            if not os.path.lexists(folder):
                raise InputError(
                    "a run folder can be made and written",
                    f"{folder} ({problem.strerror})",
                    "Choose another folder with --out.",
                ) from None
            number += 1


def _occupied(out: Path) -> InputError:
    return InputError(
        "--out names a folder that is new or empty",
        out,
        "Choose another folder, or continue the run in it with --resume.",
    )


def _latest_folder(name: str) -> Path:
    found = {}
    for folder in Path("runs").glob("*"):
        number = re.fullmatch(re.escape(name) + r"(?:-(\d+))?", folder.name)
        if number and (folder / "config.json").is_file():
            found[int(number[1] or 1)] = folder
    if not found:
        raise InputError(
            "--resume continues an earlier run",
            f"no run of {name} under runs/",
            "Start one without --resume, or name its folder with --out.",
        )
    return found[max(found)]


def train_task(
    name: str, task: Task, kind: type[Model], config: Settings, options: argparse.Namespace
) -> tuple[Model, Path]:
    """Train a kind of model as the options say -> the best one, its run folder.

    `name` is that of the folder, as `parse` says.

    The folder gets config.json, the checkpoints and, unless told otherwise, loss.png.
    """
    xp = find_backend(options.backend)
    recipe = chosen(options, Recipe)
    _require_length(config, task)
    options.parts = options.parts or min(usual_parts(xp), options.batch_size)
    schedule = Schedule(options.steps, options.log_every, options.evaluate_every)
    kept = len(vectors_of(OPTIMIZERS[recipe.optimizer]))
    _require_memory(config, options, kept, memory(xp))
    last = options.resume and options.out / "last.safetensors"
    if last and last.is_file():
        # Weights and the optimizer's vectors, in float32.
        require_numbers(last, last.stat().st_size // (4 + 4 * kept), config)
    model = kind(config, seed_sequence(options.seed, "weights"))
    # Only now, when nothing that was asked for is wrong, does a new run leave a trace.
    name = name.format(**vars(options))
    folder = options.out if options.resume else _new_folder(name, options.out)
    with locked(folder):
        if not options.resume:
            described = {"config": asdict(config), "recipe": asdict(recipe)}
            _start(folder, {"options": _plain(vars(options)), "model": kind.kind()} | described)
        print(f"{folder}: {model.parameter_counts()['total']:,} parameters, {options.steps} steps")
        how = dict(seed=options.seed, xp=xp, resume=options.resume, parts=options.parts)
        best = train(model, task, folder, schedule, recipe, **how)
        print(f"best at step {best['step']}: {task.metric} {best[task.metric]:.4f}")
        if not options.no_plots:
            metrics = read_metrics(folder / "metrics.jsonl")
            loss_curve(folder / "loss.png", metrics, task.metric, title=name)
    return model, folder


def _require_length(config: Settings, task: Task) -> None:
    if config.longest is not None and config.longest < task.longest:
        raise InputError(
            f"learned positions reach to max_length = {config.longest}",
            f"a task that needs {task.longest}",
            "Raise --max-length, or use --positions sinusoidal.",
        )


def _require_memory(config: Settings, options: argparse.Namespace, kept: int, held: int) -> None:
    """Raise InputError where `held` bytes cannot hold the least that is needed.

    That is for each parameter its weight, its gradient and the `kept` numbers of the optimizer; for
    each layer its objects; and for each sequence of a part of a batch, of at least two positions on
    both sides, what attention and the feed-forward network save.
    """
    needed = (8 + 4 * kept) * config.least_parameters + 10_000 * config.layers
    positions = 4 * options.batch_size // options.parts
    needed += 4 * positions * config.least_saved
    if needed > held:
        raise InputError(
            "the model and its batches fit into memory",
            f"sizes that need at least {needed >> 30:,} GiB of {held >> 30:,}",
            "Choose smaller sizes.",
        )


def _start(folder: Path, settings: dict) -> None:
    """Write config.json into a folder that is empty, but for a killed beginning of the same."""
    path = folder / "config.json"
    if any(found.name != path.name + PARTIAL for found in folder.iterdir()):
        raise _occupied(folder)
    settings["crc32"] = _checksum(settings)
    write_atomically(path, json.dumps(settings, indent=1).encode())


def _plain(options: dict) -> dict:
    """The options as JSON, without those that say where and whether to resume."""
    kept = {key: value for key, value in options.items() if key not in ("resume", "out")}
    return {key: str(value) if isinstance(value, Path) else value for key, value in kept.items()}


def exit_code(main: Callable[[], int]) -> int:
    """Run a script's main; what goes wrong is one line on standard error and an exit code.

    What the encoding of standard output lacks is printed as \\u and its number.
    """
    reuse_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return main()
    except InputError as problem:
        return _complain(problem, 2)
    except MemoryError as problem:
        rule, fix = "the model and its batches fit into memory", "Choose smaller sizes."
        return _complain(InputError(rule, problem or "no memory", fix), 2)
    except ChildProcessError as problem:
        fix = "Perhaps memory ran out: make room and go on with --resume, or begin with --parts 1."
        return _complain(InputError("a step needs all its processes", problem, fix), 2)
    except OSError as problem:
        rule, fix = (
            "files can be read and written",
            "Mend that; a run that had begun goes on with --resume.",
        )
        return _complain(InputError(rule, problem, fix), 2)
    except BrokenNumbers as problem:
        return _complain(problem, 3)
    except Interrupted as problem:
        print(problem, file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        return 130


def _complain(problem: Exception, code: int) -> int:
    complain(problem)
    return code
