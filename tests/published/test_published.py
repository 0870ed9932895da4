"""Published models beside transformers: the same logits, gradients and texts, for every kind.

Where transformers is not installed, numbers of it stand in, stored in published_reference.json by

    python tests/published/test_published.py --store
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from published_cases import CASES, RandomModel
from safetensors.numpy import load_file, save_file

import numformer as nf
from numformer.gradient_check import __main__ as gradient_check
from numformer.published.configs import ForeignConfig, end_ids
from numformer.published.kinds import KINDS
from numformer.published.loading import load_published

STORED = Path(__file__).with_name("published_reference.json")
NO_TRANSFORMERS = "transformers is not installed; its stored numbers stand in"


def fingerprint(results: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """The norm of every array and its product with a random direction."""
    rng, numbers_by_name = np.random.default_rng(0), {}
    for name in sorted(results):
        vector = np.ravel(results[name]).astype(np.float64)
        numbers = np.linalg.norm(vector), rng.standard_normal(vector.size) @ vector
        numbers_by_name[name] = [float(f"{number:.12g}") for number in numbers]
    return numbers_by_name


def assert_agree(ours: dict, theirs: dict, tolerance: float) -> None:
    """Compare arrays, with a tolerance relative to each one's largest entry.

    The gradient of a key's bias is zero but for rounding, so its tolerance is relative to the
    largest entry of all arrays.
    """
    assert ours.keys() == theirs.keys()
    largest = max(np.abs(array).max() for array in theirs.values())
    for name, array in theirs.items():
        scale = largest if name.endswith("key.bias") else np.abs(array).max()
        assert np.abs(np.asarray(ours[name]) - array).max() <= tolerance * scale, name


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_are_those_of_transformers(name, tmp_path):
    pytest.importorskip("transformers", reason=NO_TRANSFORMERS)
    import published_reference as reference
    import torch

    example = RandomModel(name, CASES[name])
    folder = example.save(tmp_path / "published")
    assert_agree(example.results(), reference.results(example, folder), 1e-10)
    single = RandomModel(name, CASES[name], np.float32)
    folder = single.save(tmp_path / "single")
    assert_agree(single.results(), reference.results(single, folder, torch.float32), 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_are_the_stored_ones(name):
    stored = json.loads(STORED.read_text(encoding="utf-8"))[name]
    ours = fingerprint(RandomModel(name, CASES[name]).results())
    assert_agree(ours, {key: np.array(value) for key, value in stored.items()}, 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_what_transformers_saves_is_loaded_as_it_is(name, tmp_path):
    pytest.importorskip("transformers", reason=NO_TRANSFORMERS)
    import published_reference as reference

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
        inputs = example.inputs
        assert np.allclose(model.forward(*inputs), example.model.forward(*inputs), atol=1e-4)


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


def without_prefix(name, array):
    return name.removeprefix("transformer."), "F32", array.tobytes()


def with_old_names(name, array):
    if "LayerNorm" in name:
        name = name.replace("weight", "gamma").replace("bias", "beta")
    return name, "F32", array.tobytes()


@pytest.mark.parametrize(
    ("name", "change", "tolerance"),
    [
        ("gpt2", bfloat16, 2**-8),
        ("t5", float16, 2**-10),
        ("gpt2", without_prefix, 0),
        ("bert", with_old_names, 0),
    ],
)
def test_other_forms_of_a_file(name, change, tolerance, tmp_path):
    """Half precision, names without the optional prefix, names of the first releases."""
    example = RandomModel(name, CASES[name], np.float32)
    model, _ = load_published(rewritten(example.save(tmp_path), change))
    for key, array in example.model.state_dict().items():
        assert np.allclose(model.state_dict()[key], array, rtol=tolerance, atol=1e-6), key


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "t5", "marian_of_two_vocabularies", "bert", "vit"]
)
def test_the_gradients_of_a_published_model_are_checked_by_its_first_layer(
    name, tmp_path, call, monkeypatch
):
    """At its own width and with its weights; a wrong backward is found."""
    folder = RandomModel(name, CASES[name], np.float32).save(tmp_path)
    code, out, err = call(gradient_check.main, f"--run {folder}")
    assert (code, err) == (0, []) and "layers.1" not in "".join(out), out
    assert any("feed_forward.sublayer.inner.weight" in line for line in out)
    right = nf.layers.FeedForward.backward
    monkeypatch.setattr(nf.layers.FeedForward, "backward", lambda self, dy: right(self, 1.01 * dy))
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


def test_how_a_llama_of_an_earlier_release_says_it():
    def config(**values):
        return KINDS["llama"].config(ForeignConfig(CASES["llama"] | values))

    assert config(rope_theta=5e5)["rotary_base"] == 5e5 and config()["rotary_base"] == 1e4
    assert config(rope_scaling=None)["rotary_base"] == 1e4
    for scaling in ({"type": "linear", "factor": 2.0}, {"rope_type": "llama3"}):
        with pytest.raises(nf.InputError, match="rope_scaling"):
            config(rope_scaling=scaling)
    ends = config(eos_token_id=[7, 8, 9])
    assert (ends["end_id"], ends["other_ends"]) == (7, (8, 9))


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


WRITERS = [name for name in CASES if not name.startswith(("bert", "vit"))]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_what_transformers_generates(name, beam, tmp_path):
    """Token for token, for sequences of which some end early and some are padded."""
    pytest.importorskip("transformers", reason=NO_TRANSFORMERS)
    import published_reference as reference
    import torch

    example, length = RandomModel(name, CASES[name]), 12
    special = example.model.config.special
    output = example.model.output.weight.data
    output[special.end] = 1.5 * output[7]  # or few sequences would end
    ends = end_ids(ForeignConfig(example.values))
    theirs = reference.load(example.save(tmp_path), example.values)
    inputs = {
        n: torch.from_numpy(x) for n, x in example.foreign_inputs.items() if "decoder" not in n
    }
    source = example.inputs[0]
    before = 1 if theirs.config.is_encoder_decoder else source.shape[1]
    rows = theirs.generate(
        **inputs,
        num_beams=beam,
        do_sample=False,
        max_new_tokens=length,
        length_penalty=0.7,
        bad_words_ids=[[n] for n in special.unwritten] or None,
        pad_token_id=special.padding if special.padding is not None else special.end,
        eos_token_id=ends,
        forced_eos_token_id=None,
    )
    expected = [special.before_end(row[before:].tolist()) for row in rows]
    if beam == 1:
        written = nf.generation.greedy(example.model, source, length)
    else:  # transformers goes on until a whole beam is better
        how = dict(count=beam, beam=beam, alpha=0.7, penalty="length")
        written = [
            best[0].ids for best in nf.generation.n_best(example.model, source, length, **how)
        ]
    assert written == expected


def store() -> None:
    """Store the numbers of transformers for all cases."""
    import published_reference as reference

    stored = {}
    for name, values in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            example = RandomModel(name, values)
            stored[name] = fingerprint(
                reference.results(example, example.save(Path(folder) / name))
            )
    STORED.write_text(json.dumps(stored) + "\n", encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--store"]:
    store()
