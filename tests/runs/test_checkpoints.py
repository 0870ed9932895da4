"""Checkpoints come back bit for bit, are never half there, and complain by name."""

import os
from dataclasses import asdict

import numpy as np
import pytest
import safetensors.numpy
from numpy.testing import assert_array_equal

from numformer.layer import pack
from numformer.models import Config, Transformer
from numformer.paper import EncoderLayer
from numformer.runs import files
from numformer.runs.checkpoints import load_checkpoint, load_model, save_checkpoint, save_model
from numformer.runs.files import folder_lock, write_atomically
from numformer.runs.migrations import FORMAT

SMALL = dict(d_model=8, d_ff=12, heads=2, layers=2)
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


def test_arrays_and_metadata_come_back(path, rng):
    array = rng.standard_normal((3, 4)).astype(np.float32)
    tensors = {"a.b": array, "transposed": array.T, "scalar": np.float32(3)}
    tensors["none"] = np.zeros((0, 2), np.float32)
    metadata = {"names": ["ɑ̃", "b"], "best": {}, "loss": 0.1 + 0.2, "nothing": None}
    save_checkpoint(path, tensors, metadata)
    found, loaded_metadata = load_checkpoint(path)
    assert metadata.items() <= loaded_metadata.items() and found.keys() == tensors.keys()
    assert loaded_metadata.keys() - metadata.keys() == {"format", "versions"}
    for name, array in tensors.items():
        assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    found["a.b"] += 1  # it may be overwritten, and the file stands
    assert_array_equal(load_checkpoint(path)[0]["a.b"], tensors["a.b"])


def test_a_model_that_would_not_open_is_refused_before_it_is_saved(path, complaint):
    model = trained()
    pack(model.encoder, np.float64)
    assert "received float32 and float64. Cast" in complaint(save_model, path, model)
    pack(model, np.float16)
    assert "received float16. Cast them by pack(model)" in complaint(save_model, path, model)
    assert not path.exists()


@pytest.mark.parametrize("operation", ["fsync", "replace"])
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(path, monkeypatch, operation, problem):
    def fail(*args):
        raise problem

    path.write_bytes(b"old")
    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(type(problem)):
        save_model(path, trained())
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == [path.name]


def test_the_old_file_stands_until_the_new_one_is_whole_and_on_disk(path, monkeypatch):
    """Order matters: all bytes, then fsync, then rename, then fsync of the folder."""
    seen = []

    def watch(name, original):
        def watched(*args):
            partial = [file.read_bytes() for file in path.parent.iterdir() if file != path]
            seen.append((name, path.read_bytes(), partial))
            return original(*args)

        monkeypatch.setattr(os, name, watched)

    write_atomically(path, b"old")
    watch("fsync", os.fsync)
    watch("replace", os.replace)
    write_atomically(path, b"new")
    before = [("fsync", b"old", [b"new"]), ("replace", b"old", [b"new"])]
    assert seen == [*before, ("fsync", b"new", [])]
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == [path.name]


def says(metadata: str, dtype=float) -> bytes:
    return safetensors.numpy.save({"x": np.ones(100, dtype)}, metadata={"numformer": metadata})


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"not a checkpoint", b"\x80\x04\x95pickle"),
        *(says("{}")[:-8], says("{}")[:40], says("{}") + b"more"),
        safetensors.numpy.save({"x": np.arange(3.0)}),
        says('{"format": 1}', "f4"),  # without a seal
        *map(says, ["no JSON", "[]", "null", "[" * 10**5, '{"a":' * 10**5, "1" * 5000]),
    ],
    ids=lambda content: repr(content)[:20],
)
def test_files_of_other_kinds_are_refused_by_name(path, content, complaint):
    if content is not None:
        path.write_bytes(content)
    for load in (load_checkpoint, load_model):
        text = complaint(load, path)
        assert "safetensors file that numformer wrote" in text and str(path) in text


def test_a_flipped_bit_anywhere_is_refused(path, complaint):
    save_checkpoint(path, {"x": np.arange(9, dtype=np.float32)}, {"best": {"a": 0.5}})
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        assert str(path) in complaint(load_checkpoint, path)


