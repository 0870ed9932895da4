"""What every script does: flags, training, using what was trained, complaints, exit codes."""

import argparse
import contextlib
import difflib
import inspect
import io
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from types import MappingProxyType

from numformer.backend import (
    BACKENDS,
    default_backend,
    find_backend,
    memory,
    reuse_freed_memory,
    seed_sequence,
)
from numformer.errors import BrokenNumbers, InputError, complain
from numformer.layer import pack
from numformer.models import Model
from numformer.plots import PICTURES, loss_curve
from numformer.settings import Settings
from numformer.trained import Trained, load
from numformer.training.checkpoints import require_numbers
from numformer.training.files import locked, write_atomically
from numformer.training.loop import Interrupted, Schedule, Task, train
from numformer.training.optimizers import OPTIMIZERS, vectors_of
from numformer.training.parts import usual_parts
from numformer.training.recipe import Recipe
from numformer.training.run_folder import read_metrics
from toy_tasks import folders
from toy_tasks.folders import SAMPLING, TRANSLATING

# What a resumed run may do otherwise than before. Nothing of it decides what is computed, as long
# as a moved `data` folder holds the same data and the schedule allows other `steps`, which train
# looks at.
FREE_TO_CHANGE = {"log_every", "evaluate_every", "no_plots", "data", "length", "steps",
                  "minutes", "patience"}  # fmt: skip
MOST_PARTS = 128  # each may be a process
WITH_RUN = {"run", "input", "attention", "backend", "length", *SAMPLING, *TRANSLATING}


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


def picture(text: str) -> Path:
    """A flag's path of a picture."""
    if path(text).suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"a picture ends in {', '.join(PICTURES)}, not {text!r}")
    return path(text)


class Parser(argparse.ArgumentParser):
    """Complains in one line, with the flag that may have been meant.

    `before` has what a setting was before there was a flag for it, whatever its default in a task;
    `presets` are the defaults that a --preset brings, by its name.
    """

    before: dict[str, object]
    presets: Mapping[str, dict] = {}

    def flag(self, name: str) -> str:
        """What a flag is called, by the name of its option."""
        return next(each.option_strings[0] for each in self._actions if each.dest == name)

    def error(self, message: str):
        wrong = message.removeprefix("unrecognized arguments: ").split()[:1]
        known = [flag for action in self._actions for flag in action.option_strings]
        close = difflib.get_close_matches(*wrong, known, 1, 0.7) if wrong else []
        meant = f"; is {close[0]} meant?" if close and wrong[0] != message.split()[0] else ""
        complain(f"{message}{meant} ({self.prog} --help lists the flags)")
        sys.exit(2)


