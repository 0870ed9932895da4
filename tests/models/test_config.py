"""Config and Recipe: the paper's decisions as defaults, and what they refuse."""

import dataclasses
import inspect
import re
import sys
from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_allclose

import numformer as nf
from numformer import paper
from numformer.data import vocabulary
from numformer.later import ACTIVATIONS
from numformer.later.attention.patterns import FullPattern, GlobalWindow, Strided, Tile, Window
from numformer.later.attention.rolling_cache import RollingKeysAndValues
from numformer.later.attention.rotary import Rotary
from numformer.later.experts import Experts
from numformer.later.mixers.linear_attention import LinearAttention
from numformer.later.mixers.mixer import Mixer
from numformer.later.pre_norm import ParallelLayer
from numformer.models.config import WITH_PROJECTIONS
from numformer.optimization.optimizers import OPTIMIZERS
from numformer.paper.beam import beam_search as paper_beam_search
from numformer.paper.config import Config as PaperConfig
from numformer.paper.embedding import InputEmbedding
from numformer.paper.memory import Memory
from numformer.paper.transformer import Transformer as PaperTransformer
from numformer.settings import Rule
from numformer.training.trainer import Trainer

V = 11
MODELS = nf.Transformer, nf.LanguageModel, nf.RecurrentEncoderDecoder, nf.VisionTransformer
OF_RECIPE = {field.name for field in dataclasses.fields(nf.Recipe)}


def test_formulas_and_the_rules_of_optimizers_have_public_names():
    for rule in OPTIMIZERS:
        assert getattr(nf, rule) is OPTIMIZERS[rule]
    for module in {kind.__module__ for kind in vars(paper).values() if isinstance(kind, type)}:
        for name, formula in vars(sys.modules[module]).items():
            if name.endswith("_backward") and formula.__module__ == module:
                assert {name, name.removesuffix("_backward")} <= {*nf.__all__}


def complains(complaint, name: str, value) -> str:
    """`value` is refused for `name`, and the complaint says which field and what it received."""
    kind = nf.Recipe if name in OF_RECIPE else nf.Config
    sizes = {} if kind is nf.Recipe else dict(source_vocabulary=V, target_vocabulary=V)
    text = complaint(kind, **(sizes | {name: value}))
    assert text.startswith(name) and f"received {value!r}" in text
    return text


PAPER = dict(d_model=512, d_ff=2048, heads=8, d_k=None, d_v=None, layers=6, norm="post")
PAPER |= dict(normalization="layer", attention_function="scaled_dot_product", mixers=("attention",))
PAPER |= dict(feed_forwards=("dense",))
PAPER |= dict(attention_bias=False, activation="relu", positions="sinusoidal", max_length=512)
PAPER |= dict(tying="all", p_drop=0.1, attention_dropout=0.0, activation_dropout=0.0)
PAPER |= dict(label_smoothing=0.1, optimizer="adam", beta1=0.9, beta2=0.98, adam_epsilon=1e-9)
PAPER |= dict(warmup=4000, factor=1.0, decay="inverse_sqrt", clip_norm=None, average=1)
PAPER |= dict(feed_forward_bias=True, key_value_heads=None, window=128)  # and what came later
PAPER |= dict(global_tokens=1, stride=32, d_state=64, expansion=2)
PAPER |= dict(distance_buckets=32, farthest=128)
# And what models have that others trained.
PAPER |= dict(epsilon=1e-5, embedding_scale=True, embedding_norm=False, output_bias=False)
PAPER |= dict(rotary_base=1e4, decoder_layers=None, unwritten=(0, 1, 3), other_ends=())
PAPER |= dict(padding_id=0, start_id=1, end_id=2)
PAPER |= dict(weight_decay=0.01, r_drop=0.0, precision="float32")


def test_the_paper_s_decisions_are_the_defaults():
    defaults = vars(nf.Recipe()) | vars(nf.Config.base(V))
    assert {name: defaults[name] for name in PAPER} == PAPER
    assert vars(PaperConfig(source_vocabulary=V, target_vocabulary=V)).items() <= defaults.items()


@pytest.mark.parametrize("tying", ["all", "inputs", "target", "none"])
def test_the_paper_s_own_config_builds_the_same_model(tying):
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0, tying=tying)
    ids = np.array([[4, 5, 6], [7, 8, 2]]), np.array([[1, 5], [1, 9]])
    ours = nf.Transformer(nf.Config.base(V, **sizes), seed=3)
    papers = paper.Transformer(PaperConfig.base(V, **sizes), seed=3)
    assert ours.state_dict().keys() == papers.state_dict().keys()
    dlogits = np.random.default_rng(0).standard_normal((2, 2, V))
    for _ in range(2):
        assert_allclose(papers.forward(*ids), ours.forward(*ids), rtol=1e-12)
        for model in (ours, papers):
            model.backward(dlogits)
    expected = ours.named_parameters()
    for name, parameter in papers.named_parameters().items():
        assert_allclose(parameter.grad, expected[name].grad, rtol=1e-9, atol=1e-12)


