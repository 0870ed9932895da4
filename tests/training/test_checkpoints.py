"""Checkpoints come back bit for bit, are never half there, and complain by name."""

import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from numpy.testing import assert_array_equal

from numformer.layer import inference, pack
from numformer.models import Block, Config, Transformer
from numformer.training import checkpoints
from numformer.training.checkpoints import (
    load_checkpoint,
    load_model,
    save_checkpoint,
    save_model,
)
from numformer.training.files import locked, write_atomically
from numformer.training.migrations import FORMAT

SMALL = dict(d_model=8, d_ff=12, heads=2, layers=2)
SOURCE, TARGET = np.array([[4, 5, 2], [6, 2, 0]]), np.array([[1, 7, 8], [1, 5, 0]])


def trained(**changes) -> Transformer:
    """A model whose norms and biases are not at their initial values either."""
    model = Transformer(Config.base(11, **(SMALL | changes)), seed=3)
    flat = pack(model)
    flat.data += np.random.default_rng(1).standard_normal(flat.data.shape).astype(np.float32)
    return model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


# Round trips.


def test_arrays_and_metadata_come_back(path, rng):
    tensors = {
        "a.b": rng.standard_normal((3, 4)).astype(np.float32),
        "transposed": rng.standard_normal((3, 4)).astype(np.float32).T,
        "none": np.zeros((0, 2), np.float32),
        "scalar": np.float32(3),
    }
    metadata = {"step": 3, "names": ["ɑ̃", "b"], "best": {}, "loss": 0.1 + 0.2, "nothing": None}
    save_checkpoint(path, tensors, metadata)
    found, said = load_checkpoint(path)
    assert metadata.items() <= said.items() and found.keys() == tensors.keys()
    assert said.keys() - metadata.keys() == {"format", "versions"}
    assert said["versions"].keys() == {"numformer", "numpy"}
    for name, array in tensors.items():
        assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize(
    "changes",
    [{}, dict(tying="none", norm="pre"), dict(positions="learned", attention_bias=True, d_k=3)],
    ids=str,
)
def test_a_loaded_model_gives_the_same_logits_bit_for_bit(path, changes):
    model = trained(**changes)
    save_model(path, model, task={"symbols": "abc"})
    again, metadata = load_model(path)
    assert again.config == model.config
    assert metadata["config"] == asdict(model.config)
    assert metadata["task"] == {"symbols": "abc"}
    with inference():
        assert_array_equal(again.forward(SOURCE, TARGET), model.forward(SOURCE, TARGET))


def test_a_model_in_float64_opens_in_float64(path):
    model = trained()
    pack(model, np.float64).data[0] += 1e-12
    save_model(path, model)
    again, _ = load_model(path)
    assert_array_equal(again.source.embedding.weight.data, model.source.embedding.weight.data)
    with inference():
        assert_array_equal(again.forward(SOURCE, TARGET), model.forward(SOURCE, TARGET))


def test_a_model_that_would_not_open_is_refused_before_it_is_saved(path, complaint):
    model = trained()
    pack(model.encoder, np.float64)
    assert "received float32 and float64. Cast" in complaint(save_model, path, model)
    pack(model, np.float16)
    assert "received float16. Cast them by pack(model)" in complaint(save_model, path, model)
    assert not path.exists()


def test_a_tied_model_is_tied_again_and_stored_once(path):
    save_model(path, trained())
    assert sum(array.shape == (11, 8) for array in load_checkpoint(path)[0].values()) == 1
    again, _ = load_model(path)
    assert again.output.weight is again.source.embedding.weight


def test_a_field_that_a_saved_config_does_not_have_takes_its_default(path):
    """It was written before there was such a field."""
    model = trained()
    config = {n: v for n, v in asdict(model.config).items() if n not in ("normalization", "norm")}
    save_checkpoint(path, model.state_dict(), KIND | {"config": config})
    assert load_model(path)[0].config == model.config


def test_what_was_loaded_may_be_overwritten_and_the_file_stands(path):
    save_checkpoint(path, {"x": np.arange(3, dtype=np.float32)}, {})
    load_checkpoint(path)[0]["x"] += 1
    assert_array_equal(load_checkpoint(path)[0]["x"], [0, 1, 2])


# Atomic writing.


