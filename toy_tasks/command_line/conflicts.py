"""Checks for options that are impossible or contradict each other; each raises InputError."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.execution.mpi import ranks_for
from numformer.generation.sampling import Sampling
from numformer.models import Model
from numformer.optimization.recipe import Recipe
from numformer.runs.metrics_writers import metrics_writers
from toy_tasks.command_line.parser import Parser
from toy_tasks.command_line.settings_flags import schedule_from, settings_from

MAX_PARTS = 128  # each may be a process
NOT_EVALUATED = {"input", "input_file", "attention", "n_best", "count", "tree", "source"}
"""The flags for answers to texts, which do not go with an evaluation."""


def require_counts(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse impossible seeds, batch sizes and numbers of processes."""
    is_study = hasattr(options, "seeds")
    seeds = options.seeds if is_study else [options.seed]
    if min(seeds) < 0:
        raise InputError("a seed is at least 0", min(seeds), f"Change --seed{'s' * is_study}.")
    if len({*seeds}) < len(seeds):
        raise InputError("all seeds differ", seeds, "Change --seeds.")
    size = options.batch_size
    if size < 1:
        raise InputError("a batch size is at least 1", size, f"Change {parser.flag('batch_size')}.")
    most = MAX_PARTS if is_study else min(size, MAX_PARTS)
    flag, limit = ("jobs", "") if is_study else ("parts", "at most the batch size, and ")
    count = getattr(options, flag)
    if count is not None and not 1 <= count <= most:
        rule = f"--{flag} is at least 1, and {limit}at most {MAX_PARTS}, here {most}"
        raise InputError(rule, count, f"Change --{flag}.")


def require_settings(options: argparse.Namespace, model: type[Model]) -> None:
    """Refuse settings that do not allow training, before any data are read.

    The size of a vocabulary is known only from the data, so a large number stands for it here.
    """
    ranks_for(options.parallel, options.timeout)
    metrics_writers(options.log_to or ())  # raises InputError for a missing package
    schedule_from(options)
    settings_from(options, Recipe)
    Sampling.from_settings(getattr(options, "temperature", None), None, None)
    names = [field.name for field in fields(model.Config) if field.name.endswith("vocabulary")]
    if names:  # a model of images has no vocabulary
        settings_from(options, model.Config, **dict.fromkeys(names, sys.maxsize))
    if options.backend != "auto":
        find_backend(options.backend)


def require_one_length(settings: Mapping[str, Any]) -> None:
    """Refuse --epochs below 1, or together with another flag that determines the steps."""
    epochs = settings.get("epochs")
    if epochs is None:
        return
    if epochs < 1:
        raise InputError("--epochs is at least 1", epochs, "Change it, or leave it out.")
    for name in ("steps", "resume", "quick"):
        if settings.get(name, False) is not False:
            rule = f"--epochs sets the steps of a new run, without --{name}"
            raise InputError(rule, "both", "Leave out one of them.")


def require_one_rate(options: argparse.Namespace, default_factor: float) -> None:
    """Refuse a highest learning rate that is set by both --rate and --factor."""
    if options.rate is not None and options.factor != default_factor:
        rule, fix = "the highest rate is set by --rate or by --factor", "Leave out one of them."
        raise InputError(rule, "both", fix)


def require_answering(parser: Parser, options: argparse.Namespace) -> None:
    """Without --run, refuse flags for a trained model; with it, refuse flags for training."""
    if not options.run:
        _require_training(parser, options)
        return
    allowed = {action.dest for action in parser.answer_flags._group_actions}
    allowed |= parser.answer_settings | {"backend"}
    if "temperature" in parser.answer_settings:
        seed = "seeds" if hasattr(options, "seeds") else "seed"
        allowed.add(seed)
        _require_sampling(parser, options, seed)
    for name in sorted(options.explicit - allowed):
        fix = "Leave that out; or leave out --run, to train."
        raise InputError("--run uses a model as it was trained", parser.flag(name), fix)
    if "data" in options.explicit:
        for name in sorted(options.explicit & NOT_EVALUATED):
            rule = f"--run evaluates on --data, without {parser.flag(name)}"
            raise InputError(rule, "both", "Leave out one of them.")
    elif "predictions" in options.explicit:
        rule, fix = "--predictions are answers to the sources of --data", "Add --data FILE."
        raise InputError(rule, "no --data", fix)
    if "n_best" in options.explicit:
        for name in options.explicit & {"attention", "temperature", "top_k", "top_p"}:
            rule = f"--n-best cannot be combined with {parser.flag(name)}"
            raise InputError(rule, "both", "Leave out one of them.")
    texts = [options.input_file] if getattr(options, "input_file", None) else options.input or []
    if options.attention and len(texts) != 1:
        raise InputError(
            "--attention draws where the model looks in one text",
            f"{len(texts)} with {parser.flag('input')}",
            "Give one text.",
        )


def _require_training(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse the flags that need --run.

    Flags with a default are allowed, as training uses some: the beam in its test, for example.
    """
    for name in sorted(options.explicit & {a.dest for a in parser.answer_flags._group_actions}):
        if parser.get_default(name) is None:
            fix = "Name the folder of a run, for example --run runs/reverse."
            raise InputError(f"{parser.flag(name)} is for a trained model", "no --run", fix)


def _require_sampling(parser: Parser, options: argparse.Namespace, seed: str) -> None:
    """Refuse sampling flags if answers are not sampled."""
    temperature, cuts = options.temperature, {"top_k", "top_p"} & options.explicit
    if cuts if temperature is None else temperature != 0:
        return
    for name in sorted({seed, "count", *cuts} & options.explicit):
        flag = parser.flag(name)
        rule = f"{flag} is for answers that are sampled at random"
        fix = f"Sample them, for example with --temperature 0.8; or leave out {flag}."
        raise InputError(rule, "answers that are not sampled", fix)
