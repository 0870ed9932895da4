"""Flags for the fields of a model's config and of the recipe, and settings from these flags."""

import argparse
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields

from numformer.models import Model, TowerConfig
from numformer.models.config import CHOICES_WITH_SETTINGS
from numformer.models.fields import saved_value
from numformer.models.kinds import MODELS
from numformer.models.owned_settings import own_settings
from numformer.optimization.optimizers import OptimizerSettings, owners
from numformer.optimization.recipe import Recipe
from numformer.settings import Settings
from numformer.training.loop import Schedule
from toy_tasks.command_line.parser import Parser, integer

CHOICE_NAMES = dict(mixers="mixer", feed_forwards="feed-forward network", normalization="norm")


def add_settings_flags(parser: Parser, model: type[Model]) -> None:
    """Add the flags of a kind of model and of the recipe, in groups."""
    parser.earlier_defaults = {}
    for title, settings in (("model", model.Config), ("training", Recipe)):
        groups = {f"{title} ({settings.__module__}.{settings.__name__})": _shared_fields(settings)}
        for group_title, group_fields in (groups | _choice_groups(settings)).items():
            group = parser.add_argument_group(group_title)
            for field in group_fields:
                note = ""
                if field.name in parser.answer_settings:
                    note = "; with --run: the most symbols in an answer"  # --max-length
                elif optimizers := owners(field.name):
                    note = f"; for {', '.join(optimizers)}"
                _add_flag(group, field, note)
                parser.earlier_defaults[field.name] = saved_value(field.default)


def flags_of_models() -> set[str]:
    """The config flags of all kinds of models, except those of a single mixer, network or norm."""
    configs = (model.Config for model in MODELS.values())
    return {_flag(field) for config in configs for field in _shared_fields(config)}


def settings_from(options: argparse.Namespace, kind: type[Settings], **values) -> Settings:
    """The config or the recipe that the options describe; `values` are fields without a default.

    Other fields without a flag, such as special ids, come from the config of the run that is
    resumed or that --start names (`options.run_config`).
    """
    names = [field.name for field in fields(kind) if field.default is not MISSING]
    known = getattr(options, "run_config", {}) | vars(options)
    settings = {name: known[name] for name in names if name in known}
    for field in _choice_fields(kind):  # settings of choices that a script registered
        if field.name not in names and known.get(field.name, field.default) != field.default:
            settings[field.name] = known[field.name]
    if settings.get("rate") is not None:
        del settings["factor"]  # which is the task's default
    return kind(**settings | values)


def schedule_from(options: argparse.Namespace) -> Schedule:
    """The schedule that the options describe."""
    names = "steps", "log_every", "evaluate_every", "minutes", "patience"
    return Schedule(*(getattr(options, name) for name in names))


def _shared_fields(settings: type[Settings]) -> list[Field]:
    """The fields with a flag, except those of a single mixer, network, norm or optimizer.

    Fields without a default have no flag: the task sets them.
    """
    apart = {field.name for field in (*_choice_fields(settings), *fields(OptimizerSettings))}
    return [
        field
        for field in fields(settings)
        if "rule" in field.metadata
        and field.metadata.get("flag", True)
        and field.default is not MISSING
        and field.name not in apart
    ]


def _choice_groups(settings: type[Settings]) -> dict[str, list[Field]]:
    """The fields of each mixer, network and norm, by the title of their group of flags.

    A field that several of them share is in the first group only. For the recipe, the fields are
    those of the optimizers.
    """
    if issubclass(settings, OptimizerSettings):
        return {f"optimizer ({OptimizerSettings.__module__})": [*fields(OptimizerSettings)]}
    groups, known = {}, {field.name for field in _shared_fields(settings)}
    for choice, name, entry in _choices(settings):
        own = [f for f in own_settings(entry) if "rule" in f.metadata and f.name not in known]
        if own and (getattr(entry, "looks_ahead", True) or not settings.both_ways):
            kind = entry if isinstance(entry, type) else type(entry)
            title = f"{CHOICE_NAMES[choice]} {name!r} ({kind.__module__}.{kind.__name__})"
            groups[title] = own
        known |= {field.name for field in own}
    return groups


def _choices(settings: type[Settings]) -> Iterator[tuple[str, str, object]]:
    """Yield (field, name, entry) for each entry of the registries of a config."""
    if issubclass(settings, TowerConfig):
        for choice, registry in CHOICES_WITH_SETTINGS.items():
            for name, entry in registry.items():
                yield choice, name, entry


def _choice_fields(settings: type[Settings]) -> list[Field]:
    """The settings that only some choices have, including choices that a script registered."""
    return [field for *_, entry in _choices(settings) for field in own_settings(entry)]


def _add_flag(group, field: Field, note: str) -> None:
    rule = field.metadata["rule"]
    keywords = dict(default=saved_value(field.default), help=field.metadata["help"] + note)
    if rule.type is bool:
        keywords["action"] = argparse.BooleanOptionalAction
    else:
        keywords["type"] = integer if rule.type is int else rule.type
        if rule.several:
            keywords |= dict(metavar="NAMES", help=f"{keywords['help']}; {rule.description}")
        else:
            keywords["choices"] = rule.choices
    group.add_argument(_flag(field), **keywords)


def _flag(field: Field) -> str:
    return f"--{field.name.replace('_', '-')}"
