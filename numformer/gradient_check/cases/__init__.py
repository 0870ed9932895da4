"""What the gradient check, the contract tests and the comparison with PyTorch are held to.

A new layer is one Case in `layers`, a choice or a mixer one line in `models`.
"""

from numformer.gradient_check.cases.case import IDS, Case, Given
from numformer.gradient_check.cases.layers import LAYERS
from numformer.gradient_check.cases.models import MIXED, MODELS, VARIATIONS

TABLE = [*LAYERS, *MODELS]
CASES = {case.name: case for case in TABLE}

__all__ = ["CASES", "IDS", "MIXED", "MODELS", "TABLE", "VARIATIONS", "Case", "Given"]
