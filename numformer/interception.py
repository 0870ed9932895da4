"""Intercept calls of layers, to read or change what goes through a layer."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numformer.layer import Layer


@contextlib.contextmanager
def intercept(layers: Mapping[Any, Layer], method: str, around: Callable) -> Iterator[None]:
    """Within the block, replace calls of a layer's `method` by calls of `around`.

    `layers` holds the layers by name. For example, `layer.forward(*inputs)` returns
    `around(name, forward, *inputs)`, where `forward` is the layer's own method with the keyword
    arguments of the call.
    """

    def interception(name, call):
        return lambda *inputs, **settings: around(
            name, functools.partial(call, **settings), *inputs
        )

    before = [(vars(layer), vars(layer).get(method)) for layer in layers.values()]
    for name, layer in layers.items():
        vars(layer)[method] = interception(name, getattr(layer, method))
    try:
        yield
    finally:
        for attributes, own in reversed(before):
            del attributes[method]
            if own is not None:
                attributes[method] = own