def test_the_new_content_replaces_the_old_and_nothing_else_is_left(path):
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("operation", ["fsync", "replace"])
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(path, monkeypatch, operation, problem):
    def fail(*args):
        raise problem

    write_atomically(path, b"old")
    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(type(problem)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


def test_the_old_file_stands_until_the_new_one_is_whole_and_on_disk(path, monkeypatch):
    """Order matters: all bytes, then fsync, then rename."""
    seen = []

    def watch(name, original):
        def watched(*args):
            partial = [each for each in path.parent.iterdir() if each != path]
            seen.append((name, path.read_bytes(), [each.read_bytes() for each in partial]))
            return original(*args)

        monkeypatch.setattr(os, name, watched)

    write_atomically(path, b"old")
    watch("fsync", os.fsync)
    watch("replace", os.replace)
    write_atomically(path, b"new")
    before = [("fsync", b"old", [b"new"]), ("replace", b"old", [b"new"])]
    assert seen[:2] == before
    assert seen[2:] == [("fsync", b"new", [])]  # of the folder: the rename is on disk, too


def test_checkpoints_are_written_atomically(path, monkeypatch):
    save_model(path, trained())
    before = path.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        save_model(path, trained(norm="pre"))
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError):
        write_atomically(tmp_path / "missing" / "file", b"")


# What is no checkpoint.


def whole() -> bytes:
    return safetensors.numpy.save({"x": np.arange(100.0)}, metadata={"numformer": "{}"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a checkpoint",
        b"\x80\x04\x95pickle",
        whole()[:-8],
        whole()[:40],
        whole() + b"more",
        safetensors.numpy.save({"x": np.arange(3.0)}),
        safetensors.numpy.save({"x": np.arange(3.0)}, metadata={"numformer": "no JSON"}),
        safetensors.numpy.save({}, metadata={"numformer": '{"format": 1}'}),
    ],
    ids="empty text pickle truncated header longer foreign metadata unsealed".split(),
)
@pytest.mark.parametrize("load", [load_checkpoint, load_model])
def test_files_of_other_kinds_are_refused_by_name(path, content, load, complaint):
    path.write_bytes(content)
    text = complaint(load, path)
    assert "safetensors file that numformer wrote" in text and str(path) in text


def test_a_flipped_bit_anywhere_is_refused(path, complaint):
    """In the header, in the metadata, in the numbers: one bit of every byte."""
    save_checkpoint(path, {"x": np.arange(20, dtype=np.float32)}, {"step": 3, "best": {"a": 0.5}})
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        assert str(path) in complaint(load_checkpoint, path)


def test_a_later_format_is_refused_as_such(path, monkeypatch, complaint):
    monkeypatch.setattr(checkpoints, "FORMAT", FORMAT + 1)
    save_model(path, trained())
    monkeypatch.undo()
    text = complaint(load_model, path)
    later = f"received {path} of format {FORMAT + 1}, which a later numformer wrote"
    assert f"format {FORMAT}; {later}" in text


@pytest.mark.parametrize("number", [0, -1, True, "1", None, 1.0, [1]], ids=str)
def test_any_other_format_is_refused(path, number, complaint):
    save_checkpoint(path, {}, {"format": number})
    assert "its metadata is not numformer's" in complaint(load_checkpoint, path)


@pytest.mark.parametrize("metadata", ["[]", "null", "3", "[" * 10**5, '{"a":' * 10**5, "1" * 5000])
def test_metadata_of_another_shape_are_refused(path, metadata, complaint):
    path.write_bytes(safetensors.numpy.save({}, metadata={"numformer": metadata}))
    assert str(path) in complaint(load_checkpoint, path)


@pytest.mark.parametrize("dtype", ["f8", "f2", "i4", "u1", "?"])
def test_tensors_of_another_dtype_are_refused(path, dtype, complaint):
    save_checkpoint(path, {"x": np.ones(3, dtype)}, {})
    assert "'x' is not float32" in complaint(load_checkpoint, path)


