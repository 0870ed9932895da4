"""Sounds become texts as in transformers: features, prompts, rules of what may be written.

The tests compare with what transformers computed, stored in listening_reference.json by

    python tests/published/test_listening.py --store
"""

import dataclasses
import itertools
import json
import re
import sys
import tempfile
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from published_cases import WHISPER, RandomModel

import numformer as nf
from numformer.data import log_mel, mel_filters, read_wav
from numformer.data.sound import HOP, RATE
from numformer.generation.binding import Binding
from numformer.generation.listening import TIME_STEP, Listening, PromptedWriter, StampWriter
from numformer.paper.memory import Memory
from numformer.published.configs import ForeignConfig
from numformer.published.kinds import KINDS
from toy_tasks import listen

tokenizers = pytest.importorskip("tokenizers", reason="the extra published is not installed")

STORED = Path(__file__).with_name("listening_reference.json")
WORDS = [f"w{n}" for n in range(30)]
MARKS = "endoftext startoftranscript en de fr translate transcribe notimestamps".split()
END, START, EN, DE, FR, TRANSLATE, TRANSCRIBE, NO_STAMPS = range(30, 38)
STAMP = NO_STAMPS + 1
CONFIG = (
    WHISPER
    | dict(eos_token_id=END, bos_token_id=END, pad_token_id=END, decoder_start_token_id=START)
    | dict(max_source_positions=25)
)
GENERATION = dict(
    eos_token_id=END,
    bos_token_id=END,
    pad_token_id=END,
    decoder_start_token_id=START,
    suppress_tokens=[3, 4],
    begin_suppress_tokens=[5, END],
    max_initial_timestamp_index=4,
    is_multilingual=True,
    no_timestamps_token_id=NO_STAMPS,
    lang_to_id={"<|en|>": EN, "<|de|>": DE, "<|fr|>": FR},
    task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    prev_sot_token_id=START,
    max_length=20,
)
HOW = [
    dict(timestamps=timestamps, beam=beam, **said)
    for timestamps, beam in itertools.product((False, True), (1, 2))
    for said in ({}, dict(language="de"), dict(language="en", task="translate"))
]
STAMPED = [settings for settings in HOW if settings["timestamps"] and settings["beam"] == 1]


def write_wav(path: Path, samples, rate: int = RATE, width: int = 2) -> str:
    """Write samples (N,) or (N, channels), from -1 to 1."""
    samples = np.reshape(samples, (len(samples), -1))
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i8")
    whole += 128 * (width == 1)
    with wave.open(str(path), "wb") as file:
        file.setparams((samples.shape[1], width, rate, 0, "NONE", ""))
        file.writeframes(whole[..., None].view(np.uint8)[..., :width].tobytes())
    return str(path)


def small_folder(folder: Path) -> Path:
    """A Whisper of 44 words and marks that hears half a second."""
    RandomModel("whisper", CONFIG).save(folder)
    names = [*WORDS, *(f"<|{mark}|>" for mark in MARKS)]
    model = tokenizers.models.WordLevel({name: n for n, name in enumerate(names)}, "w0")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(names[END:])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION), encoding="utf-8")
    return folder


def small_sounds(folder: Path) -> list[str]:
    rng = np.random.default_rng(3)
    lengths = 0.5, 0.3, 0.41
    return [
        write_wav(folder / f"{n}.wav", rng.uniform(-1, 1, int(RATE * s)))
        for n, s in enumerate(lengths)
    ]


def long_sound(folder: Path) -> str:
    """Many windows: some end amid a piece, some at its beginning or end; some have a single one."""
    t = np.arange(int(RATE * 2.13))
    noise = np.random.default_rng(93).uniform(-1, 1, len(t))
    return write_wav(folder / "long.wav", noise * np.sin(t / 2700) ** 2)


@pytest.fixture
def sounds(tmp_path) -> list[str]:
    return small_sounds(tmp_path)


@pytest.fixture
def listener(tmp_path, recwarn):
    listener = nf.load(small_folder(tmp_path / "small"))
    assert not recwarn.list  # all its settings are followed
    return listener


