"""A bound model writes what the model writes, whatever its layers are."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

import numformer as nf
from numformer.generation import binding
from numformer.generation.binding import Binding, bind_model
from numformer.half_precision import half_products
from numformer.interception import intercept
from numformer.later.activations import Cap
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.patterns import FullPattern, Window
from numformer.later.attention.tiles import TiledAttention
from numformer.paper import writing
from numformer.paper.beam import Ranking, length_penalty, search
from numformer.paper.memory import KeysAndValues
from tests.models.test_models import PAIRS, SOUNDS, SOURCE, WHOLE, every_writer, small

LENGTH = 6


def inputs_for(kind) -> np.ndarray:
    """Two sources of each length, one of which is only padding; beginnings of texts; or sounds."""
    if kind is nf.SpeechTransformer:
        return SOUNDS
    sources = np.concatenate([SOURCE, SOURCE * [[1], [0], [1]]])
    return sources if kind in PAIRS else np.concatenate([WHOLE, WHOLE[::-1]])[:, 1:4]


@every_writer
def test_a_bound_model_finds_the_hypotheses_of_the_model(kind, form, monkeypatch):
    """And their scores, while hypotheses change places and rows end, and after weights change."""
    inputs, model = inputs_for(kind), small(kind, **form)
    assert (type(bind_model(model)) is Binding) == (kind is not nf.RecurrentEncoderDecoder)
    settings = LENGTH, 3, partial(length_penalty, alpha=0.6), partial(Ranking, 2)
    limits = {}, dict(SMALL=0, MOST_ROWS=2, FEW_STEPS=0, PIECE=0)
    expected = search(model, inputs, *settings)
    for limit in limits:
        with monkeypatch.context() as patch:
            for name, value in limit.items():
                patch.setattr(binding, name, value)
            found = search(bind_model(model), inputs, *settings)
        for right, row in zip(expected, found, strict=True):
            assert [h.ids for h in row] == [h.ids for h in right]
            assert_allclose([h.score for h in row], [h.score for h in right], rtol=1e-9)
    for parameter in model.named_parameters().values():
        parameter.data[...] *= 1.1
    expected = writing.greedy(model, inputs, LENGTH)
    assert nf.greedy(nf.Ensemble([model, model]), inputs, LENGTH) == expected
    for limit in limits:
        with monkeypatch.context() as patch:
            for name, value in limit.items():
                patch.setattr(binding, name, value)
            assert nf.greedy(model, inputs, LENGTH) == expected


@pytest.mark.parametrize("kind", [nf.Transformer, nf.LanguageModel])
@pytest.mark.parametrize(
    "form",
    [
        {},
        dict(norm="pre", activation="gelu", attention_bias=True, output_bias=True),
        dict(positions="learned", embedding_scale=False, key_value_heads=1, checkpointing=True),
        dict(attention_bias=True, attention_key_bias=False),
    ],
    ids=str,
)
def test_a_step_calls_no_layer_of_a_class_with_a_form(kind, form, monkeypatch):
    model = small(kind, **form)
    writer = bind_model(model)
    with nf.inference():
        expected, state = (each.start(inputs_for(kind), LENGTH) for each in (model, writer))
        logits = model.step(expected.ids, expected)
        for layer in model.layers_within():
            monkeypatch.setattr(type(layer), "forward", None)
        assert_allclose(writer.step(state.ids, state), logits, rtol=1e-9)


def test_layers_of_other_classes_and_forwards_of_your_own_are_called():
    model, names = small(nf.Transformer, normalization="rms"), set()

    def around(name, forward, *inputs):
        names.add(name)
        changed = any(part in name for part in ("norm", "dropout", "positions"))
        return -forward(*inputs) if changed else forward(*inputs)

    class Doubled(nf.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model.decoder.layers[0].feed_forward.sublayer.outer.__class__ = Doubled
    plain = writing.greedy(small(nf.Transformer, normalization="rms"), SOURCE, LENGTH)
    assert nf.greedy(model, SOURCE, LENGTH) == writing.greedy(model, SOURCE, LENGTH) != plain
    layers = model.named_layers()
    for ending in "", "sublayer.attention", "dropout", "embedding", "positions", "target":
        chosen = {name: layers[name] for name in layers if name and name.endswith(ending)}
        with intercept(chosen, "forward", around):
            expected = writing.greedy(model, SOURCE, LENGTH)
            names.clear()
            assert nf.greedy(model, SOURCE, LENGTH) == expected
            assert names == {*chosen}


def test_a_state_of_your_own_holds_keys_and_values():
    model, states = small(nf.Transformer), []
    attention = model.decoder.layers[0].self_attention.sublayer
    attention.key_value_state = lambda past: states.append(past) or KeysAndValues(past)
    nf.greedy(model, SOURCE, LENGTH)
    assert len(states) == 1


def test_only_the_paper_s_attention_is_bound():
    config = nf.LanguageModel.Config(vocabulary=9, d_model=8, d_ff=8, heads=2, layers=1)
    layer = nf.LanguageModel(config).tower.layers[0].self_attention.sublayer
    layer.attention = TiledAttention(FullPattern())
    assert binding.is_plain(layer)

    class Other(BiasedAttention):
        pass

    changes = dict(pattern=[Window(window=3)], bias=[ALiBi(2)])
    changes |= dict(dense=[Other(), BiasedAttention(cap=Cap(3.0))])
    for name, value in ((name, value) for name, values in changes.items() for value in values):
        layer.attention = TiledAttention(FullPattern())
        setattr(layer.attention, name, value)
        assert not binding.is_plain(layer)


def test_what_is_not_bound(stand_in):
    """A subclass, a step of your own, products in half precision, and a model on a GPU."""

    class Other(nf.Transformer):
        pass

    config = small(nf.Transformer).config
    other, own, on_device, model = Other(config), *(nf.Transformer(config) for _ in range(3))
    own.step = lambda ids, state: np.eye(nf.END + 1, config.target_vocabulary)[[nf.END] * len(ids)]
    nf.pack(on_device, np.float32, stand_in)
    assert all(bind_model(each) is each for each in (other, own, on_device))
    assert [type(each) for each in bind_model(nf.Ensemble([model, own])).models] == [
        Binding,
        nf.Transformer,
    ]
    with half_products():
        assert bind_model(model) is model
    assert nf.greedy(own, SOURCE, 3) == [[]] * len(SOURCE)


def test_the_limits_of_a_bound_model_are_those_of_the_model(complaint):
    """Of positions and of ids; the model raises the errors."""
    model = small(nf.LanguageModel, positions="learned", max_length=4)
    with nf.inference():
        writer = bind_model(model)
        state = writer.start(WHOLE[:, :2], 5)
        writer.step(state.ids, state)
    assert "learned positions end at max_length = 4" in complaint(nf.greedy, model, WHOLE[:, :2], 5)
    for ids in ([[11]], [[-1]]):
        assert "token ids" in complaint(nf.greedy, model, np.array(ids), 2)
