"""Which layer within a layer is wrong by itself, or gets a gradient that is wrong already."""

import copy
import functools
from typing import Any

import numpy as np

from numformer.backend import dtype_kind, to_host
from numformer.errors import InputError
from numformer.gradient_check.factors import known_factors
from numformer.gradient_check.symptoms import UNKNOWN, Evidence, explain
from numformer.interception import intercepted
from numformer.layer import Layer


def inner_layers(layer: Layer) -> dict[str, Layer]:
    """The layers within `layer` by dotted name, without itself."""
    return {path: inner for path, inner in layer.named_layers().items() if path}


def faulty_layers(checked) -> dict[str, str]:
    """The reports on the smallest layers that are wrong by themselves, with their real inputs.

    By the tensor that each report explains. A wrong gradient of a parameter explains itself alone;
    a wrong gradient of an input goes on to whatever lies behind it, and stands under "".
    """
    inputs_of, reports = {}, {}
    names = {parameter: name for name, parameter in checked.layer.named_parameters().items()}

    def around(path, forward, *inputs):
        output = forward(*inputs)
        if dtype_kind(output):  # a layer that returns several arrays cannot be checked alone
            inputs_of[path] = inputs
        return output

    with intercepted(inner_layers(checked.layer), "forward", around):
        checked.run()
    for path, sublayer in reversed(checked.layer.named_layers().items()):
        if not path or path not in inputs_of:
            continue
        culprit = f"`{path}` ({type(sublayer).__name__})"
        tensors = {name: names[p] for name, p in sublayer.named_parameters().items()}
        try:
            alone = type(checked)(
                copy.deepcopy(sublayer), inputs_of[path], checked.seed, checked.xp
            )
            for name in alone.tensors:
                tensor = tensors.get(name, "")
                if tensor not in reports and not (row := alone.row(name)).passed:
                    reports[tensor] = f"{culprit} is wrong by itself, in {name}: {row.meaning}"
        except InputError as problem:
            reports[""] = f"{culprit} is wrong by itself: {problem}"
        except Exception:  # it does not run alone, so it is not known to be wrong
            continue
        if "" in reports:
            break
    return reports


def faulty_wire(checked) -> str | None:
    """The report on the first gradient that reaches a layer wrong, in the order of backward.

    Layers that are right by themselves hand on a wrong gradient only where they get one.
    """
    layer = checked.layer
    outputs: dict[tuple[str, int], Any] = {}
    received: dict[str, list] = {}
    paths = layer.named_layers().keys() - {""}
    outermost = {p for p in paths if not any(p.startswith(f"{other}.") for other in paths)}

    def forward_of(shift=0, wire=None):
        def around(path, forward, *inputs):
            output = forward(*inputs)
            if path in outermost:
                made[path] = made.get(path, 0) + 1
                key = path, made[path]
                outputs.setdefault(key, output)
                return output + shift if key == wire else output
            return output

        made: dict[str, int] = {}
        with intercepted(inner_layers(layer), "forward", around):
            return checked.run()

    def backward(path, backward_of_layer, dy):
        received.setdefault(path, []).insert(0, to_host(dy).copy())
        return backward_of_layer(dy)

    forward_of()
    checked.run(keep=True)
    with intercepted(inner_layers(layer), "backward", backward):
        checked.backward(checked.upstream.copy())
    rng = np.random.default_rng(0)
    for wire, output in reversed(outputs.items()):
        path, number = wire
        gradients = received.get(path, [])
        if len(gradients) < number or gradients[number - 1].shape != output.shape:
            continue
        explicit, forward = gradients[number - 1], functools.partial(forward_of, wire=wire)
        direction = rng.standard_normal(output.shape)
        slope, rounding = checked.slope(forward, checked.xp.asarray(direction))
        along = float((explicit * direction).sum())
        if abs(slope - along) <= 1e-6 * max(abs(slope), abs(along)) + 1e3 * rounding:
            continue
        numerical = {
            other: checked.by_entry(
                functools.partial(checked.slope, functools.partial(forward_of, wire=other)),
                output.shape,
            )
            for other, output_there in outputs.items()
            if output_there.shape == output.shape
        }
        evidence = Evidence(
            explicit,
            numerical.pop(wire),
            factors=known_factors(checked),
            others={path: gradient for (path, _), gradient in numerical.items()},
        )
        message = explain(evidence) or UNKNOWN
        return f"the gradient that reaches `{path}` is wrong already: {message}"
    return None
