"""The recurrent encoder-decoder: padding, writing, what the decoder sees, and where it looks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numformer as nf
from numformer.plots import attention_weights, cross_attention_weights
from numformer.recurrence import CELLS

V = 9
PAIRS = [([4, 5, 6, 7], [8, 4, 5]), ([6], [7, 7, 8, 4, 5]), ([5, 8, 8], [6])]
SOURCE, TARGET_IN, TARGET_OUT = nf.PairBatch.of(PAIRS).inputs
CLOSE = dict(rtol=1e-10, atol=1e-12)


def small(cell="gru", context="attention", **changes) -> nf.RecurrentEncoderDecoder:
    """A small model in float64, its parameters shaken."""
    sizes = dict(source_vocabulary=V, target_vocabulary=V + 1, d_model=6, p_drop=0.0)
    model = nf.RecurrentEncoderDecoder(
        nf.RecurrentEncoderDecoder.Config(**(sizes | changes), cell=cell, context=context)
    )
    flat = nf.pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


@pytest.mark.parametrize(
    ("lengths", "context", "d_context", "words"),
    [
        ([2, 5], None, None, "real positions of 2 sequences, at most 4"),
        ([2, -1], None, None, "received [ 2 -1]"),
        ([2, 3, 1], None, None, "received [2 3 1]"),
        ([2, 4], None, 2, "received no context"),
        ([2, 4], np.ones((2, 2)), None, "received a context"),
    ],
)
def test_lengths_and_contexts_that_do_not_fit_are_refused(
    lengths, context, d_context, words, rng, complaint
):
    layer = nf.Recurrent(CELLS["gru"](6, rng), 5, rng, d_context=d_context)
    message = complaint(layer.forward, np.ones((2, 4, 5)), np.array(lengths), None, context)
    assert words in message


def test_the_first_weights_keep_a_state_s_length_and_the_forget_gate_is_open(rng):
    for name, cell in CELLS.items():
        layer = nf.Recurrent(cell(16, rng), 5, rng)
        for gate in np.split(layer.cell.weight.data, cell.gates, axis=1):
            assert_allclose(gate.T @ gate, np.eye(16), atol=1e-6)
        opened = np.zeros(16 * cell.gates)
        opened[16:32] = name == "lstm"
        assert_array_equal(layer.input.bias.data, opened)


def test_gates_take_numbers_of_any_size():
    cell = CELLS["lstm"](1, np.random.default_rng(0))
    with np.errstate(all="raise"):
        a = np.float32([[1e4, 1e4, -1e4, 1], [-1e4, -1e4, 1e4, 1]])
        new = cell.forward(a, np.float32([[0, 2], [0, 2]]))
    assert_allclose(new[:, 1], [2 + np.tanh(1), 0], atol=1e-6)


def test_attention_maps_are_those_of_the_decoder_and_of_each_sequence():
    model = small("lstm", "attention")
    weights = cross_attention_weights(model, SOURCE, TARGET_IN)
    assert weights.shape == (1, 3, 1, 6, 5)
    assert_allclose(weights.sum(axis=-1), 1)
    assert not weights[0, 1, 0, :, 2:].any()  # padding of the source
    alone = nf.PairBatch.of(PAIRS[1:2])
    found = cross_attention_weights(model, alone.source, alone.target_in)
    assert_allclose(found[0, 0, 0], weights[0, 1, 0, :6, :2], **CLOSE)
    assert not attention_weights(small("gru", "fixed"), SOURCE, TARGET_IN)


def test_a_text_s_attention_is_told_where_there_is_some(complaint):
    task = nf.Transduction(nf.Vocabulary("abcde"), nf.Vocabulary("abcdef"), 4)
    attention = nf.Trained(small("gru", "attention"), task, {}).attention("cab")
    assert attention.kinds == ["decoder cross_attention"]
    assert attention["decoder cross_attention"].shape[:2] == (1, 1)
    without = nf.Trained(small("gru", "fixed"), task, {})
    assert "a model with attention" in complaint(without.attention, "cab")