def test_texts_are_those_that_transformers_wrote(listener, sounds, tmp_path):
    """With and without time stamps, in beams, in a language that is given or heard; in windows."""
    written = [listener(sounds, **settings) for settings in HOW]
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert written == stored[:-1]
    sound = long_sound(tmp_path)
    assert [listener(sound, **settings) for settings in STAMPED] == stored[-1]
    words = re.sub(r"(<[|][0-9.]*[|]>)+", " ", stored[-1][1]).strip()
    mixed = listener([sound, *sounds, sound], language="de")
    assert mixed == [words, *written[1], words]
    assert len({*itertools.chain(*written)}) > 12
    assert listener(sounds[0], **HOW[-1]) == written[-1][0]


def texts_of_transformers(folder: Path, sounds: list[str]) -> list[list[str]]:
    """What transformers writes with Whisper's rules: its own `generate` also cuts sounds."""
    import torch
    import transformers
    from transformers.generation import logits_process as rules

    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).double().eval()
    text: Listening = nf.load(folder).text
    features = np.stack([text.symbols(sound) for sound in sounds]).swapaxes(1, 2)
    inputs, written = torch.from_numpy(features), []
    heard = model.detect_language(input_features=inputs).tolist()
    generation = transformers.GenerationConfig(**GENERATION)
    for how in HOW:
        languages = [EN if "task" in how else DE] * len(heard) if "language" in how else heard
        prompt = [TRANSLATE if "task" in how else TRANSCRIBE, NO_STAMPS][: 2 - how["timestamps"]]
        first = torch.tensor([[START, language, *prompt] for language in languages])
        count = first.shape[1]
        processors = [rules.SuppressTokensLogitsProcessor(GENERATION["suppress_tokens"])]
        at_begin = GENERATION["begin_suppress_tokens"]
        processors += [rules.SuppressTokensAtBeginLogitsProcessor(at_begin, count)]
        if how["timestamps"]:
            processors += [rules.WhisperTimeStampLogitsProcessor(generation, count)]
        rows = transformers.GenerationMixin.generate(
            model,
            inputs,
            decoder_input_ids=first,
            logits_processor=processors,
            num_beams=how["beam"],
            renormalize_logits=True,
            max_length=20,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
        cut = [[*itertools.takewhile(lambda n: n != END, row[count:])] for row in rows.tolist()]
        written.append([text.join(text.decode(row)) for row in cut])
    features = torch.from_numpy(np.stack(text.symbols(long_sound(folder)))[None].swapaxes(1, 2))
    written.append([])
    for how in STAMPED:
        found = model.generate(
            features,
            attention_mask=torch.ones(1, features.shape[2], dtype=torch.long),
            return_timestamps=True,
            return_segments=True,
            language=how.get("language"),
            task=how.get("task", "transcribe"),
            max_length=20,
        )
        pieces = ""
        for piece in found["segments"][0]:
            ids = piece["tokens"].tolist()
            ids = ids[: -1 if ids[-2] >= STAMP else None]  # without the stamp of the next piece
            last = max(ids) - STAMP
            pieces += text.join(text.decode(ids, piece["end"].item() - last * TIME_STEP))
        written[-1].append(pieces)
    return written


def test_transformers_writes_the_stored_texts(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    written = texts_of_transformers(small_folder(tmp_path / "small"), small_sounds(tmp_path))
    assert written == json.loads(STORED.read_text(encoding="utf-8"))


FREE = {*range(NO_STAMPS)} - {3, 4}
"""What may be written except time stamps."""


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        ([], {*range(STAMP, STAMP + 5)}),
        ([STAMP], FREE),
        ([STAMP + 2, 7], FREE | {*range(STAMP + 3, STAMP + 26)}),
        ([STAMP, 7], FREE | {*range(STAMP + 1, STAMP + 26)}),
        ([7, STAMP + 4], {*range(END, NO_STAMPS), *range(STAMP + 4, STAMP + 26)}),
        ([STAMP + 2, 7, STAMP + 4], {*range(END, NO_STAMPS), *range(STAMP + 4, STAMP + 26)}),
        ([7, STAMP], {*range(END, NO_STAMPS), *range(STAMP, STAMP + 26)}),
        ([7, STAMP, STAMP], FREE),
        ([STAMP, 7, STAMP + 4, STAMP + 4], FREE),
    ],
)
def test_time_stamps_stand_in_pairs_and_never_decrease(listener, written, allowed):
    """Among texts of other lengths of writing, in one batch."""
    size = STAMP + 26
    writer = StampWriter(listener.model, [], listener.text, timestamps=True)
    history = np.array([written, written], int)
    for row in writer.forbidden(history, size):
        assert {*np.flatnonzero(~row)} == allowed
    plain = StampWriter(listener.model, [], listener.text, timestamps=False)
    never = {3, 4} if written else {3, 4, 5, END}
    assert {*np.flatnonzero(plain.forbidden(history, size)[1])} == never


