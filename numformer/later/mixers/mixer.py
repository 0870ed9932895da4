"""What stands where attention stands: the layer in which the positions of a sequence meet."""

from dataclasses import fields

import numpy as np

from numformer import settings
from numformer.layer import Layer


class Mixer(Layer):
    """x (B, T, D), or rows (N, D), reach -> the same shape: each position with what it may see.

    A block has one, before its feed-forward network: `forward(x, reach, past=None)`, `backward(dy)`
    -> dx. The Reach says who may see whom, and makes rows into arrays of sequences and back. The
    `past`, a Memory, has what the mixer keeps of earlier positions where x continues them.

    `Settings` has the fields that are the mixer's own; a config has them all. `looks_ahead` says
    whether the mixer lets a position see later ones, as an encoder needs it, `sees_near` whether
    there is an end to how far it sees, whatever the length.
    """

    Settings: type[settings.Settings] = settings.Settings
    looks_ahead = False
    sees_near = False
    role = "mixer"

    def attention_weights(self):
        """Where the positions of the latest forward looked, (B, H, T, S), or None: for maps."""
        return None

    @classmethod
    def own_settings(cls, config) -> dict:
        """The mixer's own settings in a config, by name; the defaults where it has none."""
        own = fields(cls.Settings)
        return {field.name: getattr(config, field.name, field.default) for field in own}

    @classmethod
    def require(cls, config) -> None:
        """Raise InputError for a config with which there is no such mixer."""

    @classmethod
    def build(cls, config, rng: np.random.Generator, causal: bool) -> "Mixer":
        """The mixer of a config, a TowerConfig; a `causal` one is to see nothing later."""
        raise NotImplementedError(f"{cls.__name__} has no build")

    def share(self, first: "Mixer") -> None:
        """Take those parameters of the tower's first such mixer that all of its layers share."""

    @classmethod
    def entries(cls, config) -> int:
        """The entries of the matrices of such a mixer; no mixer of the config has fewer."""
        return 0
