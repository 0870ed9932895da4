"""The contract of layers: the rules that every entry of CASES follows.

They hold with NumPy and with the stand-in for CuPy, which refuses what CuPy refuses.
"""

import ast
import importlib
import itertools
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import cupy_stand_in
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numformer
from numformer.backend import array_module, to_host
from numformer.gradient_check.cases import CASES, MIXER_SETTINGS, TABLE
from numformer.gradient_check.gradients import GradientCheck, copy_inputs, dtype_kind
from numformer.later import MIXERS
from numformer.later.positions import NoPositions
from numformer.layer import Layer, inference, mode, pack
from numformer.optimization.optimizers import OPTIMIZERS
from numformer.paper.positions import SinusoidalPositions
from numformer.randomness import dropout_stream

# What a model is composed of is held to the list by itself.
every_part = pytest.mark.parametrize("name", [n for n in CASES if not CASES[n].composed])
TIGHT = dict(rtol=1e-12, atol=1e-13)


def prepare(name: str, xp=np, dtype=np.float64) -> tuple[Layer, list]:
    """A fresh layer of the case with shifted parameters, and its inputs, all `dtype` in `xp`."""
    layer, inputs = CASES[name]()
    flat = pack(layer, dtype, xp)
    noise = 0.1 * np.random.default_rng(1).standard_normal(flat.data.shape)
    flat.data += xp.asarray(noise, dtype=dtype)
    return layer, copy_inputs(inputs, dtype, xp)


def forward(layer: Layer, inputs: list, step: int = 0):
    """layer.forward with the dropout masks of `step`; also a scalar output is an array."""
    dropout_stream.reseed(0, step)
    output = layer.forward(*inputs)
    return array_module(output).asarray(output)


def upstream_for(output, seed: int = 0):
    upstream = np.random.default_rng(seed).standard_normal(output.shape)
    return array_module(output).asarray(upstream, dtype=output.dtype)


def backward(layer: Layer, dy) -> tuple:
    """What layer.backward returns, as a tuple whatever the number of gradients."""
    gradients = layer.backward(dy)
    return gradients if isinstance(gradients, tuple) else (gradients,) * (gradients is not None)


def parameter_gradients(layer: Layer) -> list:
    return [parameter.grad.copy() for parameter in layer.named_parameters().values()]


def run_alone(layer: Layer, inputs: list, step: int, dy=None) -> tuple:
    """One forward and backward -> dy, the gradients of inputs and the gradients of parameters."""
    layer.zero_grad()
    output = forward(layer, inputs, step)
    dy = upstream_for(output, step) if dy is None else dy
    return dy, backward(layer, dy), parameter_gradients(layer)


def arrays_of(values: Iterable) -> list:
    return [value for value in values if dtype_kind(value)]


def other_inputs(inputs: list) -> list:
    """The same shapes and kinds with other values: the batch reversed, numbers scaled."""
    changed = [x[::-1].copy() if dtype_kind(x) else x for x in inputs]
    return [0.7 * x if dtype_kind(x) == "f" else x for x in changed]


def saved_arrays(layer: Layer) -> list:
    records = [record for part in layer.layers_within() for record in part.saved]
    return arrays_of(value for record in records for value in record.values())


def assert_same(found, expected):
    assert_array_equal(to_host(found), to_host(expected))


def assert_all_close(found: Iterable, expected: Iterable):
    for one, other in zip(found, expected, strict=True):
        assert_allclose(to_host(one), to_host(other), **TIGHT)


def assert_gradients_agree(check: GradientCheck):
    """With numerical gradients. All parameters move at once; if that fails, each moves alone."""
    names, tensors, gradients = [*check.tensors], check.tensors, check.gradients
    if parameters := check.parameters:
        together = np.concatenate([gradients[name].ravel() for name in parameters])
        check.tensors = tensors | {"parameters": check._flat.data}
        check.gradients = gradients | {"parameters": together}
        if check._compare("parameters", directions=1).passed:
            names = check.input_names
        check.tensors, check.gradients = tensors, gradients
    rows = [check.row(name, directions=1) for name in names]
    assert not [str(row) for row in rows if not row.passed]


def layers_of(cls=Layer) -> list[type[Layer]]:
    """Every kind of layer of the library that has a forward."""
    ours = cls.__module__.startswith("numformer.") and cls.forward is not Layer.forward
    return [cls] * ours + [layer for below in cls.__subclasses__() for layer in layers_of(below)]


def has_the_lines_of(kind: type[Layer], layer: type[Layer]) -> bool:
    """Whether two kinds of layers have the same forward and backward."""
    return (kind.forward, kind.backward) == (layer.forward, layer.backward)


