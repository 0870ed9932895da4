"""Folders that are damaged, incomplete or made to harm: each is refused in one line."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from published_cases import CASES, RandomModel

import numformer as nf
from numformer import convert
from numformer.published.loading import load_published

KINDS = ["marian", "gpt2", "llama", "t5", "bert", "vit"]
SIZES = {
    "marian": ["vocab_size", "d_model", "encoder_layers", "decoder_ffn_dim"],
    "gpt2": ["vocab_size", "n_embd", "n_layer", "n_head", "n_positions"],
    "llama": ["vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"],
    "t5": ["vocab_size", "d_model", "d_ff", "num_heads", "d_kv", "num_layers"],
    "bert": ["vocab_size", "hidden_size", "max_position_embeddings", "intermediate_size"],
    "vit": ["hidden_size", "num_hidden_layers", "image_size", "patch_size"],
}
JUNK = ["x", -1, 0, 1.5, None, [], {}, True, 10**12, "1", [3]]
UNKNOWN_PARTS = {
    "marian": dict(static_position_embeddings=False),
    "gpt2": dict(scale_attn_by_inverse_layer_idx=True),
    "bert": dict(quantization_config=dict(load_in_4bit=True)),
    "llama": dict(rope_parameters=dict(rope_type="yarn", rope_theta=1e4)),
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


def damaged_config(folder: Path, kind: str, rng) -> None:
    """The config.json is invalid."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    name = rng.choice(SIZES[kind])
    damage = rng.integers(6)
    if damage == 0:
        path.write_bytes(path.read_bytes()[: rng.integers(1, 40)])
    elif damage == 1:
        path.write_text(json.dumps([values]))
    elif damage == 2:
        del values[name]
    elif damage == 3:
        values |= UNKNOWN_PARTS[kind]
    elif damage == 4:
        values["model_type"] = [None, "gpt5", 3, ["gpt2"]][rng.integers(4)]
    else:
        values[name] = next(j for j in rng.permutation(np.array(JUNK, object)) if j != values[name])
    if damage > 1:
        path.write_text(json.dumps(values))


def damaged_arrays(folder: Path, kind: str, rng) -> None:
    """The arrays are damaged, or belong to another model."""
    path = folder / "model.safetensors"
    entries, arrays = header(path)
    names = [name for name in entries if name != "__metadata__"]
    name = names[rng.integers(len(names))]
    damage = rng.integers(10)
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
        broken[rng.integers(begin // 4, end // 4)] = [np.nan, np.inf, -np.inf][rng.integers(3)]
        write(path, entries, broken.tobytes())
    elif damage == 8:
        entries["head.of.another.task"] = dict(
            dtype="F32", shape=[2], data_offsets=[len(arrays), len(arrays) + 8]
        )
        write(path, entries, arrays + bytes(8))
    else:
        write(path, bytes(rng.integers(32, 127, 50).tolist()), arrays)


def damaged_folder(folder: Path, kind: str, rng) -> None:
    """Files are missing, or lie elsewhere."""
    one = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    damage = rng.integers(7)
    if damage == 0:
        one.unlink()
    elif damage == 1:
        (folder / "config.json").unlink()
    elif damage == 2:  # a pickle, which could run a program
        one.rename(folder / "pytorch_model.bin")
    else:
        one.rename(folder / "part.safetensors")
        (folder.parent / "outside.safetensors").write_bytes(
            (folder / "part.safetensors").read_bytes()
        )
        target = ["../outside.safetensors", "missing.safetensors", 3, "config.json"][damage - 3]
        index.write_text(json.dumps({"weight_map": {"a": target, "b": "part.safetensors"}}))


@pytest.mark.parametrize("damage", [damaged_config, damaged_arrays, damaged_folder])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_folder_is_refused_in_one_line(kind, damage, tmp_path, call):
    whole = RandomModel(kind, CASES[kind], np.float32)
    load_published(whole.save(tmp_path / "whole"))  # which is not
    for seed in range(20):
        rng = np.random.default_rng(seed)
        folder = whole.save(tmp_path / f"{seed}")
        damage(folder, kind, rng)
        with pytest.raises(nf.InputError) as problem:
            load_published(folder)
        assert "\n" not in str(problem.value), seed
    code, out, err = call(convert.main, f"{folder} --out {tmp_path / 'run'}")
    assert code == 2 and not out and len(err) == 1 and err[0].startswith("error: ")
    assert not (tmp_path / "run").exists()
