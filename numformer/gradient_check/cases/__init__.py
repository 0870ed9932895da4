"""A case of every layer, for the gradient check, the contract tests and the PyTorch comparison.

For a new layer, add a Case in `layers`; for a new choice or mixer, a line in `models`.
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
