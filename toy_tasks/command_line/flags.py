"""The flags of a program: those that all tasks have, and one for each field of their Settings."""

import argparse
import contextlib
import difflib
import inspect
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path

from numformer.devices import BACKENDS, default_backend
from numformer.errors import complain
from numformer.execution.mpi import WAYS
from numformer.generation import Continuation, Infilling, Transduction
from numformer.generation.beam import LARGEST_ALPHA, PENALTIES
from numformer.generation.text_pipeline import TextPipeline
from numformer.models import (
    LanguageModel,
    MaskedLanguageModel,
    Model,
    RecurrentEncoderDecoder,
    TowerConfig,
    Transformer,
)
from numformer.models.config import CHOICES_WITH_SETTINGS
from numformer.models.kinds import own_settings
from numformer.optimization.optimizers import OptimizerSettings, owners
from numformer.optimization.recipe import Recipe
from numformer.plots import PICTURES
from numformer.settings import Settings

HELP = {
    "--preset": "other defaults of the flags below; a flag that is given counts all the same",
    "--steps": "training steps",
    "--max-tokens": "tokens in a batch on each side, with padding",
    "--batch-size": "sequences in a batch",
    "--seeds": "each trains every way once: initial weights, data order and dropout",
    "--jobs": """runs side by side, each a process of its own; one for each core (with cupy one),
unless given""",
    "--seed": "for initial weights, data order and dropout",
    "--parts": """parts of a batch, each computed by a process of its own where there are cores; 2
with numpy on Linux, otherwise 1, and one for each rank, unless given""",
    "--parallel": """who computes the parts: processes of this machine, or the ranks that mpiexec
started; these, where there are any, unless given""",
    "--timeout": "seconds for which a rank waits for another, more than a step takes",
    "--rate": "the highest learning rate, at the end of --warmup; in place of --factor",
    "--log-every": "steps between two lines of metrics.jsonl",
    "--evaluate-every": "steps between two evaluations",
    "--minutes": "end after so long, what came before --resume included: evaluate and save",
    "--patience": "end where N evaluations in turn brought nothing better",
    "--backend": "where to compute",
    "--out": "run folder; default: the next free one under runs/",
    "--resume": "continue the run in --out, or the latest run of this task",
    "--start": "begin with the weights, the sizes and the vocabularies of a run (fine-tuning)",
    "--config": """flags from a file, or those of a run by its config.json; flags that are given
here count more""",
    "--quick": "a few steps, to see that all works; judges nothing",
    "--no-plots": "draw no pictures",
    "--run": "the folder of a finished run",
    "--input": "texts for the model; without, the lines of standard input",
    "--input-file": "one text of several lines: a file, or - for the whole of standard input",
    "--attention": "draw where each layer and head looks as the model answers --input",
    "--beam": """hypotheses side by side, 1 is greedy; with --run this and the next two are those
of the run unless given""",
    "--length-penalty": "the exponent alpha of --penalty; more favours long answers",
    "--penalty": "divide log p by ((5 + length) / 6)^alpha (paper) or by length^alpha (length)",
    "--n-best": "the N best answers to each text, with their scores",
    "--length": "symbols to write",
    "--temperature": """draw symbols at random: 1 as probable as they are, less is more cautious,
more is more random; --seed reproduces""",
    "--greedy": "write the most probable symbol each time, as --temperature 0 does",
    "--top-k": "draw from the K most probable symbols",
    "--top-p": "draw from the fewest symbols that together have this probability",
    "--count": "draw N answers to each text",
}
TEXTS: dict[type[Model], type[TextPipeline]] = {
    Transformer: Transduction,
    RecurrentEncoderDecoder: Transduction,
    LanguageModel: Continuation,
    MaskedLanguageModel: Infilling,
}
"""What a kind of model does with texts."""


