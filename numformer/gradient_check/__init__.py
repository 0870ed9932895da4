"""The gradient check: compares explicit gradients with numerical ones, and explains differences.

In Python, call `check(layer, inputs)`; as a command, run `python -m numformer.gradient_check`.
"""

from numformer.gradient_check.branches import untaken_branches
from numformer.gradient_check.gradients import TOLERANCE, GradientCheck, Row, check

__all__ = ["TOLERANCE", "GradientCheck", "Row", "check", "untaken_branches"]
