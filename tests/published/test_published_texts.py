"""Texts in, texts out, with models that others published: load, tasks, fine-tuning, convert."""

import json
import re
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import numformer as nf
from numformer import convert
from numformer.generation import Continuation, Translation
from numformer.published import files
from numformer.published.configs import ForeignConfig
from numformer.published.kinds import KINDS
from numformer.published.loading import load_published
from numformer.published.saving import save_published
from numformer.published.vocabularies import load_tokenizer
from numformer.trained import model_of_run
from toy_tasks import images, masked, translate, write
from toy_tasks.data.pictures import read_picture

published_texts = pytest.importorskip(
    "tests.published.published_texts", reason="the extra published is not installed"
)
NO_TRANSFORMERS = "transformers is not installed"


def marked_tokenizer(folder: Path):
    """The tokenizer of a folder, which puts its first symbol before a text from now on."""
    path = str(folder / "tokenizer.json")
    tokenizer = published_texts.tokenizers.Tokenizer.from_file(path)
    mark = tokenizer.id_to_token(0)
    tokenizer.post_processor = published_texts.tokenizers.processors.TemplateProcessing(
        f"{mark} $A", special_tokens=[(mark, 0)]
    )
    tokenizer.save(path)
    return tokenizer


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_text_begins_with_the_mark_of_its_tokenizer(name, tmp_path):
    folder = getattr(published_texts, name)(tmp_path)
    tokenizer, trained = marked_tokenizer(folder), nf.load(folder)
    ids = tokenizer.encode("to be").ids
    assert ids[0] == 0
    assert trained.text.vocabulary.encode(trained.text.symbols("to be")) == ids
    (written,) = nf.generation.greedy(trained.model, np.array([ids]), 5)
    assert trained("to be", length=5) == tokenizer.decode(ids + written)


def test_a_tokenizer_that_is_no_text_is_refused(tmp_path, complaint, monkeypatch):
    path = published_texts.gpt2(tmp_path) / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b'"e"', b'"\xff"', 1))
    assert "can't decode byte 0xff" in complaint(nf.load, tmp_path)
    monkeypatch.setattr(files, "LARGEST_JSON", path.stat().st_size - 1)
    assert f"{path}, which is too large" in complaint(nf.load, tmp_path)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_decoder_reads_a_single_end(name, tmp_path):
    """Which the tokenizer has after a text, as every source has it; marks before it are kept."""
    folder = getattr(published_texts, name)(tmp_path)
    path = str(folder / "tokenizer.json")
    tokenizer, trained = published_texts.tokenizers.Tokenizer.from_file(path), nf.load(folder)
    ids, source = tokenizer.encode("a dog sleep").ids, trained.text.source
    assert ids[-1] == 1 and [*source.encode(source.split("a dog sleep")), 1] == ids
    length, beam = trained.text.max_length, trained.text.beam
    longest = 512 if name == "t5" else 31
    assert (length, beam, trained.text.length_penalty) == (longest, 1, 1.0)  # no file says more
    (written,) = nf.generation.greedy(trained.model, np.array([ids]), 31)
    assert trained("a dog sleep", max_length=31) == tokenizer.decode(written)


def test_a_language_after_the_end_is_refused(tmp_path, complaint):
    """As the first mBART has it, where no source ends with the end symbol."""
    folder = published_texts.t5(tmp_path, template="$A </s> <unk>")
    received = f"received </s> <unk> in {folder}. Choose a model whose texts begin with"
    assert received in complaint(nf.load, folder)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_text_goes_on_as_transformers_has_it(name, tmp_path):
    pytest.importorskip("torch", reason=NO_TRANSFORMERS)
    transformers = pytest.importorskip("transformers", reason=NO_TRANSFORMERS)
    folder = getattr(published_texts, name)(tmp_path / name)
    trained = nf.load(folder)
    assert repr(trained).startswith(f"Trained({name}: Continuation")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for text in ("to be", " dogs run 42 €"):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        rows = theirs.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0)
        written = tokenizer.decode(rows[0], skip_special_tokens=True)
        assert trained(text, length=9) == written and written.startswith(text)


@pytest.mark.filterwarnings("ignore:training never saw")
@pytest.mark.parametrize("name", ["marian", "marian_of_two", "t5", "bart"])
def test_pairs_are_translated_as_transformers_has_it(name, tmp_path, call):
    """With a character outside the vocabulary, and with a mark of the target language."""
    pytest.importorskip("torch", reason=NO_TRANSFORMERS)
    transformers = pytest.importorskip("transformers", reason=NO_TRANSFORMERS)
    folder = getattr(published_texts, name)(tmp_path / name)
    if name in ("t5", "bart"):
        marks = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
        file = str(folder / "tokenizer.json")
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file, **marks)
    else:
        ids = json.loads((folder / "vocab.json").read_text())
        ids[">>de<<"] = ids.pop("m")
        (folder / "vocab.json").write_text(json.dumps(ids))
        tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    texts = ["a dog and a cat", "people sleep again so", "cats € run", ">>de<< cats run"]
    asked = tokenizer(texts, return_tensors="pt", padding=True)
    rows = theirs.generate(**asked, max_length=nf.load(folder).text.max_length + 1)
    vocabulary, end = nf.load(folder).text.input_vocabulary, theirs.config.eos_token_id
    for text, row in zip(texts, asked["input_ids"].tolist(), strict=True):
        read = [*vocabulary.encode(vocabulary.split(text)), end]
        assert read == row[: len(read)], text
    expected = tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert nf.load(folder)(texts) == expected
    target, marks = nf.load(folder).text.target, {*tokenizer.all_special_tokens}
    pieces = [n for n, symbol in enumerate(target.symbols) if symbol not in marks or n == 3]
    for ids in np.random.default_rng(0).choice([n for n in pieces if n < len(tokenizer)], (30, 6)):
        written = tokenizer.decode(ids, skip_special_tokens=True)
        assert target.join(target.decode(ids.tolist())) == written
    code, out, err = call(translate.main, f"--run {folder} --input", *texts)
    assert code == 0 and out == expected and all("training never saw" in line for line in err), err


