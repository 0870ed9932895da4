"""How much of its weight a head gives to a place, and what chance would give."""

from collections.abc import Mapping

import numpy as np


def share(weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """weights (B, H, T, S), places (B, T) -> (H,): the mean weight that a head gives to a place.

    `places` says at which position each position should look, or -1 if it does not count.
    """
    row, t = np.nonzero(places >= 0)
    return weights[row, :, t, places[row, t]].mean(axis=0)


def shuffled(weights: np.ndarray, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same weights (B, H, T, S), each row dealt out anew among the keys that it may see.

    `seen` is boolean and broadcasts to (B, 1, T, S). The head stays as sharp as it was, but where
    it looks is left to chance.
    """
    seen = np.broadcast_to(seen, weights.shape)
    keys = np.where(seen, rng.random(weights.shape), 2)
    # Sorting random numbers deals out the seen keys; keys that are not seen come last in both.
    dealt, order = np.argsort(keys, axis=-1), np.argsort(~seen, axis=-1, kind="stable")
    made = np.zeros_like(weights)
    np.put_along_axis(made, dealt, np.take_along_axis(weights, order, axis=-1), axis=-1)
    return made


def self_places(lengths: np.ndarray, longest: int, causal: bool) -> dict[str, np.ndarray]:
    """Places named by position in self-attention, for sequences of these lengths (B,).

    A row of a decoder (`causal`) is named by what it writes: it reads the symbol written last.
    """
    t = np.broadcast_to(np.arange(longest), (len(lengths), longest))
    real, ends = t < lengths[:, None], np.broadcast_to(lengths[:, None] - 1, t.shape)

    def there(places):
        return np.where(real & (places >= 0) & (places <= ends), places, -1)

    if causal:
        named = {"what was written last": t, "what was written before that": t - 1}
        return {name: there(places) for name, places in named.items()} | {
            "the start mark": np.where(real & (t >= 2), 0, -1)  # for t < 2 it is named above
        }
    return {
        "the word before": there(t - 1),
        "the word itself": there(t),
        "the word after": there(t + 1),
        "the end mark": np.where(real & (t < ends - 1), ends, -1),
    }


def roles(
    weights: np.ndarray,
    places: Mapping[str, np.ndarray],
    seen: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """For each place (H, 2): the score of every head, and that of its shuffled weights."""
    chance = shuffled(weights, seen, rng)
    return {
        name: np.stack([share(weights, of), share(chance, of)], axis=-1)
        for name, of in places.items()
    }
