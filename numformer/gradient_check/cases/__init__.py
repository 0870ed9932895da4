"""Test cases for every layer: for the gradient check, the contract tests and tests with PyTorch.

For a new layer, add a Case in `layers`; for a new mixer or config option, a line in `models`.
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
