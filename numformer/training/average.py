"""The mean of a model's weights at several steps (section 6.1)."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from numformer.backend import array_module
from numformer.errors import InputError


def mean(arrays: Sequence):
    """Return the mean of arrays of one shape, in the first one's dtype, summed in float64."""
    xp = array_module(arrays[0])
    total = xp.zeros(arrays[0].shape, xp.float64)
    for array in arrays:
        total += array
    return (total / len(arrays)).astype(arrays[0].dtype)


def average(states: Sequence[Mapping]) -> dict:
    """Return the mean of each weight over the `state_dict()`s of a model at several steps.

    `model.load_state_dict(average(states))` makes the paper's averaged model, in which the noise of
    single steps cancels, as it does with a small learning rate at the end of a run. Raises
    InputError unless all states have the same names and shapes.
    """
    shapes = [{name: array.shape for name, array in state.items()} for state in states]
    differing = [names for other in shapes if (names := dict(other.items() ^ shapes[0].items()))]
    if not shapes or differing:
        received = f"another {min(differing[0])}" if differing else "none"
        raise InputError(
            "average takes the weights of one model, with the same names and shapes each time",
            received,
            "Pass the state_dict() of the same model after different steps.",
        )
    return {name: mean([state[name] for state in states]) for name in shapes[0]}


@contextlib.contextmanager
def mean_weights(data, recent: Sequence) -> Iterator[None]:
    """Within the block `data` (N) is the mean of `recent`, its values at several steps.

    The last of `recent` must equal `data` before the block, and is copied back after it. If
    `recent` is empty, `data` is unchanged.
    `data` is changed in place, since layers and other processes share its memory.
    """
    if not recent:
        yield
        return
    data[...] = mean(recent)
    try:
        yield
    finally:
        data[...] = recent[-1]
