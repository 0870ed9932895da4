"""The kinds of models, one in each file, and what they share: a config and the class `Model`."""

from numformer.models.config import TowerConfig
from numformer.models.encoder_decoder import Config, Transformer
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from numformer.models.recurrent import RecurrentEncoderDecoder
from numformer.models.speech import SpeechTransformer
from numformer.models.vision import VisionTransformer
from numformer.models.dual_encoder import DualEncoder
from numformer.models.model import Model, Objective
from numformer.models.kinds import MODELS as MODELS

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
    "SpeechTransformer",
    "DualEncoder",
]