ELSEWHERE = {
    "--lr --learning-rate --max-lr --peak-rate": "--rate",
    "--dropout --drop --p-dropout": "--p-drop",
    "--batch --batch-tokens": "--batch-size --max-tokens",
    "--epochs --epoch --max-steps --max-iters --iterations --train-steps": "--steps",
    "--hidden --hidden-size --dim --width --n-embd --embed-dim --emb-dim": "--d-model",
    "--ff --ffn --ff-size --ffn-dim --feed-forward": "--d-ff",
    "--num-heads --n-heads --n-head --nhead": "--heads",
    "--num-layers --n-layers --n-layer --depth": "--layers",
    "--warmup-steps --warmup-iters": "--warmup",
    "--vocab --vocab-size --vocabulary --bpe": "--vocabulary --subwords",
    "--block-size --seq-len --sequence-length": "--context",
    "--optim": "--optimizer",
    "--device --gpu --cuda": "--backend",
    "--output --output-dir --save --run-dir": "--out",
    "--smoothing": "--label-smoothing",
    "--clip --grad-clip --max-grad-norm": "--clip-norm",
}
"""What flags are called in other programs, and here: the first of those that a script has."""
MEANT = {other: ours.split() for others, ours in ELSEWHERE.items() for other in others.split()}


OF_ROWS = "; every row has its own"
"""What ends the help of a flag that all rows of a study set."""


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The description as it is written, and the default of every flag that has one."""

    def _get_help_string(self, action):
        switch = action.nargs == 0 and action.const is not None
        shown = action.default not in (None, "") and action.default is not False and not switch
        own = action.help and action.help.endswith(OF_ROWS)
        return super()._get_help_string(action) if shown and not own else action.help


def integer(text: str) -> int:
    """A flag's integer, small enough that the arithmetic of floating-point numbers can take it."""
    try:
        number = int(text)
    except ValueError:  # also where there are thousands of digits
        number = sys.maxsize
    if abs(number) >= sys.maxsize:
        raise argparse.ArgumentTypeError(f"an integer below {sys.maxsize}, not {text!r}")
    return number


def some(text: str) -> int:
    """A flag's number of hypotheses or answers."""
    if not 1 <= (number := integer(text)) <= 1000:
        raise argparse.ArgumentTypeError(f"an integer from 1 to 1,000, not {text!r}")
    return number


def alpha(text: str) -> float:
    """A flag's exponent of a length penalty."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= LARGEST_ALPHA:
            return float(text)
    raise argparse.ArgumentTypeError(f"a number from 0 to {LARGEST_ALPHA}, not {text!r}")


WRITING = {
    "--beam": ("beam", dict(type=some, metavar="N")),
    "--length-penalty": ("length_penalty", dict(type=alpha, metavar="ALPHA")),
    "--penalty": ("penalty", dict(choices=PENALTIES)),
    "--n-best": ("beam", dict(type=some, metavar="N")),
    "--length": ("length", dict(type=integer, default=200)),
    "--temperature": ("temperature", dict(type=float, metavar="T")),
    "--top-k": ("top_k", dict(type=integer, metavar="K")),
    "--top-p": ("top_p", dict(type=float, metavar="P")),
    "--count": ("temperature", dict(type=some, metavar="N")),
}
"""Flags for answers of a trained model, each with the setting of `TextPipeline.write` it needs."""
OF_CHOICES = dict(mixers="mixer", feed_forwards="feed-forward network", normalization="norm")
AT_USE = "; with --run: the most symbols of an answer"
"""What --max-length, of a model's learned positions, says of what a trained one writes."""


def any_path(text: str) -> Path:
    """A flag's path."""
    if "\0" in text:
        raise argparse.ArgumentTypeError("no path has a NUL")
    return Path(text)


def picture_path(text: str) -> Path:
    """A flag's path of a picture."""
    if any_path(text).suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"a picture ends in {', '.join(PICTURES)}, not {text!r}")
    return any_path(text)


