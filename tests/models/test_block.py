"""What a config makes of a layer: its mixer, how positions come in, what is computed again."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numformer as nf
from numformer import Transformer, inference, pack
from numformer.errors import InputError
from numformer.later import ATTENTIONS, MIXERS, NORMALIZATIONS, Checkpointed
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.layer import Layer
from numformer.paper import Memory, attention
from numformer.paper.layer_norm import layer_norm
from numformer.paper.linear import linear
from numformer.randomness import dropout_stream

SIZES = dict(d_model=8, d_ff=12, heads=2, layers=3, attention_dropout=0.25)


def code_in_the_readme(beginning: str) -> str:
    text = (Path(__file__).parents[2] / "numformer" / "README.md").read_text()
    (code,) = re.findall(rf"```python\n({re.escape(beginning)}.*?)```", text, flags=re.S)
    return code


def test_the_encoder_layer_that_the_readme_writes_flat_is_the_library_s(rng):
    """Line by line of NumPy and formulas; with padding."""
    code = code_in_the_readme("def encoder_layer")
    names = dict(
        vars(attention), linear=linear, layer_norm=layer_norm, np=np, math=math, Reach=nf.Reach
    )
    exec(code, names)
    layer = nf.TowerConfig(d_model=16, d_ff=12, heads=8, p_drop=0.0).encoder_layer(rng)
    flat = nf.pack(layer, np.float64)
    flat.data += 0.1 * rng.standard_normal(flat.data.shape)
    x, places = rng.standard_normal((2, 5, 16)), nf.Places(np.arange(5) < [[5], [3]])
    parts = {
        **{
            part: f"self_attention.sublayer.{part}.weight"
            for part in ("query", "key", "value", "output")
        },
        **{f"{kind}_1": f"self_attention.norm.{kind}" for kind in ("gamma", "beta")},
        **{f"{kind}_2": f"feed_forward.norm.{kind}" for kind in ("gamma", "beta")},
        **{part: f"feed_forward.sublayer.{part}.weight" for part in ("inner", "outer")},
        "bias_1": "feed_forward.sublayer.inner.bias",
        "bias_2": "feed_forward.sublayer.outer.bias",
    }
    state = layer.state_dict()
    weights = {part: state.pop(name) for part, name in parts.items()}
    assert not state and len(code.splitlines()) <= 16
    with nf.inference():
        expected = layer.forward(x, nf.Reach(places))
    assert_allclose(names["encoder_layer"](x, places, weights), expected, rtol=1e-12, atol=1e-13)


def test_the_encoder_layer_that_the_readme_assembles_sees_what_is_near():
    names = {}
    exec(code_in_the_readme("import numpy as np\nfrom numformer import EncoderLayer"), names)
    layer, x, reach = names["layer"], names["x"], nf.Reach(nf.Places.without_padding(2, 300))
    assert names["dx"].shape == x.shape and layer.pending() == 0
    with inference():
        y = layer.forward(x, reach)
        x[:, 150] += 1
        changed = (layer.forward(x, reach) != y).any(axis=(0, 2))
    assert_array_equal(np.flatnonzero(changed)[[0, -1]], [150 - 63, 150 + 63])


@pytest.mark.parametrize("mixer", sorted(MIXERS.keys() - {"state_space"}))
def test_projections_have_no_bias_unless_asked(mixer, rng):
    """As in the paper; a state space's step has one."""
    sublayer = nf.TowerConfig(d_model=8, heads=2, mixers=mixer).self_attention(rng)
    assert not [name for name in sublayer.named_parameters() if name.endswith(".bias")]


@pytest.mark.parametrize(
    ("positions", "rotary", "bias"),
    [
        ("rotary", nf.Rotary, type(None)),
        ("sinusoidal_rotary", nf.Rotary, type(None)),
        ("alibi", type(None), nf.ALiBi),
        ("sinusoidal", type(None), type(None)),
    ],
)
def test_positions_within_attention_are_those_of_self_attention_alone(
    positions, rotary, bias, rng, monkeypatch
):
    """A memory is another sequence."""

    class Other(BiasedAttention):
        pass

    monkeypatch.setitem(ATTENTIONS, "other", Other)
    config = nf.TowerConfig(**SIZES, positions=positions, attention_function="other")
    layer = config.decoder_layer(rng)
    itself, cross = layer.self_attention.sublayer, layer.cross_attention.sublayer
    for part in itself.query, itself.key:
        assert type(getattr(part, "rotary", None)) is rotary
    assert type(itself.attention.bias) is bias
    assert type(cross.query) is type(cross.key) is nf.Heads and cross.attention.bias is None
    for part in itself, cross:
        assert type(part.attention.dense) is Other and part.attention.dense.dropout.p_drop == 0.25
    assert itself.forward(np.ones((2, 3, 8), np.float32)).dtype == np.float32


