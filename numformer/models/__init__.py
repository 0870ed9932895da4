"""What models are composed of (`block`), what all of them have (`model`), then a file each."""

import importlib
import pkgutil

from numformer.errors import InputError
from numformer.models.block import Block, InputEmbedding, Tower, TowerConfig
from numformer.models.encoder_decoder import Config, Transformer
from numformer.models.model import Model, Objective, State

__all__ = [
    "TowerConfig",
    "InputEmbedding",
    "Block",
    "Tower",
    "Model",
    "Objective",
    "State",
    "Config",
    "Transformer",
]


def model_of(kind: object) -> type[Model]:
    """The model in the file of this name here. Raises InputError where there is none."""
    files = [module.name for module in pkgutil.iter_modules(__path__)]
    if kind in files:
        module = importlib.import_module(f"{__name__}.{kind}")
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, Model) and found.kind() == kind:
                if found is not Model:
                    return found
    raise InputError(
        "a model's kind is the name of a file in numformer/models",
        repr(kind),
        "Install the version of numformer that wrote it.",
    )