def test_a_stamp_is_written_if_all_are_more_probable_than_any_symbol(listener):
    """Also where the exponential overflows, or where it is 0 beside that of another row."""
    writer = StampWriter(listener.model, [], listener.text, timestamps=True)
    logits = np.full((4, STAMP + 26), -9.0, np.float32)
    logits[:, 7] = 0
    logits[:, STAMP:] = -np.inf
    logits[:, [STAMP + 3, STAMP + 4]] = np.log([[0.6], [0.4], [0.5], [0.6]])
    logits[2, [STAMP + 3, STAMP + 4]] = 0, -np.inf
    logits[3] -= 3000
    writer.model = SimpleNamespace(step=lambda ids, state: logits + np.float32(1500))
    state = SimpleNamespace(past=Memory(9))
    expected = [False] * 4, [True] * 4, [False, True, True, False]
    with nf.inference():
        for ids, free in zip([NO_STAMPS, STAMP + 2, 7], expected, strict=True):
            found = writer.step(np.full(4, ids), state)
            assert np.isfinite(found[:, 7]).tolist() == free and found.dtype == np.float32


def test_a_device_hears_what_the_host_hears(listener, sounds, stand_in):
    heard = [listener(sounds, **settings) for settings in HOW[::2]]
    nf.pack(listener.model, np.float32, stand_in)
    assert [listener(sounds, **settings) for settings in HOW[::2]] == heard


def test_a_text_that_does_not_end_is_as_long_as_it_may_be(listener, sounds, monkeypatch):
    counts: list[int] = []
    monkeypatch.setattr("numformer.generation.listening.advance", counts.append)
    text = dataclasses.replace(listener.text, unwritten=[END])
    features, config = [text.symbols(sounds[0])] * 9, listener.model.config
    free = nf.SpeechTransformer(dataclasses.replace(config, positions="sinusoidal", max_length=512))
    assert config.longest and not free.config.longest
    for model, length in ((free, 3), (free, config.longest + 9), (listener.model, None)):
        length = length or config.longest - 4  # after the start and a prompt of three
        written = text.write(model, features, max_length=99 if model is not free else length)
        assert [*map(len, written)] == [length] * 9
    assert counts == [8, 1] * 3
    text.write(free, [features[0] * 3, features[0]], max_length=2)
    assert counts[6:] == [1, 1]


def test_a_text_and_its_symbols(listener):
    text = listener.text
    assert text.languages == [EN, DE, FR]
    assert text.encode(["<|1.20|>", "w7"]) == [STAMP + 60, 7]
    blank = SimpleNamespace(join=lambda symbols: " " + " ".join(symbols))
    assert dataclasses.replace(text, vocabulary=blank).join(["w7", "w8"]) == "w7 w8"
    config = listener.model.config
    assert text.fits(config)
    for name, value in dict(max_length=5000, beam=5000, frames=9).items():
        assert not dataclasses.replace(text, **{name: value}).fits(config)
    ids = [STAMP, 7, 8, STAMP + 11, STAMP + 11, 9]
    symbols = text.decode(ids)
    assert symbols == ["<|0.00|>", "w7", "w8", "<|0.22|>", "<|0.22|>", "w9"]
    assert text.encode(symbols) == ids
    assert text.join(symbols) == "<|0.00|>w7 w8<|0.22|><|0.22|>w9"
    assert text.answer_symbols("w7 w8") == ["w7", "w8"] and text.notes(symbols) == []


def test_the_language_is_the_most_probable_one(listener):
    logits = np.zeros((3, STAMP + 26))
    logits[[0, 1, 2], [EN, FR, DE]], logits[:, [START, TRANSLATE]] = 1, 2
    writer = PromptedWriter(listener.model, [None], listener.text)
    assert type(writer.model) is Binding
    start = SimpleNamespace(ids=np.full(3, START))
    writer.model = SimpleNamespace(start=lambda *a: start, step=lambda ids, state: logits)
    assert writer.start(None, 3).ids.tolist() == [EN, FR, DE]


