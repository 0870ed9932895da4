"""Arrays in files of torch.save: read without calling anything that a file names."""

import io
import json
import os
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from published_cases import CASES, RandomModel
from safetensors.numpy import load_file

import numformer as nf
from numformer.published import files, pickles
from numformer.published.loading import load_published

NAMES = {np.dtype(np.float32): "FloatStorage", np.dtype(np.int64): "LongStorage"}
NAMES |= {np.dtype(np.float64): "DoubleStorage", np.dtype(np.float16): "HalfStorage"}


class Call:
    """Pickled as a call of a function; as torch pickles tensors, without importing torch."""

    def __init__(self, name: str, *arguments):
        self.name, self.arguments = name, arguments


class Pickler(pickle._Pickler):  # the one written in Python, whose parts can be replaced
    """Writes names of functions that need not exist, and storages by their numbers."""

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Call):
            self.name(obj.name)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
        elif isinstance(obj, pickles.Name):
            self.name(obj.name)
        elif isinstance(obj, pickles.Storage):
            key = "storage", pickles.Name(f"torch {obj.kind}"), obj.key, "cpu", obj.size
            super().save((*key, None) if self.is_stream else key)
            self.write(pickle.BINPERSID)
        else:
            super().save(obj)

    def name(self, name: str):
        self.write(pickle.GLOBAL + name.replace(" ", "\n").encode() + b"\n")


def pickled(value, is_stream: bool = False, protocol: int = 2) -> bytes:
    file = io.BytesIO()
    pickler = Pickler(file, protocol)
    pickler.is_stream = is_stream
    pickler.dump(value)
    return file.getvalue()


