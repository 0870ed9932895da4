"""The config of all choices (`config`), what all models have (`model`), then a file each."""

import importlib
import pkgutil

from numformer.errors import InputError
from numformer.models.config import TowerConfig
from numformer.models.encoder_decoder import Config, Transformer
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from numformer.models.recurrent import RecurrentEncoderDecoder
from numformer.models.vision import VisionTransformer
from numformer.models.model import Model, Objective

__all__ = [
    "TowerConfig",
    "Model",
    "Objective",
    "Config",
    "Transformer",
    "LanguageModel",
    "RecurrentEncoderDecoder",
    "MaskedLanguageModel",
    "VisionTransformer",
]


def model_of(kind: object) -> type[Model]:
    """The model in the file of this name here. Raises InputError where there is none."""
    files = [module.name for module in pkgutil.iter_modules(__path__)]
    if kind in files:
        module = importlib.import_module(f"{__name__}.{kind}")
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        of_kind = {cls for cls in classes if issubclass(cls, Model) and cls.kind() == kind}
        if len(of_kind) == 1 and Model not in of_kind:
            return of_kind.pop()
    raise InputError(
        "a model's kind is the name of a file in numformer/models, with that one model in it",
        repr(kind),
        "Load a model of your own with its class: numformer.load(RUN, kind=MyModel).",
    )
