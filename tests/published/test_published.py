"""Published models compared with transformers: arrays, logits, gradients, ids, default settings.

The tests compare with what transformers computed, stored in published_reference.json by

    python tests/published/test_published.py --store

Where transformers is installed, it must compute the same again.
"""

import functools
import importlib.util
import itertools
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from published_cases import CASES, LONG, ROPES, B, RandomModel, T, V, WritingModel
from safetensors.numpy import load_file, save_file

import numformer as nf
from numformer import published
from numformer.gradient_check import __main__ as gradient_check
from numformer.gradient_check import gradients
from numformer.published.configs import ForeignConfig
from numformer.published.kinds import KINDS, REFUSED, kind_of
from numformer.published.loading import load_published
from numformer.published.rope import rope
from numformer.published.saving import save_published
from numformer.trained import model_of_run

STORED = Path(__file__).with_name("published_reference.json")
README = Path(published.__file__).with_name("README.md")
NO_TRANSFORMERS = "transformers is not installed; its stored numbers stand in"
BEAMS = 1, 4
WRITERS = [
    name
    for name, values in CASES.items()
    if hasattr(kind_of(values).model, "step") and "Model" not in str(values.get("architectures"))
]


@pytest.fixture
def reference():
    """The module that computes with transformers."""
    return pytest.importorskip("published_reference", reason=NO_TRANSFORMERS)


def compared_cases(names) -> list[str]:
    """The cases to compare with transformers; if it is missing, one case, whose test is skipped."""
    return [*names][: None if importlib.util.find_spec("transformers") else 1]


@functools.cache
def stored() -> dict:
    return json.loads(STORED.read_text(encoding="utf-8"))


