"""How much of its weight a head gives to a place, beside what chance would give."""

from collections.abc import Mapping

import numpy as np


def share(weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """weights (B, H, T, S), places (B, T) -> (H,): the mean weight that a head gives to a place.

    `places` says for every position which one is meant, -1 where there is none.
    """
    row, t = np.nonzero(places >= 0)
    return weights[row, :, t, places[row, t]].mean(axis=0)


def shuffled(weights: np.ndarray, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same weights (B, H, T, S), each row dealt out anew among the keys that it may see.

    `seen` is boolean and broadcasts to (B, 1, T, S). A head keeps how sharp it is, and loses where
    it looks.
    """
    seen = np.broadcast_to(seen, weights.shape)
    keys = np.where(seen, rng.random(weights.shape), 2)
    # The order of random keys deals the seen ones out; what is not seen comes last in both.
    dealt, order = np.argsort(keys, axis=-1), np.argsort(~seen, axis=-1, kind="stable")
    made = np.zeros_like(weights)
    np.put_along_axis(made, dealt, np.take_along_axis(weights, order, axis=-1), axis=-1)
    return made


def self_places(lengths: np.ndarray, longest: int, causal: bool) -> dict[str, np.ndarray]:
    """Where self-attention may look by position, for sequences of these lengths (B,).

    A decoder's row is named by what it writes: it reads what was written last.
    """
    t = np.broadcast_to(np.arange(longest), (len(lengths), longest))
    real, ends = t < lengths[:, None], np.broadcast_to(lengths[:, None] - 1, t.shape)

    def there(places):
        return np.where(real & (places >= 0) & (places <= ends), places, -1)

    if causal:
        named = {"what was written last": t, "what was written before that": t - 1}
        return {name: there(places) for name, places in named.items()} | {
            "the start mark": np.where(real & (t >= 2), 0, -1)  # before, it is one of the others
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
    """Of each place the share of every head and of its shuffled weights, (H, 2)."""
    chance = shuffled(weights, seen, rng)
    return {
        name: np.stack([share(weights, of), share(chance, of)], axis=-1)
        for name, of in places.items()
    }
