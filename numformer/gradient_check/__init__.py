"""The gradient check: explicit gradients against numerical ones, and what makes them differ.

From Python `check(layer, inputs)`; as a command `python -m numformer.gradient_check`.
"""

from numformer.gradient_check.branches import untaken_branches
from numformer.gradient_check.gradients import TOLERANCE, GradientCheck, Row, check

__all__ = ["TOLERANCE", "GradientCheck", "Row", "check", "untaken_branches"]