def fingerprint(results: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """The norm of every array and its product with a random direction."""
    rng, numbers_by_name = np.random.default_rng(0), {}
    for name in sorted(results):
        vector = np.ravel(results[name]).astype(np.float64)
        numbers = np.linalg.norm(vector), rng.standard_normal(vector.size) @ vector
        numbers_by_name[name] = [float(f"{number:.12g}") for number in numbers]
    return numbers_by_name


def differences(ours: dict, theirs: dict) -> dict[str, float]:
    """The largest difference of each array, divided by its largest entry.

    The gradient of a key's bias is zero but for rounding, so its difference is divided by the
    largest entry of all arrays.
    """
    assert ours.keys() == theirs.keys()
    largest = max(np.abs(array).max() for array in theirs.values())
    scales = {n: np.abs(array).max() or 1 for n, array in theirs.items()}
    scales |= {name: largest for name in theirs if name.endswith("key.bias")}
    return {n: np.abs(np.asarray(ours[n]) - x).max() / scales[n] for n, x in theirs.items()}


def assert_agree(ours: dict, theirs: dict, tolerance: float) -> None:
    found = differences(ours, theirs)
    assert {name: found[name] for name in found if not found[name] <= tolerance} == {}


def assert_agree_with_stored(results: dict[str, np.ndarray], numbers: dict) -> None:
    assert_agree(fingerprint(results), {n: np.array(both) for n, both in numbers.items()}, 1e-9)


@pytest.mark.parametrize("name", compared_cases(CASES))
def test_logits_and_gradients_are_those_of_transformers(name, tmp_path, reference):
    double, single, theirs = compared(name, tmp_path, reference)
    assert max(double) <= 1e-10 and max(single) <= 1e-5
    assert_agree_with_stored(theirs, stored()[name]["results"])


def compared(name: str, folder: Path, reference) -> tuple[list[float], list[float], dict]:
    """The largest differences of logits and of gradients from transformers, and its results.

    In float64 and in float32; the results are those in float64.
    """
    found, results = [], []
    for dtype in (np.float64, np.float32):
        example = RandomModel(name, CASES[name], dtype)
        results.append(reference.results(example, example.save(folder / dtype.__name__), dtype))
        by_name = differences(example.results(), results[-1])
        logits = [by_name.pop(head) for head in example.upstream]
        found.append([float(f"{max(n):.1e}") for n in (logits, by_name.values())])
    return *found, results[0]


def table() -> str:
    """The kinds, the classes of transformers that open, and the largest differences from them."""
    rows = ["| kind | classes | float64: logits | gradients | float32: logits | gradients |"]
    rows.append("|---|---|---|---|---|---|")
    for kind in KINDS:
        names = [name for name, values in CASES.items() if values["model_type"] == kind]
        found = np.array([stored()[name]["differences"] for name in names]).max(axis=0)
        numbers = (f"{number:.0e}".replace("e-0", "e-") for number in found.ravel())
        classes = ", ".join(f"`{each}`" for each in stored()["classes"][kind])
        rows.append(f"| `{kind}` | {classes} | {' | '.join(numbers)} |")
    return "\n".join(rows)


def test_the_table_of_kinds_is_that_of_the_stored_comparisons():
    """`--store` measures and writes it. Every kind that is refused is named below it."""
    text = README.read_text(encoding="utf-8")
    assert table() in text
    assert all(f"| `{kind}` |" in text.split(table())[1] for kind in REFUSED)


@pytest.mark.parametrize("kind", compared_cases(KINDS))
def test_the_classes_of_the_table_open(kind, tmp_path, reference):
    """Those with a head in the cases; here the class without one, as transformers saves it."""
    values = next(values for values in CASES.values() if values["model_type"] == kind)
    theirs = reference.bare(values)
    assert stored()["classes"][kind] == reference.classes(kind)
    theirs.save_pretrained(tmp_path)
    model, _ = load_published(tmp_path)
    if hasattr(model, "tower") and kind != "clip":
        example = RandomModel(kind, json.loads((tmp_path / "config.json").read_text()), np.float32)
        example.model, reads = model, nf.Places.without_padding(B, T)
        ((forward, _),) = example.heads().values()
        if isinstance(model, nf.LanguageModel):  # some have a head, which shares the embedding
            forward = functools.partial(model.hidden, *example.inputs, reads)
        with nf.inference():
            states = example.counted(forward())
        expected = example.counted(reference.states(theirs, example.foreign_inputs))
        assert np.allclose(states, expected, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_arrays_logits_and_gradients_are_the_stored_ones(name, tmp_path):
    """Of the arrays that transformers opened, each by its name and in its layout."""
    example, numbers = RandomModel(name, CASES[name]), stored()[name]
    folder = example.save(tmp_path)
    assert_agree_with_stored(load_file(folder / "model.safetensors"), numbers["arrays"])
    example.model, _ = load_published(folder)
    assert_agree_with_stored(example.results(), numbers["results"])


@pytest.mark.parametrize("name", compared_cases(CASES))
def test_what_transformers_saves_is_loaded_as_it_is(name, tmp_path, reference):
    example = RandomModel(name, CASES[name], np.float32)
    theirs = reference.load(example.save(tmp_path / "ours"), example.values)
    theirs.float().save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    model, metadata = load_published(tmp_path / "theirs")
    assert metadata["published"]["model_type"] == example.values["model_type"]
    assert type(model) is type(example.model)
    state, expected = model.state_dict(), example.model.state_dict()
    assert state.keys() == expected.keys()
    for key, array in expected.items():
        assert np.allclose(state[key], array, rtol=1e-6, atol=0), key
    with nf.inference():
        outputs = [[forward() for forward, _ in example.heads().values()]]
        example.model = model
        outputs.append([forward() for forward, _ in example.heads().values()])
    assert all(map(functools.partial(np.allclose, atol=1e-4), *outputs))


def rewritten(folder: Path, change) -> Path:
    """The folder with `change(name, array)` -> name, kind of numbers and bytes of each array."""
    path = folder / "model.safetensors"
    header, content, at = {}, b"", 0
    for name, array in sorted(load_file(path).items()):
        name, kind, written = change(name, np.ascontiguousarray(array))
        header[name] = dict(dtype=kind, shape=array.shape, data_offsets=[at, at + len(written)])
        content, at = content + written, at + len(written)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content)
    return folder


def bfloat16(name, array):
    rounded = (array.view(np.uint32) + 0x8000) >> 16
    return name, "BF16", rounded.astype(np.uint16).tobytes()


def float16(name, array):
    return name, "F16", array.astype(np.float16).tobytes()


def float64_norms(name, array):
    double = array.astype(np.float64) + 1e-9 if "ln_" in name else array
    return name, f"F{8 * double.itemsize}", double.tobytes()


def without_prefix(name, array):
    return re.sub(r"^(transformer|bert|vit)\.", "", name), "F32", array.tobytes()


def with_old_names(name, array):
    if "LayerNorm" in name:
        name = name.replace("weight", "gamma").replace("bias", "beta")
    return name, "F32", array.tobytes()


@pytest.mark.parametrize(
    ("name", "change", "tolerance"),
    [
        ("gpt2", bfloat16, 2**-8),
        ("t5", float16, 2**-10),
        *((name, without_prefix, 0) for name in ("gpt2", "bert", "vit")),
        ("bert", with_old_names, 0),
    ],
)
def test_other_forms_of_a_file(name, change, tolerance, tmp_path):
    """Half precision, names without the optional prefix, names of the first releases."""
    example = RandomModel(name, CASES[name], np.float32)
    model, _ = load_published(rewritten(example.save(tmp_path), change))
    for key, array in example.model.state_dict().items():
        assert np.allclose(model.state_dict()[key], array, rtol=tolerance, atol=1e-6), key


LANGUAGE_MODELS = [n for n, values in CASES.items() if kind_of(values).model is nf.LanguageModel]


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_bare_decoder_opens_and_is_saved_as_it_was(name, tmp_path):
    """Its names have no prefix. Without a head it has the stack's output, whatever its class."""
    example = RandomModel(name, CASES[name], np.float32)
    whole = load_file(example.save(tmp_path) / "model.safetensors")
    headless = {n: x for n, x in whole.items() if not n.startswith(("lm_head", "embed_out"))}
    if len(headless) < len(whole):
        save_file(headless, tmp_path / "model.safetensors")
        with pytest.raises(nf.InputError, match=r"no (lm_head|embed_out)|which are fewer"):
            load_published(tmp_path)
    bare = {re.sub(r"^(model|transformer|gpt_neox)\.", "", n): x for n, x in headless.items()}
    save_file(bare, tmp_path / "model.safetensors")
    model, metadata = load_published(tmp_path)
    has_factor = name.startswith("granite")  # of the logits, which the last norm takes up
    shares = len(bare) == len(whole) and not has_factor
    assert model.config.head == (example.model.config.head and shares)
    (ids,), places = example.inputs, nf.Places.without_padding(B, T)
    with nf.inference():
        states = model.hidden(ids, places)
        same = np.allclose(states, example.model.hidden(ids, places), rtol=1e-4, atol=1e-5)
        assert same or has_factor
        assert model.config.head or np.array_equal(model.forward(ids), states)
    save_published(tmp_path / "again", model, metadata)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert model.config.head or again.keys() == bare.keys()


def test_arrays_of_two_types_lose_no_digits(tmp_path):
    example = RandomModel("gpt2", CASES["gpt2"], np.float32)
    model, _ = load_published(rewritten(example.save(tmp_path), float64_norms))
    for key, array in example.model.state_dict().items():
        expected = array.astype(np.float64) + 1e-9 * (".norm." in key)
        assert np.array_equal(model.state_dict()[key], expected), key


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "t5", "marian_of_two_vocabularies", "bert", "vit", "clip"]
)
def test_the_gradients_of_a_published_model_are_checked_by_its_first_layer(
    name, tmp_path, call, monkeypatch
):
    """With its own width and weights; for one model, the check also finds a wrong backward."""
    folder = RandomModel(name, CASES[name], np.float32).save(tmp_path)
    code, out, err = call(gradient_check.main, f"--run {folder}")
    assert (code, err) == (0, []) and "layers.1" not in "".join(out), out
    assert any("feed_forward.sublayer.inner.weight" in line for line in out)
    if name != "gpt2":
        return
    right = nf.layers.FeedForward.backward
    monkeypatch.setattr(nf.layers.FeedForward, "backward", lambda self, dy: right(self, 1.01 * dy))
    monkeypatch.setattr(gradients, "diagnose", lambda check, name: "")  # diagnose is slow
    code, out, _ = call(gradient_check.main, f"--run {folder}")
    assert code == 1 and any("FAILED" in line and "self_attention" in line for line in out)


