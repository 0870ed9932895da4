"""What several ranks compute together is what one process computes, in values and gradients."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lessons.lesson_14.all_reduce import ring_all_reduce
from lessons.lesson_14.pipeline import (
    MicroBatch,
    Pipeline,
    all_forward_all_backward,
    one_forward_one_backward,
)
from lessons.lesson_14.tensor import ColumnLinear, RowLinear, full_state_dict, shard
from numformer.errors import InputError
from numformer.execution.ranks import Ranks, run_ranks
from numformer.gradient_check.gradients import GradientCheck
from numformer.later import LinearAttention
from numformer.layer import Layer, pack
from numformer.models import TowerConfig
from numformer.paper import (
    CrossEntropy,
    Encoder,
    EncoderLayer,
    FeedForward,
    Linear,
    MultiHeadAttention,
    Reach,
    SelfAttention,
)
from numformer.paper.masks import Places

B, T, S, D, H, F, V = 6, 5, 4, 8, 12, 24, 7
TIGHT = dict(rtol=1e-12, atol=1e-13)


def shaken(layer: Layer) -> Layer:
    """With biases that are not 0, and gammas that are not 1; in float32, as Parameters begin."""
    for index, parameter in enumerate(layer.named_parameters().values()):
        noise = np.random.default_rng([9, index]).standard_normal(parameter.shape)
        parameter.data[...] += 0.1 * noise
    return layer


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def gradients(layer: Layer) -> dict[str, np.ndarray]:
    return {name: parameter.grad.copy() for name, parameter in layer.named_parameters().items()}


def assert_equal_by_name(found: dict, expected: dict, **tolerance) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_allclose(found[name], array, err_msg=name, **(tolerance or TIGHT))


def config(**changes) -> TowerConfig:
    return TowerConfig(
        **dict(d_model=D, d_ff=F, heads=4, d_k=3, d_v=5, layers=4, p_drop=0.0) | changes
    )


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# Tensor parallel

PLACES = Places(np.arange(T) < np.array([[5], [3], [1], [4], [2], [0]]))
X, MEMORY = random(B, T, D), random(B, S, D, seed=1)
SELF = [X, Reach(PLACES, causal=True)]


def network(**changes) -> Layer:
    return config(**changes).feed_forward(rng())


def attention(heads: int = H, **changes) -> Any:
    return config(heads=heads, attention_bias=True, **changes).self_attention(rng(), causal=True)


CUT: dict[str, tuple[Callable[[], Layer], list]] = {
    "feed_forward": (network, [X]),
    "feed_forward_without_bias": (lambda: network(feed_forward_bias=False), [X]),
    "swiglu": (lambda: network(activation="swiglu"), [X]),
    "multi_head": (lambda: MultiHeadAttention(D, H, rng(), 3, 5), [X, MEMORY]),
    "self_attention": (attention, SELF),
    "rotary": (lambda: attention(positions="rotary", d_k=4), SELF),
    "alibi": (lambda: attention(positions="alibi"), SELF),
    "norms_of_heads": (lambda: attention(qk_norm="layer"), SELF),
    "cross_attention": (
        lambda: config(heads=H, attention_bias=True).cross_attention(rng()),
        [X, MEMORY],
    ),
    "groups": (lambda: attention(24, key_value_heads=12, positions="alibi"), SELF),
    "window": (lambda: attention(mixers="window", window=2), SELF),
    "global_window": (lambda: attention(mixers="global_window", window=2), SELF),
    "relative": (lambda: attention(mixers="relative", positions="alibi"), SELF),
    "decoder_layer": (lambda: config(heads=H).decoder_layer(rng()), [*SELF, MEMORY, None]),
    "encoder": (
        lambda: config(heads=H, norm="pre", activation="swiglu", mixers="relative").encoder(rng()),
        [X, Reach(PLACES)],
    ),
}
WHOLE: dict[str, Callable[[], Layer]] = {  # whose heads are not alike, or which is another mixer
    "strided": lambda: attention(mixers="strided", stride=2),
    "linear": lambda: LinearAttention(D, H, rng(), 3, 5),
}


def forward_and_backward(layer: Layer, inputs: list) -> tuple:
    y = layer.forward(*inputs)
    dx = layer.backward(random(*y.shape, seed=2))
    assert layer.pending() == 0
    return y, dx if isinstance(dx, tuple) else (dx,)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_gives_the_outputs_and_gradients_of_the_whole(name, count):
    build, inputs = CUT[name]
    pack(whole := shaken(build()), np.float64)
    y, dx = forward_and_backward(whole, inputs)

    def work(ranks):
        shard(part := shaken(build()), ranks)
        flat = pack(part, np.float64)
        results = forward_and_backward(part, inputs)
        state = full_state_dict(part, ranks)
        own = {name: parameter.grad.copy() for name, parameter in part.named_parameters().items()}
        flat.data[...] = flat.grad  # so that the gradients are put together as weights are
        return *results, state, full_state_dict(part, ranks), own

    results = run_ranks(count, work)
    cut = 0
    for y_of_rank, dx_of_rank, state, joined, own in results:
        assert_allclose(y_of_rank, y, **TIGHT)
        for found, expected in zip(dx_of_rank, dx, strict=True):
            assert_allclose(found, expected, **TIGHT)
        assert_equal_by_name(state, whole.state_dict(), rtol=0)
        assert_equal_by_name(joined, gradients(whole))
        for parameter, gradient in own.items():
            if gradient.shape == joined[parameter].shape:  # no rank drifts away from the others
                assert_array_equal(gradient, results[0][-1][parameter])
            else:
                cut += 1
                assert gradient.size * count == joined[parameter].size
    assert (cut > 0) == (count > 1)


class OneOfTwo(Ranks):
    """One of two ranks, whose other is not there."""

    size = 2


@pytest.mark.parametrize("name", WHOLE)
def test_an_attention_whose_heads_are_not_alike_stays_whole(name):
    shard(layer := WHOLE[name](), OneOfTwo())
    assert repr(layer) == repr(WHOLE[name]())


class InThreads(Layer):
    """What is cut over ranks, with all of the ranks within, so that a check moves every weight."""

    def __init__(self, build: Callable[[], Any], count: int):
        self.ranks = run_ranks(count, lambda ranks: ranks)
        self.parts = [build() for _ in self.ranks]
        for part, ranks in zip(self.parts, self.ranks, strict=True):
            shard(part, ranks)
            for inner in part.layers_within():
                if isinstance(inner, RowLinear):
                    inner.bias = None  # each rank has it, so it is not one weight

    def forward(self, x):
        return run_ranks(len(self.parts), lambda new: self.parts[new.rank].forward(x))[0]

    def backward(self, dy):
        return run_ranks(len(self.parts), lambda new: self.parts[new.rank].backward(dy))[-1]


@pytest.mark.parametrize("name", ["feed_forward", "swiglu", "self_attention", "groups"])
def test_gradients_of_cut_layers_agree_with_numerical_ones(name):
    checked = GradientCheck(InThreads(CUT[name][0], 2), [X[:2]])
    assert len(checked.tensors) > 4
    for tensor in checked.tensors:
        row = checked.row(tensor, directions=1)
        assert row.passed, str(row)


def messages(layer: Layer, inputs: list, ranks: Ranks) -> tuple[int, int]:
    """How many arrays forward and backward sum over the ranks."""
    sent: list[int] = []
    send = ranks.send
    ranks.send = lambda array, *to: sent.append(array.size) or send(array, *to)  # type: ignore
    shard(layer, ranks)
    y = layer.forward(*inputs)
    forward = len(sent)
    layer.backward(y)
    steps = 2 * (ranks.size - 1)
    return forward // steps, (len(sent) - forward) // steps


@pytest.mark.parametrize(("name", "sums"), [("feed_forward", (1, 1)), ("self_attention", (1, 3))])
def test_how_many_arrays_are_summed(name, sums):
    build, inputs = CUT[name]
    assert run_ranks(3, lambda ranks: messages(build(), inputs, ranks)) == [sums] * 3


UNEVEN = {
    "d_ff 9": lambda: FeedForward(D, 9, rng()),
    "d_ff 7": lambda: network(d_ff=7, activation="swiglu"),
    "heads 3": lambda: SelfAttention(12, 3, rng()),
    "key_value_heads 3": lambda: attention(6, key_value_heads=3),
}


@pytest.mark.parametrize("received", UNEVEN)
def test_an_uneven_division_is_refused_before_anything_is_cut(received):
    class Both(Layer):
        def __init__(self):
            self.layers = [FeedForward(D, F, rng()), SelfAttention(D, 4, rng()), UNEVEN[received]()]

    layer = Both()
    with pytest.raises(InputError, match=f"evenly; received {received} for 2 ranks"):
        shard(layer, OneOfTwo())
    assert "ColumnLinear" not in repr(layer)


def test_a_linear_of_an_uneven_width_is_refused():
    for kind, shape in ((ColumnLinear, (4, 3)), (RowLinear, (3, 4))):
        with pytest.raises(InputError, match="an axis of 3 for 2 ranks"):
            kind(Linear(*shape, rng()), OneOfTwo())
    with pytest.raises(InputError, match="an axis of 3 for 2 ranks"):
        ColumnLinear(Linear(4, 6, rng()), OneOfTwo(), groups=2)


def test_the_state_of_one_matrix_alone():
    whole = shaken(Linear(D, F, rng()))
    found = run_ranks(2, lambda ranks: full_state_dict(ColumnLinear(whole, ranks), ranks))  # type: ignore
    for state in found:
        assert_equal_by_name(state, whole.state_dict(), rtol=0)


def test_rows_take_their_own_width():
    with pytest.raises(InputError, match=f"{D // 2}.*received"):
        RowLinear(Linear(D, F, rng()), OneOfTwo()).forward(X)


@pytest.mark.parametrize(
    "build",
    [lambda: network(activation_dropout=0.1), lambda: attention(attention_dropout=0.1)],
)
def test_dropout_between_the_matrices_is_refused(build):
    with pytest.raises(InputError, match=r"p_drop 0\.1 within a (FeedForward|SelfAttention)"):
        shard(build(), OneOfTwo())
    shard(
        config(p_drop=0.1).encoder_layer(rng()), OneOfTwo()
    )  # that of the residuals is everybody's


def test_what_is_packed_or_cut_already_is_refused():
    pack(packed := FeedForward(D, F, rng()))
    shard(cut := FeedForward(D, F, rng()), OneOfTwo())
    for layer in (packed, cut):
        with pytest.raises(InputError, match="neither cut nor packed can be cut; received a"):
            shard(layer, OneOfTwo())


# Pipelines

TARGETS = np.random.default_rng(5).integers(V, size=(B, T))
SCHEDULES = [one_forward_one_backward, all_forward_all_backward]


class Loss(Layer):
    """y (B, T, D), targets, valid (B, T) -> (): the cross-entropy of a projection."""

    def __init__(self):
        self.projection = Linear(D, V, np.random.default_rng(8))
        self.cross_entropy = CrossEntropy(0.1)

    def forward(self, y, targets, valid):
        return self.cross_entropy.forward(self.projection.forward(y), targets, valid)

    def backward(self, dloss):
        return self.projection.backward(self.cross_entropy.backward(dloss))


def micro_batches(count: int) -> list[MicroBatch]:
    """The batch in parts, of different sizes unless `count` divides it."""
    parts = np.array_split(np.arange(B), count)
    counted = [PLACES.valid[part].sum() for part in parts]
    return [
        MicroBatch(
            (X[part], Reach(Places(PLACES.valid[part]))),
            (TARGETS[part], PLACES.valid[part]),
            share=number / sum(counted),
        )
        for part, number in zip(parts, counted, strict=True)
    ]


def whole_model() -> tuple[Encoder, Loss]:
    return shaken(config().encoder(rng())), shaken(Loss())  # type: ignore[return-value]


def whole_step(tower: Encoder, loss: Loss) -> tuple:
    """The loss of the batch and dx, in one process."""
    tower.zero_grad()
    loss.zero_grad()
    value = loss.forward(tower.forward(X, Reach(PLACES)), TARGETS, PLACES.valid)
    return value, tower.backward(loss.backward(1.0))


def stage_of(tower: Encoder, ranks: Ranks) -> list[EncoderLayer]:
    """The blocks of this rank."""
    first, last = (len(tower.layers) * r // ranks.size for r in (ranks.rank, ranks.rank + 1))
    return tower.layers[first:last]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("parts", [1, 4, 6])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_pipeline_gives_the_gradients_of_one_process(stages, parts, schedule):
    whole_tower, whole_loss = whole_model()
    for layer in (whole_tower, whole_loss):
        pack(layer, np.float64)
    value, dx = whole_step(whole_tower, whole_loss)

    def work(ranks):
        tower, loss = whole_model()
        pipeline = Pipeline(stage_of(tower, ranks), ranks, loss, schedule)
        pack(pipeline, np.float64)
        found, dx = pipeline.step(micro_batches(parts))
        assert pipeline.pending() == 0
        of_blocks = [gradients(block) for block in pipeline.layers]
        return found, dx, of_blocks, pipeline.loss and gradients(pipeline.loss)

    results = run_ranks(stages, work)
    for found, of_x, *_ in results:
        assert_allclose(found, value, **TIGHT)
        assert len(of_x) == parts
    assert_allclose(np.concatenate(results[0][1]), dx, **TIGHT)
    assert all(of_x is None for _, dx, *_ in results[1:] for of_x in dx)
    of_blocks = [found for _, _, of_stage, _ in results for found in of_stage]
    for found, block in zip(of_blocks, whole_tower.layers, strict=True):
        assert_equal_by_name(found, gradients(block))
    *others, of_loss = [result[-1] for result in results]
    assert_equal_by_name(of_loss, gradients(whole_loss))
    assert others == [None] * (stages - 1)


class Counting(Layer):
    """x -> x + 1, laid out by columns, which notes how many forwards wait for their backward."""

    def __init__(self):
        self.waiting = [0]

    def forward(self, x):
        self.save(x=x)
        self.waiting.append(self.waiting[-1] + 1)
        assert len(self.saved) == 1, "the records of other micro-batches are in the way"
        return np.asfortranarray(x + 1)

    def backward(self, dy):
        x = self.pop_saved()["x"]
        self.waiting.append(self.waiting[-1] - 1)
        return np.asfortranarray(x * dy)


class Sum(Layer):
    def forward(self, y):
        self.save(y=y)
        return y.sum()

    def backward(self, dloss):
        return dloss * np.ones_like(self.pop_saved()["y"])


@pytest.mark.parametrize(
    ("schedule", "most"), [*zip(SCHEDULES, ([4, 3, 2, 1], [7] * 4), strict=True)]
)
def test_how_many_micro_batches_a_stage_keeps(schedule, most):
    def work(ranks):
        pipeline = Pipeline(Counting(), ranks, Sum(), schedule)
        arrays = [np.full((2, m + 2), m, np.float32) for m in range(7)]
        loss, dx = pipeline.step([MicroBatch((x,), (), np.float64(0.5)) for x in arrays])
        return max(pipeline.layers[0].waiting), loss, dx

    results = run_ranks(4, work)
    assert [waiting for waiting, *_ in results] == most
    assert {loss for _, loss, _ in results} == {sum((m + 2) * (m + 4) for m in range(7))}
    for m, dx in enumerate(results[0][2]):
        product = 0.5 * m * (m + 1) * (m + 2) * (m + 3)
        assert_array_equal(dx, np.full((2, m + 2), product, np.float32), strict=True)


def test_what_was_sent_is_let_go():
    """Or a stage would hold all micro-batches in the end, whatever the schedule."""

    class PlusOne(Layer):
        def __init__(self):
            self.outputs, self.held = [], []

        def forward(self, x):
            self.held.append(sum(output() is not None for output in self.outputs))
            y = x + 1
            self.outputs.append(weakref.ref(y))
            return y

        def backward(self, dy):
            return dy.copy()

    def work(ranks):
        pipeline = Pipeline(PlusOne(), ranks, Sum())
        pipeline.step([MicroBatch((np.ones((2, 3)),), (), 1.0)] * 7)
        return max(pipeline.layers[0].held)

    assert max(run_ranks(3, work)) <= 1


class Late(Ranks):
    """Ranks that read what they send a while after they were asked to, as MPI may."""

    def __init__(self, ranks: Ranks):
        self.ranks, self.rank, self.size = ranks, ranks.rank, ranks.size
        self.receive, self.wait = ranks.receive, ranks.wait  # type: ignore[method-assign]
        self.under_way: list[threading.Thread] = []

    def send(self, array, to, tag=0):
        assert array.flags.c_contiguous

        def deliver():
            time.sleep(0.01)
            self.ranks.send(array, to, tag)

        # One after the other, as what is sent first arrives first.
        before = [*self.under_way]
        thread = threading.Thread(target=lambda: [*(t.join() for t in before), deliver()])
        thread.start()
        self.under_way.append(thread)
        return lambda: not thread.is_alive()


def test_a_step_ends_when_all_that_it_sent_has_been_read():
    def work(ranks):
        pipeline = Pipeline(Counting(), late := Late(ranks), Sum())
        late.broadcast = lambda value, root: value  # which waits for others
        pipeline.step([MicroBatch((np.ones((2, 3)),), (), 1.0)] * 2)
        return [thread.is_alive() for thread in late.under_way]

    assert run_ranks(2, work) == [[False] * 4] * 2


def test_a_ring_ends_when_all_that_it_sent_has_been_read():
    def work(ranks):
        ring_all_reduce(Late(ranks), array := np.full(3, 1.0 + ranks.rank))
        found = array.copy()
        array[...] = 0
        return found

    assert_array_equal(run_ranks(3, work), np.full((3, 3), 6.0))