def test_log_p_is_that_of_the_symbols_after_the_prompt(listener, sounds):
    text, model = listener.text, listener.model
    answers = ["w7 w8", "w9"] * 5
    pairs = [*zip([*sounds[:2]] * 5, answers, strict=True)]
    log_p = listener.score(pairs)
    evaluation = listener.evaluate(pairs)
    assert evaluation["loss"] == pytest.approx(-sum(log_p) / (5 * 3 + 5 * 2))
    assert [p.source for p in evaluation.predictions] == [sound for sound, _ in pairs]
    assert {p.answer for p in evaluation.predictions} == {*listener(sounds[:2])}
    symbols = [text.symbols(sounds[0])], [text.answer_symbols("w7 w8")]
    for values, expected in zip(text.score(model, *symbols), (log_p[0], 3), strict=True):
        assert values.shape == (1,) and values[0] == pytest.approx(expected)
    features = np.stack([text.symbols(sound) for sound in sounds[:2]])
    heard = PromptedWriter(model, text.prompt(None, "transcribe", False), text)
    with nf.inference():
        state = heard.start(features, 3)
        languages = [EN, DE, FR]
        first = model.forward(features, np.full((2, 1), START))[:, 0][:, languages].argmax(-1)
        for n, ids in enumerate([[7, 8, END], [9, END]]):
            before = [START, languages[first[n]], TRANSCRIBE, NO_STAMPS, *ids[:-1]]
            logits = model.forward(features[n : n + 1], np.array([before]))[0, 3:]
            expected = nf.log_probabilities(logits, model.config.special)[range(len(ids)), ids]
            assert_allclose(log_p[n], expected.sum(), rtol=1e-5)
    assert_array_equal(state.ids, [NO_STAMPS, NO_STAMPS])
    assert_allclose(log_p, log_p[:2] * 5, rtol=1e-5)  # ten sounds are two batches
    assert listener([*sounds[:2]] * 5) == listener(sounds[:2]) * 5


def test_the_decoder_is_drawn_where_it_listened(listener, sounds, tmp_path, call, capsys):
    attention = listener.attention(sounds[1], language="en", max_length=4)
    (maps,) = attention.maps
    assert not listener.model.pending()
    labels = listener.text.maps(listener.model, listener.text.symbols(sounds[1]))[2][0].query_labels
    answer = listener.text.write(listener.model, [listener.text.symbols(sounds[1])])[0]
    assert labels == [listener.text.join([symbol]) for symbol in answer]
    written = listener.text.write(
        listener.model, [listener.text.symbols(sounds[1])], language="en", max_length=4
    )[0]
    assert maps.weights.shape == (2, 2, 4, 25) and attention.written == listener.text.join(written)
    assert_allclose(maps.weights.sum(axis=-1), 1, rtol=1e-5)
    ids = np.array([[START, EN, TRANSCRIBE, NO_STAMPS, *listener.text.encode(written)]])
    features = np.stack(listener.text.symbols(sounds[1]))[None]
    whole = nf.plots.cross_attention_weights(listener.model, features, ids)
    assert_allclose(maps.weights, whole[:, 0, :, 3:-1], rtol=1e-4, atol=1e-6)
    figure = listen.draw_listening(tmp_path / "map.png", listener, Path(sounds[1]), language="en")
    spectrum, where = (axes.images[0].get_array() for axes in figure.axes)
    assert spectrum.shape == (5, 30) and where.shape[1] == 15 and where.max(axis=1).min() == 1
    flags = f"--run {tmp_path / 'small'} --input {sounds[0]} {sounds[1]} --timestamps"
    flags += f" --language en --translate --attention {tmp_path / 'two.png'}"
    code, out, err = call(listen.main, flags)
    assert (code, out, err) == (0, listener(sounds[:2], **HOW[8] | dict(beam=1)), [])
    assert (tmp_path / "two.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(language="xx"), "languages and tasks are marks of the tokenizer"),
        (dict(task="sing"), "received 'sing'"),
        (dict(beam=0), "beam"),
        (dict(max_length=0), "max_length"),
    ],
)
def test_settings_that_are_refused(listener, sounds, complaint, settings, said):
    assert said in complaint(listener, sounds[0], **settings)


def test_a_text_may_have_several_ends_and_silence_pads_a_sound(tmp_path):
    folder = small_folder(tmp_path / "small")
    for name in ("config.json", "generation_config.json"):
        values = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(values | dict(eos_token_id=[END, 7, 8])))
    trained = nf.load(folder)
    special = trained.model.config.special
    assert special.ends == [END, 7, 8] and special.padding is None and not special.unwritten
    assert trained.text.unwritten == [3, 4]