def lacking() -> Iterator[str]:
    """What layers and optimizers lack; no other test covers a layer without a case."""
    text = Path(__file__).with_name("torch_reference.py").read_text()  # torch may be missing
    body = ast.parse(text).body
    references = {part.name for part in body if isinstance(part, ast.FunctionDef)}
    assignments = [part for part in body if isinstance(part, ast.Assign)]
    references |= {part.targets[0].id for part in assignments if isinstance(part.value, ast.Call)}
    text += Path(__file__).with_name("parity_cases.py").read_text()
    used = {case.reference for case in TABLE} | {f"{name}_optimizer" for name in OPTIMIZERS}
    used |= {f"{case.settings.get('positions')}_attention" for case in TABLE}
    for name in references - used:
        if len(re.findall(rf"\b{name}\b", text)) == 1:
            yield f"{name} of torch_reference.py: a case that names it"
    for name in OPTIMIZERS:
        if f"{name}_optimizer" not in references:
            yield f"{name}: a function {name}_optimizer in torch_reference.py"
    for name in MIXERS.keys() - {
        changes.get("mixers", "attention") for changes in MIXER_SETTINGS.values()
    }:
        yield f"{name}: a line in MIXER_SETTINGS of numformer/gradient_check/cases/models.py"
    equations = (Path(__file__).parents[2] / "lessons" / "equations.md").read_text()
    kinds = {case.name: type(case()[0]) for case in TABLE}
    for layer in layers_of():
        of_layer = [case for case in TABLE if has_the_lines_of(kinds[case.name], layer)]
        if not of_layer:
            yield f"{layer.__name__}: a Case in numformer/gradient_check/cases"
        for case in of_layer:
            if CASES[case.name] is not case:
                yield f"{case.name}: a name of its own, for two cases have it"
            if case.reference not in references:
                yield f"{layer.__name__}: a function {case.reference} in torch_reference.py"
        for name, formula in vars(sys.modules[layer.__module__]).items():
            pair = f"| `{name.removesuffix('_backward')}` | `{name}` |"
            here = name.endswith("_backward") and formula.__module__ == layer.__module__
            if here and pair not in equations:
                yield f"{name}: a row with {pair} in lessons/equations.md"
        of_a_model = layer.__module__.startswith("numformer.models.")  # found by its file's name
        public = {*numformer.__all__}
        if layer.__name__ not in public and not of_a_model:
            yield f"{layer.__name__}: a place in the __all__ of its room"


def test_every_layer_has_a_case_a_reference_its_equations_and_a_public_name():
    """And every optimizer has a reference."""
    for module in pkgutil.walk_packages(numformer.__path__, "numformer."):
        if not module.name.endswith("kernels"):  # a module of kernels needs CuPy and has no layers
            importlib.import_module(module.name)
    assert len(layers_of()) > 10
    assert not {*lacking()}, "\n".join(["missing:", *sorted({*lacking()})])


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_numerical_ones(name):
    """On the host; a test below compares devices with the host."""
    layer, inputs = CASES[name]()
    checked, count = GradientCheck(layer, inputs), len(layer.named_parameters())
    assert len(checked.tensors) == count + [*map(dtype_kind, inputs)].count("f")
    assert_gradients_agree(checked)


def two_forwards_may_precede_two_backwards(layer, inputs):
    """A single slot for saved values, a shared dropout mask or `=` for `+=` fails here."""
    second = other_inputs(inputs)
    dy_first, dinputs_first, dparameters_first = run_alone(layer, inputs, 1)
    dy_second, dinputs_second, dparameters_second = run_alone(layer, second, 2)
    layer.zero_grad()
    forward(layer, inputs, 1)
    forward(layer, second, 2)
    assert_all_close(backward(layer, dy_second), dinputs_second)
    assert_all_close(backward(layer, dy_first), dinputs_first)
    sums = [a + b for a, b in zip(dparameters_first, dparameters_second, strict=True)]
    assert_all_close(parameter_gradients(layer), sums)


def backward_is_linear_in_the_upstream_gradient(layer, inputs):
    """Upstream 0 gives exactly 0; 2u - 3v gives 2 times the result of u minus 3 times that of v."""

    def gradients(dy=None):
        dy, dinputs, dparameters = run_alone(layer, inputs, 0, dy)
        return dy, [*dinputs, *dparameters]

    u, from_u = gradients()
    v = upstream_for(u, 1)
    (_, from_v), (_, from_0), (_, from_sum) = map(gradients, (v, 0 * u, 2 * u - 3 * v))
    assert not any(gradient.any() for gradient in from_0)
    assert_all_close(from_sum, [2 * a - 3 * b for a, b in zip(from_u, from_v, strict=True)])


