"""Factors that a gradient is often wrong by."""

import math

import numpy as np

from numformer.backend import dtype_kind


def drop_rates(check) -> set[float]:
    """Return the rates above 0 of all dropout layers."""
    return {p for layer in check.layer.layers_within() if (p := getattr(layer, "p_drop", 0))}


def known_factors(check) -> dict[str, float]:
    """Return common wrong factors of a gradient, by the cause in words, such as a wrong sign."""
    factors = {
        "the sign is wrong": -1.0,
        "counted twice, or a factor 1/2 is missing, or 2 is an extra factor": 2.0,
        "counted once but used twice, or a factor 2 is missing, or 1/2 is an extra factor": 0.5,
    }
    shapes = [x.shape for x in (check.output, *check.tensors.values()) if x.ndim]
    batch, positions = (shapes[0][0], math.prod(shapes[0][:-1])) if shapes else (1, 1)
    factors |= {
        f"divided by the batch size ({batch})": 1 / batch,
        f"the division by the batch size ({batch}) is missing": batch,
        f"divided by the number of positions ({positions})": 1 / positions,
        f"the division by the number of positions ({positions}) is missing": positions,
    }
    for ids in (x for x in check.inputs if dtype_kind(x) == "i" and x.size):
        real, total = int(np.count_nonzero(ids)), ids.size
        factors |= {
            f"the division by the number of real ids ({real}) is missing": real,
            f"divided by all ids, padding included ({real} of {total} are real)": real / total,
        }
    for p in drop_rates(check):
        factors[f"dropout's scale is missing in backward (p = {p})"] = 1 - p
        factors[f"dropout's scale is applied twice (p = {p})"] = 1 / (1 - p)
    sizes = {tensor.shape[-1] for tensor in check.tensors.values() if tensor.ndim}
    sizes |= {getattr(layer, "d_k", 1) for layer in check.layer.layers_within()}
    for d in sorted(sizes):
        missing, twice = f"is missing (d = {d})", f"is applied twice (d = {d})"
        scores, embedding = "1 / sqrt(d_k) of the scores", "sqrt(d_model) of the embedding"
        factors[f"{scores} {missing}, or {embedding} {twice}"] = d**0.5
        factors[f"{embedding} {missing}, or {scores} {twice}"] = d**-0.5 if d else 0
    for name, tensor in check.tensors.items():
        is_parameter = name in check.parameters
        if is_parameter and tensor.size == 1 and (value := float(tensor.ravel()[0])):
            factors[f"the factor 1 / `{name}` is missing, or `{name}` is an extra one"] = value
            factors[f"the factor `{name}` is missing, or 1 / `{name}` is an extra one"] = 1 / value
        for axis, size in enumerate(() if is_parameter else tensor.shape):
            if axis and size:
                which = f"{size}, the size of axis {axis} of {name}"
                factors[f"{which}: a mean's 1/{size} is missing"] = size
                factors[f"1/{which}: a sum is divided like a mean"] = 1 / size
    return {cause: float(value) for cause, value in factors.items() if value not in (0, 1)}