def test_tasks_use_published_models(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gpt2, bert, vit = (
        getattr(published_texts, name)(tmp_path / name) for name in ("gpt2", "bert", "vit")
    )
    code, out, _ = call(
        write.main, f"--run {gpt2} --greedy --length 5 --attention a.png --input", "to be"
    )
    assert code == 0 and out[0].startswith("to be") and Path("a.png").exists()
    code, out, err = call(write.main, f"--run {bert} --input", "to be")
    assert code == 2 and len(err) == 1 and "Use python -m toy_tasks.masked." in err[0]
    code, out, _ = call(masked.main, f"--run {bert} --input", "the small [MASK] runs")
    assert code == 0 and "[MASK]" not in out[0] and out[0].startswith("the small")
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3)).astype(np.uint8)
    Image.fromarray(pixels).save("picture.png")
    for run in (vit, published_texts.vit(tmp_path / "deit", model_type="deit")):
        looks = f"{run.name}.png"
        code, out, _ = call(images.main, f"--run {run} --input picture.png --attention {looks}")
        assert code == 0 and out[0].startswith("thing ") and Path(looks).exists()
    pictures = dict(image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.4, 0.3], resample=3)
    (vit / "preprocessor_config.json").write_text(json.dumps(pictures), encoding="utf-8")
    model, metadata = model_of_run(vit)
    given = read_picture(Path("picture.png"), metadata["pictures"], model.config)
    scaled = Image.fromarray(pixels).resize((12, 12), Image.Resampling.BICUBIC)
    expected = (np.asarray(scaled) / 255 - pictures["image_mean"]) / pictures["image_std"]
    assert np.allclose(given, expected, atol=1e-6)
    code, out, _ = call(convert.main, f"{vit} --out vit-run")
    path = str(Path("vit-run", "best.safetensors"))
    assert (code, out) == (0, [f"vit-run is a run: numformer.load_model({path!r})"])
    assert model_of_run(Path("vit-run"))[1]["pictures"] == pictures
    nf.save_model(Path("best.safetensors"), model, text={"kind": "unknown"})
    assert "load_model(" in call(convert.main, ". --out odd-run")[1][0]
    pictures["image_std"] = [0.5, 0, 0.3]
    (vit / "preprocessor_config.json").write_text(json.dumps(pictures), encoding="utf-8")
    code, _, err = call(images.main, f"--run {vit} --input picture.png")
    assert code == 2 and "image_std is above 0" in err[0]
    Path("no.png").write_bytes(b"no picture")
    code, out, err = call(images.main, f"--run {vit} --input no.png")
    assert code == 2 and len(err) == 1 and "names pictures" in err[0]


EDGE = dict(do_center_crop=True, crop_size=12, resample=3, image_mean=[0.1, 0.2, 0.3])
CROPS: dict[str, tuple[dict, tuple[int, int]]] = {
    "CLIPImageProcessorPil": (EDGE | dict(size=dict(shortest_edge=12)), (18, 12)),
    "BitImageProcessorPil": (EDGE | dict(size=dict(shortest_edge=17)), (26, 17)),
    "DeiTImageProcessorPil": (EDGE | dict(size=dict(width=15, height=14)), (15, 14)),
    "CLIPFeatureExtractor": (EDGE | dict(size=17), (26, 17)),
    "DeiTFeatureExtractor": (EDGE | dict(size=14), (14, 14)),
}
"""By class of transformers: how it prepares pictures, and the size of one before its crop."""


@pytest.mark.parametrize("name", CROPS)
def test_a_picture_of_any_size_is_cropped_as_its_model_was_trained(name, tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (20, 31, 3)).astype(np.uint8)
    image, (how, (width, height)) = Image.fromarray(pixels), CROPS[name]
    image.save(tmp_path / "picture.png")
    config = types.SimpleNamespace(channels=3, width=12, height=12)
    found = read_picture(tmp_path / "picture.png", how | dict(feature_extractor_type=name), config)
    larger = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top, left = (height - 12) // 2, (width - 12) // 2
    middle = larger[top : top + 12, left : left + 12] / 255
    assert np.allclose(found, (middle - how["image_mean"]) / 0.5, atol=1e-6)
    if name.endswith("Pil"):
        transformers = pytest.importorskip("transformers", reason=NO_TRANSFORMERS)
        theirs = getattr(transformers, name)(**how, image_std=[0.5] * 3)(image)["pixel_values"][0]
        assert np.allclose(found, np.asarray(theirs).transpose(1, 2, 0), atol=1e-6)


