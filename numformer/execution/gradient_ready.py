"""Finds out, while backward still runs, which blocks of the gradient are final."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from numformer.interception import intercept
from numformer.layer import Layer, Parameter


class GradientReady:
    """Watches a backward pass, and reports each final block of the gradient's vector.

    A block is final when no value is left that was saved by a layer with a parameter in the block,
    or by a layer around that one: a checkpointed layer may run its inner layers again. `blocks` are
    slices of the vector that `pack` makes of the parameters; all but the last have the same length.
    """

    def __init__(self, objective: Layer, blocks: list[slice]):
        self._count, end = len(blocks), 0
        blocks_of: dict[int, range] = {}
        for parameter in objective.named_parameters().values():
            first, end = end, end + parameter.size
            blocks_of[id(parameter)] = range(first // blocks[0].stop, -(-end // blocks[0].stop))
        self._holders: list[tuple[Layer, list[int]]] = []
        self._around: dict[int, list[Layer]] = defaultdict(list)
        for layer in objective.layers_within():
            for inner in layer.layers_within():
                self._around[id(inner)].append(layer)
            parameters = [item for _, item in layer._children() if isinstance(item, Parameter)]
            if parameters:
                indices = [block for item in parameters for block in blocks_of[id(item)]]
                self._holders.append((layer, indices))

    @contextlib.contextmanager
    def reports(self, report: Callable[[int], None]) -> Iterator[None]:
        """Call `report` once with each block's number, while the body runs a backward pass.

        The blocks of layers whose backward was not called are reported at the end. Raises
        RuntimeError if a layer adds to a block that was already reported.
        """
        remaining = Counter(block for _, blocks in self._holders for block in blocks)
        done: set[int] = set()

        def around(number: int, backward: Callable, *gradients):
            layer, blocks = self._holders[number]
            result = backward(*gradients)
            if id(layer) in done:
                name = type(layer).__name__
                raise RuntimeError(f"{name}.backward added to a gradient reported as final")
            if not any(outer.saved for outer in self._around[id(layer)]):
                done.add(id(layer))
                remaining.subtract(blocks)
                for block in dict.fromkeys(blocks):
                    if not remaining[block]:
                        report(block)
            return result

        layers = {number: layer for number, (layer, _) in enumerate(self._holders)}
        with intercept(layers, "backward", around):
            yield
        for block in range(self._count):
            if remaining[block]:
                report(block)