def test_bfloat16_which_numpy_does_not_know_is_refused(path, complaint):
    save_checkpoint(path, {"x": np.ones(2, np.float16)}, {})
    path.write_bytes(path.read_bytes().replace(b'"F16"', b'"BF16"', 1).replace(b"}} ", b"}}", 1))
    assert "'x' is not float32" in complaint(load_checkpoint, path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(path, value, complaint):
    save_checkpoint(path, {"x": np.array([0, value], np.float32)}, {})
    assert "'x' holds numbers that are not finite" in complaint(load_checkpoint, path)


def test_missing_files_and_folders_are_refused_by_name(tmp_path, complaint):
    for path in (tmp_path / "absent.safetensors", tmp_path):
        assert f"no file {path}" in complaint(load_checkpoint, path)


KIND = {"model": "encoder_decoder"}


@pytest.mark.parametrize("kind", [None, "perceptron", "block", "..loop", 3, ["encoder_decoder"]])
def test_a_kind_of_model_that_is_not_here_is_refused(path, kind, complaint):
    save_checkpoint(path, {}, {"model": kind, "config": asdict(trained().config)})
    assert f"with that one model in it; received {kind!r}" in complaint(load_model, path)


@pytest.mark.parametrize("metadata", [{}, {"config": {"d_model": 8}}, {"config": None}])
def test_a_checkpoint_without_its_config_is_refused_by_name(path, metadata, complaint):
    save_checkpoint(path, {}, KIND | metadata)
    text = complaint(load_model, path)
    assert "names its Config" in text and str(path) in text


def test_a_config_of_a_later_version_is_refused_by_name(path, complaint):
    config = asdict(Config.base(11, **SMALL)) | {"rotary": True}
    save_checkpoint(path, {}, KIND | {"config": config})
    assert str(path) in complaint(load_model, path)


@pytest.mark.parametrize("changes", [dict(d_ff=20), dict(layers=1), dict(layers=3)], ids=str)
def test_weights_of_another_config_are_refused(path, changes, complaint):
    other = asdict(trained(**changes).config)
    save_checkpoint(path, trained().state_dict(), KIND | {"config": other})
    message = complaint(load_model, path)
    assert re.search("Config that it was saved with|as many numbers as its Config asks", message)


GIANTS = [
    dict(d_model=2**40), dict(d_ff=2**50), dict(layers=2**50), dict(d_k=2**50), dict(d_v=2**50),
    dict(heads=2**50, d_k=1, d_v=1), dict(positions="learned", max_length=2**50),
    dict(source_vocabulary=2**50, tying="target"), dict(target_vocabulary=2**50, tying="target"),
    dict(layers=10**4000, d_ff=10**4000),
]  # fmt: skip


@pytest.mark.parametrize("changes", GIANTS, ids=lambda changes: " ".join(changes))
def test_a_config_that_asks_for_a_giant_is_refused_before_it_is_built(
    path, changes, monkeypatch, complaint
):
    model = trained()
    save_checkpoint(path, model.state_dict(), KIND | {"config": asdict(model.config) | changes})
    monkeypatch.setattr(Transformer, "__init__", None)
    assert "as many numbers as its Config asks for" in complaint(load_model, path)


@pytest.mark.parametrize("held", [0, 1, 16, 30])
def test_layers_that_the_file_does_not_hold_are_not_built(path, held, monkeypatch, complaint):
    """Neither where it holds as many numbers as so many layers of one number have."""
    model = trained(d_model=1, heads=1, d_ff=1, layers=max(held, 1))
    tensors = {"junk": np.ones(10**6, np.float32)} | (model.state_dict() if held else {})
    config = asdict(model.config) | {"layers": 20_000}
    save_checkpoint(path, tensors, KIND | {"config": config})
    built, build = [], Block.__init__
    monkeypatch.setattr(Block, "__init__", lambda *a: (built.append(1), build(*a))[1])
    text = complaint(load_model, path)
    assert "with 20000 layers, but no " in text
    assert len(built) <= 2 * (16 + 64)


def test_many_layers_that_the_file_holds_are_built(path):
    model = trained(d_model=2, heads=1, d_ff=1, layers=17)
    save_model(path, model)
    assert len(load_model(path)[0].encoder.layers) == 17


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(tying="none", layers=1),
        dict(positions="learned", max_length=200),
        dict(d_k=30, d_v=1),
        dict(d_v=40),
        dict(d_ff=1, layers=1),
    ],
    ids=str,
)
def test_no_honest_config_counts_as_a_giant(path, changes):
    save_model(path, trained(**changes))
    load_model(path)


# One process at a time.


def test_a_folder_is_locked_for_other_processes_until_the_block_ends(tmp_path):
    """A block within it, in the same process, neither waits nor ends it."""
    program = "import sys, pathlib; from numformer.training.files import locked\n"
    program += "with locked(pathlib.Path(sys.argv[1])): pass"

    def other() -> str:
        command = [sys.executable, "-c", program, str(tmp_path)]
        paths = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(command, env=paths, capture_output=True, text=True).stderr

    with locked(tmp_path):
        with locked(tmp_path / ".." / tmp_path.name):
            pass
        assert f"received {tmp_path}, which another process is writing to" in other()
    with pytest.raises(RuntimeError), locked(tmp_path):
        raise RuntimeError
    assert other() == "" and os.listdir(tmp_path) == []


def test_a_file_system_without_locks_locks_nothing(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path):
        pass