def test_a_model_of_english_has_no_languages(tmp_path, sounds):
    folder = small_folder(tmp_path / "small")
    generation = GENERATION | dict(is_multilingual=False)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    text = nf.load(folder).text
    assert text.prompt(None, "transcribe", False) == [NO_STAMPS]
    assert text.prompt(None, "transcribe", True) == []
    assert not text.vocabulary.marked and Listening.beam == 1
    for vocabulary in (51864, 51865):  # English alone, or many languages, by the size
        config = dataclasses.replace(nf.load(folder).model.config, vocabulary=vocabulary)
        text = KINDS["whisper"].text(folder, config, ForeignConfig({}))
        assert text.multilingual == (vocabulary == 51865)


# Sounds


def tone(rate: int, seconds: float = 0.5, hertz: float = 440) -> np.ndarray:
    """A tone that swells and fades, so that a resampled one has no ends to differ at."""
    t = np.arange(int(rate * seconds)) / rate
    return 0.8 * np.sin(2 * np.pi * hertz * t) * np.sin(np.pi * t / seconds) ** 2


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_wav_file_of_any_rate_and_width_is_read(rate, width, tmp_path):
    stereo = np.stack([1.2 * tone(rate), 0.8 * tone(rate)], axis=1)
    samples = read_wav(write_wav(tmp_path / "tone.wav", stereo, rate, width))
    assert_allclose(samples, tone(RATE), atol=0.02 if width == 1 else 1e-4)


def test_what_is_no_sound_is_refused(tmp_path, complaint, listener):
    (tmp_path / "text.wav").write_text("no sound", encoding="utf-8")
    (tmp_path / "empty.wav").touch()
    write_wav(tmp_path / "short.wav", np.zeros(RATE // 100))
    write_wav(tmp_path / "shortest.wav", np.zeros(RATE // 40))
    assert len(read_wav(tmp_path / "shortest.wav")) == RATE // 40
    for name in ("missing", "text", "empty", "short"):
        message = complaint(read_wav, tmp_path / f"{name}.wav")
        assert "a sound is a .wav file" in message and "ffmpeg -i" in message


def test_the_language_of_a_long_sound_is_that_of_its_first_window(listener, tmp_path):
    text, prompts = listener.text, []

    def hear(window, writer):
        prompts.append(writer.prompt)
        writer.heard = [EN + len(prompts)]
        return [[STAMP, 7]]

    writer = PromptedWriter(listener.model, [None, TRANSCRIBE], text)
    text._windows(text.symbols(long_sound(tmp_path)), hear, writer)
    assert prompts == [[None, TRANSCRIBE], *[[EN + 1, TRANSCRIBE]] * 4]


def test_only_writing_hears_windows(listener, sounds, tmp_path, complaint):
    long = long_sound(tmp_path)
    for words in (complaint(listener.attention, long), complaint(listener.score, [(long, "w7")])):
        assert "only writing hears more than 0.5 seconds; received 2.1 seconds" in words


def test_features_are_those_of_transformers():
    """Of a tone and of noise; some numbers of each are kept."""
    samples = tone(RATE, 0.4) + 0.01 * np.random.default_rng(0).standard_normal(RATE * 4 // 10)
    kept = {80: (1.450816, 0.167202), 128: (0.141229, 0.146025)}
    for bands in (80, 128):
        features = log_mel(samples, bands)
        assert features.shape == (len(samples) // HOP, bands)
        assert_allclose((features[20, 10], features.mean()), kept[bands], atol=1e-6)
    silence = np.full((25, 80), -1.5)  # log10(1e-10) is -10
    assert_allclose(log_mel(np.zeros(RATE // 4)), silence, rtol=1e-12, strict=True)
    pytest.importorskip("torch", reason="PyTorch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    for bands in (80, 128):
        extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
        theirs = extractor._np_extract_fbank_features([samples], "cpu")[0].T
        assert_allclose(log_mel(samples, bands), theirs, atol=1e-6)
        assert_allclose(mel_filters(bands), extractor.mel_filters, atol=1e-12)


if __name__ == "__main__" and sys.argv[1:] == ["--store"]:
    with tempfile.TemporaryDirectory() as temporary:
        texts = texts_of_transformers(
            small_folder(Path(temporary) / "small"), small_sounds(Path(temporary))
        )
    STORED.write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")