@pytest.mark.parametrize(("sizes", "d_k"), [({}, 5), (dict(d_k=3), 3), (dict(d_k=3, d_v=4), 3)])
def test_rotary_positions_need_pairs(sizes, d_k, complaint):
    sizes = dict(d_model=10, heads=2) | sizes
    assert f"d_k is even; received d_k {d_k}" in complaint(
        nf.TowerConfig, **sizes, positions="rotary"
    )
    assert nf.TowerConfig(**sizes, positions="alibi").heads == 2
    nf.TowerConfig(**(sizes | dict(d_k=4)), positions="rotary")
    nf.TowerConfig(d_model=8, heads=2, positions="rotary")


@pytest.mark.parametrize(
    ("form", "extrapolates"),
    [
        ({}, False),
        (dict(positions="alibi"), True),
        (dict(positions="rotary"), False),
        (dict(positions="rotary", mixers="window"), True),
        (dict(positions="rotary", mixers="window,attention"), False),
        (dict(positions="none", mixers="window"), True),
        (dict(positions="none"), False),
        (dict(positions="learned", mixers="window"), False),
        (dict(mixers="window"), False),
    ],
    ids=str,
)
def test_where_nothing_tells_how_long_a_text_is_none_is_too_long(form, extrapolates):
    assert nf.TowerConfig(**SIZES, **form).extrapolates == extrapolates


@pytest.mark.parametrize("name", [*NORMALIZATIONS, "mine"])
def test_every_norm_has_the_epsilon_of_the_config(name, rng, monkeypatch):
    monkeypatch.setitem(NORMALIZATIONS, "mine", NORMALIZATIONS["rms"])
    form = dict(norm="pre", normalization=name, qk_norm=name, qk_norm_width="heads", epsilon=0.25)
    layers = nf.TowerConfig(**SIZES, **form).encoder(rng).layers_within()
    norms = [layer for layer in layers if hasattr(layer, "epsilon")]
    assert len(norms) > 4 and {norm.epsilon for norm in norms} == {0.25}


def test_choices_of_two_lengths_meet_in_every_way(rng):
    """Two mixers and three numbers of key heads: the seventh layer is like the first."""
    form = dict(d_model=8, d_ff=4, heads=4, layers=9, positions="none")
    form |= dict(mixers="state_space,attention", key_value_heads="4,1,2")
    layers = (config := nf.TowerConfig(**form)).encoder(rng, causal=True).layers
    named = [layer.named_parameters().values() for layer in layers]
    sizes = [[p.size for p in parameters if p.data.ndim > 1] for parameters in named]
    assert sizes[6:] == sizes[:3] != sizes[3:6] and config.period == 6
    assert config.entries() == sum(map(sum, sizes))


def test_layers_have_the_named_mixers_in_turn(rng, monkeypatch, complaint):
    """One of one's own is an entry of the registry; a stack that reads both ways refuses some."""

    class Identity(nf.Mixer):
        def forward(self, x, reach, past=None):
            return x

        def backward(self, dy):
            return dy.copy()

        @classmethod
        def build(cls, config, rng, causal):
            mixer = cls()
            mixer.causal = causal
            return mixer

    monkeypatch.setitem(MIXERS, "identity", Identity)
    config = nf.TowerConfig(**SIZES, mixers="identity,attention")
    stack = config.encoder(rng, causal=True)
    mixers = [layer.self_attention.sublayer for layer in stack.layers]
    assert [*map(type, mixers)] == [Identity, nf.SelfAttention, Identity]
    assert mixers[0].causal and nf.attention_weights(mixers[0]) is None
    assert not config.encoder_layer(rng).self_attention.sublayer.causal
    with pytest.raises(NotImplementedError, match="Mixer has no build"):
        nf.Mixer.build(config, rng, causal=True)
    for names, causal in (("identity,attention", False), ("attention,identity", False)):
        text = complaint(nf.TowerConfig(**SIZES, mixers=names).encoder, rng, causal=causal)
        assert f"mixers {names}: identity does not" in text
    monkeypatch.setattr(Identity, "looks_ahead", True)
    ids = dict(d_model=8, heads=2, d_ff=4, layers=1, mixers="identity")
    pair = nf.Transformer(nf.Transformer.Config.base(9, **ids))
    language = nf.LanguageModel(nf.LanguageModel.Config(vocabulary=9, **ids))
    stacks = pair.encoder, pair.decoder, language.tower
    causal = [stack.layers[0].self_attention.sublayer.causal for stack in stacks]
    assert causal == [False, True, True]
    sizes = {name: SIZES[name] for name in ("d_model", "d_ff", "heads", "layers")}
    attention, identity = (
        nf.TowerConfig(**sizes, mixers=name).entries() for name in ("attention", "identity")
    )
    assert attention - identity == 3 * 4 * 8 * 8
    network = nf.TowerConfig(**SIZES, activation_dropout=0.5, feed_forward_bias=False)
    network = network.feed_forward(rng)
    assert network.activation.layers[1].p_drop == 0.5 and network.inner.bias is None
    assert "state_space, identity; received 'none'" in complaint(nf.TowerConfig, mixers="none")
    assert "received ''" in complaint(nf.TowerConfig, mixers="")