class Parser(argparse.ArgumentParser):
    """Complains in one line, with the flag that may have been meant.

    `before` has what a setting was before there was a flag for it, whatever its default in a task;
    `presets` are the defaults that a --preset brings, by its name. `use` is the group of flags for
    a trained model, `writing` has the settings that its kind of pipeline has.
    """

    before: dict[str, object]
    presets: Mapping[str, dict] = {}
    use: argparse._ArgumentGroup
    writing: Collection[str] = ()

    def given(self, arguments: list[str]) -> dict[str, object]:
        """The options that are on a command line, those included that have their defaults there."""
        nothing = object()
        blank = argparse.Namespace(**{action.dest: nothing for action in self._actions})
        options = vars(self.parse_args(arguments, blank))
        return {name: value for name, value in options.items() if value is not nothing}

    def action(self, name: str) -> argparse.Action | None:
        """The flag of an option, or with this name; None where there is none."""
        by_flag = f"--{name.replace('_', '-')}"
        named = (a for a in self._actions if a.dest == name or by_flag == a.option_strings[0])
        return next(named, None)

    def flag(self, name: str) -> str:
        """What a flag is called, by the name of its option."""
        return self.action(name).option_strings[0]

    def error(self, message: str):
        wrong = message.removeprefix("unrecognized arguments: ").split()[:1]
        known = [flag for action in self._actions for flag in action.option_strings]
        wrong = [flag.partition("=")[0] for flag in wrong]
        close = [flag for name in wrong for flag in MEANT.get(name, []) if flag in known]
        close = close or (difflib.get_close_matches(*wrong, known, 1, 0.7) if wrong else [])
        meant = f"; is {close[0]} meant?" if close and wrong[0] != message.split()[0] else ""
        complain(f"{message}{meant} ({self.prog} --help lists the flags)")
        sys.exit(2)


