"""Gradient checkpointing (Chen et al. 2016): save only inputs, and repeat forward in backward."""

from typing import Any

import numpy as np

from numformer.backend import on_host
from numformer.errors import InputError
from numformer.layer import Array, Layer, mode, saving
from numformer.paper.memory import Memory
from numformer.randomness import dropout_stream


class Checkpointed(Layer):
    """A layer whose forward saves only its inputs; its results are bitwise those of `layer`.

    Backward runs forward again, so N such layers save N inputs and one layer's records instead of N
    layers' records. The price is a second forward. Dropout draws the same masks again.
    """

    def __init__(self, layer: Layer):
        self.layer = layer

    def __repr__(self) -> str:
        return f"Checkpointed({type(self.layer).__name__})"

    def _walk(self, path: str, nodes: dict) -> dict:
        """Walk the inner layer under the names that it would have without the checkpoint."""
        nodes[id(self)] = f"{path} (recomputed)", self
        return nodes if id(self.layer) in nodes else self.layer._walk(path, nodes)

    def forward(self, *inputs: Any) -> Any:
        if not saving() or any(isinstance(x, Memory) for x in inputs):
            return self.layer.forward(*inputs)
        start = dropout_stream.state
        with mode(saving=False):
            y = self.layer.forward(*inputs)
        self.save(inputs=inputs, start=start, checksum=_checksum(y))
        return y

    def recompute(self, saved: dict[str, Any]) -> Any:
        """Repeat the forward of a saved record, this time saving what backward needs."""
        now, dropout_stream.state = dropout_stream.state, saved["start"]
        try:
            return self.layer.forward(*saved["inputs"])
        finally:
            dropout_stream.state = now

    def backward(self, dy: Array) -> Any:
        """Run forward again, then backward. Raises InputError if the second output differs."""
        saved = self.pop_saved()
        if not np.array_equal(_checksum(self.recompute(saved)), saved["checksum"], equal_nan=True):
            self.layer.clear_saved()
            raise InputError(
                "a checkpointed layer computes the same result twice",
                f"a {type(self.layer).__name__} whose second forward differs",
                "Draw random numbers from numformer.randomness.dropout_stream, and keep no state "
                "from one forward to the next.",
            )
        return self.layer.backward(dy)


def _checksum(y) -> list:
    """Return [the sum of y], or [] on a GPU, where reading the sum would wait for the device."""
    return [y.sum()] if on_host(y) else []
