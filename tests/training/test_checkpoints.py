"""Checkpoints come back bit for bit, are never half there, and complain by name."""

import os
import re
from dataclasses import asdict

import numpy as np
import pytest
import safetensors.numpy
from numpy.testing import assert_array_equal

from numformer.layer import inference, pack
from numformer.models import Block, Config, Transformer
from numformer.training import files
from numformer.training.checkpoints import load_checkpoint, load_model, save_checkpoint, save_model
from numformer.training.files import locked, write_atomically
from numformer.training.migrations import FORMAT

SMALL = dict(d_model=8, d_ff=12, heads=2, layers=2)
SOURCE, TARGET = np.array([[4, 5, 2], [6, 2, 0]]), np.array([[1, 7, 8], [1, 5, 0]])
KIND = {"model": "encoder_decoder"}


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
    found["a.b"] += 1  # it may be overwritten, and the file stands
    assert_array_equal(load_checkpoint(path)[0]["a.b"], tensors["a.b"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "changes",
    [{}, dict(tying="none", norm="pre"), dict(positions="learned", attention_bias=True, d_k=3)],
    ids=str,
)
def test_a_loaded_model_gives_the_same_logits_bit_for_bit(path, changes, dtype):
    model = trained(**changes)
    pack(model, dtype).data[0] += dtype(1e-12)
    save_model(path, model, task={"symbols": "abc"})
    again, metadata = load_model(path)
    assert again.config == model.config
    assert metadata["config"] == asdict(model.config)
    assert metadata["task"] == {"symbols": "abc"}
    assert (again.output.weight is again.source.embedding.weight) == ("tying" not in changes)
    for name, array in model.state_dict().items():
        assert_array_equal(again.state_dict()[name], array)
    with inference():
        assert_array_equal(again.forward(SOURCE, TARGET), model.forward(SOURCE, TARGET))


def test_a_model_that_would_not_open_is_refused_before_it_is_saved(path, complaint):
    model = trained()
    pack(model.encoder, np.float64)
    assert "received float32 and float64. Cast" in complaint(save_model, path, model)
    pack(model, np.float16)
    assert "received float16. Cast them by pack(model)" in complaint(save_model, path, model)
    assert not path.exists()


def test_a_field_that_a_saved_config_does_not_have_takes_its_default(path):
    """It was written before there was such a field."""
    model = trained()
    config = {n: v for n, v in asdict(model.config).items() if n not in ("normalization", "norm")}
    save_checkpoint(path, model.state_dict(), KIND | {"config": config})
    assert load_model(path)[0].config == model.config


# Atomic writing.


@pytest.mark.parametrize("operation", ["fsync", "replace"])
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(path, monkeypatch, operation, problem):
    def fail(*args):
        raise problem

    model = trained()
    save_model(path, model)
    before = path.read_bytes()
    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(type(problem)):
        save_model(path, model, step=2)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_the_old_file_stands_until_the_new_one_is_whole_and_on_disk(path, monkeypatch):
    """Order matters: all bytes, then fsync, then rename; nothing else is left."""
    seen = []

    def watch(name, original):
        def watched(*args):
            partial = [file for file in path.parent.iterdir() if file != path]
            seen.append((name, path.read_bytes(), [file.read_bytes() for file in partial]))
            return original(*args)

        monkeypatch.setattr(os, name, watched)

    write_atomically(path, b"old")
    watch("fsync", os.fsync)
    watch("replace", os.replace)
    write_atomically(path, b"new")
    before = [("fsync", b"old", [b"new"]), ("replace", b"old", [b"new"])]
    assert seen[:2] == before
    assert seen[2:] == [("fsync", b"new", [])]  # of the folder: the rename is on disk, too
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == [path.name]
    with pytest.raises(OSError):
        write_atomically(path.parent / "missing" / "file", b"")


# What is no checkpoint.


WHOLE = safetensors.numpy.save({"x": np.arange(100.0)}, metadata={"numformer": "{}"})


def says(metadata: str) -> bytes:
    return safetensors.numpy.save({}, metadata={"numformer": metadata})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a checkpoint",
        b"\x80\x04\x95pickle",
        WHOLE[:-8],
        WHOLE[:40],
        WHOLE + b"more",
        safetensors.numpy.save({"x": np.arange(3.0)}),
        says("no JSON"),
        says('{"format": 1}'),  # without a seal
        *map(says, ["[]", "null", "3", "[" * 10**5, '{"a":' * 10**5, "1" * 5000]),
    ],
    ids=lambda content: repr(content[:20]),
)
def test_files_of_other_kinds_are_refused_by_name(path, content, complaint):
    path.write_bytes(content)
    for load in (load_checkpoint, load_model):
        text = complaint(load, path)
        assert "safetensors file that numformer wrote" in text and str(path) in text


def test_a_flipped_bit_anywhere_is_refused(path, complaint):
    """In the header, in the metadata, in the numbers: one bit of every byte."""
    save_checkpoint(path, {"x": np.arange(9, dtype=np.float32)}, {"best": {"a": 0.5}})
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        assert str(path) in complaint(load_checkpoint, path)


@pytest.mark.parametrize("number", [FORMAT + 1, 0, -1, True, "1", None, 1.0, [1]], ids=str)
def test_another_format_is_refused_and_a_later_one_as_such(path, number, complaint):
    save_checkpoint(path, {}, {"format": number})
    later = f"format {FORMAT}; received {path} of format {number}, which a later numformer wrote"
    said = later if number == FORMAT + 1 else "its metadata is not numformer's"
    assert said in complaint(load_model, path)


