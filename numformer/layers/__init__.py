"""The layers, one concept a file: first the formula, forward and backward, then its layer."""
