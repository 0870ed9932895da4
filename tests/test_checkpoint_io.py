"""Checkpoints come back bit for bit, are never half there, and complain by name."""

import os
from dataclasses import asdict

import numpy as np
import pytest
import safetensors.numpy
from numpy.testing import assert_array_equal

from numformer.checkpoint_io import (
    load_checkpoint,
    load_model,
    save_checkpoint,
    save_model,
    write_atomically,
)
from numformer.config import Config
from numformer.layer import inference, pack
from numformer.model import Transformer

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


def test_a_tied_model_is_tied_again_and_stored_once(path):
    save_model(path, trained())
    assert sum(array.shape == (11, 8) for array in load_checkpoint(path)[0].values()) == 1
    again, _ = load_model(path)
    assert again.output.weight is again.encoder.embedding.weight


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
    assert all(rest == ("fsync", b"new", []) for rest in seen[2:])  # of the folder


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
    ],
    ids="empty text pickle truncated header longer foreign metadata".split(),
)
@pytest.mark.parametrize("load", [load_checkpoint, load_model])
def test_files_of_other_kinds_are_refused_by_name(path, content, load, complaint):
    path.write_bytes(content)
    text = complaint(load, path)
    assert "safetensors file that numformer wrote" in text and str(path) in text


def test_missing_files_and_folders_are_refused_by_name(tmp_path, complaint):
    for path in (tmp_path / "absent.safetensors", tmp_path):
        assert f"no file {path}" in complaint(load_checkpoint, path)


@pytest.mark.parametrize("metadata", [{}, {"config": {"d_model": 8}}, {"config": None}])
def test_a_checkpoint_without_its_config_is_refused_by_name(path, metadata, complaint):
    save_checkpoint(path, {}, metadata)
    text = complaint(load_model, path)
    assert "names its Config" in text and str(path) in text


def test_a_config_of_a_later_version_is_refused_by_name(path, complaint):
    config = asdict(Config.base(11, **SMALL)) | {"rotary": True}
    save_checkpoint(path, {}, {"config": config})
    assert str(path) in complaint(load_model, path)


@pytest.mark.parametrize("changes", [dict(d_ff=20), dict(layers=1), dict(layers=3)], ids=str)
def test_weights_of_another_config_are_refused(path, changes, complaint):
    other = asdict(trained(**changes).config)
    save_checkpoint(path, trained().state_dict(), {"config": other})
    assert "Config that it was saved with" in complaint(load_model, path)