def tensor(key: str, array: np.ndarray, **changes):
    """A tensor of all numbers of a storage."""
    strides = tuple(n // array.itemsize for n in array.strides)
    storage = pickles.Storage(NAMES[array.dtype], key, array.size)
    parts = dict(storage=storage, offset=0, shape=array.shape, strides=strides) | changes
    empty = Call("collections OrderedDict")
    return Call("torch._utils _rebuild_tensor_v2", *parts.values(), False, empty)


def write_zip(path: Path, tensors, arrays: dict[str, np.ndarray], **settings) -> Path:
    with zipfile.ZipFile(path, "w", **settings) as archive:
        archive.writestr("a/data.pkl", tensors if type(tensors) is bytes else pickled(tensors))
        archive.writestr("a/byteorder", "little")
        for key, array in arrays.items():
            archive.writestr(f"a/data/{key}", array.tobytes())
    return path


def write_stream(path: Path, tensors, arrays: dict[str, np.ndarray]) -> Path:
    parts = [pickles.MAGIC, 1001, {"little_endian": True}, tensors, [*arrays]]
    content = b"".join(pickled(part, is_stream=True) for part in parts)
    for array in arrays.values():
        content += struct.pack("<q", array.size) + array.tobytes()
    path.write_bytes(content)
    return path


def in_pickles(folder: Path, write, count: int = 1) -> Path:
    """A folder whose arrays are in `count` files of torch.save from now on."""
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    for number in range(count):
        part = {name: arrays[name] for name in names[number::count]}
        keys = {str(n): array for n, array in enumerate(part.values())}
        tensors = {name: tensor(str(n), array) for n, (name, array) in enumerate(part.items())}
        file = "pytorch_model.bin" if count == 1 else f"part-{number}.bin"
        write(folder / file, tensors, keys)
    if count > 1:
        index = {"weight_map": {name: f"part-{n % count}.bin" for n, name in enumerate(names)}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(("write", "count"), [(write_zip, 1), (write_zip, 3), (write_stream, 1)])
def test_a_model_saved_by_torch_is_loaded(write, count, tmp_path):
    example = RandomModel("gpt2", CASES["gpt2"], np.float32)
    model, _ = load_published(in_pickles(example.save(tmp_path), write, count))
    state = model.state_dict()
    assert all(np.array_equal(state[n], array) for n, array in example.model.state_dict().items())


@pytest.mark.parametrize(("protocol", "form"), [(2, bytes), (4, bytes), (2, pickletools.optimize)])
def test_what_a_storage_holds_is_read_as_torch_writes_it(protocol, form, tmp_path):
    """Parts of a storage, parameters, and attributes of the dictionary."""
    both, rest = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4.0)
    parameter = Call("torch._utils _rebuild_parameter", tensor("1", rest), True, ())
    tensors = {"a": tensor("0", both), "b": tensor("0", both[1:], offset=3), "c": parameter}
    content = form(pickled(tensors, protocol=protocol))[:-1]
    content += pickled({"_metadata": {}})[2:-1] + pickle.BUILD + pickle.STOP
    write_zip(tmp_path / "pytorch_model.bin", content, {"0": both, "1": rest})
    arrays = files.Arrays(tmp_path)
    for name, array in {"a": both, "b": both[1:], "c": rest}.items():
        np.testing.assert_array_equal(arrays[name], array)
    write_stream(tmp_path / "pytorch_model.bin", WHOLE, {"0": ARRAY})
    assert files.Arrays(tmp_path)["w"].tolist() == ARRAY.tolist()


def written_by_torch(folder: Path) -> list[Path]:
    """Files with a tensor in the middle of a storage, a parameter and several types."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    both = torch.arange(12.0).reshape(4, 3)
    tensors = torch.nn.Linear(2, 2).state_dict() | {"a": both, "b": both[1:]}
    tensors |= {"c": torch.nn.Parameter(torch.arange(4.0)), "d": torch.arange(3)}
    tensors |= {"e": torch.arange(5.0).bfloat16(), "f": torch.tensor(2.5).half()}
    paths = [folder / "zip.bin", folder / "stream.bin"]
    for path, is_zip in zip(paths, (True, False), strict=True):
        torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    return paths


def test_what_torch_saves_is_found(tmp_path):
    for path in written_by_torch(tmp_path):
        path.rename(tmp_path / "pytorch_model.bin")
        arrays = files.Arrays(tmp_path)
        assert arrays["b"].tolist() == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]
        assert arrays["c"].tolist() == [0, 1, 2, 3] and arrays["weight"].shape == (2, 2)
        assert arrays["e"].tolist() == [0, 1, 2, 3, 4] and arrays["f"] == 2.5
        assert arrays.places["d"].dtype == "I64"


class Runs:
    """Unpickled by the standard library, this creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
WHOLE = {"w": tensor("0", ARRAY)}
BIG = (2**40, 2**40)


def hostile(proof: Path) -> dict[str, bytes]:
    """Pickles by what a refusal says of them; the first ones would create the file `proof`."""
    objects = pickle.dumps(Runs(proof), 4)
    nested = pickled({"w": Call("torch._utils _rebuild_parameter", Call("os system", "touch"))})
    build = pickled({"w": 1})[:-1] + b"N" + pickle.INST + b"os\nsystem\n."
    return {
        "it names posix.system": pickle.dumps(Runs(proof), 2),
        "it names posix.system)": objects,
        "it names os.system": nested,
        "it names builtins.eval": pickled({"w": Call("builtins eval", "1")}),
        "it has the instruction INST": build,
        "it has the instruction OBJ": b"\x80\x02(ctorch\nFloatStorage\no.",
        "it has the instruction NEWOBJ": b"\x80\x02ctorch\nFloatStorage\n)\x81.",
        "it has the instruction EXT1": b"\x80\x02\x82\x01.",
        "it calls torch FloatStorage": pickled({"w": Call("torch FloatStorage", 3)}),
        "it calls no function": b"\x80\x02K\x01)R.",
        "it calls collections OrderedDict": pickled({"w": Call("collections OrderedDict", 3)}),
        "'w' is no tensor": pickled({"w": {"x": 3}}),
        "7 is no tensor": pickled({7: WHOLE["w"]}),
        "has more numbers than the file": pickled({"w": tensor("0", ARRAY, offset=1)}),
        f"{BIG} has more numbers": pickled(
            {"w": tensor("0", ARRAY, shape=BIG, strides=(2**40, 1))}
        ),
        "w has the sizes [-1, 2, 3]": pickled({"w": tensor("0", ARRAY, offset=-1)}),
        "w has the sizes [0, 2.0, 3]": pickled({"w": tensor("0", ARRAY, shape=(2.0, 3))}),
        "w is not stored row by row": pickled({"w": tensor("0", ARRAY.T)}),
        "w is not stored row by row)": pickled({"w": tensor("0", ARRAY[:, :2].copy().T)}),
        "it has a another that is no storage": pickled(WHOLE).replace(b"storage", b"another"),
        "it has a storage that is no storage": pickled(WHOLE, True).replace(b"Nt", b"K\x01t"),
        "KeyError: 'a/byteorder'": pickled({"w": tensor("a/byteorder", ARRAY)}),
        "KeyError: '9'": pickled({"w": tensor("9", ARRAY)}),
        "AttributeError": pickled([WHOLE["w"]]),
        "pickle exhausted": pickled(WHOLE)[:-1],
        "expected": b"\x80\x02\x8d" + struct.pack("<Q", 2**62) + b"w.",
        "has no attribute 'update'": b"\x80\x02K\x01(K\x02K\x03u.",
        "IndexError": b"\x80\x02R.",
        "it has the instruction POP": b"\x80\x020.",
        "too many values": b"\x80\x02]].",
    }


CASES_OF_HOSTILE = [*hostile(Path("proof"))]


@pytest.mark.parametrize("words", CASES_OF_HOSTILE)
def test_a_hostile_pickle_is_refused_and_nothing_runs(words, tmp_path, complaint):
    proof = tmp_path / "proof"
    content = hostile(proof)[words]
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    path = write_zip(tmp_path / "pytorch_model.bin", content, {"0": ARRAY})
    refused = complaint(files.Arrays, tmp_path)
    assert words.rstrip(")") in refused and "\n" not in refused, refused
    assert f"received {path} (" in refused and "BertForMaskedLM.from_pretrained(" in refused
    for form in (pickle.dumps(Runs(proof), 2), pickled(pickles.MAGIC) + content):
        path.write_bytes(form)
        assert "\n" not in complaint(files.Arrays, tmp_path)
    assert not proof.exists()


def test_the_library_would_run_them(tmp_path):
    """So a file that is missing shows that nothing ran."""
    pickle.loads(pickle.dumps(Runs(tmp_path / "proof")))
    assert (tmp_path / "proof").exists()


def test_an_axis_of_size_1_has_any_stride(tmp_path):
    array = ARRAY.reshape(2, 1, 3)
    value = tensor("0", array, strides=(3, 77, 1))
    write_zip(tmp_path / "pytorch_model.bin", {"w": value}, {"0": array})
    assert files.Arrays(tmp_path)["w"].tolist() == array.tolist()


def test_other_archives_are_refused(tmp_path, complaint):
    path = tmp_path / "pytorch_model.bin"
    (tmp_path / "config.json").write_text("{}")
    arrays = {"0": ARRAY}

    def refused() -> str:
        return complaint(files.Arrays, tmp_path)

    write_zip(path, WHOLE, arrays)
    assert files.Arrays(tmp_path)["w"].tolist() == ARRAY.tolist()
    write_zip(path, WHOLE, arrays, compression=zipfile.ZIP_DEFLATED)
    assert "a/data.pkl is compressed" in refused() and "AutoModel.from_pre" in refused()
    with zipfile.ZipFile(write_zip(path, WHOLE, arrays), "a") as archive:
        archive.writestr("b/data.pkl", "")
    assert "too many values" in refused()
    write_zip(path, WHOLE, arrays)
    path.write_bytes(path.read_bytes().replace(b"little", b"bigend"))
    assert "Bad CRC-32 for file 'a/byteorder'" in refused()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled(WHOLE))
        archive.writestr("a/byteorder", "big")
    assert "of a machine with another order of bytes" in refused()
    begin, size = (
        write_zip(path, WHOLE, arrays).read_bytes().index(ARRAY.tobytes()),
        path.stat().st_size,
    )
    for count, is_whole in ((size - begin, True), (size - begin + 1, False), (2**31, False)):
        write_zip(path, WHOLE, arrays)
        content = bytearray(path.read_bytes())
        entry = content.rindex(b"a/data/0") - 46
        content[entry + 20 : entry + 28] = struct.pack("<II", count, count)
        path.write_bytes(content)
        if is_whole:
            assert files.Arrays(tmp_path)["w"].tolist() == ARRAY.tolist()
        else:
            assert "a/data/0 is cut off" in refused()
    write_stream(path, WHOLE, arrays)
    content = path.read_bytes()
    path.write_bytes(pickled(7) + content[len(pickled(pickles.MAGIC, True)) :])
    assert "it is no file of torch.save" in refused()
    for content in (b"", b"x", pickled(3), pickled([])):
        path.write_bytes(content)
        assert "\n" not in refused()