def test_a_recurrent_model_has_attention_and_gates():
    config = nf.RecurrentEncoderDecoder.Config(source_vocabulary=V, target_vocabulary=V)
    expected = dict(d_model=256, cell="gru", context="attention", p_drop=0.1)
    assert vars(config).items() >= expected.items()
    assert (config.layers, config.least_saved) == (1, 3 * 256)


def test_d_k_is_the_size_of_a_key():
    assert nf.Config.base(V, d_k=4, d_v=6).key_size == 4


def test_an_encoder_decoder_has_a_start_and_an_end(complaint):
    for ids in (dict(start_id=None), dict(end_id=None), dict(end_id=0)):
        assert "has a start id, and an end id other than" in complaint(nf.Config.base, V, **ids)


def test_base_and_big_are_the_rows_of_table_3():
    base, big = nf.Config.base(V), nf.Config.big(V)
    assert base == nf.Config(source_vocabulary=V, target_vocabulary=V)
    changed = {k: v for k, v in vars(big).items() if v != vars(base)[k]}
    assert changed == dict(d_model=1024, d_ff=4096, heads=16, p_drop=0.3)
    assert nf.Config.big(V, p_drop=0.1, layers=2).p_drop == 0.1


@pytest.mark.parametrize("kind", [nf.Recipe, *(m.Config for m in MODELS)])
def test_help_says_what_each_field_means_and_begins_with_those_of_every_model(kind):
    text = inspect.getdoc(kind)
    firsts = {nf.Recipe: "label_smoothing", nf.RecurrentEncoderDecoder.Config: "source_vocabulary"}
    first = firsts.get(kind, "d_model")
    assert next(iter(inspect.signature(kind).parameters)) == first
    meanings = re.findall(r"^(\w+): (.+)", text, re.M)
    assert meanings[0][0] == first and all(len(meaning) > 9 for _, meaning in meanings)
    assert {name for name, _ in meanings} == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", [nf.TowerConfig, nf.Recipe, *(m.Config for m in MODELS)])
def test_settings_take_names_only_and_do_not_change(kind):
    _self, *parameters = inspect.signature(kind.__init__).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    for frozen in (kind, nf.Hypothesis, nf.Sampling, nf.Schedule, Rule):
        assert frozen.__dataclass_params__.frozen


SIZES = "d_model d_ff heads layers max_length d_k d_v warmup average".split()
SHARES = "p_drop attention_dropout activation_dropout label_smoothing beta1 beta2".split()


def test_a_setting_is_what_its_rule_says(complaint):
    for names, wrong in (
        (SIZES, 0),
        (["source_vocabulary", "target_vocabulary"], 4),
        (SHARES, 1.0),
        (["adam_epsilon", "factor", "clip_norm"], 0.0),
        (["attention_bias", "feed_forward_bias"], None),
    ):
        for name in names:
            complains(complaint, name, wrong)


FIELDS = [*dataclasses.fields(nf.Config), *dataclasses.fields(nf.Recipe)]
CHOICES = {field.name: field.metadata["rule"].choices for field in FIELDS}
CHOICES = {name: choices for name, choices in CHOICES.items() if choices}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_refused_with_the_list_of_choices(name, complaint):
    """An unknown one trains nothing: it falls through no `else`."""
    assert f"of {', '.join(CHOICES[name])}; " in complains(complaint, name, "mine")


def test_a_choice_of_one_s_own_is_an_entry_of_the_registry(monkeypatch):
    class Doubling(nf.ReLU):
        pass

    monkeypatch.setitem(ACTIVATIONS, "doubling", Doubling)
    model = nf.Transformer(
        nf.Config.base(V, d_model=8, d_ff=4, heads=2, layers=1, activation="doubling")
    )
    inside = model.encoder.layers[0].feed_forward.sublayer.activation
    assert type(inside) is Doubling


def test_d_model_is_a_multiple_of_heads_unless_both_head_sizes_are_given(complaint):
    for sizes in ({}, dict(d_k=3), dict(d_v=3)):
        assert "d_model 512, heads 7" in complaint(nf.Config.base, V, heads=7, **sizes)
    assert nf.Config.base(V, heads=7, d_k=3, d_v=5).heads == 7


