"""Any text, and Shakespeare: windows, measure, what is written and refused; one's own subwords."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.data import Subwords, Vocabulary
from numformer.generation import Continuation
from numformer.layer import inference, pack
from numformer.models.language_model import LanguageModel
from numformer.runs import load_model, save_model
from numformer.trained import load
from tests.toy_tasks import small
from toy_tasks import masked, pairs, shakespeare, write
from toy_tasks.command_line.run_folders import read_config
from toy_tasks.write import WritingTask, main, split

TEXT = "the cat sat on the mat. a dog ran. \n" * 40
LINES = [f"the  dog {number}\tder Hund {number}" for number in range(60)]
PARAGRAPHS = "the cat sat on the mat.\n\n  a dog ran.\n" * 60
OWN = f"--data own.txt {small.TINY} --steps 2 --out run"
SIZES = "--d-model 8 --d-ff 8 --heads 2 --layers 1 --batch-size 4 --quick"
TINY = f"{SIZES} --context 8 --length 20"


def test_windows_are_followed_by_themselves_and_none_is_held_out():
    task = WritingTask(TEXT, 8, 5, seed=1)
    for step in (1, 2):
        ids, following = task.batch(step).inputs
        assert_array_equal(ids[:, 1:], following[:, :-1])
        assert ids.shape == following.shape == (5, 8)
    assert_array_equal(np.r_[task.training, task.unseen], task.text.vocabulary.encode(TEXT))
    ranges = []
    task.windows = lambda ids, starts: ranges.append((ids is task.training, starts.max())) or 1
    task.batch(3)
    assert ranges[0][0] and ranges[0][1] + 8 < len(task.training)


@pytest.mark.parametrize("form", [{}, dict(feed_forwards="experts", experts=3)], ids=str)
def test_the_measure_is_the_mean_over_all_windows_of_the_held_out_part(form):
    """Without what experts add to the loss so that all of them are chosen."""
    task = WritingTask(TEXT * 10, 8, 4, seed=1)
    model = small.shaken(LanguageModel, len({*TEXT}) + 4, **form)
    with inference():
        measured = task.evaluate(model)["held_out_loss"]
        starts = np.arange(0, len(task.unseen) - 8, 8)
        assert len(starts) > 64
        whole = model.objective().prediction_loss(*task.windows(task.unseen, starts).inputs)
    assert measured == pytest.approx(whole)


def test_descriptions_differ_if_the_text_or_the_context_does():
    descriptions = [WritingTask(*how, 4, seed=1).description() for how in ((TEXT, 8), (TEXT, 7))]
    assert descriptions[0] != descriptions[1] != WritingTask(TEXT[1:], 7, 4, 1).description()


@pytest.mark.parametrize("context", [1, 2, 5, 64])
def test_it_writes_on_beyond_its_context(context):
    symbols = sorted({*TEXT})
    model = small.shaken(LanguageModel, len(symbols) + 4)
    model.output.weight.data[:4] = 0  # no special symbol is ever the most probable one
    model.output.weight.data[4:] += 1
    text = Continuation(Vocabulary(symbols), context)
    written = text.join(*text.write(model, [text.symbols("the cat")], length=30))
    assert written.startswith("the cat") and len(written) == 37


def test_a_text_is_learned_and_the_run_goes_on_from_a_prompt(call, succeed):
    text, run = "le café est bon " * 60, Path("runs/write-text-quick")
    Path("text.txt").write_text(text, encoding="utf-8")
    out = succeed(main, f"--data text.txt {TINY}")
    assert re.fullmatch(r"held-out loss \d\.\d{4}", out[-1])
    shown = next(line for line in out if line.startswith("what the model writes after "))
    assert shown.split("'")[1] in text
    for name in ("best.safetensors", "config.json", "loss.png", "attention.png"):
        assert (run / name).exists()
    best = load_model(run / "best.safetensors")[1]["best"]
    result = read_config(run, "result.json")
    assert best["held_out_loss"] == pytest.approx(result["held-out_loss"])
    assert out[-1] == f"held-out loss {result['held-out_loss']:.4f}"
    prompt = "le cafe\N{COMBINING ACUTE ACCENT}ç"
    code, out, err = call(main, f"--run {run} --length 12 --greedy --prompt", prompt)
    assert code == 0 and err == ["note: training never saw 'ç' (in 'le cafe\u0301ç')"]
    assert "\n".join(out).startswith("le caféç") and len("\n".join(out)) == 8 + 12
    assert call(main, "--resume --quick --length 5")[0] == 0
    (of,) = load(run).attention("est bon le café").maps
    assert "".join(of.query_labels) == "".join(of.key_labels) == " le café"


@pytest.mark.parametrize("page", [write, masked, pairs])
def test_of_a_model_without_attention_maps_none_are_drawn(page, succeed, monkeypatch):
    monkeypatch.setattr("toy_tasks.command_line.training.loss_curve", lambda *how: None)
    for kind in ("text_pipeline", "transduction"):
        monkeypatch.setattr(f"numformer.generation.{kind}.attention_weights", lambda *inputs: {})
    lines = [f"{number}\t{number}" for number in range(60)] if page is pairs else [TEXT]
    Path("text.txt").write_text("\n".join(lines))
    context = "--context 8" * (page is not pairs)
    succeed(page.main, f"--data text.txt {SIZES} {context} --out run")
    assert not Path("run/attention.png").exists()


def test_a_run_is_sampled_where_that_is_asked_for_as_its_seed_says(call, succeed, monkeypatch):
    """Each line is drawn by random numbers of its own, however the lines come."""
    Path("a text.txt").write_text(TEXT)
    out = succeed(main, f"--data 'a text.txt' {TINY} --no-plots")
    run = "--run 'runs/write-a text-quick'"
    assert f"use it: python -m toy_tasks.write {run} --input" in "".join(out)
    use = f"{run} --length 30"

    def asked(flags="", *prompts):
        return succeed(main, f"{use} {flags} --prompt the", *prompts)

    for setting in ("--temperature 3", "--top-k 9", "--top-p 0.99"):
        sampled = f"{setting} --seed"
        drawn = asked(f"{sampled} 5")
        assert drawn == asked(f"{sampled} 5") != asked(f"{sampled} 6")
        assert drawn != asked() == asked()
    keyboard, pipe = io.StringIO("the\n\nthe\n"), io.StringIO("the\n\nthe\n")
    monkeypatch.setattr("sys.stdin", pipe)
    together = succeed(main, f"{use} {sampled} 5")
    assert together == [*drawn, "", *asked(f"{sampled} 5", "the")[len(drawn) :]]
    assert together != [*drawn, "", *drawn]
    keyboard.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", keyboard)
    assert call(main, f"{use} {sampled} 5")[1] == [*drawn, "", *asked(f"{sampled} 6")]


def test_what_cannot_be_is_refused_in_one_line_without_a_trace(succeed, refuse):
    Path("text.txt").write_text(TEXT)
    Path("short.txt").write_text("short")
    for name, symbols in {"runs/write": "a", "other": "ab"}.items():
        Path(name).mkdir(parents=True)
        text = Continuation(Vocabulary(symbols), 8)
        pack(model := small.shaken(LanguageModel, 5))
        save_model(Path(name, "best.safetensors"), model, text=text.description(), task="a word")
    for flags, message in {
        "": "a text to learn from, or a run to use",
        "--data text.txt --run runs/write --length 3": "have no effect; received one for length",
        "--data short.txt": "20 times the 65 characters",
        "--data text.txt --positions learned --max-length 7 --context 8": "max_length = 7",
        "--run runs/write --prompt a --length 0": "at least 1; received 0",
        "--run runs/write --prompt ''": "at least one symbol",
        "--run other --prompt a": "describes its text pipeline",
        "--run runs/write --prompt a --seed 1 --greedy": "sampled at random; received answers that",
    }.items():
        refuse(main, flags, message)
    succeed(main, "--run runs/write --prompt a")  # whatever its task says


def test_a_preset_is_other_defaults_which_a_resumed_run_keeps_and_a_target(call, succeed, refuse):
    def saved() -> dict:
        return json.loads(Path("runs/shakespeare-quick/config.json").read_text())["options"]

    Path("input.txt").write_text(TEXT)  # the folder of the file will do
    out = succeed(shakespeare.main, f"--data . --preset hour {TINY} --steps 6 --no-plots")
    assert re.fullmatch(r"validation loss \d\.\d{4}", out[-1])
    asked = dict(d_model=8, d_ff=8, layers=1, heads=2, context=8, steps=6, batch_size=4)
    options = saved()
    assert options | shakespeare.PRESETS["hour"] | asked == options
    out = succeed(shakespeare.main, "--resume --quick")
    assert "is finished" in out[0] and saved() == options
    keeps = "a resumed run keeps its settings"
    refuse(shakespeare.main, "--resume --quick --preset quarter", keeps)
    run = "--run runs/shakespeare-quick --prompt 'the ' --greedy"
    assert len("\n".join(succeed(shakespeare.main, f"{run} --length 9"))) == 4 + 9
    refuse(shakespeare.main, f"{run} --preset hour", "received --preset")
    assert shakespeare.TARGETS.keys() == {None, *shakespeare.PRESETS}
    text = " ".join(succeed(shakespeare.main, "--help"))
    assert all(f"{target:.2f}" in text for target in shakespeare.TARGETS.values())
    flags = TINY.replace("--quick", "--steps 2 --no-plots")
    code, out, _ = call(shakespeare.main, f"--data input.txt {flags}")
    assert code == 1 and out[-2].endswith("target validation loss 1.75: MISSED")


@pytest.mark.parametrize(
    ("page", "data", "rest"), [(pairs, "\n".join(LINES), ""), (write, PARAGRAPHS, "--context 8")]
)
def test_a_run_of_subwords_keeps_them_and_takes_plain_text(page, data, rest, succeed, refuse):
    Path("own.txt").write_text(data)
    output = "\n".join(succeed(page.main, f"{OWN} {rest} --subwords 5000"))
    kept, text = Subwords(Path("run/subwords.model").read_bytes()), load("run").text
    assert f"--subwords 5,000: the texts have only {len(kept)} subwords" in output
    assert text.input_vocabulary.model == kept.model
    asked = "the  dog"
    assert text.symbols(asked) == kept.split(asked) and len(kept.split(asked)) < 5
    out = "\n".join(succeed(page.main, "--run run --input", asked))
    assert out.startswith(asked) == (page is write) and "\u2581" not in out
    assert "is finished" in "".join(succeed(page.main, "--resume --out run"))
    Path("run/subwords.model").write_bytes(Subwords.train(["ab" * 9], 9, exact=True).model)
    refuse(page.main, "--resume --out run", "data that it was started with", tells=True)
    too_few = f"{OWN} {rest} --out new --subwords 0"
    refuse(page.main, too_few, "--subwords 0: subwords are at least ", tells=True)


def test_pairs_share_their_subwords_and_say_which_side_is_too_long(complaint, succeed, refuse):
    data = {name: [("the dog", "der Hund")] * 3 for name in ("train", "dev", "test")}
    words = Subwords.train(["the dog der Hund"], 60, exact=True)
    task = pairs.PairsTask(data, 2, 1, vocabularies=2 * (words,))
    assert task.text.source is task.text.target is words
    task.write = lambda model, sources, **how: [words.join(words.split("der Hund"))]
    assert task.evaluate(None)["exact_match"] == 1.0
    data["test"] = [("the dog", "☃d" * 128)]
    assert pairs.PairsTask(data, 2, 1, vocabularies=2 * (words,)).longest == 257
    data["test"] = [("the dog", "☃d" * 128 + "☃")]
    message = complaint(pairs.PairsTask, data, 2, 1, vocabularies=2 * (words,))
    assert "at most 256 subwords; received 257 in '☃d☃d" in message
    Path("own.txt").write_text("\n".join([*LINES, "the dog " * 40 + "\tder Hund"]))
    both = "--data own.txt --words --subwords 40"
    refuse(pairs.main, both, "the symbols are words or subwords; received both")
    succeed(pairs.main, f"{OWN} --subwords 400")


def test_a_text_of_subwords_is_learned_in_its_first_nine_tenths_and_judged_by_character(succeed):
    text = PARAGRAPHS + "☃" * 20
    training, unseen = split(text)
    assert (len(training), len(unseen)) == (2070, 230) and training + unseen == text
    Path("own.txt").write_text(text)
    out = succeed(main, f"{OWN} --context 8 --subwords 40")
    words = load("run").text.vocabulary
    assert "☃" not in words.symbols and len(words) == 40
    task = WritingTask(text, 8, 4, 1, vocabulary=words)
    assert words.join(words.decode(task.training)) == training
    figures = dict(line.rsplit(" ", 1) for line in out[-2:])
    ratio = len(words.split(unseen)) / len(unseen)
    ours = float(figures["loss of a subword"]) * ratio
    assert float(figures["held-out loss"]) == pytest.approx(ours, abs=1e-4) and ratio < 0.7
    descriptions = WritingTask(text, 8, 4, 1).description(), task.description()
    assert descriptions[1].pop("subwords") and descriptions[0] == descriptions[1]


def test_a_text_of_subwords_has_windows_on_both_sides(complaint):
    words = Subwords.train([PARAGRAPHS], 60, exact=True)
    count = len(words.split(PARAGRAPHS))
    message = complaint(WritingTask, PARAGRAPHS, count // 20, 4, 1, vocabulary=words)
    assert f"subwords of a window; received {count} subwords" in message
    assert "20 times the 6 characters" in complaint(WritingTask, "ab" * 59, 5, 4, 1)
    assert len(WritingTask("ab" * 60, 5, 4, 1).unseen) == 12
    short = "a b c d e " * 90 + "w" * 100  # whose last tenth has few subwords
    words = Subwords.train([short], 99, exact=True)
    unseen = len(words.split(split(short)[1]))
    assert WritingTask(short, unseen - 1, 4, 1, vocabulary=words).unseen_windows()
    assert "20 times" in complaint(WritingTask, short, unseen, 4, 1, vocabulary=words)