def test_what_stands_twice_is_the_same(tmp_path):
    example = RandomModel("gpt2", CASES["gpt2"], np.float32)
    arrays = load_file(example.save(tmp_path) / "model.safetensors")
    arrays["lm_head.weight"] = arrays["transformer.wte.weight"].copy()
    save_file(arrays, tmp_path / "model.safetensors")
    load_published(tmp_path)
    arrays["lm_head.weight"][3, 5] += 1
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(nf.InputError, match=r"lm_head\.weight"):
        load_published(tmp_path)


SPECIAL_IDS = "pad_token_id", "decoder_start_token_id"


@pytest.mark.parametrize(
    ("kind", "values", "ids"),
    [
        ("marian", dict(pad_token_id=7, decoder_start_token_id=6, eos_token_id=5), (7, 6, 5)),
        ("marian", dict(pad_token_id=7, decoder_start_token_id=None, bos_token_id=6), (7, 7, 0)),
        ("bart", dict.fromkeys(SPECIAL_IDS), (1, 2, 2)),
        ("mbart", dict.fromkeys(SPECIAL_IDS) | dict(bos_token_id=6), (1, 6, 2)),
        ("pegasus", dict.fromkeys(SPECIAL_IDS), (0, 0, 1)),
        ("m2m_100", dict.fromkeys(SPECIAL_IDS), (1, 2, 2)),
        ("gpt2", dict(bos_token_id=6, eos_token_id=5), (None, 6, 5)),
        ("llama", dict(pad_token_id=7, bos_token_id=6, eos_token_id=5), (7, 6, 5)),
        ("t5", dict(pad_token_id=7, decoder_start_token_id=None, eos_token_id=5), (7, 7, 5)),
        ("bert", dict(pad_token_id=7), (7, None, None)),
    ],
)
def test_special_ids_are_those_of_the_config(kind, values, ids):
    config = KINDS[kind].config(ForeignConfig(CASES[kind] | values))
    assert (config["padding_id"], config["start_id"], config["end_id"]) == ids