def test_the_first_number_of_early_files_is_torch_s():
    assert pickles.MAGIC == 119547037146038801333356  # torch.serialization.MAGIC_NUMBER


def test_the_sizes_of_numbers_are_those_of_their_types():
    for dtype, size in pickles.STORAGES.values():
        assert size == int(dtype.strip("BFIOLU") or 8) // 8, dtype


def test_the_size_of_a_pickle_is_limited(tmp_path, complaint, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    write_zip(tmp_path / "pytorch_model.bin", WHOLE, {"0": ARRAY})
    monkeypatch.setattr(pickles, "LARGEST", len(pickled(WHOLE)))
    files.Arrays(tmp_path)
    monkeypatch.setattr(pickles, "LARGEST", len(pickled(WHOLE)) - 1)
    assert "its pickle is too large" in complaint(files.Arrays, tmp_path)


@pytest.mark.parametrize("write", [write_zip, write_stream])
def test_a_damaged_file_is_refused_or_read_within_its_bounds(write, tmp_path):
    """Cut off, or with a few other bytes."""
    (tmp_path / "config.json").write_text("{}")
    path = write(tmp_path / "pytorch_model.bin", WHOLE, {"0": ARRAY})
    whole, refused = path.read_bytes(), 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        content = bytearray(whole[: rng.integers(len(whole))] if seed % 2 else whole)
        for place in rng.integers(0, max(1, len(content)), 0 if seed % 2 else 3):
            content[place] = rng.integers(256)
        path.write_bytes(content)
        try:
            arrays = files.Arrays(tmp_path)
            assert all(arrays.places[name].begin <= len(content) for name in arrays)
        except nf.InputError as problem:
            assert "\n" not in str(problem), seed
            refused += 1
    assert refused > 150


def test_the_advice_for_a_file_that_is_not_read_works(tmp_path, complaint):
    """In transformers, by the class that the config.json names, which keeps the head."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    values = CASES["bert"] | dict(architectures=["BertForMaskedLM"])
    example = RandomModel("bert", values, np.float32)
    folder, other = example.save(tmp_path / "folder"), tmp_path / "other"
    arrays = load_file(folder / "model.safetensors")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    name = "bert.encoder.layer.0.output.dense.weight"
    tensors[name] = tensors[name].t().contiguous().t()  # as if it were stored column by column
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    refused = complaint(load_published, folder)
    assert f"{name} is not stored row by row" in refused
    program = refused.rpartition("transformers: ")[2].rstrip(".")
    paths = dict(FOLDER=folder, OTHER=other)
    (name,) = values["architectures"]
    assert program.startswith(f"{name}.from_pretrained(")
    eval(program, paths | {name: getattr(transformers, name)})
    state = load_published(other)[0].state_dict()
    for key, array in example.model.state_dict().items():
        assert np.array_equal(state[key], array), key