def gradients_share_memory_with_no_other_array(layer, inputs):
    """Their receiver may overwrite them, even before an earlier forward has its backward.

    Backward writes into no array that others hold, either: the first of two outputs stays as is.
    """
    for dropping in True, False:  # a dropout that is off returns dy as it is
        with mode(training=dropping):
            outputs = [forward(layer, inputs), forward(layer, inputs)]
            dy = upstream_for(outputs[0])
            assert_unchanged = freeze([*outputs, dy])
            gradients = backward(layer, dy)
        assert_unchanged()
        others = [dy, *outputs, *saved_arrays(layer), *arrays_of(inputs)]
        for parameter in layer.named_parameters().values():
            others += [parameter.data, parameter.grad]
        xp = array_module(dy)
        others = [other for other in others if array_module(other) is xp]  # ids stay on the host
        for gradient in gradients:
            assert xp is not np or gradient.flags.writeable
            assert not any(xp.shares_memory(gradient, other) for other in others)
        for one, other in itertools.combinations(gradients, 2):
            assert not xp.shares_memory(one, other)
        layer.clear_saved()


def each_forward_serves_one_backward(layer, inputs):
    dy = upstream_for(forward(layer, inputs))
    # Positions that are not learned need nothing saved: y = x + table.
    saves = not isinstance(layer, NoPositions | SinusoidalPositions)
    assert (layer.pending() > 0) == saves
    backward(layer, dy)
    assert layer.pending() == 0
    if saves:
        with pytest.raises(RuntimeError, match="forward before it that calls `save`") as caught:
            backward(layer, dy)
        named = str(caught.value).partition(".")[0]
        assert named in {type(part).__name__ for part in layer.layers_within()}


def no_formula_changes_the_dtype(layer, inputs):
    """np.sqrt(512) is a float64 scalar that widens float32 arrays; math.sqrt(512) is not."""
    layer.zero_grad()
    output = forward(layer, inputs)
    saved = [value for value in saved_arrays(layer) if dtype_kind(value) == "f"]
    gradients = backward(layer, upstream_for(output))
    arrays = [output, *saved, *gradients, *parameter_gradients(layer)]
    dtypes = {parameter.data.dtype for parameter in layer.named_parameters().values()}
    dtypes |= {value.dtype for value in arrays_of(inputs) if dtype_kind(value) == "f"}
    assert {array.dtype for array in arrays} == dtypes
    assert all(array_module(array).isfinite(array).all() for array in arrays)


def inference_saves_nothing_and_drops_nothing(layer, inputs):
    """Dropout that drops or scales in evaluation differs from p_drop 0."""
    with inference():
        output = forward(layer, inputs)
    assert layer.pending() == 0
    for part in layer.layers_within():
        if hasattr(part, "p_drop"):
            part.p_drop = 0.0
    assert_same(output, forward(layer, inputs))


@every_part
def test_every_layer_follows_the_rules(name, stand_in):
    """The traceback ends in the function of the broken rule."""
    assert_rules_hold(name, np)
    assert_rules_hold(name, stand_in)


def assert_rules_hold(name: str, xp):
    """Apply all rules to one layer; none of them writes into its arguments or parameters."""
    no_formula_changes_the_dtype(*prepare(name, xp, np.float32))
    layer, inputs = prepare(name, xp)
    parameters = [parameter.data for parameter in layer.named_parameters().values()]
    assert_unchanged = freeze([*arrays_of(inputs), *parameters])
    no_formula_changes_the_dtype(layer, inputs)
    each_forward_serves_one_backward(layer, inputs)
    gradients_share_memory_with_no_other_array(layer, inputs)
    two_forwards_may_precede_two_backwards(layer, inputs)
    backward_is_linear_in_the_upstream_gradient(layer, inputs)
    inference_saves_nothing_and_drops_nothing(layer, inputs)
    assert_unchanged()


def freeze(arrays: list) -> Callable[[], None]:
    """Make arrays read-only -> a function that asserts that they still equal their copies.

    The copies catch a write through an older view. Arrays of a device cannot be read-only, so
    there the copies alone catch a write.
    """
    copies = [array.copy() for array in arrays]
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False

    def assert_unchanged():
        for array, copy in zip(arrays, copies, strict=True):
            assert_same(array, copy)

    return assert_unchanged


@every_part
def test_a_device_gives_the_numbers_of_the_host_without_and_with_kernels(name, request):
    """Numbers stay on the device: only a case that `waits` reads them back."""
    on_host, host_inputs = prepare(name)
    output = forward(on_host, host_inputs)
    dy = upstream_for(output)
    expected = [output, *backward(on_host, dy), *parameter_gradients(on_host)]
    for device in "stand_in", "with_kernels":
        stand_in = request.getfixturevalue(device)
        layer, inputs = prepare(name, stand_in)
        with cupy_stand_in.synchronisations() as waits:
            found = [forward(layer, inputs)]
            found += [*backward(layer, stand_in.asarray(dy)), *parameter_gradients(layer)]
        assert bool(waits) == CASES[name].waits
        assert {type(array) for array in found} == {stand_in.ndarray}
        assert_all_close(found, expected)