def test_a_translation_never_has_the_symbols_that_are_banned_alone():
    """A ban of several symbols in a row bans none of them alone."""
    values = CASES["marian"] | dict(bad_words_ids=[[5], [6, 7], [V - 1]])
    assert KINDS["marian"].config(ForeignConfig(values))["unwritten"] == (5, V - 1)


def test_a_published_model_is_of_the_class_that_is_asked_for(tmp_path, complaint):
    folder = RandomModel("gpt2", CASES["gpt2"], np.float32).save(tmp_path)
    for kind in (None, nf.LanguageModel, nf.models.Model):
        assert type(model_of_run(folder, kind)[0]) is nf.LanguageModel
    refusal = complaint(model_of_run, folder, nf.Transformer)
    assert f"holds a Transformer; received {folder}, which is a LanguageModel" in refusal


def test_how_a_llama_of_an_earlier_release_says_it():
    def config(**values):
        return KINDS["llama"].config(ForeignConfig(CASES["llama"] | values))

    assert config(rope_theta=5e5)["rotary_base"] == 5e5 and config()["rotary_base"] == 1e4
    assert config(rope_scaling=None)["rotary_base"] == 1e4
    assert config(rope_scaling={"type": "linear", "factor": 2.0})["rotary_frequencies"] == (
        (0.5, 0.005),
    )
    with pytest.raises(nf.InputError, match="rope_scaling"):
        config(rope_scaling={"type": "spiral"})
    ends = config(eos_token_id=[7, 8, 9])
    assert (ends["end_id"], ends["other_ends"]) == (7, (8, 9))


def test_positions_of_mpnet_are_far_apart_as_its_code_has_them():
    """Whatever the number of buckets in a file; the small cases have no long texts."""
    config = KINDS["mpnet"].config(ForeignConfig(CASES["mpnet"]))
    assert (config["distance_buckets"], config["farthest"]) == (32, 128)
    for other in (dict(relative_attention_num_buckets=16), dict(pad_token_id=0)):
        with pytest.raises(nf.InputError, match=next(iter(other))):
            KINDS["mpnet"].config(ForeignConfig(CASES["mpnet"] | other))
    for kind in ("roberta", "electra"):
        with pytest.raises(nf.InputError, match="hidden_act"):
            KINDS[kind].config(ForeignConfig(CASES[kind] | dict(hidden_act="relu")))


