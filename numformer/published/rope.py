"""Rotary positions of published models: how fast each pair turns, in every way of scaling."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from numformer.errors import InputError
from numformer.published.configs import ForeignConfig

TYPES = "default", "linear", "dynamic", "llama3", "yarn", "longrope"


class Rope(NamedTuple):
    """The angle per position of each pair, the factor of queries and keys, the longest text."""

    frequencies: tuple[float, ...]
    factor: float
    longest: int | None


def rope(foreign: ForeignConfig, width: int, base: float, scaling: Mapping[str, Any] = {}) -> Rope:
    """Return the Rope of `width` values, as the config.json or its part `scaling` describes it.

    Models were trained with angles of base^(-2j / width). For longer texts, later work divides the
    angles by a factor (linear; Chen et al. 2023), except for fast pairs (llama3; yarn: Peng et al.
    2023), or has a divisor for each pair (longrope; Ding et al. 2024).
    """
    scaling = scaling or foreign.get("rope_parameters", foreign.get("rope_scaling", {}))
    types = [scaling[name] for name in ("rope_type", "type") if name in scaling]
    kinds = dict.fromkeys(kind.replace("su", "longrope") for kind in types)
    kind = " and ".join(kinds) or "default"
    pair = np.arange((width + 1) // 2)
    plain, limit = base ** (-2 * pair / width), foreign.get("max_position_embeddings", None)
    trained = scaling.get("original_max_position_embeddings") or limit
    trained = foreign.get("original_max_position_embeddings", trained)
    kept, longest = np.zeros(len(pair)), None
    divisors = scale = 1.0
    if kind == "linear":
        divisors = scaling["factor"]
    elif kind == "dynamic":  # up to this length, it does not divide
        longest = limit
    elif kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((trained * plain / (2 * math.pi) - low) / (high - low), 0, 1)
        divisors = scaling["factor"]
    elif kind == "yarn":
        divisors = scaling.get("factor") or limit / trained
        first, last = (
            width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1)
        )
        if scaling.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        kept = 1 - np.clip((pair - first) / (last - first or 1e-3), 0, 1)
        both: Any = (scaling.get("mscale"), scaling.get("mscale_all_dim"))
        growth = 0.1 * math.log(max(divisors, 1))
        above, below = both if all(both) else (1, 0)
        scale = scaling.get("attention_factor") or (above * growth + 1) / (below * growth + 1)
    elif kind == "longrope":
        divisors, longest = scaling["short_factor"], trained
        factor = scaling.get("factor") or limit / trained
        scale = math.sqrt(1 + math.log(max(factor, 1)) / math.log(trained))
        scale = scaling.get("attention_factor") or scale
    elif kind != "default":
        rule = f"the rope_type in rope_scaling is one of {', '.join(TYPES)}"
        raise InputError(rule, repr(kind), "Choose another model.")
    frequencies = plain * (kept + (1 - kept) / divisors)
    return Rope(tuple(frequencies.tolist()), scale, longest)
