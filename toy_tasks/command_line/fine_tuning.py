"""Fine-tuning: a run that begins with the weights and the vocabularies of another, by --start."""

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.generation.descriptions import pipeline_from
from numformer.generation.text_pipeline import TextPipeline
from numformer.models import Model
from numformer.published import is_published
from numformer.published.loading import PUBLISHED_METADATA
from numformer.trained import load, model_of_run
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.flags import Parser

OF_VOCABULARY = {"words", "hole", "subwords", "vocabulary", "cased"}
"""Flags that say what symbols are."""


def flags_of(made: Parser, run: Path) -> tuple[dict, dict, dict]:
    """The flags that a run's model was built by, its config, and its vocabularies' flags."""
    model, _ = model_of_run(run)
    config = asdict(model.config)
    of_model = {name: value for name, value in config.items() if name in made.before}
    published = is_published(run)
    saved = {} if published or not (run / "config.json").exists() else run_folders.read_config(run)
    options = saved.get("options", {})
    known = OF_VOCABULARY & {name for name in options if made.action(name)}
    return of_model, config, {name: options[name] for name in sorted(known)}


def start_vocabularies(
    options: argparse.Namespace, **texts: Iterable[str]
) -> tuple[Vocabulary, ...]:
    """The vocabularies of the run of --start, by their names in its text pipeline; or none.

    Tells which symbols of the `texts` they lack. A resumed run has them in its own files.
    """
    if not options.start:
        return ()
    own = options.resume and options.out / "best.safetensors"
    run = own if own and own.is_file() else options.start
    known = _vocabularies(load(run).text)
    if lacking := [name for name in texts if name not in known]:
        raise InputError(
            "--start takes a run of a task that reads and writes alike",
            f"{run}, a run without a vocabulary {lacking[0]!r}",
            "Name a run of this task.",
        )
    for name, lines in texts.items() if run == options.start else ():
        symbols = sorted({symbol for line in lines for symbol in known[name].split(line)})
        vocabulary = known[name]
        unknown = [s for s in symbols if vocabulary.encode([s]) == [vocabulary.unknown]]
        if symbols and unknown == symbols:
            raise InputError(
                "--start takes a run that knows symbols of this data",
                f"{run}, which has none of those of its {name}",
                "Name a run on such texts, or train without --start.",
            )
        if unknown:
            some = " ".join(map(repr, unknown[:20])) + " ..." * (len(unknown) > 20)
            print(f"{run} has no {some} in its {name}: unknown to its model")
    return tuple(known[name] for name in texts)


def take_weights(model: Model, text: TextPipeline | None, run: Path) -> dict:
    """Begin with the weights of a run -> what is kept of a published model beside them.

    Raises InputError for what does not fit, by its name.
    """
    saved, metadata = model_of_run(run, type(model))
    started = pipeline_from(metadata.get("text"), saved.config)
    if text and started and _described(started) != _described(text):
        raise InputError(
            "--start takes a run that has the symbols of this task",
            f"{run}, which has others",
            "Name a run of this task.",
        )
    theirs, ours = (
        {name: parameter.shape for name, parameter in of.named_parameters().items()}
        for of in (saved, model)
    )
    if wrong := [name for name in ours | theirs if ours.get(name) != theirs.get(name)]:
        name, others = wrong[0], f", and {len(wrong) - 1} others" * (len(wrong) > 1)
        here, there = (of.get(name, "none") for of in (ours, theirs))
        raise InputError(
            "--start takes the weights of a run whose model has the same parameters",
            f"{name}, here {here}, in {run} {there}{others}",
            "Leave out the flags of sizes, which are then the run's, or name another run.",
        )
    for name, there in asdict(saved.config).items():
        if (here := getattr(model.config, name)) != there:
            print(f"{name} is {here}, in {run} it was {there}")
    model.load_state_dict(saved.state_dict())
    return {name: metadata[name] for name in PUBLISHED_METADATA if name in metadata}


def _vocabularies(text: TextPipeline) -> dict[str, Vocabulary]:
    return {name: value for name, value in vars(text).items() if isinstance(value, Vocabulary)}


def _described(text: TextPipeline) -> dict:
    return {name: value.description() for name, value in _vocabularies(text).items()}