@pytest.mark.parametrize("number", [FORMAT + 1, 0, True, "1", None, 1.0], ids=str)
def test_another_format_is_refused_and_a_later_one_as_such(path, number, complaint):
    save_checkpoint(path, {}, {"format": number})
    later = f"format {FORMAT}; received {path} of format {number}, which a later numformer wrote"
    message = later if number == FORMAT + 1 else "its metadata is not numformer's"
    assert message in complaint(load_model, path)


NOT_FINITE = [np.array([0, value], np.float32) for value in (np.nan, np.inf, -np.inf)]


@pytest.mark.parametrize("array", [*(np.ones(3, d) for d in ("f8", "f2", "i4")), *NOT_FINITE])
def test_numbers_of_other_kinds_are_refused(path, array, complaint):
    message = "not finite" if array.dtype == np.float32 else "'x' is not float32"
    save_checkpoint(path, {"x": array}, {})
    assert message in complaint(load_checkpoint, path)
    save_checkpoint(path, {"a": np.ones(2, np.float32), "x": array}, {})
    assert message in complaint(load_model, path)


CONFIG = asdict(Config.base(11, **SMALL))
REFUSED = [
    ({"model": kind, "config": CONFIG}, f"speech, dual_encoder; received {kind!r}")
    for kind in (None, "perceptron", "block", "..loop", 3)
]
REFUSED += [
    (KIND | other, "has a valid Config")
    for other in ({}, {"config": None}, {"config": CONFIG | {"of a later version": True}})
]
REFUSED += [(KIND | {"config": CONFIG | {"d_ff": 10}}, "Config that it was saved with")]
REFUSED += [(KIND | {"config": CONFIG | {"layers": 1}}, "Config that it was saved with")]
GIANTS = [{name: 2**50} for name in ("d_model", "d_ff", "layers", "d_k", "d_v")]
GIANTS += [{f"{side}_vocabulary": 2**50, "tying": "target"} for side in ("source", "target")]
GIANTS += [dict(heads=2**50, d_k=1, d_v=1), dict(positions="learned", max_length=2**50)]
GIANTS += [dict(layers=10**4000, d_ff=10**4000), dict(layers=3)]
REFUSED += [
    (KIND | {"config": CONFIG | giant}, "as many numbers as its Config") for giant in GIANTS
]


@pytest.mark.parametrize(("metadata", "words"), REFUSED, ids=lambda value: repr(value)[-50:])
def test_a_model_that_cannot_be_the_file_s_is_refused(path, metadata, words, complaint):
    save_checkpoint(path, trained().state_dict(), metadata)
    assert words in complaint(load_model, path)


@pytest.mark.parametrize("held", [1, 30])
def test_layers_that_the_file_does_not_hold_are_not_built(path, held, monkeypatch, complaint):
    """Neither where it holds as many numbers as so many layers of one number have."""
    model = trained(d_model=1, heads=1, d_ff=1, layers=held)
    tensors = model.state_dict() | {"junk": np.ones(10**6, np.float32)}
    config = asdict(model.config) | {"layers": 20_000}
    save_checkpoint(path, tensors, KIND | {"config": config})
    built, build = [], EncoderLayer.__init__
    monkeypatch.setattr(EncoderLayer, "__init__", lambda *a: (built.append(1), build(*a))[1])
    assert "with 20000 layers, but no " in complaint(load_model, path)
    assert 0 < len(built) <= 16 + 64


def test_a_folder_is_locked_for_other_processes_until_the_block_ends(tmp_path):
    """A block within it, in the same process, neither waits nor ends it."""

    def refused_elsewhere() -> bool:
        pid = os.fork()
        if pid == 0:
            files._locked_folders.clear()
            try:
                with folder_lock(tmp_path):
                    os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(pid, 0)[1] != 0

    with pytest.raises(RuntimeError), folder_lock(tmp_path):
        with folder_lock(tmp_path / ".." / tmp_path.name):
            pass
        assert refused_elsewhere()
        raise RuntimeError
    assert not refused_elsewhere() and os.listdir(tmp_path) == []