@pytest.mark.parametrize(
    ("array", "said"),
    [(np.ones(3, dtype), "is not float32") for dtype in ("f8", "f2", "i4", "u1", "?")]
    + [
        (np.array([0, value], np.float32), "holds numbers that are not finite")
        for value in (np.nan, np.inf, -np.inf)
    ],
    ids=str,
)
def test_numbers_of_other_kinds_are_refused(path, array, said, complaint):
    save_checkpoint(path, {"x": array}, {})
    assert f"'x' {said}" in complaint(load_checkpoint, path)
    save_checkpoint(path, {"a": np.ones(2, np.float32), "x": array}, {})
    assert f"'x' {said}" in complaint(load_model, path)


def test_bfloat16_which_numpy_does_not_know_is_refused(path, complaint):
    save_checkpoint(path, {"x": np.ones(2, np.float16)}, {})
    path.write_bytes(path.read_bytes().replace(b'"F16"', b'"BF16"', 1).replace(b"}} ", b"}}", 1))
    assert "'x' is not float32" in complaint(load_checkpoint, path)


def test_missing_files_and_folders_are_refused_by_name(tmp_path, complaint):
    for path in (tmp_path / "absent.safetensors", tmp_path):
        assert f"no file {path}" in complaint(load_checkpoint, path)


@pytest.mark.parametrize("kind", [None, "perceptron", "block", "..loop", 3, ["encoder_decoder"]])
def test_a_kind_of_model_that_is_not_here_is_refused(path, kind, complaint):
    save_checkpoint(path, {}, {"model": kind, "config": asdict(trained().config)})
    assert f"with that one model in it; received {kind!r}" in complaint(load_model, path)


def test_a_checkpoint_without_a_config_of_this_version_is_refused_by_name(path, complaint):
    later = asdict(Config.base(11, **SMALL)) | {"of a later version": True}
    for metadata in ({}, {"config": {"d_model": 8}}, {"config": None}, {"config": later}):
        save_checkpoint(path, {}, KIND | metadata)
        text = complaint(load_model, path)
        assert "names its Config" in text and str(path) in text


@pytest.mark.parametrize("changes", [dict(d_ff=20), dict(layers=1), dict(layers=3)], ids=str)
def test_weights_of_another_config_are_refused(path, changes, complaint):
    other = asdict(trained(**changes).config)
    save_checkpoint(path, trained().state_dict(), KIND | {"config": other})
    message = complaint(load_model, path)
    assert re.search("Config that it was saved with|as many numbers as its Config asks", message)


GIANTS = [{name: 2**50} for name in ("d_model", "d_ff", "layers", "d_k", "d_v")]
GIANTS += [{f"{side}_vocabulary": 2**50, "tying": "target"} for side in ("source", "target")]
GIANTS += [dict(heads=2**50, d_k=1, d_v=1), dict(positions="learned", max_length=2**50)]
GIANTS += [dict(layers=10**4000, d_ff=10**4000)]


@pytest.mark.parametrize("changes", GIANTS, ids=" ".join)
def test_a_config_that_asks_for_a_giant_is_refused_before_it_is_built(
    path, changes, monkeypatch, complaint
):
    model = trained()
    save_checkpoint(path, model.state_dict(), KIND | {"config": asdict(model.config) | changes})
    monkeypatch.setattr(Transformer, "__init__", None)
    assert "as many numbers as its Config asks for" in complaint(load_model, path)


@pytest.mark.parametrize("held", [1, 16, 30])
def test_layers_that_the_file_does_not_hold_are_not_built(path, held, monkeypatch, complaint):
    """Neither where it holds as many numbers as so many layers of one number have."""
    model = trained(d_model=1, heads=1, d_ff=1, layers=held)
    tensors = model.state_dict() | {"junk": np.ones(10**6, np.float32)}
    config = asdict(model.config) | {"layers": 20_000}
    save_checkpoint(path, tensors, KIND | {"config": config})
    built, build = [], Block.__init__
    monkeypatch.setattr(Block, "__init__", lambda *a: (built.append(1), build(*a))[1])
    assert "with 20000 layers, but no " in complaint(load_model, path)
    assert len(built) <= 2 * (16 + 64)


@pytest.mark.parametrize(
    "changes",
    [
        dict(tying="none", layers=1),
        dict(positions="learned", max_length=200),
        dict(d_k=30, d_v=1),
        dict(d_v=40),
        dict(d_ff=1, layers=1),
        dict(d_model=2, heads=1, d_ff=1, layers=17),
    ],
    ids=str,
)
def test_no_honest_config_counts_as_a_giant(path, changes):
    save_model(path, trained(**changes))
    load_model(path)


# One process at a time.


def test_a_folder_is_locked_for_other_processes_until_the_block_ends(tmp_path):
    """A block within it, in the same process, neither waits nor ends it."""

    def refused_elsewhere() -> bool:
        pid = os.fork()
        if pid == 0:
            files._held.clear()
            try:
                with locked(tmp_path):
                    os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(pid, 0)[1] != 0

    with pytest.raises(RuntimeError), locked(tmp_path):
        with locked(tmp_path / ".." / tmp_path.name):
            pass
        assert refused_elsewhere()
        raise RuntimeError
    assert not refused_elsewhere() and os.listdir(tmp_path) == []


def test_a_file_system_without_locks_locks_nothing(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path):
        pass