def test_a_picture_is_not_made_larger_than_memory(tmp_path, call):
    """Neither for a size in a file nor for a very long picture; and a crop needs a size."""
    from PIL import Image

    folder, file = published_texts.vit(tmp_path / "vit"), tmp_path / "picture.png"
    Image.fromarray(np.zeros((9, 7500), np.uint8)).save(file)
    for size, words in (
        (dict(size=dict(shortest_edge=12)), ""),  # 10,000 x 12 pixels
        (dict(size=dict(shortest_edge=13)), "10833 x 13 pixels, which is too many"),
        (dict(size=dict(width=12, height=10**9)), "12 x 1000000000 pixels, which is too many"),
        ({}, "received 'size'"),
    ):
        content = json.dumps(size | dict(do_center_crop=True))
        (folder / "preprocessor_config.json").write_text(content, encoding="utf-8")
        code, _, err = call(images.main, f"--run {folder} --input {file}")
        assert (code, len(err)) == ((2, 1) if words else (0, 0)) and words in "".join(err)


def test_a_photograph_is_read_upright_and_with_8_bits(tmp_path, complaint):
    """Cameras store it as the sensor lay, and in EXIF how to turn it."""
    from PIL import Image, ImageOps

    config = types.SimpleNamespace(channels=3, width=4, height=4)
    file, pixels = tmp_path / "picture.png", np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    plain = Image.fromarray(pixels)
    for orientation in range(1, 9):
        exif = plain.getexif()
        exif[0x0112] = orientation
        plain.save(file, exif=exif)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(file)), np.float32) / 127.5 - 1
        assert (orientation == 1) == np.allclose(expected, pixels / 127.5 - 1, atol=1e-6)
        assert np.allclose(read_picture(file, {}, config), expected, atol=1e-6)
    for dtype, mode in {np.uint16: "I;16", np.int32: "I", np.float32: "F"}.items():
        Image.fromarray(pixels[:, :, 0].astype(dtype)).save(tmp_path / "deep.tiff")
        assert f"mode {mode})" in complaint(read_picture, tmp_path / "deep.tiff", {}, config)
    plain.save(file, exif=b"Exif\0\0no TIFF")
    file.with_suffix(".cut").write_bytes(file.read_bytes()[:60])
    assert "names pictures" in complaint(read_picture, file.with_suffix(".cut"), {}, config)
    assert "names pictures" in complaint(read_picture, file, {}, config)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_published_model_is_trained_on_and_published_again(name, tmp_path, call, monkeypatch):
    """As its own kind, even if the folder that it began with is gone."""
    monkeypatch.chdir(tmp_path)
    folder = getattr(published_texts, name)(tmp_path / name)
    text = " ".join(published_texts.LINES) * 30
    Path("text.txt").write_text(text, encoding="utf-8")
    flags = "--data text.txt --steps 4 --batch-size 2 --context 8 --no-plots --decay inverse_sqrt"
    code, out, err = call(write.main, f"--start {folder} {flags} --out run")
    assert code == 0, err
    begun, _ = model_of_run(folder)
    trained, _ = model_of_run(tmp_path / "run")
    assert trained.config.special == begun.config.special and not trained.config.embedding_scale
    moved = [
        np.abs(array - begun.state_dict()[name]).max()
        for name, array in trained.state_dict().items()
    ]
    assert 0 < max(moved) < 0.5  # it began with those weights
    folder.rename("gone")
    code, _, err = call(write.main, "--resume --out run --data text.txt --steps 6")
    assert code == 0, err
    Path("gone").rename(folder)
    code, out, _ = call(convert.main, "run --to-huggingface --out again")
    assert code == 0 and out == [f"again holds a {name} for transformers"]
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, Path("again"))]
    assert configs[0] == configs[1]
    again, trained = nf.load("again"), nf.load("run")
    ids = np.array([[5, 9, 2, 40, 7]])
    with nf.inference():
        assert np.allclose(again.model.forward(ids), trained.model.forward(ids), atol=1e-6)
    assert again("to be", length=5) == trained("to be", length=5)
    refused = f"--start {folder} {flags} --activation relu --out other"
    assert call(write.main, refused)[0] == (2 if name == "llama" else 0)  # of other parameters
    if name == "gpt2":
        code, _, err = call(convert.main, "other --to-huggingface --out no")
        assert code == 2 and "activation gelu_tanh" in err[0] and not Path("no").exists()


@pytest.mark.parametrize(
    ("page", "kind", "says"),
    [
        (write, "bert", "Use python -m toy_tasks.masked"),
        (masked, "gpt2", "Use python -m toy_tasks.write"),
        (write, "marian", "Use python -m toy_tasks.translate"),
        (translate, "gpt2", "Use python -m toy_tasks.write"),
    ],
)
def test_a_script_refuses_a_model_for_another(page, kind, says, tmp_path, call):
    folder = getattr(published_texts, kind)(tmp_path / kind)
    code, out, err = call(page.main, f"--run {folder} --input", "a dog")
    assert (code, out, len(err)) == (2, [], 1) and says in err[0]


