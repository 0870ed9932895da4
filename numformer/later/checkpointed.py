"""Gradient checkpointing (Chen et al. 2016): a layer that is computed again instead of saved."""

from typing import Any

import numpy as np

from numformer.backend import on_host
from numformer.errors import InputError
from numformer.layer import Array, Layer, mode, saving
from numformer.paper.memory import Memory
from numformer.randomness import dropout_stream


class Checkpointed(Layer):
    """What `layer` computes, and its gradients to the bit; of its forward only the inputs are kept.

    Backward goes forward once more, so N such layers save N inputs and what one of them saves,
    instead of what N save; the price is a second forward. Dropout draws the same masks again.
    """

    def __init__(self, layer: Layer):
        self.layer = layer

    def __repr__(self) -> str:
        return f"Checkpointed({type(self.layer).__name__})"

    def _walk(self, prefix: str, met: set):
        """Its layer has the names that it would have without the checkpoint."""
        if id(self) not in met:
            met.add(id(self))
            yield f"{prefix} (computed again)", self
            yield from self.layer._walk(prefix, met)

    def forward(self, *inputs: Any) -> Any:
        if not saving() or any(isinstance(given, Memory) for given in inputs):
            return self.layer.forward(*inputs)
        drawn = dropout_stream.state
        with mode(saving=False):
            y = self.layer.forward(*inputs)
        self.save(inputs=inputs, drawn=drawn, total=_total(y))
        return y

    def again(self, saved: dict[str, Any]) -> Any:
        """The forward that saved this once more; now the layer saves what its backward needs."""
        now, dropout_stream.state = dropout_stream.state, saved["drawn"]
        try:
            return self.layer.forward(*saved["inputs"])
        finally:
            dropout_stream.state = now

    def backward(self, dy: Array) -> Any:
        """Raises InputError where the second forward computes another y than the first."""
        saved = self.pop_saved()
        if not np.array_equal(_total(self.again(saved)), saved["total"], equal_nan=True):
            self.layer.clear_saved()
            raise InputError(
                "a checkpointed layer computes the same twice",
                f"a {type(self.layer).__name__} whose second forward gives other numbers",
                "Draw random numbers from numformer.randomness.dropout_stream, and keep no state "
                "from one forward to the next.",
            )
        return self.layer.backward(dy)


def _total(y) -> list:
    """What another y has another of; nothing on a GPU, because to ask would wait for it."""
    return [y.sum()] if on_host(y) else []
