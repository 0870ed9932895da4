"""The parser of a command line, and the types of flag values."""

import argparse
import contextlib
import difflib
import importlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from numformer.errors import InputError
from numformer.generation.beam import LARGEST_ALPHA
from numformer.models import Model
from numformer.plots import PICTURES

OTHER_PROGRAMS = {
    "--lr --learning-rate --max-lr --peak-rate": "--rate",
    "--dropout --drop --p-dropout": "--p-drop",
    "--batch --batch-tokens": "--batch-size --max-tokens",
    "--epochs --epoch --num-epochs --max-epochs": "--epochs --steps",
    "--max-steps --max-iters --iterations --train-steps": "--steps",
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
"""Names of flags in other programs, and our names; not every script has all of our names."""
SUGGESTIONS = {
    name: ours.split() for names, ours in OTHER_PROGRAMS.items() for name in names.split()
}
LONGEST_INTEGER = 18
ROW_SETTING = "; every row has its own"
"""The end of a flag's help, if every row of a study has a value of its own for the flag."""


class UsageError(InputError):
    """A command line or a file of flags that the parser of a program refuses."""

    def __str__(self) -> str:
        problem, _, fix = self.args
        return f"{problem} ({fix})"


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of the description, and adds the default to a flag's help if it has one."""

    def _get_help_string(self, action):
        is_switch = action.nargs == 0 and action.const is not None
        unset = action.default in (None, "") or action.default is False
        if unset or is_switch or (action.help or "").endswith(ROW_SETTING):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, and which flag may have been meant.

    `model` is the class of the task's model. `presets` has the defaults that each --preset sets.
    `earlier_defaults` has the value that each setting had in runs before its flag existed.
    `answer_flags` is the group of flags for using a trained model; `answer_settings` has the names
    of the settings with which the task's pipeline writes answers. `other_flags` has the flags of
    other kinds of models and of their answers.
    """

    model: type[Model]
    presets: Mapping[str, dict] = {}
    earlier_defaults: dict[str, object]
    answer_flags: argparse._ArgumentGroup
    answer_settings: Collection[str] = ()
    other_flags: Collection[str] = ()

    def parse_args(self, *arguments, **keywords):
        """Read a command line; if a shell asks for completions, write these instead."""
        if "_ARGCOMPLETE" in os.environ:
            with contextlib.suppress(ImportError):
                importlib.import_module("argcomplete").autocomplete(self)
        return super().parse_args(*arguments, **keywords)

    def defaults(self) -> dict[str, object]:
        """The values of all settings if the command line is empty."""
        return vars(self.parse_args([]))

    def read(self, arguments: list[str]) -> dict[str, object]:
        """The settings that a command line sets, and no others."""
        unset = object()
        namespace = argparse.Namespace(**{action.dest: unset for action in self._actions})
        settings = vars(self.parse_args(arguments, namespace))
        return {name: value for name, value in settings.items() if value is not unset}

    def read_values(self, values: Mapping[str, object]) -> dict[str, object]:
        """The settings that a file sets by their names, checked as on a command line.

        A value of None sets nothing. Raises UsageError for what a command line cannot set.
        """
        arguments, false_switches = [], {}
        for name, value in values.items():
            name = name.replace("-", "_")
            action = self.action(name)
            if name in ("config", "help", "save_settings"):
                self.error(f"{name} may only be on the command line")
            if any(isinstance(v, dict) for v in (value if isinstance(value, list) else [value])):
                self.error(f"{name} is not a flag: a file of flags has no tables")
            if action is None:
                self.error(f"unrecognized arguments: --{name.replace('_', '-')}")
            flag = action.option_strings[0]
            if value is not None and action.nargs == 0:
                if type(value) is not bool:
                    self.error(f"{name} is true or false, not {value!r}")
                if value:
                    arguments.append(flag)
                elif action.const in (True, None):  # the const of --greedy is a temperature
                    false_switches[action.dest] = False
            elif isinstance(value, list) and len(value) != 1:
                arguments += [flag, *map(str, value)]
            elif value is not None:
                (text,) = value if isinstance(value, list) else [value]
                arguments.append(f"{flag}={text}")
        return false_switches | self.read(arguments)

    def action(self, name: str) -> argparse.Action | None:
        """The flag that sets the setting `name`, or that is called `name` itself."""
        flag = f"--{name.replace('_', '-')}"
        actions = (a for a in self._actions if a.dest == name or flag == a.option_strings[0])
        return next(actions, None)

    def flag(self, name: str) -> str:
        """The flag of a setting, such as --batch-size."""
        return self.action(name).option_strings[0]

    def error(self, message: str):
        fix = f"{self.prog} --help lists the flags"
        raise UsageError(message + self._suggestion(message), None, fix)

    def _suggestion(self, message: str) -> str:
        """Suggest a flag for the first one that the message calls unknown; "" if none is close."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown == message:
            return ""
        name = unknown.partition(" ")[0].partition("=")[0]
        known = [flag for action in self._actions for flag in action.option_strings]
        candidates = [flag for flag in SUGGESTIONS.get(name, []) if flag in known]
        if name in self.other_flags and not candidates:
            return f"; {name} is for other tasks"
        beginnings = [flag for flag in known if len(name) > 4 and flag.startswith(name)]
        candidates = candidates or beginnings or difflib.get_close_matches(name, known, 1, 0.7)
        return f"; is {candidates[0]} meant?" if candidates else ""


def integer(text: str) -> int:
    """Read the integer of a flag, small enough for the arithmetic of floating-point numbers."""
    with contextlib.suppress(ValueError):
        if len(text) <= LONGEST_INTEGER:
            return int(text)
    digits = f"an integer of at most {LONGEST_INTEGER} digits" if text.isdecimal() else "an integer"
    raise argparse.ArgumentTypeError(f"{digits}, not {text!r:.99}")


def count(text: str) -> int:
    """Read a flag's number of hypotheses or answers."""
    if not 1 <= (number := integer(text)) <= 1000:
        raise argparse.ArgumentTypeError(f"an integer from 1 to 1,000, not {text!r}")
    return number


def length_exponent(text: str) -> float:
    """Read a flag's exponent alpha of a length penalty."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= LARGEST_ALPHA:
            return float(text)
    raise argparse.ArgumentTypeError(f"a number from 0 to {LARGEST_ALPHA}, not {text!r}")


def any_path(text: str) -> Path:
    """Read the path of a flag."""
    if "\0" in text:
        raise argparse.ArgumentTypeError("a path cannot contain NUL")
    return Path(text)


def picture_path(text: str) -> Path:
    """Read a flag's path of a picture."""
    if any_path(text).suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"a picture ends in {', '.join(PICTURES)}, not {text!r}")
    return Path(text)
