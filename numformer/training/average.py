"""The mean of a model's weights at several steps (section 6.1)."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from numformer.backend import array_module
from numformer.errors import InputError


def mean(arrays: Sequence):
    """Arrays of one shape -> their mean, in the dtype of the first; summed in float64."""
    xp = array_module(arrays[0])
    total = xp.zeros(arrays[0].shape, xp.float64)
    for array in arrays:
        total += array
    return (total / len(arrays)).astype(arrays[0].dtype)


def average(states: Sequence[Mapping]) -> dict:
    """Weights by name, as `model.state_dict()` gives them, of several steps -> their means.

    `model.load_state_dict(average(states))` is then the paper's averaged model: what single steps
    did by chance cancels, which a small learning rate at the end of a run does, too. Raises
    InputError unless all have the same names and shapes.
    """
    shapes = [{name: array.shape for name, array in state.items()} for state in states]
    if not shapes or any(of_state != shapes[0] for of_state in shapes):
        differing = [dict(of_state.items() ^ shapes[0].items()) for of_state in shapes]
        received = next((f"another {min(names)}" for names in differing if names), "none")
        raise InputError(
            "what is averaged are the weights of one model, the same names and shapes each time",
            received,
            "Pass the state_dict() of the same model after different steps.",
        )
    return {name: mean([state[name] for state in states]) for name in shapes[0]}


@contextlib.contextmanager
def averaged(data, recent: Sequence) -> Iterator[None]:
    """Within the block `data` (N) is the mean of `recent`, where these are the vectors (N) that it
    has been, itself the last; without any it stays what it is.

    It is written in place: the layers and the processes that share it look at this memory.
    """
    if not recent:
        yield
        return
    data[...] = mean(recent)
    try:
        yield
    finally:
        data[...] = recent[-1]
