"""Which stretches of a gradient are finished while backward still runs."""

import contextlib
import functools
from collections.abc import Callable, Iterator

from numformer.layer import FlatParameters, Layer, Parameter


class Finished:
    """Tells during a backward which blocks of the gradient's vector get nothing more.

    A block is finished when every layer that holds one of its parameters has gone back through all
    that it had saved. What no layer's own backward finishes is told at the end.
    """

    def __init__(self, objective: Layer, parameters: FlatParameters, blocks: list[slice]):
        self._blocks, self._watched = blocks, False
        self._tell: Callable[[int], None] | None = None
        numbers, end = {}, 0
        for parameter in objective.named_parameters().values():
            first, end = end, end + parameter.size
            size = blocks[0].stop
            numbers[id(parameter)] = range(first // size, -(-end // size))
        assert end == len(parameters.data)
        self._holds = {
            id(layer): (layer, [numbers[id(item)] for item in own])
            for layer in objective.layers_within()
            if (own := [item for _, item in layer._children() if isinstance(item, Parameter)])
        }

    @contextlib.contextmanager
    def told(self, tell: Callable[[int], None]) -> Iterator[None]:
        """Around a backward: `tell` is called with the number of each block, once."""
        open_layers = [0] * len(self._blocks)
        for _, of_layer in self._holds.values():
            for covered in of_layer:
                for block in covered:
                    open_layers[block] += 1
        done: set[int] = set()

        def run(layer: Layer, backward: Callable, *arguments):
            gradients = backward(*arguments)
            if id(layer) in done:
                name = type(layer).__name__
                raise RuntimeError(f"{name}.backward ran again after all that it saved was popped")
            if not layer.saved:
                done.add(id(layer))
                for covered in self._holds[id(layer)][1]:
                    for block in covered:
                        open_layers[block] -= 1
                        if not open_layers[block]:
                            tell(block)
            return gradients

        for layer, _ in self._holds.values():
            vars(layer)["backward"] = functools.partial(run, layer, layer.backward)
        try:
            yield
        finally:
            for layer, _ in self._holds.values():
                del vars(layer)["backward"]
        for block, still_open in enumerate(open_layers):
            if still_open:
                tell(block)
