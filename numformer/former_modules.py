"""Former names of modules, which can still be imported by these names, with a warning."""

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
    }.items()
}


class FormerModules(MetaPathFinder, Loader):
    """The finder and loader that imports a module under its former name."""

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in FORMER_MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        now = FORMER_MODULES[module.__name__]
        warnings.warn(f"{module.__name__} is now {now}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(now)
