"""Public names of the previous version, which still work, with a warning.

`RENAMED` maps a former name to the present one. `FORMER_NAMES` maps a name without a direct
successor to a pair: a function that builds the same layer, and the expression to write instead.
"""

import functools
import warnings
from typing import Any

import numpy as np

from numformer.data import EpochBatches, Subwords, TokenBatches
from numformer.data.batching import Batch
from numformer.execution.ranks import Ranks
from numformer.generation import TextPipeline, Transduction
from numformer.generation.sampling import Sampling
from numformer.later import Checkpointed, FullPattern, Mixer, TiledAttention
from numformer.layer import FlatParameters, Layer
from numformer.models import MaskedLanguageModel, Model, TowerConfig
from numformer.models.model import Objective
from numformer.optimization import Recipe
from numformer.optimization.loss_scale import LossScale
from numformer.paper import Memory, Places, Reach, SelfAttention, SinusoidalPositions
from numformer.paper.masks import ExplicitMask
from numformer.plots import AttentionMaps
from numformer.recurrence.cells import Cell
from numformer.recurrence.recurrent import Recurrent

RENAMED: dict[str, str] = {
    "Everything": "FullPattern",
    "Special": "SpecialIds",
    "Text": "TextPipeline",
}

SETTINGS = {"bias": "attention_bias", "p_drop": "attention_dropout"}


def _mixer(name: str):
    def build(
        d_model: int, heads: int, rng: np.random.Generator, both_ways: bool = True, **settings: Any
    ) -> Layer:
        settings = {SETTINGS.get(setting, setting): value for setting, value in settings.items()}
        config = TowerConfig(d_model=d_model, heads=heads, mixers=(name,), **settings)
        return config.self_attention(rng, causal=not both_ways)

    return build


def _stack(config: Any, rng: np.random.Generator, cross: bool = False, causal: bool = False):
    return config.decoder(rng) if cross else config.encoder(rng, causal)


def _layer(
    config: Any,
    rng: np.random.Generator,
    cross: bool = False,
    causal: bool = False,
    layer: int = 0,
):
    return config.decoder_layer(rng, layer) if cross else config.encoder_layer(rng, layer, causal)


def _tiled_attention(p_drop: float = 0.0, rows: int = 128) -> Layer:
    return TiledAttention(p_drop=p_drop, rows=rows, least=0)


FORMER_NAMES: dict[str, tuple[Any, str]] = {
    "Tower": (_stack, "config.encoder(rng) or config.decoder(rng)"),
    "Block": (_layer, "config.encoder_layer(rng) or config.decoder_layer(rng)"),
    "BlockAttention": (_tiled_attention, "TiledAttention(least=0)"),
} | {
    former: (_mixer(mixer), f'TowerConfig(mixers="{mixer}").self_attention(rng)')
    for former, mixer in {
        "GroupedQueryAttention": "attention",
        "WindowAttention": "window",
        "GlobalWindowAttention": "global_window",
        "StridedAttention": "strided",
        "RelativeAttention": "relative",
    }.items()
}

FORMER_METHODS: dict[type, dict[str, str]] = {
    Places: {"whole": "without_padding"},
    Reach: {"dense": "mask"},
    Memory: {"of": "state"},
    FlatParameters: {"used": "needs_zeroing"},
    FullPattern: {"sees": "mask", "sees_near": "is_local", "remembers": "key_value_state"},
    Mixer: {"sees_near": "is_local"},
    TiledAttention: {"whole": "dense", "takes_tiles": "uses_tiles"},
    SelfAttention: {"remembers": "key_value_state"},
    Checkpointed: {"again": "recompute"},
    Cell: {"input": "new_input", "start": "initial_state"},
    Recurrent: {"looking_at": "step_inputs"},
    Batch: {"trimmed": "trim", "of_arrays": "with_arrays"},
    EpochBatches: {"of_epoch": "epoch_pairs"},
    Model: {"fitting": "require_config"},
    Objective: {"MANY": "MAX_PENDING"},
    TowerConfig: {
        "turns": "period",
        "of_layer": "layer_config",
        "crosses": "has_cross_attention",
        "unlimited": "extrapolates",
        "size_of_key": "key_size",
    },
    Subwords: {"sampled": "encode_with_dropout"},
    MaskedLanguageModel: {
        "relate": "relation_logits",
        "relate_backward": "relation_logits_backward",
    },
    Recipe: {"optimizer_of": "make_optimizer", "knows_the_end": "depends_on_steps"},
    LossScale: {"good": "finite_steps", "GOOD": "GROWTH_INTERVAL", "MOST": "MAX"},
    Ranks: {"share": "broadcast", "heard": "failed_elsewhere"},
    Sampling: {"asked": "from_settings"},
    TextPipeline: {"read": "input_vocabulary"},
    Transduction: {
        "most": "length_limit",
        "searched": "beam_search",
        "decoded": "decode",
        "encoded": "encode",
    },
}
FORMER_KEYWORDS: dict[tuple[type, str], dict[str, str]] = {
    (TiledAttention, "__init__"): {"whole": "dense"},
    (SelfAttention, "__init__"): {"remembers": "key_value_state"},
    (SinusoidalPositions, "__init__"): {"table_of": "build"},
    (ExplicitMask, "__init__"): {"mask": "array"},
    (MaskedLanguageModel, "forward"): {"asked": "places"},
    (TokenBatches, "__init__"): {"sampled": "sample_pairs"},
    (AttentionMaps, "__init__"): {"reads": "query_labels", "looks_at": "key_labels"},
}


def _warn(former: str, now: str) -> None:
    warnings.warn(f"{former} is now {now}", DeprecationWarning, stacklevel=3)


class FormerMethod:
    """A method or an attribute under its former name; using it warns."""

    def __init__(self, name: str, replacement: str):
        self.name, self.replacement = name, replacement

    def __get__(self, instance: Any, owner: type) -> Any:
        _warn(f"{owner.__name__}.{self.name}", f"{owner.__name__}.{self.replacement}")
        return getattr(owner if instance is None else instance, self.replacement)


def _accept_former_methods(owner: Any, names: dict[str, str]) -> None:
    """Let former names of methods work, also if a subclass overrides a method under one of them."""
    for former, now in names.items():
        setattr(owner, former, FormerMethod(former, now))
    inherited = vars(owner).get("__init_subclass__")

    def __init_subclass__(cls: Any, /, **settings: Any) -> None:
        hook = inherited.__get__(None, cls) if inherited else super(owner, cls).__init_subclass__
        hook(**settings)
        for former, now in names.items():
            if former in vars(cls) and now not in vars(cls):
                _warn(f"{cls.__name__}.{former}", f"{cls.__name__}.{now}")
                setattr(cls, now, vars(cls)[former])

    owner.__init_subclass__ = classmethod(__init_subclass__)


def _accept_former_keywords(owner: type, method: str, names: dict[str, str]) -> None:
    call = getattr(owner, method)

    @functools.wraps(call)
    def with_former_keywords(self, *arguments: Any, **keywords: Any) -> Any:
        for former in names.keys() & keywords.keys():
            _warn(f"{owner.__name__}({former}=...)", f"{owner.__name__}({names[former]}=...)")
            keywords[names[former]] = keywords.pop(former)
        return call(self, *arguments, **keywords)

    setattr(owner, method, with_former_keywords)


def accept_former_names() -> None:
    """Let classes accept the former names of their methods and of their methods' keywords."""
    for owner, names in FORMER_METHODS.items():
        _accept_former_methods(owner, names)
    for (owner, method), names in FORMER_KEYWORDS.items():
        _accept_former_keywords(owner, method, names)
