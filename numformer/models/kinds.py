"""The kinds of models: the name by which a checkpoint refers to each model."""

from numformer.errors import InputError
from numformer.models.dual_encoder import DualEncoder
from numformer.models.encoder_decoder import Transformer
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from numformer.models.model import Model
from numformer.models.recurrent import RecurrentEncoderDecoder
from numformer.models.speech import SpeechTransformer
from numformer.models.vision import VisionTransformer

MODELS: dict[str, type[Model]] = {
    "encoder_decoder": Transformer,
    "language_model": LanguageModel,
    "masked": MaskedLanguageModel,
    "recurrent": RecurrentEncoderDecoder,
    "vision": VisionTransformer,
    "speech": SpeechTransformer,
    "dual_encoder": DualEncoder,
}


def model_class(kind: object) -> type[Model]:
    """Return the class of models with this name. Raises InputError for an unknown name."""
    if isinstance(kind, str) and kind in MODELS:
        return MODELS[kind]
    raise InputError(
        f"a saved model is one of {', '.join(MODELS)}",
        repr(kind),
        "Load a model of your own with its class: numformer.load(RUN, kind=MyModel).",
    )


def model_kind(model: type[Model]) -> str:
    """Return the name of a class of models: its key in MODELS, or else the name of the class."""
    return next((kind for kind, known in MODELS.items() if known is model), model.__name__)
