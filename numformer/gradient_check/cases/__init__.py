"""Every layer once, for the gradient check, the contract tests and the comparison with PyTorch.

A new layer is one Case in `layers`; a choice or a mixer is one line in `models`.
"""

from numformer.gradient_check.cases.case import IDS, Case, InputGenerator
from numformer.gradient_check.cases.layers import LAYERS
from numformer.gradient_check.cases.models import MIXER_SETTINGS, MODELS, VARIATIONS

TABLE = [*LAYERS, *MODELS]
CASES = {case.name: case for case in TABLE}

__all__ = [
    "CASES",
    "IDS",
    "MIXER_SETTINGS",
    "MODELS",
    "TABLE",
    "VARIATIONS",
    "Case",
    "InputGenerator",
]