def parser(
    name: str,
    description: str,
    model: type[Model],
    asked_by: str = "--input",
    presets: Mapping[str, dict] | None = None,
    several: bool = False,
    by_tokens: bool = False,
    **defaults,
) -> Parser:
    """The flags that every script has, and those of a kind of model and of the recipe.

    `asked_by` is another name of --input; `defaults` replaces defaults, and so does each of
    `presets` where it is asked for. A script that trains `several` models (toy_tasks/study.py) has
    --seeds and --jobs in place of --seed and --parts. With `by_tokens` the size of a batch is
    --max-tokens, `options.batch_size` all the same.
    """
    made = Parser(
        prog=f"python -m toy_tasks.{name}",
        usage="%(prog)s [flags]",
        description=description,
        formatter_class=_Help,
        epilog="exit codes: 0 reached the target, 1 missed it, 2 wrong usage or input, "
        "3 the numbers broke, 130 stopped by Ctrl-C or SIGTERM after saving",
    )
    add = made.add_argument
    if presets:
        made.presets = presets
        add("--preset", choices=presets, help="other defaults of the flags below; a flag that is "
            "given counts all the same")  # fmt: skip
    add("--steps", type=integer, default=1000, help="training steps")
    if by_tokens:
        add("--max-tokens", type=integer, default=1024, dest="batch_size",
            metavar="MAX_TOKENS", help="tokens in a batch on each side, with padding")  # fmt: skip
    else:
        add("--batch-size", type=integer, default=64, help="sequences in a batch")
    if several:
        add("--seeds", type=integer, nargs="+", default=[1, 2, 3], metavar="SEED",
            help="each trains every way once: initial weights, data order and dropout")  # fmt: skip
        add("--jobs", type=integer, help="runs side by side, each a process of its own; one for "
            "each core (with cupy one), unless given")  # fmt: skip
    else:
        add("--seed", type=integer, default=1, help="for initial weights, data order and dropout")
        add("--parts", type=integer, help="parts of a batch, each computed by a process of its own "
            "where there are cores; 2 with numpy on Linux, otherwise 1, unless given")  # fmt: skip
    add("--log-every", type=integer, default=50, help="steps between two lines of metrics.jsonl")
    add("--evaluate-every", type=integer, default=250, help="steps between two evaluations")
    add("--minutes", type=float, metavar="M", help="end after so long, what came before --resume "
        "included: evaluate and save")  # fmt: skip
    add("--patience", type=integer, metavar="N", help="end where N evaluations in turn brought "
        "nothing better")  # fmt: skip
    add("--backend", choices=BACKENDS, default=default_backend(), help="where to compute")
    add("--out", type=path, help="run folder; default: the next free one under runs/")
    add("--resume", action="store_true", help="continue the run in --out, or the latest run")
    add("--quick", action="store_true", help="a few steps, to see that all works; judges nothing")
    add("--no-plots", action="store_true", help="draw no pictures")
    use = made.add_argument_group("using a trained model instead of training one")
    use.add_argument("--run", type=path, metavar="DIR", help="the folder of a finished run")
    use.add_argument(*dict.fromkeys(["--input", asked_by]), dest="input", nargs="+", metavar="TEXT",
        help="texts for the model; without, the lines of standard input")  # fmt: skip
    use.add_argument("--attention", type=picture, metavar="FILE.png",
        help="draw where each layer and head looks as the model answers --input")  # fmt: skip
    use.add_argument("--temperature", type=float, metavar="T", help="draw symbols at random: 1 as "
        "probable as they are, less bolder, more wilder; --seed reproduces")  # fmt: skip
    use.add_argument("--top-k", type=integer, metavar="K", help="of the K most probable symbols")
    use.add_argument("--top-p", type=float, metavar="P",
        help="of the fewest symbols that together have this probability")  # fmt: skip
    made.before = {}
    for title, settings in (("model", model.Config), ("training", Recipe)):
        group = made.add_argument_group(f"{title} ({settings.__module__}.{settings.__name__})")
        for field in _flags(settings):
            _add_flag(group, field)
        made.before |= {field.name: field.default for field in _flags(settings)}
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


def parse(
    made: Parser,
    name: Callable,
    arguments: list[str] | None,
    free: Collection[str] = FREE_TO_CHANGE,
) -> argparse.Namespace:
    """The options; with --resume those that the run was started with, its folder as `out`.

    `name(options)` is that of the folder that a run gets; it becomes `options.name`. A resumed run
    may change what is `free`.
    """
    options = made.parse_args(arguments)
    if getattr(options, "preset", None):
        made.set_defaults(**made.presets[options.preset])
        options = made.parse_args(arguments)
    _require_use(made, options)
    options.name = name(options) + "-quick" * options.quick
    if options.resume:
        its_name, folder = options.name, options.out or folders.latest_folder(options.name)
        kept = folders.saved_options(made, folder)
        options = made.parse_args(arguments)
        for key in kept:
            if key not in free and getattr(options, key) != kept[key]:
                raise InputError(
                    f"a resumed run keeps its settings, here {key} = {kept[key]}",
                    getattr(options, key),
                    f"Leave out {made.flag(key)}, or start a new run.",
                )
        options.out, options.name = folder, its_name
    elif "weight_decay" not in inspect.signature(
        OPTIMIZERS[options.optimizer]
    ).parameters and options.weight_decay != made.get_default("weight_decay"):
        rule, fix = "--weight-decay is for --optimizer adamw", "Ask for that, or leave it out."
        raise InputError(rule, f"--optimizer {options.optimizer}", fix)
    options.program = made.prog
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
    if options.quick and not options.resume:
        options.steps = min(options.steps, 20)
    return options


