"""A mixer: the layer that combines the positions of a sequence, as self-attention does."""

from dataclasses import fields

import numpy as np

from numformer import settings
from numformer.layer import Layer


class Mixer(Layer):
    """x (B, T, D), or rows (N, D), reach -> the same shape: combines what each position may see.

    Every layer of a stack has one, before its feed-forward network: `forward(x, reach, past=None)`,
    `backward(dy)` -> dx. The Reach says which positions may see which, and turns rows into
    sequences and back. The `past`, a Memory, holds the mixer's state of earlier positions.

    `Settings` has the settings that belong to this mixer; they become fields of the configs.
    `looks_ahead`: a position can see later ones, as an encoder requires. `is_local`: a position
    sees up to a fixed distance only.
    """

    Settings: type[settings.Settings] = settings.Settings
    looks_ahead = False
    is_local = False
    role = "mixer"

    def attention_weights(self):
        """The weights (B, H, T, S) of the latest forward, for attention maps; None without any."""
        return None

    @classmethod
    def require(cls, config) -> None:
        """Raise InputError for a config that this mixer cannot be built from."""

    @classmethod
    def build(cls, config, rng: np.random.Generator, causal: bool) -> "Mixer":
        """The mixer of a TowerConfig; a `causal` one never sees later positions."""
        raise NotImplementedError(f"{cls.__name__} has no build")

    def share(self, first: "Mixer") -> None:
        """Take the parameters that all layers share from the first such mixer of the stack."""

    @classmethod
    def entries(cls, config) -> int:
        """A lower bound on the number of entries in the matrices of the mixer."""
        return 0


def settings_from(config, kind: type[settings.Settings]) -> dict:
    """The values of some Settings in a config, by name; defaults for those that it lacks."""
    return {field.name: getattr(config, field.name, field.default) for field in fields(kind)}
