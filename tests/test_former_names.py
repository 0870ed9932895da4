"""Names of the version before still work, and warn with the new one."""

import importlib
import inspect
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import numformer
from numformer.former_modules import FORMER_MODULES, MOVED_NAMES
from numformer.former_names import FORMER_KEYWORDS, FORMER_METHODS, FORMER_NAMES, RENAMED
from numformer.runs import load_model
from tests.training.tiny_runs import MEASURES, Copying, run

SETTINGS = {
    "GroupedQueryAttention": dict(key_value_heads=1),
    "WindowAttention": dict(window=2, key_value_heads=2, bias=True),
    "GlobalWindowAttention": dict(window=2, global_tokens=1, d_k=3),
    "StridedAttention": dict(stride=2, p_drop=0.1),
    "RelativeAttention": dict(distance_buckets=8, both_ways=False),
}


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_a_former_name_makes_the_same_and_warns_with_the_new_one(name, rng):
    with pytest.warns(DeprecationWarning, match=f"numformer.{name} is now "):
        former = getattr(numformer, name)
    x = rng.standard_normal((2, 5, 8)).astype(np.float32)
    if name in SETTINGS:
        layer = former(8, 4, rng, **SETTINGS[name])
        layer.forward(x, numformer.Reach(numformer.Places.without_padding(2, 5), causal=True))
        assert layer.backward(x).shape == x.shape
    elif name in ("Tower", "Block"):
        config = numformer.Config.base(9, d_model=8, d_ff=4, heads=2, layers=1)
        assert former(config, rng).forward(x).shape == x.shape
        assert former(config, rng, cross=True).forward(x, None, x, None).shape == x.shape
    else:
        heads = x[:, None]
        assert former(0.0).forward(heads, heads, heads, None).shape == heads.shape


@pytest.mark.parametrize("name", RENAMED)
def test_a_renamed_class_or_function_is_found_by_its_former_name(name):
    with pytest.warns(DeprecationWarning, match=f"numformer.{name} is now {RENAMED[name]}"):
        assert getattr(numformer, name) is getattr(numformer, RENAMED[name])


def test_a_former_method_warns_with_the_new_one():
    with pytest.warns(DeprecationWarning, match="Places.whole is now Places.without_padding"):
        places = numformer.Places.whole(2, 3)
    reach = numformer.Reach(places, causal=True)
    with pytest.warns(DeprecationWarning, match="Reach.dense is now Reach.mask"):
        assert reach.dense() is reach.mask()
    memory = numformer.Memory(3)
    with numformer.inference(), pytest.warns(DeprecationWarning, match="Memory.of is now"):
        assert memory.of(numformer.ReLU(), lambda memory: "begun") == "begun"
    with pytest.warns(DeprecationWarning, match="is now Subwords.train") as warned:
        assert len(numformer.data.Subwords.learned(["ab ba"] * 9, 9)) == 9
    assert warned[0].filename == __file__


@pytest.mark.parametrize("owner", FORMER_METHODS, ids=lambda owner: owner.__name__)
def test_a_class_has_what_its_former_methods_are_now(owner):
    for former, now in FORMER_METHODS[owner].items():
        if hasattr(owner, now):  # otherwise an attribute of its objects
            with pytest.warns(DeprecationWarning, match=f"{former} is now"):
                getattr(owner, former)
        else:
            assert now in inspect.getsource(owner)


def test_what_a_subclass_defines_under_a_former_name_is_used():
    with pytest.warns(DeprecationWarning, match="Near.sees is now Near.mask"):

        class Near(numformer.FullPattern):
            def sees(self, t, s, heads=1):
                return abs(s - t[:, None]) < 2

    t = np.arange(4)
    assert_array_equal(Near().mask(t, t), numformer.Window(window=2).mask(t, t))

    class Nearer(Near):
        def mask(self, t, s, heads=1):
            return s == t[:, None]

    assert_array_equal(Nearer().mask(t, t), np.eye(4, dtype=bool))


@pytest.mark.parametrize("entry", FORMER_KEYWORDS, ids=lambda entry: entry[0].__name__)
def test_former_keywords_become_present_ones(entry):
    parameters = inspect.signature(getattr(*entry)).parameters
    for former, now in FORMER_KEYWORDS[entry].items():
        assert former not in parameters and (now in parameters or "parts" in parameters)


def test_a_former_keyword_warns_with_the_new_one():
    part = numformer.ReLU()
    with pytest.warns(DeprecationWarning, match=r"TiledAttention\(whole=...\) is now"):
        assert numformer.TiledAttention(whole=part).dense is part


def test_parameters_of_an_own_attention_keep_the_name_that_files_have(rng):
    attention = numformer.TiledAttention(dense=numformer.Linear(3, 3, rng))
    assert [*attention.named_parameters()] == ["whole.weight", "whole.bias"]


@pytest.mark.parametrize("former", MOVED_NAMES)
def test_a_module_answers_to_the_names_that_it_had(former):
    module = importlib.import_module(former)
    for now, names in MOVED_NAMES[former].items():
        for old, _, new in (entry.partition("=") for entry in names.split()):
            with pytest.warns(DeprecationWarning, match=f"{former}.{old} is now {now}"):
                assert getattr(module, old) is getattr(importlib.import_module(now), new or old)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing


def test_the_former_room_of_layers_is_there_with_a_warning():
    sys.modules.pop("numformer.layers", None)
    with pytest.warns(DeprecationWarning, match="numformer.layers is now numformer.paper"):
        layers = importlib.import_module("numformer.layers")
    assert layers.ACTIVATIONS is numformer.later.ACTIVATIONS and layers.Linear is numformer.Linear
    from numformer.layers.attention import MultiHeadAttention
    from numformer.layers.reach import Reach

    assert MultiHeadAttention is numformer.MultiHeadAttention and Reach is numformer.Reach
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = layers.Nothing
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = numformer.Nothing


def test_the_former_room_of_ranks_and_former_modules_of_training_warn():
    parallel = importlib.import_module("numformer.parallel")
    with pytest.warns(DeprecationWarning, match=r"is now numformer\.execution\.ranks\.Ranks"):
        assert parallel.Ranks.size == 1
    for former in parallel.PLACES:
        with pytest.warns(DeprecationWarning, match=f"numformer.parallel.{former} is now "):
            assert callable(getattr(parallel, former))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = parallel.Nothing
    for former, now in FORMER_MODULES.items():
        sys.modules.pop(former, None)
        with pytest.warns(DeprecationWarning, match=f"{former} is now {now}"):
            assert importlib.import_module(former) is importlib.import_module(now)


def test_a_task_may_have_its_metadata_under_the_former_name(tmp_path):
    class Former(Copying):
        kept = {"from": "elsewhere"}  # noqa: RUF012

    with pytest.warns(DeprecationWarning, match=r"Task.kept is now Task.metadata"):
        run(tmp_path / "former", task=Former(MEASURES))
    assert load_model(tmp_path / "former/best.safetensors")[1]["from"] == "elsewhere"
