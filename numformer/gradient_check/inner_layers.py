"""Finds the inner layer that is wrong by itself, or that receives a wrong gradient."""

import copy
import functools
from typing import Any

import numpy as np

from numformer.backend import dtype_kind, to_host
from numformer.errors import InputError
from numformer.gradient_check.factors import known_factors
from numformer.gradient_check.symptoms import UNKNOWN, Evidence, explain
from numformer.interception import intercept
from numformer.layer import Layer


def inner_layers(layer: Layer) -> dict[str, Layer]:
    """Return the layers inside `layer`, by dotted name."""
    return {path: inner for path, inner in layer.named_layers().items() if path}


def outermost(layer: Layer) -> dict[str, Layer]:
    """Return the inner layers that are in no other inner layer, by dotted name."""
    layers = inner_layers(layer)
    within = [name for name in layers if any(name.startswith(f"{other}.") for other in layers)]
    return {name: inner for name, inner in layers.items() if name not in within}


def faulty_layers(check) -> dict[str, str]:
    """Check each inner layer alone, on the inputs it gets; return reports on the innermost wrong.

    A wrong gradient of a parameter explains only that parameter, whose name is the report's key. A
    wrong gradient of an input spoils all gradients computed from it; the report's key is "".
    """
    inputs_of, reports = {}, {}
    layers = inner_layers(check.layer)
    parameter_names = {parameter: name for name, parameter in check.parameters.items()}

    def around(path, forward, *inputs):
        output = forward(*inputs)
        if dtype_kind(output):  # a layer that returns several arrays cannot be checked alone
            inputs_of[path] = inputs
        return output

    with intercept(layers, "forward", around):
        check.run()
    for path, layer in reversed(layers.items()):
        if path not in inputs_of:
            continue
        culprit = f"`{path}` ({type(layer).__name__}) is wrong by itself"
        tensors = {name: parameter_names[p] for name, p in layer.named_parameters().items()}
        try:
            layer_check = type(check)(copy.deepcopy(layer), inputs_of[path], check.seed, check.xp)
            for name in layer_check.tensors:
                tensor = tensors.get(name, "")
                if tensor not in reports and not (row := layer_check.row(name)).passed:
                    reports[tensor] = f"{culprit}, in {name}: {row.meaning}"
        except InputError as problem:
            reports[""] = f"{culprit}: {problem}"
        except Exception:  # a layer that does not run alone cannot be judged
            continue
        if "" in reports:
            break
    return reports


def faulty_connection(check) -> str | None:
    """Return a report on the first wrong gradient that an inner layer receives during backward.

    Layers that are right by themselves return a wrong gradient only if they receive one.
    """
    layers = inner_layers(check.layer)
    outputs: dict[tuple[str, int], Any] = {}  # by layer and number of the call
    received: dict[str, list] = {path: [] for path in layers}

    def run_shifted(shift=0, place=None):
        """Run forward with `shift` added to the output at `place`, a key of `outputs`."""
        calls = dict.fromkeys(check.outermost, 0)

        def around(path, forward, *inputs):
            output = forward(*inputs)
            if path not in check.outermost:
                return output
            calls[path] += 1
            outputs.setdefault((path, calls[path]), output)
            return output + shift if (path, calls[path]) == place else output

        with intercept(layers, "forward", around):
            return check.run()

    def around_backward(path, backward, dy):
        received[path].insert(0, to_host(dy).copy())
        return backward(dy)

    run_shifted()
    check.run(keep=True)
    with intercept(layers, "backward", around_backward):
        check.backward(check.upstream.copy())
    rng, slope_along = np.random.default_rng(0), functools.partial(check.slope, finer=100)
    for place, output in reversed(outputs.items()):
        path, number = place
        gradients = received[path]
        if len(gradients) < number or gradients[number - 1].shape != output.shape:
            continue
        explicit = gradients[number - 1]
        direction = rng.standard_normal(output.shape)
        forward = functools.partial(run_shifted, place=place)
        slope, rounding = slope_along(forward, check.xp.asarray(direction))
        explicit_slope = float((explicit * direction).sum())
        largest = max(abs(slope), abs(explicit_slope))
        if abs(slope - explicit_slope) <= 1e-6 * largest + 1e3 * rounding:
            continue
        numerical = {
            other: check.by_entry(
                functools.partial(slope_along, functools.partial(run_shifted, place=other)),
                output.shape,
            )
            for other, other_output in outputs.items()
            if other_output.shape == output.shape
        }
        evidence = Evidence(
            explicit,
            numerical.pop(place),
            factors=known_factors(check),
            others={path: gradient for (path, _), gradient in numerical.items()},
        )
        message = explain(evidence) or UNKNOWN
        return f"the gradient that reaches `{path}` is wrong already: {message}"
    return None
