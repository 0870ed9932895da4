"""Which stretches of a gradient are finished while backward still runs."""

import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from numformer.layer import Layer, Parameter


class Finished:
    """Tells during a backward which blocks of the gradient's vector get nothing more.

    A block is finished when every layer that holds one of its parameters has gone back through all
    that it had saved, and the layers around it, too: a checkpointed one may forward it again.
    `blocks` are slices of the vector that `pack` made of the layer's parameters,
    all of one length but the last.
    """

    def __init__(self, objective: Layer, blocks: list[slice]):
        self._count, end = len(blocks), 0
        covered: dict[int, range] = {}
        for parameter in objective.named_parameters().values():
            first, end = end, end + parameter.size
            covered[id(parameter)] = range(first // blocks[0].stop, -(-end // blocks[0].stop))
        self._holders: list[tuple[Layer, list[int]]] = []
        self._around: dict[int, list[Layer]] = defaultdict(list)
        for layer in objective.layers_within():
            for inner in layer.layers_within():
                self._around[id(inner)].append(layer)
            own = [item for _, item in layer._children() if isinstance(item, Parameter)]
            if own:
                numbers = [block for item in own for block in covered[id(item)]]
                self._holders.append((layer, numbers))

    @contextlib.contextmanager
    def told(self, tell: Callable[[int], None]) -> Iterator[None]:
        """Around a backward: `tell` is called with the number of each block, once.

        At the end with those that layers hold whose own backward was not called. Raises
        RuntimeError where a layer goes back again after all that it had saved was popped.
        """
        waits_for = Counter(block for _, numbers in self._holders for block in numbers)
        back: set[int] = set()

        def run(layer: Layer, numbers: list[int], backward: Callable, *gradients):
            result = backward(*gradients)
            if id(layer) in back:
                name = type(layer).__name__
                raise RuntimeError(f"{name}.backward added to a gradient that was finished")
            if not any(outer.saved for outer in self._around[id(layer)]):
                back.add(id(layer))
                waits_for.subtract(numbers)
                for block in dict.fromkeys(numbers):
                    if not waits_for[block]:
                        tell(block)
            return result

        for layer, numbers in self._holders:
            vars(layer)["backward"] = functools.partial(run, layer, numbers, layer.backward)
        try:
            yield
        finally:
            for layer, _ in self._holders:
                del vars(layer)["backward"]
        for block in range(self._count):
            if waits_for[block]:
                tell(block)
