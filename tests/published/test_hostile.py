"""Folders that are damaged, incomplete or made to harm: each is refused in one line."""

import json
import os
import pickle
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from published_cases import CASES, RandomModel, V
from safetensors.numpy import save_file

import numformer as nf
from numformer import convert, published
from numformer.published import files
from numformer.published.kinds import KINDS
from numformer.published.loading import load_published
from numformer.trained import model_of_run

SIZES = {
    "marian": ["vocab_size", "d_model", "encoder_layers", "decoder_ffn_dim"],
    "gpt2": ["vocab_size", "n_embd", "n_layer", "n_head", "n_positions"],
    "llama": ["vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"],
    "t5": ["vocab_size", "d_model", "d_ff", "num_heads", "d_kv", "num_layers"],
    "bert": ["vocab_size", "hidden_size", "max_position_embeddings", "intermediate_size"],
    "vit": ["hidden_size", "num_hidden_layers", "image_size", "patch_size"],
    "clip": ["projection_dim", "text_config", "vision_config"],
}
NEEDED = "vocab_size", "hidden_size", "n_embd", "dim", "num_hidden_layers", "n_layer", "n_layers"
"""Settings that no config.json may lack, by their names in other kinds."""
JUNK = ["x", -1, 0, 1.5, None, [], {}, True, 10**12, "1", [3]]
UNKNOWN_PARTS = {
    "marian": dict(static_position_embeddings=False),
    "gpt2": dict(scale_attn_by_inverse_layer_idx=True),
    "bert": dict(quantization_config=dict(load_in_4bit=True)),
    "llama": dict(rope_scaling=dict(rope_type="mrope", rope_theta=1e4)),
    "t5": dict(feed_forward_proj="gated-mish"),
    "vit": dict(qkv_bias=False),
}


def header(path: Path) -> tuple[dict, bytes]:
    """The header of a safetensors file, and the bytes after it."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write(path: Path, values: dict | bytes, arrays: bytes, lie: int = 0) -> None:
    head = values if isinstance(values, bytes) else json.dumps(values).encode()
    path.write_bytes(struct.pack("<Q", len(head) + lie) + head + arrays)


def damaged_config(folder: Path, kind: str, number: int, rng) -> None:
    """The config.json is invalid."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    name = rng.choice(SIZES.get(kind) or [name for name in NEEDED if name in values])
    damage = number % 6
    if damage == 0:
        path.write_bytes(path.read_bytes()[: rng.integers(1, 40)])
    elif damage == 1:
        path.write_text(json.dumps([values]))
    elif damage == 2:
        del values[name]
    elif damage == 3:
        values |= UNKNOWN_PARTS.get(kind, UNKNOWN_PARTS["bert"])
    elif damage == 4:
        values["model_type"] = [None, "gpt5", 3, ["gpt2"]][rng.integers(4)]
    else:
        values[name] = next(j for j in rng.permutation(np.array(JUNK, object)) if j != values[name])
    if damage > 1:
        path.write_text(json.dumps(values))