@pytest.mark.parametrize(
    ("says", "tying"),
    [
        ({}, "all"),
        (dict(tie_word_embeddings=False), "inputs"),
        (dict(scale_decoder_outputs=False), "inputs"),
        (dict(tie_word_embeddings=False, scale_decoder_outputs=True), "all"),
    ],
)
def test_the_logits_of_a_t5_are_scaled_as_its_release_says(says, tying):
    assert KINDS["t5"].config(ForeignConfig(CASES["t5"] | says))["tying"] == tying


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "n_inner"),
        ("llama", "num_key_value_heads"),
        ("llama", "head_dim"),
        ("t5", "num_decoder_layers"),
        ("bert", "type_vocab_size"),
    ],
)
def test_a_size_of_null_is_a_size_that_is_missing(kind, name):
    without = {key: value for key, value in CASES[kind].items() if key != name}
    configs = [KINDS[kind].config(ForeignConfig(v)) for v in (without, without | {name: None})]
    assert configs[0] == configs[1]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("llama", dict(rope_parameters=dict(rope_theta=1e4), rope_scaling=dict(type="default"))),
        ("llama", dict(rope_scaling=dict(rope_type="default", type="linear", factor=2.0))),
        ("llama", dict(rope_parameters=dict(rope_theta=1e4), rope_theta=2e4)),
        ("t5", dict(dense_act_fn="gelu_new")),
        ("t5", dict(is_gated_act=True)),
        *((name, dict(num_attention_heads=1)) for name in ("t5", "gpt2", "marian")),
    ],
)
def test_a_config_that_says_one_thing_twice_says_the_same(name, values):
    with pytest.raises(nf.InputError, match=[*values][-1]):
        KINDS[name].config(ForeignConfig(CASES[name] | values))


def test_the_towers_of_a_clip_are_described_in_two_places():
    """The first files have most of it in the second place."""
    parts = ("text", dict(attention_dropout=0.2)), ("vision", dict(attention_dropout=0.3))
    values = CASES["clip"]
    within = {f"{name}_config": values[f"{name}_config"] | more for name, more in parts}
    beside = {f"{name}_config_dict": more for name, more in parts}
    ours, same = (read("clip", values | more)[0] for more in (within, beside))
    assert ours == same
    dropouts = [ours[tower].attention_dropout for tower in ("texts", "images")]
    assert dropouts == [0.2, 0.3] and ours["texts"].p_drop == 0


@pytest.mark.parametrize("name", WRITERS)
def test_models_write_the_ids_that_transformers_generated(name, tmp_path):
    """Id for id, for sequences of which some end early and some are padded."""
    example, (_, beam) = WritingModel(name, CASES[name]), BEAMS
    model, _ = load_published(example.save(tmp_path))
    source, length = example.inputs[0], example.length
    greedy = nf.generation.greedy(model, source, length)
    # transformers goes on until a whole beam is better
    settings = dict(count=beam, beam=beam, alpha=0.7, penalty="length")
    best = nf.generation.n_best(model, source, length, **settings)
    written = greedy, [hypotheses[0].ids for hypotheses in best]
    assert dict(zip(map(str, BEAMS), written, strict=True)) == stored()[name]["written"]


@pytest.mark.parametrize("name", compared_cases(WRITERS))
def test_transformers_generates_the_stored_ids(name, tmp_path, reference):
    example = WritingModel(name, CASES[name])
    folder = example.save(tmp_path)
    written = {str(beam): reference.written(example, folder, beam) for beam in BEAMS}
    assert written == stored()[name]["written"]


def required(kind: str) -> dict:
    """The settings that a config.json of this kind must have, with transformers' values."""
    values = stored()["defaults"][kind]

    def is_required(name: str) -> bool:
        try:
            read(kind, {key: value for key, value in values.items() if key != name})
        except nf.InputError:
            return True
        return False

    return {name: value for name, value in values.items() if is_required(name)}