def test_tying_all_needs_one_vocabulary(complaint):
    sizes = dict(source_vocabulary=V + 1, target_vocabulary=V)
    text = complaint(nf.Config, **sizes)
    assert f"sizes {V + 1} and {V}" in text and '"target"' in text


PATTERNS = FullPattern, Window, GlobalWindow, Strided
SEARCH = dict(penalty="paper", early_stopping=None)
ATTENTION = dict.fromkeys(["d_k", "d_v", "attention", "query", "key", "value", "output"])
TRAIN = dict(recipe=None, seed=0, xp=np, resume=False, parts=None)
TRAIN |= dict(parallel=None, timeout=120.0, verbose=True, log_to=())
DEFAULTS = [
    ([nf.beam_search, nf.n_best], SEARCH | dict(beam=4, alpha=0.6, rules=())),  # section 6.1
    ([paper_beam_search], dict(beam=4, alpha=0.6)),
    ([PaperTransformer, *MODELS], dict(seed=0)),
    ([InputEmbedding], dict(p_drop=0.0)),
    ([nf.TowerConfig.self_attention, nf.TowerConfig.encoder_layer], dict(layer=0, causal=False)),
    ([nf.TowerConfig.feed_forward, nf.TowerConfig.decoder_layer], dict(layer=0)),
    ([pattern.mask for pattern in PATTERNS], dict(heads=1)),
    ([Tile], dict(unmasked=slice(0, 0), mask=None, small=False)),
    ([RollingKeysAndValues], dict(permanent=0)),
    ([ParallelLayer], dict(one_norm=False)),
    ([Experts], dict(count=2, balance_weight=0.01)),  # Fedus et al. 2021
    ([LinearAttention], dict(d_k=None, d_v=None, bias=False, rotary=None)),
    ([nf.Adam], dict(beta1=0.9, beta2=0.98, epsilon=1e-9)),  # 5.3
    ([nf.warmup_rate, nf.linear_rate], dict(warmup=4000, factor=1.0)),
    ([nf.CrossEntropy], dict(smoothing=0.0)),  # 5.4
    ([nf.CrossEntropy.backward, nf.Objective.backward], dict(dloss=1.0)),
    ([nf.Objective, nf.Transformer.objective], dict(label_smoothing=0.0, r_drop=0.0)),
    ([nf.MultiHeadAttention], ATTENTION),  # 3.2.2
    (
        [nf.RelativePositions],
        dict(distance_buckets=32, farthest=128, both_ways=True, constant=None)
        | dict(own_distances=False),
    ),
    ([nf.FeedForward], dict.fromkeys(["inner", "activation", "outer"])),  # 3.3
    ([nf.Residual], dict(p_drop=0.0, norm=None)),  # 3.1
    ([nf.LayerNorm], dict(epsilon=1e-5)),
    ([nf.Linear], dict(bias=True)),
    ([nf.Transduction], SEARCH | dict(longest=None, beam=1, length_penalty=1.0, rules=mock.ANY)),
    ([nf.Schedule], dict(log_every=50, evaluate_every=250, minutes=None, patience=None)),
    ([nf.train], TRAIN | dict(on_step=None, on_evaluation=None)),
    ([Trainer], dict(seed=0, xp=np, parts=1, ranks=None)),
]


@pytest.mark.parametrize(("called", "defaults"), DEFAULTS)
def test_layers_and_functions_have_the_paper_s_defaults_too(called, defaults):
    for function in called:
        parameters = inspect.signature(function).parameters.values()
        assert {p.name: p.default for p in parameters if p.default is not p.empty} == defaults


SMALL = dict(vocabulary=V, d_model=8, d_ff=8, heads=2, layers=1)


@pytest.mark.parametrize("sublayers", ["parallel", "parallel_one_norm"])
def test_parallel_sublayers_are_attention_and_a_dense_network(sublayers, complaint):
    parallel = dict(norm="pre", sublayers=sublayers)
    message = complaint(nf.LanguageModel.Config, **SMALL, **parallel, feed_forwards="experts")
    assert f"sublayers {sublayers}, feed_forwards experts. Choose" in message
    message = f"no place for cross-attention; received sublayers {sublayers}. Choose in_turn."
    assert message in complaint(nf.Config.base, V, sublayers=sublayers)
    layer = nf.LanguageModel(nf.LanguageModel.Config(**SMALL, **parallel)).tower.layers[0]
    shared = layer.feed_forward.norm is layer.self_attention.norm
    assert shared == (sublayers == "parallel_one_norm")


