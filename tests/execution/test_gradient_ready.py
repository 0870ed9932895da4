"""A block that is reported as finished receives no more gradients, in every layer and model."""

import numpy as np
import pytest

from numformer.execution.gradient_ready import GradientReady
from numformer.gradient_check.cases import CASES
from numformer.gradient_check.gradients import copy_inputs
from numformer.layer import Layer, Parameter, pack
from numformer.paper import Linear


def reports_during(layer: Layer, inputs: list, size: int, forward_counts=(1,)) -> tuple[dict, int]:
    """How many entries were not 0 when each block was reported, and how many there are in the end.

    Asserts that each block is reported once, and does not change afterwards.
    """
    flat = pack(layer, np.float64)
    length = len(flat.grad)
    blocks = [slice(first, min(first + size, length)) for first in range(0, length, size)]
    ready = GradientReady(layer, blocks)
    copies: dict[int, np.ndarray] = {}
    counts: dict[int, int] = {}

    def report(block: int) -> None:
        assert block not in copies
        copies[block] = flat.grad[blocks[block]].copy()
        counts[block] = np.count_nonzero(flat.grad)

    for forwards in forward_counts:
        copies.clear()
        flat.grad[:] = 0
        for _ in range(forwards):
            y = layer.forward(*copy_inputs(inputs, np.float64, np))
        with ready.reports(report):
            for _ in range(forwards):
                layer.backward(np.random.default_rng(0).standard_normal(np.shape(y)))
        assert copies.keys() == {*range(len(blocks))} and layer.pending() == 0
        for block, copy in copies.items():
            assert np.array_equal(copy, flat.grad[blocks[block]]), block
        assert not any("backward" in vars(inner) for inner in layer.layers_within())
    return counts, np.count_nonzero(flat.grad)


def test_a_finished_block_receives_no_more_gradients():
    """Also where two forwards come before two backwards, as in R-Drop."""
    for name, make in CASES.items():
        layer, inputs = make()
        if layer.named_parameters():
            try:
                reports_during(layer, inputs, size=17, forward_counts=(1, 2))
            except Exception as problem:
                problem.add_note(f"in the case {name}")
                raise


def test_most_blocks_are_reported_while_backward_still_runs():
    counts, gradients = reports_during(*CASES["transformer_pre_norm_untied"](), size=50)
    early = [block for block, count in counts.items() if count < gradients]
    assert len(early) > 0.6 * len(counts)


class AddsLater(Layer):
    """Goes back through its sublayer twice, the second time after the other's saved was popped."""

    def __init__(self):
        self.inner = Linear(3, 3, np.random.default_rng(0))

    def forward(self, x):
        return self.inner.forward(x)

    def backward(self, dy):
        dx = self.inner.backward(dy)
        self.inner.forward(dx)
        return self.inner.backward(dy)


def test_a_layer_that_adds_afterwards_is_found():
    layer = AddsLater()
    pack(layer)
    layer.forward(np.ones((2, 3), np.float32))
    with (
        pytest.raises(RuntimeError, match=r"Linear\.backward added"),
        GradientReady(layer, [slice(0, 12)]).reports(lambda block: None),
    ):
        layer.backward(np.ones((2, 3), np.float32))


def test_parameters_of_one_holder_wait_for_the_last_of_them():
    """A parameter that two layers hold is finished when both have gone back."""
    shared = Parameter(np.ones((3, 3)))
    first, second = (Linear(3, 3, np.random.default_rng(0), bias=False) for _ in range(2))
    first.weight = second.weight = shared

    class Twice(Layer):
        def __init__(self):
            self.first, self.second = first, second

        def forward(self, x):
            return self.second.forward(self.first.forward(x))

        def backward(self, dy):
            return self.first.backward(self.second.backward(dy))

    reports_during(Twice(), [np.random.default_rng(1).standard_normal((2, 3))], size=9)


def test_a_block_without_a_backward_is_reported_at_the_end():
    class UsesOne(Layer):
        def __init__(self):
            self.used, self.unused = (Linear(3, 3, np.random.default_rng(0)) for _ in range(2))

        def forward(self, x):
            return self.used.forward(x)

        def backward(self, dy):
            return self.used.backward(dy)

    inputs = [np.random.default_rng(1).standard_normal((2, 3))]
    counts, _ = reports_during(UsesOne(), inputs, size=12)
    assert counts.keys() == {0, 1}