def test_a_vit_without_a_head_names_no_pictures(tmp_path, call):
    folder = published_texts.vit(tmp_path, architectures=["ViTModel"])
    assert model_of_run(folder)[0].forward(np.zeros((2, 12, 12, 3), np.float32)).shape == (2, 16)
    code, out, err = call(images.main, f"--run {folder} --input no.png")
    assert (code, out) == (2, []) and "names a model that classifies images" in err[0]


def test_a_warning_of_an_id_names_the_line_that_loads(tmp_path):
    folder = published_texts.gpt2(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9999]}', encoding="utf-8")
    with pytest.warns(UserWarning, match="ends a text with 9999") as warned:
        nf.load(folder)
    assert warned[0].filename == __file__


@pytest.mark.filterwarnings("always:.* sets guidance_scale")
def test_settings_of_generation_are_read_or_warned_of(tmp_path, call):
    """End ids and lengths of generation_config.json; unsupported ones are named in one line."""
    gpt2, marian = (getattr(published_texts, kind)(tmp_path / kind) for kind in ("gpt2", "marian"))
    generation = dict(
        eos_token_id=[7, 0], no_repeat_ngram_size=3, guidance_scale=1.5, penalty_alpha=0.6
    )
    (gpt2 / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    words = r"sets guidance_scale 1\.5, penalty_alpha 0\.6, which numformer lacks"
    with pytest.warns(UserWarning, match=words) as warned:
        config = nf.load(gpt2).model.config
    assert config.special.ends == [7, 0] and warned[0].filename == __file__
    code, _, err = call(convert.main, f"{gpt2} --out {tmp_path / 'run'}")
    assert code == 0 and len(err) == 1 and err[0].startswith(f"note: {gpt2} sets guidance")
    back, again = tmp_path / "back", tmp_path / "again"
    assert call(convert.main, f"{tmp_path / 'run'} --to-huggingface --out {back}")[0] == 0
    (line,) = call(convert.main, f"{back} --out {again}")[1]
    assert line == f"{again} is a run: numformer.load({str(again)!r})"
    assert model_of_run(again)[0].config == config
    assert nf.load(again).text.rules == [["no_repeat_ngram_size", 3]]
    path = marian / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(max_new_tokens=4)))
    assert nf.load(marian).text.max_length == 4
    generation = dict(num_beams=3, length_penalty=0.4)
    path.write_text(json.dumps(generation))
    text = nf.load(marian).text
    assert (text.beam, text.length_penalty, text.penalty) == (3, 0.4, "length")
    change = {"num_beams": 2}  # as in releases before there was a file of generation
    config = json.loads((marian / "config.json").read_text()) | change
    (marian / "config.json").write_text(json.dumps(config))
    path.write_text(json.dumps({"num_beams": None, "length_penalty": 0.4}))
    assert nf.load(marian).text.beam == 2