def test_rotary_frequencies_are_those_of_pairs(complaint):
    rotary = dict(SMALL, positions="rotary")  # heads of two pairs
    assert nf.LanguageModel.Config(**rotary, rotary_frequencies=((1.0, 0.1), ()))
    message = complaint(nf.LanguageModel.Config, **rotary, rotary_frequencies=((), (1.0, 0.1, 0.2)))
    assert "received 3 frequencies, d_k 4. Leave some out" in message


def test_a_config_of_many_layers_is_built_at_once():
    config = nf.LanguageModel.Config(**SMALL | dict(layers=10**9), mixers="attention,window")
    assert config.least_saved == 10**9 * (4 * 8 + 8)


def test_each_mixer_has_its_parts():
    def attention(**changes):
        model = nf.LanguageModel(nf.LanguageModel.Config(**SMALL, **changes))
        return model.tower.layers[0].self_attention.sublayer

    biased = attention(mixers="relative", positions="alibi").attention.bias
    assert type(biased.constant) is type(attention(positions="alibi").attention.bias)
    ring = attention(mixers="window", window=3).key_value_state(Memory(9))
    assert type(ring) is RollingKeysAndValues


def test_a_rotary_position_is_below_the_longest(complaint):
    x = np.zeros((1, 4, 2))
    assert Rotary(longest=4).forward(x).shape == x.shape
    message = complaint(Rotary(longest=3).forward, x)
    assert "sequences up to length 3; received a sequence of length 4" in message


def test_cross_attention_has_settings_that_its_stack_may_not_need(complaint):
    settings = dict(mixers="state_space", attention_bias=True)
    assert nf.Config.base(V, d_model=8, d_ff=8, heads=2, layers=1, **settings).attention_bias
    assert "attention_bias belongs to mixers" in complaint(
        nf.LanguageModel.Config, **SMALL, **settings
    )


def test_keys_may_have_no_bias():
    settings = dict(attention_bias=True, attention_key_bias=False)
    model = nf.LanguageModel(nf.LanguageModel.Config(**SMALL, **settings))
    names = [name.split(".")[-2] for name in model.named_parameters() if "attention" in name]
    assert {*names} >= {"query", "key", "value", "output"}
    assert all(names.count(part) == 2 - (part == "key") for part in names if part != "norm")


def test_settings_have_an_effect_only_with_certain_choices():
    norms, rotary = {"layer", "rms"}, {"rotary", "sinusoidal_rotary"}
    attention = {"attention", "window", "global_window", "strided", "relative"}
    owners = {key: dict(mixers=attention) for key in ["key_value_heads", "qk_norm"]}
    owners |= dict(qk_norm_width=dict(qk_norm=norms), sublayers=dict(norm={"pre"}))
    owners |= dict(max_length=dict(positions={"learned"}), logit_cap=dict(output_bias={"False"}))
    owners |= dict(attention_key_bias=dict(attention_bias={"True"}))
    names = "rotary_base", "rotary_frequencies", "rotary_longest"
    owners |= {key: dict(positions=rotary) for key in names}
    assert owners == {
        field.name: {name: {*choices} for name, choices in field.metadata["only_with"].items()}
        for field in dataclasses.fields(nf.TowerConfig)
        if "only_with" in field.metadata
    }
    assert WITH_PROJECTIONS["d_k"]() == WITH_PROJECTIONS["attention_bias"]()
    assert WITH_PROJECTIONS["d_k"]() == attention | {"linear"}


def test_classes_say_what_they_are():
    assert nf.Transduction(nf.Vocabulary("ab"), nf.Vocabulary("ab"), 3).rules == []
    assert [pattern.is_local for pattern in PATTERNS] == [False, True, False, False]
    assert (Mixer.looks_ahead, Mixer.is_local, Experts.role) == (False, False, "feed_forward")
    assert nf.TowerConfig.both_ways and not nf.LanguageModel.Config.both_ways
    assert nf.Objective.MAX_PENDING == 10
    special = {"PADDING", "START", "END", "UNKNOWN", "SPECIAL", "DEFAULT_IDS", "SpecialIds"}
    assert {*vocabulary.__all__} == special | {"Vocabulary"}


def test_the_plain_formula_is_a_choice_where_nothing_asks_for_more(complaint):
    plain = dict(vocabulary=V, d_model=8, heads=2, attention_function="scaled_dot_product")
    assert nf.LanguageModel.Config(**plain).attention_function == "scaled_dot_product"
    assert "positions alibi" in complaint(nf.LanguageModel.Config, **plain, positions="alibi")
    assert "key_value_heads 1" in complaint(nf.LanguageModel.Config, **plain, key_value_heads=1)


def test_a_language_model_shares_its_embedding_with_the_output_unless_told_otherwise():
    config = nf.LanguageModel.Config(vocabulary=9)
    assert config.tied and config.head