@pytest.mark.parametrize("mixers", ["attention", "window", "relative"])
def test_layers_have_the_named_numbers_of_heads_of_keys_in_turn(mixers, rng):
    sizes = dict(d_model=8, d_ff=4, heads=4, layers=3, mixers=mixers)
    stack = nf.TowerConfig(**sizes, key_value_heads="1,4").encoder(rng)
    attentions = [layer.self_attention.sublayer for layer in stack.layers]
    assert [attention.key.heads for attention in attentions] == [1, 4, 1]
    x = rng.standard_normal((2, 5, 8), dtype=np.float32)
    assert stack.backward(stack.forward(x)).shape == x.shape
    tables = {
        id(parameter)
        for name, parameter in stack.named_parameters().items()
        if "bias.table" in name
    }
    assert len(tables) == (mixers == "relative")


@pytest.mark.parametrize("epsilon", [1e-5, 3.0])
def test_embeddings_are_normalised_where_the_config_says_so(epsilon, rng):
    config = nf.TowerConfig(**(SIZES | dict(embedding_norm=True, epsilon=epsilon, p_drop=0.0)))
    layer = config.input_embedding(nf.Embedding(9, config.d_model, rng), rng)
    x = layer.positions.forward(layer.embedding.forward(ids := np.arange(6).reshape(2, 3)))
    expected = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(
        x.var(axis=-1, keepdims=True) + epsilon
    )
    assert_allclose(layer.forward(ids), expected, rtol=1e-6, atol=1e-6)


def test_attention_has_biases_where_its_config_says_so():
    for bias in (False, True):
        sizes = dict(d_model=8, d_ff=8, heads=2, layers=1, attention_bias=bias)
        names = nf.Transformer(nf.Transformer.Config.base(9, **sizes)).named_parameters()
        assert any(name.endswith("query.bias") for name in names) == bias


@pytest.mark.parametrize("mixers", ["attention", "relative"])
def test_checkpointing_changes_what_is_saved_and_no_number(mixers, rng):
    """Dropout too, of which a second forward would draw other masks, and what follows it."""
    ids = [rng.integers(4, 11, (3, length)) for length in (4, 5, 5)]
    results, pending = [], []
    for checkpointing in (False, True):
        changes = dict(mixers=mixers, checkpointing=checkpointing)
        config = Transformer.Config.base(11, **SIZES, **changes)
        objective = Transformer(config, 1).objective()
        flat = pack(objective)
        dropout_stream.reseed(3, 1)
        losses = [objective.forward(*ids), objective.forward(*ids)]
        pending.append(objective.pending())
        objective.backward()
        objective.backward()
        drawn = dropout_stream.state
        assert objective.pending() == 0
        results.append((*losses, drawn, flat.grad.copy(), [*objective.state_dict()]))
        with inference():
            results[-1] += (objective.forward(*ids),)
    for whole, again in zip(*results, strict=True):
        assert_array_equal(whole, again)
    assert pending[1] < pending[0] / 3


def test_what_cannot_be_computed_again_is_refused(rng, complaint):
    class Noise(Layer):
        def forward(self, x):
            self.save(x=x)
            return x + rng.standard_normal(x.shape)

        def backward(self, dy):
            raise AssertionError("of other numbers than forward's")

    layer = Checkpointed(Noise())
    layer.forward(rng.standard_normal((2, 3)))
    assert np.size(layer.saved[-1]["checksum"]) == 1  # what tells is small
    assert "a Noise whose second forward differs" in complaint(layer.backward, 1.0)
    assert layer.pending() == 0
    infinite = Checkpointed(nf.Softmax())
    with np.errstate(invalid="ignore"):
        infinite.forward(np.full((2, 3), np.nan))
    assert infinite.backward(np.ones((2, 3))).shape == (2, 3)  # trouble, but no other numbers
    stack = Transformer.Config.base(11, **SIZES, checkpointing=True).encoder(rng, causal=True)
    past = Memory(4)
    with pytest.raises(InputError, match="a Memory while layers save for backward"):
        stack.forward(rng.standard_normal((2, 3, 8)), past=past)


def test_a_layer_in_two_checkpoints_keeps_its_first_name(rng):
    class Twice(Layer):
        def __init__(self):
            self.first = self.second = Checkpointed(nf.Linear(3, 2, rng))
            self.third = Checkpointed(self.first.layer)

    names = ["", "first (recomputed)", "first", "third (recomputed)"]
    assert [*Twice().named_layers()] == names
    assert [*Twice().named_parameters()] == ["first.weight", "first.bias"]
