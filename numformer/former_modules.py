"""Former names of modules, which can still be imported under these names, with a warning."""

import functools
import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FORMER_MODULES = {
    f"numformer.training.{former}": f"numformer.{now}"
    for former, now in {
        "optimizers": "optimization.optimizers",
        "recipe": "optimization.recipe",
        "loss_scale": "optimization.loss_scale",
        "checkpoints": "runs.checkpoints",
        "files": "runs.files",
        "run_folder": "runs.run_folder",
        "resume": "runs.resume",
        "migrations": "runs.migrations",
    }.items()
} | {
    "numformer.paper.greedy": "numformer.paper.writing",
    "numformer.paper.schedule": "numformer.paper.adam",
    "numformer.later.attention.dense": "numformer.later.attention.biased_attention",
    "numformer.later.attention.mixer": "numformer.later.mixers.attention",
    "numformer.recurrence.recurrence": "numformer.recurrence.recurrent",
    "numformer.generation.described": "numformer.generation.descriptions",
    "numformer.published.rows": "numformer.published.table",
}
MOVED_NAMES = {
    "numformer.backend": {
        "numformer.arithmetic": "matmul matrix_product rows transpose sum_rows sum_last mean_last "
        "max_last dot_last dot_rows scatter_add",
        "numformer.paper.softmax": "masked=mask_scores",
    },
    "numformer.symbols": {"numformer.symbols": "Special=SpecialIds OURS=DEFAULT_IDS"},
    "numformer.data": {"numformer.symbols": "Special=SpecialIds"},
    "numformer.data.vocabulary": {"numformer.symbols": "Special=SpecialIds OURS=DEFAULT_IDS"},
    "numformer.randomness": {
        "numformer.randomness": "drawn_mask=dropout_mask keep_mask=mask_from_bits"
    },
    "numformer.paper.memory": {"numformer.paper.memory": "Kept=ArrayState Shared=SourceState"},
    "numformer.later": {
        "numformer.later.attention.patterns": "Everything=FullPattern",
        "numformer.later.mixers.attention": "AttentionMixer",
        "numformer.later.feed_forward": "DenseFeedForward",
        "numformer.later.experts": "MixtureOfExperts",
    },
    "numformer.later.attention.patterns": {
        "numformer.later.attention.patterns": "Everything=FullPattern"
    },
    "numformer.models": {"numformer.models.kinds": "model_of=model_class"},
    "numformer.models.kinds": {
        "numformer.models.fields": "choices ids only_with sizes special_id unflagged=without_flag",
        "numformer.models.owned_settings": "OwnedSettings own_settings",
    },
    "numformer.generation.text": {
        "numformer.generation.text_pipeline": "Text=TextPipeline MOST=MAX_SYMBOLS Symbols is_length"
    },
    "numformer.models.fields": {"numformer.models.fields": "unflagged=without_flag"},
    "numformer.execution.ranks": {"numformer.execution.ranks": "together=run_ranks"},
    "numformer.interception": {"numformer.interception": "intercepted=intercept"},
    "numformer.runs.files": {"numformer.runs.files": "locked=folder_lock"},
    "numformer.training": {
        "numformer.optimization": "Recipe linear_rate clip_global_norm",
        "numformer.runs": "load_model save_model",
    },
    "numformer.optimization.optimizers": {
        "numformer.optimization.clipping": "clip_global_norm clip_factor block_squares",
        "numformer.optimization.optimizers": "without_effect=ineffective_settings",
    },
}
"""For each module, the names it once had, by their present module; `former=present` if renamed."""


class FormerModules(MetaPathFinder, Loader):
    """The finder and loader that imports a module under its former name."""

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in FORMER_MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        now = FORMER_MODULES[module.__name__]
        warnings.warn(f"{module.__name__} is now {now}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(now)


def forward_moved_names() -> None:
    """Let modules still provide the names that they once had, with a warning."""
    for former in MOVED_NAMES:
        module = importlib.import_module(former)
        module.__getattr__ = functools.partial(_moved, former)  # type: ignore[method-assign]


def _moved(former: str, name: str):
    for now, names in MOVED_NAMES[former].items():
        for entry in names.split():
            old, _, new = entry.partition("=")
            if name == old:
                message = f"{former}.{old} is now {now}.{new or old}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                return getattr(importlib.import_module(now), new or old)
    raise AttributeError(f"module {former!r} has no attribute {name!r}")