@pytest.mark.parametrize("kind", KINDS)
def test_missing_settings_have_the_defaults_of_transformers(kind):
    values = stored()["defaults"][kind]
    assert len(required(kind)) <= min(10, len(values) - 1)
    assert read(kind, required(kind)) == read(kind, values)


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_of_zero_or_beyond_all_memory_is_refused(kind, tmp_path, complaint):
    values = required(kind)
    sizes = [name for name in values if type(values[name]) is int and name != "pad_token_id"]
    for name, wrong in itertools.product(sizes, (0, 10**12)):
        (tmp_path / "config.json").write_text(
            json.dumps(dict(model_type=kind) | values | {name: wrong}), encoding="utf-8", newline=""
        )
        save_file({"wte": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
        assert re.search("received .*(0|-[12]|zero)", complaint(nf.load, tmp_path)), name


def read(kind: str, values: dict) -> tuple[dict, dict]:
    """What a config.json says of a model's config, and of the factors in its table."""
    return tuple(function(ForeignConfig(values)) for function in KINDS[kind][1::3])


def reads(kind: str, values: dict, name: str, default) -> bool:
    """Whether another value of a setting makes another model, or is refused."""
    others = (
        [not default] if type(default) is bool else [default * 2 + 1, type(default)(default / 2)]
    )
    try:
        readings = [read(kind, values | {name: value}) for value in (default, *others)]
        return any(each != readings[0] for each in readings)
    except nf.InputError:
        return True


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_and_switch_that_is_read_has_an_effect(kind):
    """In one of the cases, since one setting may switch others on."""
    forms = [values for values in CASES.values() if values["model_type"] == kind]
    no_effect = {*required(kind), "max_position_embeddings"}  # the longest rotary positions
    for name, default in stored()["defaults"][kind].items():
        if isinstance(default, int | float) and name not in no_effect:
            assert any(reads(kind, values, name, default) for values in forms), name


def test_the_defaults_of_transformers_are_the_stored_ones(reference):
    assert {kind: reference.defaults(kind) for kind in KINDS} == stored()["defaults"]
    np.testing.assert_equal(reference.ropes(), stored()["ropes"])


@pytest.mark.parametrize("number", range(len(ROPES)))
def test_the_angles_of_rotary_positions(number):
    settings, scaling = ROPES[number]
    angles, scale = stored()["ropes"][number]
    width = int(settings["head_dim"] * scaling.get("partial_rotary_factor", 1))
    values = dict(max_position_embeddings=2048) | settings | dict(rope_parameters=scaling)
    result = rope(ForeignConfig(values), width, scaling["rope_theta"])
    np.testing.assert_allclose(result.frequencies, angles, rtol=2e-6)
    np.testing.assert_allclose(result.factor, scale, rtol=1e-12)
    longest = dict(dynamic=2048, longrope=3000)
    assert result.longest == longest.get(scaling["rope_type"])
    assert all(type(angle) is float for angle in result.frequencies)


def test_the_length_of_training_may_stand_outside_the_rotary_settings():
    short = {n: value for n, value in LONG.items() if n != "original_max_position_embeddings"}
    for where, scaling in ((dict(original_max_position_embeddings=3000), LONG), ({}, short)):
        outside = dict(max_position_embeddings=3000) | where
        old = dict(rope_scaling=scaling | dict(rope_type="su"))
        same = rope(ForeignConfig(outside | old), 8, 1e4)
        assert same == rope(ForeignConfig(dict(rope_parameters=LONG)), 8, 1e4)


def store() -> None:
    """Store what transformers computes for all cases."""
    import published_reference as reference

    numbers: dict = {"defaults": {kind: reference.defaults(kind) for kind in KINDS}}
    numbers["classes"] = {kind: reference.classes(kind) for kind in KINDS}
    numbers["ropes"] = reference.ropes()
    for name, values in CASES.items():
        with tempfile.TemporaryDirectory() as temporary:
            double, single, results = compared(name, Path(temporary), reference)
            arrays = load_file(Path(temporary) / "float64" / "model.safetensors")
            numbers[name] = dict(arrays=fingerprint(arrays), results=fingerprint(results))
            numbers[name]["differences"] = [double, single]
            if name in WRITERS:
                writing = WritingModel(name, values)
                folder = writing.save(Path(temporary) / "writing")
                numbers[name]["written"] = {
                    beam: reference.written(writing, folder, beam) for beam in BEAMS
                }
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in numbers.items())
    before = table() if "classes" in stored() else "TABLE"
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="")
    stored.cache_clear()
    text = README.read_text(encoding="utf-8").replace(before, table())
    README.write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__" and sys.argv[1:] == ["--store"]:
    store()
