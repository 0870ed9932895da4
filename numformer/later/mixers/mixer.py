"""A mixer: the layer that combines the positions of a sequence, as self-attention does."""

from dataclasses import fields

import numpy as np

from numformer import settings
from numformer.layer import Layer


class Mixer(Layer):
    """x (B, T, D), or rows (N, D), reach -> the same shape: combines what each position may see.

    Every layer of a stack has a mixer before its feed-forward network, with the methods
    `forward(x, reach, past=None)` and `backward(dy)` -> dx. The Reach says which positions may see
    which; its Places turn rows into sequences and back. In decoding, the Memory `past` holds the
    mixer's state.

    The fields of `Settings` are the mixer's own settings; they become fields of the configs.
    `looks_ahead` is True if a position can see later ones, as an encoder requires; `is_local`, if
    a position sees only positions up to a fixed distance.
    """

    Settings: type[settings.Settings] = settings.Settings
    looks_ahead = False
    is_local = False
    role = "mixer"

    def attention_weights(self):
        """Return the attention weights (B, H, T, S) of the latest forward; None without any."""
        return None

    @classmethod
    def require(cls, config) -> None:
        """Raise InputError if this mixer cannot be built from the config."""

    @classmethod
    def build(cls, config, rng: np.random.Generator, causal: bool) -> "Mixer":
        """Build the mixer of a TowerConfig; a `causal` one never sees later positions."""
        raise NotImplementedError(f"{cls.__name__} has no build")

    def share(self, first: "Mixer") -> None:
        """Use the shared parameters of `first`, the first such mixer of the stack."""

    @classmethod
    def entries(cls, config) -> int:
        """Return a lower bound on the number of entries in the matrices of the mixer."""
        return 0


def settings_from(config, kind: type[settings.Settings]) -> dict:
    """Return a config's values for the fields of `kind`, by name; defaults for missing fields."""
    return {field.name: getattr(config, field.name, field.default) for field in fields(kind)}