def build_parser(
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
    `presets` where it is asked for. A script that trains `several` models (study.py) has
    --seeds and --jobs in place of --seed and --parts. With `by_tokens` the size of a batch is
    --max-tokens, `options.batch_size` all the same.
    """
    made = Parser(
        prog=f"python -m toy_tasks.{name}",
        usage="%(prog)s [flags]",
        description=description,
        formatter_class=_Help,
        allow_abbrev=False,  # --length would be --length-penalty where there is no --length
        epilog="exit codes: 0 reached the target, 1 missed it, 2 wrong usage or input, "
        "3 the numbers broke, 130 stopped by Ctrl-C or SIGTERM after saving",
    )
    made.presets = presets or {}

    def add(flag: str, *others: str, to=made, **how) -> None:
        to.add_argument(flag, *others, help=HELP[flag], **how)

    if presets:
        add("--preset", choices=presets)
    add("--steps", type=integer, default=1000)
    if by_tokens:
        how = dict(dest="batch_size", metavar="MAX_TOKENS")
        add("--max-tokens", type=integer, default=1024, **how)
    else:
        add("--batch-size", type=integer, default=64)
    if several:
        add("--seeds", "--seed", type=integer, nargs="+", default=[1, 2, 3], metavar="SEED")
        add("--jobs", type=integer)
    else:
        add("--seed", type=integer, default=1)
        add("--parts", type=integer)
        add("--parallel", choices=WAYS)
        add("--timeout", type=float, default=120.0, metavar="S")
    add("--rate", type=float, metavar="R")
    add("--log-every", type=integer, default=50)
    add("--evaluate-every", type=integer, default=250)
    add("--minutes", type=float, metavar="M")
    add("--patience", type=integer, metavar="N")
    add("--backend", choices=BACKENDS, default=default_backend())
    add("--out", type=any_path)
    add("--start", type=any_path, metavar="RUN")
    add("--config", type=any_path, metavar="FILE.toml")
    for switch in ("--resume", "--quick", "--no-plots"):
        add(switch, action="store_true")
    text = next((text for kind, text in TEXTS.items() if issubclass(model, kind)), None)
    use = made.use = made.add_argument_group("using a trained model instead of training one")
    add("--run", to=use, type=any_path, metavar="DIR")
    asked = use.add_mutually_exclusive_group()
    other = [asked_by] if asked_by != "--input" else []
    add("--input", *other, to=asked, dest="input", nargs="+", metavar="TEXT")
    if text in (Continuation, Infilling):
        add("--input-file", to=asked, type=any_path, metavar="FILE")
    add("--attention", to=use, type=picture_path, metavar="FILE.png")
    made.writing = {*inspect.signature(text.write).parameters} if text else set()
    temperature = use.add_mutually_exclusive_group()
    for flag, (setting, how) in WRITING.items():
        if setting in made.writing:
            add(flag, to=temperature if flag == "--temperature" else use, **how)
    if text is Continuation:
        how = dict(dest="temperature", action="store_const", const=0.0)
        add("--greedy", to=temperature, **how)
    made.before = {"rate": None}
    for title, settings in (("model", model.Config), ("training", Recipe)):
        titled = f"{title} ({settings.__module__}.{settings.__name__})"
        for group_title, group_of in {titled: _flags(settings), **_of_choices(settings)}.items():
            group = made.add_argument_group(group_title)
            for field in group_of:
                _add_flag(group, field, AT_USE if field.name in made.writing else _owners(field))
                made.before[field.name] = field.default
    made.set_defaults(**defaults)
    return made


def _flags(settings: type[Settings]) -> list[Field]:
    """The fields that a user chooses; those without a default belong to the task.

    Fields that belong to one choice of mixers, for example, have groups of their own.
    """
    own = {field.name for field in _own_fields(settings)}
    own |= {field.name for field in fields(OptimizerSettings)}
    ruled = (field for field in fields(settings) if "rule" in field.metadata)
    known = (field for field in ruled if field.default is not MISSING and field.name not in own)
    return [field for field in known if field.metadata.get("flag", True)]


def _of_choices(settings: type[Settings]) -> dict[str, list[Field]]:
    """The settings of each mixer, network and norm of a model, without those of one before it.

    Or those of all optimizers, which share most.
    """
    if issubclass(settings, OptimizerSettings):
        return {f"optimizer ({OptimizerSettings.__module__})": [*fields(OptimizerSettings)]}
    groups, met = {}, {field.name for field in _flags(settings)}
    for choice, registry in _registries(settings).items():
        for name, entry in registry.items():
            ruled = [field for field in own_settings(entry) if "rule" in field.metadata]
            own = [field for field in ruled if field.name not in met]
            if own and (getattr(entry, "looks_ahead", True) or not settings.both_ways):
                kind = entry if isinstance(entry, type) else type(entry)
                title = f"{OF_CHOICES[choice]} {name!r} ({kind.__module__}.{kind.__name__})"
                groups[title] = own
            met |= {field.name for field in own}
    return groups


def _owners(field: Field) -> str:
    """The optimizers that look at a setting, in words; "" for what is no setting of optimizers."""
    return f"; of {', '.join(found)}" if (found := owners(field.name)) else ""


def _registries(settings: type[Settings]) -> Mapping[str, Mapping]:
    return CHOICES_WITH_SETTINGS if issubclass(settings, TowerConfig) else {}


def _own_fields(settings: type[Settings]) -> list[Field]:
    """The settings that only some choices of a config have, those registered later included."""
    registries = _registries(settings).values()
    return [
        f for registry in registries for entry in registry.values() for f in own_settings(entry)
    ]


def _add_flag(group, field: Field, at_use: str) -> None:
    rule, name = field.metadata["rule"], f"--{field.name.replace('_', '-')}"
    settings = dict(default=field.default, help=field.metadata["help"] + at_use)
    if rule.type is bool:
        group.add_argument(name, action=argparse.BooleanOptionalAction, **settings)
    else:
        type_ = integer if rule.type is int else rule.type
        if rule.several:
            settings |= dict(metavar="NAMES", help=f"{settings['help']}; {rule.says}")
        else:
            settings |= dict(choices=rule.choices)
        group.add_argument(name, type=type_, **settings)


def settings_from(options: argparse.Namespace, settings: type[Settings], **of_task) -> Settings:
    """The config or the recipe that the flags describe; `of_task` are its other fields.

    What no flag says, such as special ids, is as in the config of the run that goes on (`built`).
    """
    names = [field.name for field in fields(settings) if field.default is not MISSING]
    built = getattr(options, "built", {})
    by_flags = {name: built[name] for name in names if name in built}
    by_flags |= {name: getattr(options, name) for name in names if hasattr(options, name)}
    for field in _own_fields(settings):  # of choices that a script registered
        if field.name not in names and getattr(options, field.name, field.default) != field.default:
            by_flags[field.name] = getattr(options, field.name)
    if "factor" in by_flags and getattr(options, "rate", None) is not None:
        # Equation 3 is highest where step = warmup: factor / sqrt(d_model warmup).
        by_flags["factor"] = options.rate * math.sqrt(options.d_model * by_flags["warmup"])
    return settings(**by_flags, **of_task)