@pytest.mark.parametrize(
    ("generation", "temperature"),
    [
        ({"do_sample": True, "top_k": 0}, 1.0),
        ({"do_sample": True, "top_k": 0, "temperature": 0.5}, 0.5),
        ({"do_sample": False, "temperature": 0.5}, 0.0),
        ({"temperature": 0.5}, 0.0),
    ],
)
def test_a_language_model_samples_if_its_folder_says_so(generation, temperature, tmp_path):
    folder = published_texts.gpt2(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    assert nf.load(folder).text.temperature == temperature


def test_a_translator_with_all_settings_and_without(tmp_path):
    folder = published_texts.marian(tmp_path)
    config = nf.load(folder).model.config
    text = KINDS["marian"].text(folder, config, ForeignConfig({}))
    expected = nf.Transduction(text.source, text.target, 512, beam=1, penalty="length")
    assert text == replace(expected, early_stopping=False, length_penalty=1.0)
    given = dict(max_new_tokens=7, num_beams=3, length_penalty=0.4, early_stopping=True)
    text = KINDS["marian"].text(folder, config, ForeignConfig(given | dict(min_length=5)))
    assert (text.max_length, text.beam, text.length_penalty) == (7, 3, 0.4)
    assert text.early_stopping and text.rules


def test_what_is_published_again_is_written_as_its_run_writes(tmp_path):
    """Of a translator its longest text, of a language model its temperature, without a top_k.

    Only a beam has a length penalty.
    """
    early, ids = dict(early_stopping=True), dict(decoder_start_token_id=1, eos_token_id=2)
    ids |= dict(pad_token_id=0, bad_words_ids=[[0], [1], [3]], max_length=10, num_beams=1)
    beam = dict(max_length=13, num_beams=2, length_penalty=0.4)
    for kind, change, before, after in (
        ("marian", early | dict(max_length=9), early | dict(max_new_tokens=4), early | ids),
        ("marian", dict(beam=2, length_penalty=0.4), {}, ids | beam),
        ("gpt2", dict(temperature=0.7), {}, dict(do_sample=True, temperature=0.7, top_k=0)),
        ("gpt2", dict(temperature=0.0), dict(do_sample=True), dict(do_sample=False)),
    ):
        folder = tmp_path / "-".join([kind, *map(str, change.values())])
        model, metadata = model_of_run(getattr(published_texts, kind)(tmp_path / kind))
        text = replace(nf.load(tmp_path / kind).text, **change)
        save_published(folder, model, metadata | {"generation": before}, text)
        written = json.loads((folder / "generation_config.json").read_text())
        assert written == after
        assert nf.load(folder).text.description() == text.description()


@pytest.mark.parametrize(
    ("kind", "generation", "says"),
    [
        ("gpt2", dict(do_sample=True), r"writes with top_k=50, .* trained\(text, top_k=50\)"),
        ("gpt2", dict(do_sample=True, top_k=0, top_p=0.9), r"writes with top_p=0\.9, "),
        ("gpt2", dict(do_sample=True, top_k=0, num_beams=1), ""),
        ("gpt2", dict(do_sample=False, top_k=5, top_p=0.9), ""),
        ("gpt2", dict(num_beams=4), "sets num_beams 4, which numformer lacks"),
        ("gpt2", dict(suppress_tokens=[], forced_bos_token_id=None), ""),
        ("marian", dict(num_beams=2, bad_words_ids=[[0]]), ""),
        ("marian", dict(do_sample=True), "sets do_sample True, which"),
        ("t5", dict(suppress_tokens=[4], forced_bos_token_id=5), ""),
        ("bert", dict(do_sample=True, num_beams=3), ""),
    ],
)
def test_settings_that_would_change_a_text_are_warned_of(kind, generation, says, tmp_path, recwarn):
    """Numformer has no beam that goes on with a text, and draws no translation by itself."""
    folder = getattr(published_texts, kind)(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    nf.load(folder)
    warned = [str(warning.message) for warning in recwarn]
    assert len(warned) == bool(says) and all(re.search(says, words) for words in warned), warned


@pytest.mark.parametrize(
    ("kind", "generation"),
    [
        ("t5", dict(max_new_tokens=5000)),
        ("t5", dict(max_length=1)),
        ("marian", dict(length_penalty=-1.0)),
        ("marian", dict(num_beams=0)),
        ("gpt2", dict(do_sample=True, top_k=0, temperature=-1)),
        ("t5", dict(early_stopping="no")),
    ],
)
def test_settings_of_generation_beyond_all_limits_are_named(kind, generation, tmp_path, complaint):
    folder = getattr(published_texts, kind)(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    name, value = [*generation.items()][-1]
    message = complaint(nf.load, folder)
    assert f"{name} {value!r} in {folder}. Change generation_config.json" in message


@pytest.mark.parametrize(
    ("kind", "file", "unwritten"),
    [
        ("gpt2", "config.json", (5,)),
        *((kind, "generation_config.json", (5,)) for kind in ("gpt2", "llama", "t5")),
        ("marian", "generation_config.json", (0, 5)),
    ],
)
def test_a_symbol_that_is_banned_alone_is_never_written(kind, file, unwritten, tmp_path):
    """Further end ids are kept, and both settings survive when the model is saved again."""
    path = getattr(published_texts, kind)(tmp_path) / file
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(values | {"bad_words_ids": [[5]], "eos_token_id": [2, 7]}))
    model, metadata = model_of_run(tmp_path)
    special = model.config.special
    assert (special.unwritten, special.ends) == (unwritten, [2, 7])
    save_published(tmp_path / "again", model, metadata, nf.load(tmp_path).text)
    assert model_of_run(tmp_path / "again")[0].config == model.config


@pytest.mark.parametrize(
    ("mask", "hole"),
    [(None, "[MASK]"), ("[SEP]", "[SEP]"), ({"content": "[SEP]", "lstrip": True}, "[SEP]")],
)
def test_the_hole_is_the_mask_of_the_folder(mask, hole, tmp_path):
    """A symbol, or one with settings of its own."""
    folder = published_texts.bert(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": mask}))
    assert nf.load(folder).text.hole == hole


def test_the_hole_of_a_roberta_has_another_name(tmp_path):
    path = published_texts.bert(tmp_path) / "tokenizer.json"
    content = path.read_text(encoding="utf-8").replace("[MASK]", "<mask>")
    path.write_text(content, encoding="utf-8")
    assert nf.load(tmp_path).text.hole == "<mask>"


@pytest.mark.parametrize("lower", [None, True, False])
def test_capitals_of_a_vocab_txt_are_read_as_its_folder_says(lower, tmp_path):
    folder = published_texts.bert(tmp_path)
    symbols = nf.load(folder).text.input_vocabulary.symbols
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(symbols), encoding="utf-8")
    if lower is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(dict(do_lower_case=lower)))
    split = nf.load(folder).text.input_vocabulary.split
    assert split("the dog") == ["[CLS]", "the", "dog", "[SEP]"]
    assert (split("THE dog") == split("the dog")) == (lower is not False)


def test_the_earlier_files_of_a_gpt2_s_tokenizer_are_read(tmp_path, complaint):
    folder = published_texts.gpt2(tmp_path)
    written = nf.load(folder)("to be", length=5)
    path = folder / "tokenizer.json"
    published_texts.tokenizers.Tokenizer.from_file(str(path)).model.save(str(folder))
    path.unlink()
    assert nf.load(folder)("to be", length=5) == written
    (folder / "merges.txt").write_text("a b c d")
    message = complaint(nf.load, folder)
    assert "files are unchanged; received" in message and "Download them again." in message
    (folder / "merges.txt").rename(folder / "spiece.model")
    assert "tokenizer, tokenizer.json, in its folder; received" in complaint(nf.load, folder)
    (folder / "spiece.model").rename(folder / "sentencepiece.bpe.model")
    assert "M2M100 is published without it: choose an NLLB." in complaint(nf.load, folder)
    (folder / "vocab.json").unlink()
    assert "Download it, or create it in transformers" in complaint(nf.load, folder)


def without_tokenizer_json(folder: Path, *words: str, **settings) -> Callable:
    """The function that splits texts by the earlier files of a tokenizer, with further words."""
    path = folder / "tokenizer.json"
    model = published_texts.tokenizers.Tokenizer.from_file(str(path)).model
    model.save(str(folder))
    path.unlink()
    if "vocab.txt" in {path.name for path in folder.iterdir()}:
        symbols = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        symbols[5 : 5 + len(words)] = words
        (folder / "vocab.txt").write_text("\n".join(symbols), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return lambda text: nf.load(folder).text.input_vocabulary.split(text)


@pytest.mark.parametrize(
    ("settings", "symbols"),
    [
        ({}, ["mochte"]),
        (dict(strip_accents=False), ["möchte"]),
        (dict(do_lower_case=False), ["[UNK]"]),
        (dict(do_lower_case=False, strip_accents=True), ["Mochte"]),
    ],
)
def test_accents_of_a_vocab_txt_are_read_as_its_folder_says(settings, symbols, tmp_path):
    words = "mochte", "möchte", "Mochte", "中", "中中"
    split = without_tokenizer_json(published_texts.bert(tmp_path), *words, **settings)
    assert split("Möchte") == ["[CLS]", *symbols, "[SEP]"]
    assert split("中中")[1:-1] == ["中", "中"]
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(settings | dict(tokenize_chinese_chars=False)))
    assert split("中中")[1:-1] == ["中中"]


def test_symbols_of_the_other_files_are_never_cut(tmp_path, complaint):
    """Those with the ids after the vocabulary's, and those that are in it."""
    folder = published_texts.gpt2(tmp_path)
    split = without_tokenizer_json(folder, bos_token="to", mask_token="<none>")
    assert split("be<|endoftext|>be") == ["be", "<|endoftext|>", "be"]
    assert split("toto") == ["to", "to"] and split("beto")[-1] == "to"
    ids = nf.load(folder).text.vocabulary.encode(["b", "e"])
    size = len(nf.load(folder).text.vocabulary)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    last = max(vocabulary, key=vocabulary.__getitem__)
    del vocabulary[last]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    lines = (folder / "merges.txt").read_text().strip().split("\n")
    (folder / "merges.txt").write_text("\n".join(lines[:-1]))
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": size - 1}))
    assert split("be<new>be") == ["be", "<new>", "be"]
    assert nf.load(folder).text.vocabulary.encode(["<new>", "b", "e"]) == [size - 1, *ids]
    two = [n for n, _ in sorted(vocabulary.items(), key=lambda item: item[1])][:-1]
    (folder / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(two)}))
    (folder / "merges.txt").write_text("\n".join(lines[:-2]))
    added = {"<a name>": size - 1, "<new>": size - 2}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    assert split("be<new>be") == ["be", "<new>", "be"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(lines[:-1]))
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": size - 1}))
    word = next(n for n in vocabulary if len(n) == 3 and n.isascii() and n[:2] in vocabulary)
    assert split(word) == [word]
    further = {"additional_special_tokens": [{"content": word[:2]}, "<other>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(further))
    assert split(word) == [word[:2], word[2]]
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": size - 2}))
    assert f"follow those of the vocabulary; received {size - 2} for <new>" in complaint(
        nf.load, folder
    )


def test_a_warning_names_the_line_that_loads(tmp_path):
    path = published_texts.gpt2(tmp_path) / "config.json"
    values = json.loads(path.read_text()) | dict(eos_token_id=10**6)
    path.write_text(json.dumps(values))
    (tmp_path / "generation_config.json").write_text(json.dumps(dict(a_new_setting=3)))
    with pytest.warns(UserWarning) as warnings:
        nf.load(tmp_path)
    assert [warning.filename for warning in warnings] == [__file__] * 2


def test_a_byte_level_tokenizer_may_put_a_space_before_a_text(tmp_path):
    folder = published_texts.gpt2(tmp_path)
    split = without_tokenizer_json(folder, add_prefix_space=True)
    assert split("be")[0].startswith("Ġ")
    (folder / "tokenizer_config.json").unlink()
    assert split("be") == ["be"]


def test_the_marks_of_a_roberta_are_put_around_a_text(tmp_path):
    """Where merges.txt has them; a T5 with such a tokenizer reads the first, and its own end."""
    tokenizer = published_texts.byte_level(300, ["<s>", "</s>", "<pad>"])
    size = tokenizer.get_vocab_size()
    published_texts.RandomModel(
        "t5", published_texts.T5 | dict(vocab_size=size, pad_token_id=2, decoder_start_token_id=2)
    ).save(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    split = without_tokenizer_json(tmp_path)
    assert split("be<pad>") == ["<s>", "be", "<pad>"]
    marked = load_tokenizer(tmp_path, size, marked=True)
    assert marked.split("be") == ["<s>", "be", "</s>"]
    assert load_tokenizer(tmp_path, size, marked=False).split("be") == ["be"]


def test_a_long_context_is_cut_to_the_longest_text(tmp_path):
    folder = published_texts.llama(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(max_position_embeddings=9999)))
    assert nf.load(folder).text.context == 4096


def test_a_marian_s_tokenizer_says_less_and_is_read_and_written(tmp_path):
    """Without tokenizer_config.json one file has the ids of both; without an unknown there is none.

    transformers asks for one, so the end stands in.
    """
    folder = published_texts.marian(tmp_path / "marian")
    assert not (folder / "target_vocab.json").exists()
    marks = dict(tokenizer_class="MarianTokenizer", separate_vocabs=False, eos_token="<end>")
    marks |= dict(pad_token="<padding>", unk_token="<unknown>", bos_token="<start>")
    path = folder / "tokenizer_config.json"
    assert json.loads(path.read_text()) == marks
    path.unlink()
    model, metadata = model_of_run(folder)
    text = nf.load(folder).text
    assert text.source.unknown is None  # it is <unk> where no file names it
    save_published(tmp_path / "again", model, metadata, text)
    written = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert written == marks | dict(unk_token="<end>")


@pytest.mark.parametrize(
    ("kind", "file", "content", "words"),
    [
        ("marian_of_two", "target_vocab.json", None, "target_vocab.json"),
        ("marian", "target.spm", None, "without target.spm"),
        ("marian", "target.spm", "x", "target.spm are sentencepiece models"),
        ("marian", "vocab.json", "{", "vocab.json (Expecting"),
        ("marian", "vocab.json", "[]", "vocab.json (it holds no"),
        ("marian", "vocab.json", '{"a": -1}', "every id in vocab.json is an id of the model"),
        ("marian", "tokenizer_config.json", "3", "tokenizer_config.json (it holds no"),
        (
            "bert",
            "tokenizer_config.json",
            '{"mask_token": "<hole>"}',
            "no <hole> in the tokenizer of",
        ),
        ("gpt2", "tokenizer.json", "{}", "tokenizer"),
        ("gpt2", "generation_config.json", "[]", "generation_config.json (it holds no"),
        ("bert", "config.json", "[]", "config.json (it holds no"),
        ("vit", "preprocessor_config.json", "[]", "preprocessor_config.json (it holds no"),
    ],
)
def test_a_malformed_file_is_named(kind, file, content, words, tmp_path, complaint):
    path = getattr(published_texts, kind)(tmp_path) / file
    path.unlink(missing_ok=True) if content is None else path.write_text(content)
    assert words in complaint(load_published, tmp_path)


@pytest.mark.parametrize(
    ("name", "ids"), [("marian", dict(pad_token_id=55, eos_token_id=0)), ("t5", {})]
)
def test_a_translator_is_trained_on(name, ids, tmp_path, call, monkeypatch):
    """With its own ids of padding, start and end, in the batches, too."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("sacrebleu", reason="the extra translate is not installed")
    folder = getattr(published_texts, name)(tmp_path / name, **ids)
    pairs = [f"{line} {n}\t{n} {line}" for n in range(40) for line in published_texts.LINES]
    Path("pairs.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    flags = "--data pairs.tsv --cased --steps 3 --max-tokens 300 --no-plots --out run"
    code, _, err = call(translate.main, f"--start {folder} {flags} --decay inverse_sqrt")
    assert code == 0, err
    begun, _ = model_of_run(folder)
    trained, _ = model_of_run(tmp_path / "run")
    special = dict(marian=(55, 55, 0, (55,), ()), t5=(0, 0, 1, (), ()))[name]
    assert trained.config.special == begun.config.special == special
    weights = begun.state_dict()
    moved = max(np.abs(array - weights[n]).max() for n, array in trained.state_dict().items())
    assert 0 < moved < 0.5
    code, _, err = call(translate.main, "--resume --out run --data pairs.tsv --steps 4")
    assert code == 0, err
    code, out, _ = call(convert.main, "run --to-huggingface --out again")
    assert code == 0 and out == [f"again holds a {name} for transformers"]
    code, _, err = call(translate.main, f"--start {folder} {flags}2 --bpe-dropout 0.1")
    assert code == 2 and "bpe-dropout" in err[-1]


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bert", "marian", "marian_of_two", "vit"])
def test_what_is_converted_comes_back_as_it_was(name, tmp_path, call):
    folder = getattr(published_texts, name)(tmp_path / name)
    if name == "vit":
        (folder / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3]}')
    code, _, err = call(convert.main, f"{folder} --out {tmp_path / 'run'}")
    assert code == 0, err
    back = tmp_path / "new" / "back"
    assert call(convert.main, f"{tmp_path / 'run'} --to-huggingface --out {back}")[0] == 0
    arrays, again = (load_file(path / "model.safetensors") for path in (folder, back))
    assert arrays.keys() == again.keys()
    assert all(np.array_equal(arrays[key], again[key]) for key in arrays)
    for path in folder.glob("*.json"):
        assert json.loads(path.read_text()) == json.loads((back / path.name).read_text())
    if name != "vit":
        asked = "the small [MASK]" if name == "bert" else "a dog"
        how = dict(max_length=9) if name == "t5" else {}  # else it writes 512 symbols
        written = [nf.load(path)(asked, **how) for path in (folder, tmp_path / "run", back)]
        assert written[0] == written[1] == written[2]
    code, _, err = call(convert.main, f"{folder} --out {back}")
    assert code == 2 and "new folder" in err[0]


@pytest.mark.parametrize(
    ("symbols", "ids"),
    [("letters", {}), ("subwords", {}), ("letters", dict(start_id=None, end_id=None))],
    ids=str,
)
def test_our_language_model_becomes_a_gpt2(symbols, ids, tmp_path, call):
    """With two tables, because embeddings are scaled, and a note that there is no tokenizer."""
    vocabulary = nf.Vocabulary("abcdefghijklmnop")
    if symbols == "subwords":
        vocabulary = nf.data.Subwords.train(published_texts.LINES, 60)
    size = len(vocabulary)
    sizes = dict(vocabulary=size, d_model=8, d_ff=12, heads=2, layers=2, max_length=9)
    form = dict(norm="pre", positions="learned", activation="gelu", p_drop=0.3)
    config = nf.LanguageModel.Config(**sizes, **form, **ids)
    model = nf.LanguageModel(config)
    text = Continuation(vocabulary, 9).description()
    nf.save_model(tmp_path / "best.safetensors", model, text=text)
    code, out, err = call(convert.main, f"{tmp_path} --to-huggingface --out {tmp_path / 'gpt2'}")
    assert code == 0 and "a gpt2 for transformers, without a tokenizer" in out[0], err
    again, metadata = model_of_run(tmp_path / "gpt2")
    names = "bos_token_id", "eos_token_id", "resid_pdrop", "embd_pdrop", "attn_pdrop"
    own = [*ids.values()] or [1, 2]
    assert [metadata["published"][name] for name in names] == [*own, 0.3, 0.3, 0.0]
    assert [again.config.start_id, again.config.end_id] == own
    ids = np.random.default_rng(0).integers(4, size, (3, 7))
    with nf.inference():
        assert np.allclose(model.forward(ids), again.forward(ids), atol=1e-5)


@pytest.mark.parametrize("tying", ["all", "target", "none"])
def test_our_transformer_becomes_a_marian(tying, tmp_path, call):
    """With one vocabulary or two, with biases or without."""
    written = 20 if tying == "all" else 24
    sizes = dict(source_vocabulary=20, target_vocabulary=written, d_model=8, d_ff=8, heads=2)
    config = nf.Config(**sizes, layers=1, tying=tying, attention_bias=tying != "target")
    model, rng = nf.Transformer(config), np.random.default_rng(0)
    for parameter in model.named_parameters().values():
        parameter.data[...] += 0.1 * rng.standard_normal(parameter.shape)
    nf.save_model(tmp_path / "best.safetensors", model)
    code, out, _ = call(convert.main, f"{tmp_path} --to-huggingface --out {tmp_path / 'marian'}")
    assert code == 0 and out[0].endswith("holds a marian for transformers")
    again, _ = model_of_run(tmp_path / "marian")
    source, target = np.array([[4, 5, 6, 2], [7, 2, 0, 0]]), np.array([[1, 8, 9], [1, 4, 0]])
    with nf.inference():  # sinusoids there have another order: so have all dimensions
        ours, theirs = (of.forward(source, target) for of in (model, again))
    assert again.config.positions == "sinusoidal_halves"
    assert np.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(from_="en", to="fr"), ["tokenize(TEXT, 'en')", "detokenize(TOKENS, 'fr')"]),
        (dict(from_="", to="fr"), ["detokenize(TOKENS, 'fr')"]),
        (dict(from_="", to=""), []),
        (dict(from_="", to="", beam=3, penalty="paper"), ["divides by length^alpha"]),
        (dict(from_="", to="", beam=3, penalty="length"), []),
    ],
)
def test_what_a_run_does_with_texts_and_transformers_does_not_is_said(
    settings, said, tmp_path, call
):
    subwords = nf.data.Subwords.train(published_texts.LINES, 60)
    text = Translation(subwords, subwords, 12, **settings)
    model = nf.Transformer(nf.Config.base(len(subwords), d_model=8, d_ff=8, heads=2, layers=1))
    nf.save_model(tmp_path / "best.safetensors", model, text=text.description())
    code, out, err = call(convert.main, f"{tmp_path} --to-huggingface --out {tmp_path / 'marian'}")
    assert (code, len(out)) == (0, 1 + len(said)), err
    assert all(words in line for words, line in zip(said, out[1:], strict=True))


def test_what_no_published_kind_has_is_refused_by_name(tmp_path, call):
    for changes, words in ((dict(norm="pre"), "norm post"), (dict(tying="inputs"), "tying target")):
        other = nf.Transformer(nf.Config.base(20, d_model=8, d_ff=8, heads=2, layers=1, **changes))
        nf.save_model(tmp_path / "best.safetensors", other)
        code, _, err = call(convert.main, f"{tmp_path} --to-huggingface --out {tmp_path / 'no'}")
        assert code == 2 and words in err[0] and not (tmp_path / "no").exists()