def _require_use(made: Parser, options: argparse.Namespace) -> None:
    sampled = any(getattr(options, name) is not None for name in SAMPLING)
    free = WITH_RUN | ({"seed", "seeds"} if sampled else set())
    for key, value in vars(options).items() if options.run else ():
        if key not in free and value != made.get_default(key):
            sampling = ", or sample with --temperature, --top-k or --top-p" * key.startswith("seed")
            raise InputError(
                "--run uses a model as it was trained",
                made.flag(key),
                f"Leave that out{sampling}; or leave out --run, to train.",
            )
    if not options.run and (options.input or options.attention or sampled):
        raise InputError(
            "--input, --attention, --temperature, --top-k and --top-p are for a trained model",
            "no --run",
            "Name the folder of a run, for example --run runs/reverse.",
        )
    if options.attention and len(options.input or []) != 1:
        raise InputError(
            "--attention draws where the model looks in one text",
            f"{len(options.input or [])} with --input",
            "Give --input one text.",
        )


def use(options: argparse.Namespace, trained: Trained | None = None, **how) -> int:
    """Answer --input, or the lines of standard input, with the model of --run; the exit code.

    `trained` is what was loaded already, `how` what the model's Text is to know about writing.
    """
    trained = trained or load(options.run)
    task = (trained.metadata.get("task") or {}).get("name")
    if task and not options.program.endswith(f".{task}"):
        note(f"{options.run} is a run of {task}")
    known = inspect.signature(trained.text.write).parameters
    how = {name: value for name, value in how.items() if name in known}
    if sampling := {name: v for name in SAMPLING if (v := getattr(options, name)) is not None}:
        seed = options.seeds[0] if hasattr(options, "seeds") else options.seed
        how |= sampling | {"seed": seed}
    pack(trained.model, xp=find_backend(options.backend))
    attention = trained.attention(options.input[0]) if options.attention else None
    with while_read():
        for texts in [options.input] if options.input else _lines():
            filled = [text for text in texts if text.strip()] if not options.input else texts
            answers = iter(trained.write(filled, say=note, **how))
            if sampling:
                how["seed"] += len(filled)  # the next texts get other random numbers
            for text in texts:  # an empty line is answered by one, so that lines stay side by side
                print(next(answers) if text.strip() or options.input else "", flush=True)
    if attention:
        attention.draw(options.attention)
    return 0


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """What is printed here ends where who read it has gone, `| head` for example."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    print("note:", text, file=sys.stderr)


def _lines() -> Iterator[list[str]]:
    """The lines of standard input: one at a time from a keyboard, otherwise many."""
    keyboard = sys.stdin.isatty()
    if keyboard:
        note("type a text and Enter; Ctrl-D ends")
    while lines := [*itertools.islice(sys.stdin, 1 if keyboard else 1000)]:
        yield [line.rstrip("\r\n") for line in lines]


def train_task(
    task: Task,
    kind: type[Model],
    config: Settings,
    options: argparse.Namespace,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> tuple[Model, Path]:
    """Train a kind of model as the options say -> the best one, its run folder.

    The folder gets config.json, the task's `files` by their names, the checkpoints and, unless told
    otherwise, loss.png.
    """
    xp = find_backend(options.backend)
    options.parts = options.parts or min(usual_parts(xp), options.batch_size)
    recipe, schedule, kept = require(task, config, options, xp)
    last = options.resume and options.out / "last.safetensors"
    if last and last.is_file():
        # Weights and the optimizer's vectors, in float32.
        require_numbers(last, last.stat().st_size // (4 + 4 * kept), config)
    model = kind(config, seed_sequence(options.seed, "weights"))
    # Only now, when nothing that was asked for is wrong, does a new run leave a trace.
    folder = options.out if options.resume else folders.new_folder(options.name, options.out)
    with locked(folder):
        settings = {"options": folders.plain(options), "model": kind.kind()}
        settings |= {"task": task.description().get("name"), "metric": task.metric}
        settings |= {"config": asdict(config), "recipe": asdict(recipe)}
        if options.resume:
            if "study" in folders.read_config(folder):
                raise InputError(
                    "a run is resumed in its own folder",
                    f"{folder}, that of a study",
                    "Resume the study itself, or name another folder with --out.",
                )
            if (its := folders.read_config(folder).get("task")) not in (None, settings["task"]):
                raise InputError(
                    "a run is resumed by the script that began it",
                    f"{folder}, a run of {its}",
                    f"Use python -m toy_tasks.{its}, or name another folder with --out.",
                )
            print(_where_it_stands(folder, options.steps))
        else:
            folders.begin(folder, settings)
        for name, content in files.items():
            if not (folder / name).exists():
                write_atomically(folder / name, content)
        print(f"{folder}: {model.parameter_counts()['total']:,} parameters, {options.steps} steps")
        how = dict(seed=options.seed, xp=xp, resume=options.resume, parts=options.parts)
        try:
            best = train(model, task, folder, schedule, recipe, **how)
        except Interrupted as stopped:
            again = f"{options.program} --resume --out {shlex.quote(str(folder))}"
            raise Interrupted(f"{stopped}; go on with: {again}") from None
        if options.resume and folders.read_config(folder)["options"]["steps"] != options.steps:
            folders.write_config(folder, settings)
        print(f"kept at step {best['step']}: {task.metric} {best[task.metric]:.4f}")
        if not options.no_plots:
            metrics = read_metrics(folder / "metrics.jsonl")
            loss_curve(folder / "loss.png", metrics, task.metric, folder.name)
    return model, folder


def _where_it_stands(folder: Path, steps: int) -> str:
    taken = folders.stands(folder).get("step", 0)
    if taken == steps:
        return f"{folder} is finished: all {steps} steps were taken"
    return f"going on with {folder}, after step {taken} of {steps}"


def finish(
    options: argparse.Namespace,
    folder: Path,
    what: str,
    figures: dict[str, str],
    example: str | None,
    target: tuple[str, bool] | None = None,
    run: Path | None = None,
) -> int:
    """Say which files there are, how to use them and what came out; the exit code.

    `what` was measured on, `figures` are in words and numbers, the one that counts last, `example`
    is a text for the model, where it takes one, and `target` says what is to be reached, and
    whether it was. The model is that of `run` where `folder` holds several.
    """
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    print(f"files in {folder}: {', '.join(files)}")
    if example is not None:
        print(f"use it: {options.program} --run {run or folder} --input {shlex.quote(example)}")
    if options.quick:
        print(f"--quick only shows that everything runs: {options.steps} steps teach nothing yet")
        target = None
    verdict = f"; target {target[0]}: {'reached' if target[1] else 'MISSED'}" if target else ""
    print(f"{what}{verdict}")
    for measure, figure in figures.items():
        print(f"{measure} {figure}")
    return 0 if target is None or target[1] else 1


def require(
    task: Task, config: Settings, options: argparse.Namespace, xp
) -> tuple[Recipe, Schedule, int]:
    """Recipe and schedule that the options describe, and how many vectors the optimizer keeps.

    Raises InputError for what cannot be trained, before anything is built or written.
    """
    recipe = chosen(options, Recipe)
    when = "steps", "log_every", "evaluate_every", "minutes", "patience"
    schedule = Schedule(*(getattr(options, name) for name in when))
    kept = len(vectors_of(OPTIMIZERS[recipe.optimizer]))
    _require_length(config, task)
    _require_memory(config, options, kept, memory(xp))
    return recipe, schedule, kept


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
    except UnicodeDecodeError as problem:  # read_text has told of files
        fix = "Convert the text, with iconv for example."
        return _complain(InputError("standard input is UTF-8", problem, fix), 2)
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