def damaged_arrays(folder: Path, kind: str, number: int, rng) -> None:
    """The arrays are damaged, or belong to another model."""
    path = folder / "model.safetensors"
    entries, arrays = header(path)
    names = [name for name in entries if name != "__metadata__"]
    name = names[rng.integers(len(names))]
    damage = number % 10
    if damage == 0:
        content = path.read_bytes()
        path.write_bytes(content[: rng.integers(len(content))])
    elif damage == 1:
        write(path, entries, arrays, lie=[-5, 7, 2**62][rng.integers(3)])
    elif damage == 2:
        begin, end = entries[name]["data_offsets"]
        entries[name]["data_offsets"] = [begin + 4, end + 4]
        write(path, entries, arrays)
    elif damage == 3:
        entries[name]["shape"] = [2 * n for n in entries[name]["shape"]] or [2]
        write(path, entries, arrays)
    elif damage == 4:
        entries[name]["shape"] = [*entries[name]["shape"], 1]
        write(path, entries, arrays)
    elif damage == 5:
        entries[name]["dtype"] = ["I32", "U32", "F8_E4M3"][rng.integers(3)]
        write(path, entries, arrays)
    elif damage == 6:
        entries[f"{name}_of_another"] = entries.pop(name)
        write(path, entries, arrays)
    elif damage == 7:
        begin, end = entries[name]["data_offsets"]
        broken = np.frombuffer(arrays, np.float32).copy()
        broken[rng.integers(begin // 4, end // 4)] = [np.nan, np.inf, -np.inf][number % 3]
        write(path, entries, broken.tobytes())
    elif damage == 8:
        entries["head.of.another.task"] = dict(
            dtype="F32", shape=[2], data_offsets=[len(arrays), len(arrays) + 8]
        )
        write(path, entries, arrays + bytes(8))
    else:
        write(path, bytes(rng.integers(32, 127, 50).tolist()), arrays)


class Program:
    """Unpickled by the standard library, this creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def damaged_folder(folder: Path, kind: str, number: int, rng) -> None:
    """Files are missing, or lie elsewhere."""
    one = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    damage = number % 12
    if damage == 0:
        one.unlink()
    elif damage == 1:
        (folder / "config.json").unlink()
    elif damage == 2:  # a pickle, which could run a program
        one.unlink()
        program = Program(folder.parent / "proof")
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(program))
    else:
        one.rename(folder / "part.safetensors")
        (folder.parent / "outside.safetensors").write_bytes(
            (folder / "part.safetensors").read_bytes()
        )
        targets = "../outside.safetensors", "missing.safetensors", 3, "config.json"
        contents = [{"weight_map": {"a": name, "b": "part.safetensors"}} for name in targets]
        contents += [{"weight_map": ["part.safetensors"]}, {"weight_map": {}}, {}, [], 3]
        index.write_text(json.dumps(contents[damage - 3]))


@pytest.mark.parametrize("name", ["../outside.safetensors", "inner/a.safetensors", "a.bin", None])
def test_an_index_names_files_of_its_own_folder_alone(name, tmp_path, complaint):
    """A complete file elsewhere is not read, whether its path is relative or absolute."""
    folder = RandomModel("gpt2", CASES["gpt2"], np.float32).save(tmp_path / "folder")
    (folder / "inner").mkdir()
    name = name or str(tmp_path / "outside.safetensors")
    index = folder / "model.safetensors.index.json"
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors"}}))
    load_published(folder)
    (folder / "a.safetensors").rename(folder / name)
    assert f"no {folder / 'a.safetensors'}. Download the" in complaint(load_published, folder)
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    assert "files must be in the folder of the index" in complaint(load_published, folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.gguf", ", which has none. A GGUF is for llama.cpp: take the model with"),
        ("adapter_config.json", "An adapter changes another model, big: merge them with the lib"),
        ("notes.txt", ", which has none. Download the whole folder."),
    ],
)
def test_a_folder_without_arrays_is_told_apart(name, words, tmp_path, complaint, monkeypatch):
    """Whether it has a config.json or not; and whether its name looks like one on the hub."""
    monkeypatch.chdir(tmp_path)
    Path("a/b").mkdir(parents=True)
    Path("a/b/model.gguf").touch()
    assert "A GGUF is for llama.cpp" in complaint(nf.load, "a/b")
    (tmp_path / name).write_text('{"base_model_name_or_path": "big"}')
    assert words in complaint(files.Arrays, tmp_path)
    if name != "notes.txt":
        assert words.removeprefix(", which has none. ") in complaint(nf.load, tmp_path)
    if name.endswith(".gguf"):
        assert "A GGUF is for llama.cpp" in complaint(nf.load, tmp_path / name)


@pytest.mark.parametrize("name", ["Helsinki-NLP/opus-mt-en-de", "a_b.c/x-1", "t5-small"])
def test_the_name_of_a_model_on_the_hub_is_downloaded_first(name, complaint):
    folder = name.rpartition("/")[2]
    advice = f"hf download {name} --local-dir {folder}, then name {folder}."
    assert complaint(nf.load, name).endswith(f"on the hub, download it: {advice}")


@pytest.mark.parametrize("name", ["/models/x", "a/b/c", "runs/x", "there/x", "config.json"])
def test_what_can_only_be_a_path_is_not_downloaded(name, tmp_path, complaint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    fix = ". Name the folder of a run, such as runs/reverse, or train"
    assert f"{name}, which is not there{fix}" in complaint(nf.load, name)
    assert f"there without one{fix}" in complaint(nf.load, "there")


def test_the_root_of_a_hub_s_cache_stands_for_its_main_snapshot(tmp_path, complaint):
    """Or, where nothing says which is the main one, for the latest."""
    root = tmp_path / "models--a--b"
    for number, name in enumerate(["1a", "2b", "3c"]):
        RandomModel("gpt2", CASES["gpt2"], np.float32).save(root / "snapshots" / name)
        os.utime(root / "snapshots" / name, (number % 2, number % 2))
    assert files.snapshot(root) == root / "snapshots" / "2b"
    (root / "refs").mkdir()
    for name in ("3c", "gone"):
        (root / "refs" / "main").write_text(f"{name}\n")
        assert files.snapshot(root) == root / "snapshots" / ("2b" if name == "gone" else name)
    assert files.snapshot(root / "snapshots" / "1a") == root / "snapshots" / "1a"
    assert type(model_of_run(root)[0]) is nf.LanguageModel
    (tmp_path / "empty" / "snapshots").mkdir(parents=True)
    assert files.snapshot(tmp_path / "empty") == tmp_path / "empty"


def test_a_folder_with_a_model_type_is_a_published_model(tmp_path, monkeypatch, complaint):
    config = tmp_path / "config.json"
    assert published.__all__ == ["is_published"] and not published.is_published(tmp_path)
    config.write_text('{"vocab_size": 50, "architectures": ["GPT2Model"]}')
    assert published.is_published(tmp_path)
    config.write_text('{"vocab_size": 50, "model_type": "gpt2"}')
    assert files.is_published(tmp_path) and files.read_json(config)["vocab_size"] == 50
    monkeypatch.setattr(files, "LARGEST_JSON", config.stat().st_size)
    assert files.read_json(config)
    monkeypatch.setattr(files, "LARGEST_JSON", 20)  # no more is read
    assert not files.is_published(tmp_path)
    assert "which is too large" in complaint(files.read_json, config)


def test_an_array_is_in_one_file(tmp_path, complaint):
    folder = RandomModel("gpt2", CASES["gpt2"], np.float32).save(tmp_path)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes(content)
    names = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(names))
    refusal = complaint(load_published, folder)
    assert "is in one file; received" in refusal and "in a.safetensors and b.safeten" in refusal


def test_an_array_is_read_without_its_whole_file_in_memory(tmp_path):
    array = np.arange(1 << 22, dtype=np.float32)  # 16 MiB
    save_file({"a": array}, tmp_path / "model.safetensors")
    arrays = files.Arrays(tmp_path)
    tracemalloc.start()
    read, (_, peak) = arrays["a"], tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(read, array) and peak < 1.75 * array.nbytes


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("marian", "pad_token_id"),
        ("marian", "decoder_start_token_id"),
        ("llama", "pad_token_id"),
        ("t5", "decoder_start_token_id"),
        ("whisper", "decoder_start_token_id"),
        ("bert", "pad_token_id"),
    ],
)
def test_special_ids_are_in_the_vocabulary(kind, setting, tmp_path, complaint):
    folder = RandomModel(kind, CASES[kind], np.float32).save(tmp_path)
    for number, is_valid in ((V - 1, True), (V, False)):
        values = CASES[kind] | {setting: number}
        (folder / "config.json").write_text(json.dumps(values))
        if is_valid:
            load_published(folder)
        else:
            assert "below the size of the vocabulary, 50" in complaint(load_published, folder)


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        (dict(eos_token_id=V - 1), [V - 1]),
        (dict(eos_token_id=V), []),
        (dict(eos_token_id=[V, 3, 10**9, 5]), [3, 5]),
        (dict(eos_token_id=None), []),
    ],
)
def test_an_end_outside_the_vocabulary_is_ignored_with_a_warning(values, ends, tmp_path, recwarn):
    """Null is no end, which only an encoder-decoder needs."""
    for kind in ("gpt2", "llama", *["t5"][: len(ends)]):
        folder = RandomModel(kind, CASES[kind], np.float32).save(tmp_path / kind)
        (folder / "config.json").write_text(json.dumps(CASES[kind] | values))
        assert load_published(folder)[0].config.special.ends == ends
        words = f"{folder} ends a text with {V}, which is not an id below {V}: it is ignored"
        assert [f"{note.message}" for note in recwarn.list] == [words] * (str(V) in f"{values}")
        recwarn.clear()


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_a_start_outside_the_vocabulary_is_ignored_where_no_decoder_begins_with_it(
    kind, tmp_path, recwarn
):
    folder = RandomModel(kind, CASES[kind], np.float32).save(tmp_path)
    for number in (V - 1, V):
        values = CASES[kind] | dict(bos_token_id=number, eos_token_id=[4, V - 2])
        (folder / "config.json").write_text(json.dumps(values))
        special = load_published(folder)[0].config.special
        assert special.start == (number if number < V else None)
        assert special.ends == [4, V - 2]
    words = f"{folder} starts a text with {V}, which is not an id below {V}: it is ignored"
    assert [f"{note.message}" for note in recwarn.list] == [words]


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        *((kind, values, next(iter(values))) for kind, values in UNKNOWN_PARTS.items()),
        ("gpt2", dict(activation_function="mish"), "activation_function is one of"),
        ("t5", dict(feed_forward_proj="gated-relu"), "feed_forward_proj is one of"),
        ("gpt2", dict(n_layer=9), "which are fewer"),
        ("marian", dict(encoder_ffn_dim=8), "encoder_ffn_dim and decoder_ffn_dim are equal"),
    ],
)
def test_a_part_that_numformer_lacks_is_named(kind, values, words, tmp_path, complaint):
    folder = RandomModel(kind, CASES[kind], np.float32).save(tmp_path)
    (folder / "config.json").write_text(json.dumps(CASES[kind] | values))
    assert words in complaint(load_published, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_folder_is_refused_in_one_line(kind, tmp_path, call):
    """And none of its code runs. Kinds that share the functions that read them get fewer tries."""
    whole = RandomModel(kind, CASES[kind], np.float32).save(tmp_path / "whole")
    load_published(whole)  # the whole folder is accepted
    for damage in damaged_config, damaged_arrays, damaged_folder:
        for seed in range(15) if kind in SIZES else range([*KINDS].index(kind) % 12, 30, 12):
            rng = np.random.default_rng(seed)
            folder = shutil.copytree(whole, tmp_path / f"{damage.__name__}_{seed}")
            damage(folder, kind, seed, rng)
            with pytest.raises(nf.InputError) as problem:
                load_published(folder)
            assert "\n" not in str(problem.value), folder
        code, out, err = call(convert.main, f"{folder} --out {tmp_path / 'run'}")
        (error,) = (line for line in err if not line.startswith("note: "))
        assert code == 2 and not out and error.startswith("error: ")
        assert not (tmp_path / "run").exists() and not (tmp_path / "proof").exists()
