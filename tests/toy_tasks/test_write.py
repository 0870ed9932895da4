"""The script that learns any text: its windows, its measure, what it writes and refuses."""

import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.data import Vocabulary
from numformer.generation import Continuation
from numformer.layer import inference, pack
from numformer.models.language_model import LanguageModel
from numformer.training import load_model, save_model
from toy_tasks.write import WritingTask, main

TEXT = "the cat sat on the mat. a dog ran. \n" * 40
TINY = "--context 8 --d-model 8 --d-ff 8 --heads 2 --layers 1 --batch-size 4 --quick --length 20"
TINY = TINY.split()
pytestmark = pytest.mark.usefixtures("empty_folder")


def small(vocabulary: int) -> LanguageModel:
    """A small model in float64, its parameters shaken."""
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0)
    model = LanguageModel(LanguageModel.Config(vocabulary=vocabulary, **sizes))
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


def test_windows_are_followed_by_themselves_and_none_is_held_out():
    task = WritingTask(TEXT, 8, 5, seed=1)
    for step in (1, 2):
        ids, following = task.batch(step).inputs
        assert_array_equal(ids[:, 1:], following[:, :-1])
        assert ids.shape == following.shape == (5, 8)
    assert (task.batch(1).ids != task.batch(2).ids).any()
    assert_array_equal(np.r_[task.training, task.unseen], task.text.vocabulary.encode(TEXT))
    ranges = []
    task.windows = lambda ids, starts: ranges.append((ids is task.training, starts.max())) or 1
    task.batch(3)
    assert ranges[0][0] and ranges[0][1] + 8 < len(task.training)


def test_the_measure_is_the_mean_over_all_windows_of_the_held_out_part():
    task, model = WritingTask(TEXT * 10, 8, 4, seed=1), small(vocabulary=len({*TEXT}) + 4)
    with inference():
        found = task.evaluate(model)["held_out_loss"]
        starts = np.arange(0, len(task.unseen) - 8, 8)
        assert len(starts) > 64
        whole = model.objective().forward(*task.windows(task.unseen, starts).inputs)
    assert found == pytest.approx(whole)


@pytest.mark.parametrize("context", [1, 2, 5, 64])
def test_it_writes_on_beyond_its_context(context):
    symbols = sorted({*TEXT})
    model = small(vocabulary=len(symbols) + 4)
    model.output.weight.data[:4] = 0  # no special symbol is ever the most probable one
    model.output.weight.data[4:] += 1
    text = Continuation(Vocabulary(symbols), context)
    found = text.join(*text.write(model, [text.symbols("the cat")], length=30))
    assert found.startswith("the cat") and len(found) == 37


def test_a_text_is_learned_and_the_run_goes_on_from_a_prompt(call):
    Path("text.txt").write_text(TEXT)
    code, out, err = call(main, "--data", "text.txt", *TINY)
    assert (code, err) == (0, [])
    assert re.fullmatch(r"held-out loss \d\.\d{4}", out[-1])
    run = Path("runs/write-quick")
    assert {"best.safetensors", "config.json", "loss.png"} <= {path.name for path in run.iterdir()}
    measured = float(out[-1].split()[-1])
    assert load_model(run / "best.safetensors")[1]["best"]["held_out_loss"] == pytest.approx(
        measured, abs=1e-4
    )
    code, out, err = call(main, "--run", str(run), "--prompt", "the ç", "--length", "12")
    assert code == 0 and err == ["note: training never saw 'ç' (in 'the ç')"]
    assert "\n".join(out).startswith("the ç") and len("\n".join(out)) == 5 + 12
    assert call(main, "--resume", "--quick", "--length", "5")[0] == 0


@pytest.mark.parametrize("setting", ["--temperature 3", "--top-k 9", "--top-p 0.99"])
def test_a_run_is_sampled_where_that_is_asked_for_and_the_seed_reproduces_it(
    call, monkeypatch, setting
):
    """Each line is drawn by random numbers of its own, however the lines come."""
    Path("text.txt").write_text(TEXT)
    call(main, "--data", "text.txt", *TINY)
    use = ["--run", "runs/write-quick", "--length", "30"]

    def asked(*flags, prompts=("the",)):
        return call(main, *use, "--prompt", *prompts, *flags)[1]

    sampled = [*setting.split(), "--seed"]
    found = asked(*sampled, "5")
    assert found == asked(*sampled, "5") != asked(*sampled, "6")
    assert found != asked() == asked()
    lines = "the\n\nthe\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    together = call(main, *use, *sampled, "5")[1]
    assert together == [*found, "", *asked(*sampled, "5", prompts=("the", "the"))[len(found) :]]
    assert together != [*found, "", *found]

    class Keyboard(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Keyboard(lines))
    assert call(main, *use, *sampled, "5")[1] == [*found, "", *asked(*sampled, "6")]


def test_a_prompt_is_brought_to_the_form_of_the_text_and_a_text_without_lines_is_shown(call):
    Path("text.txt").write_text("le café est bon " * 60, encoding="utf-8")
    _, out, _ = call(main, "--data", "text.txt", *TINY)
    shown = next(line for line in out if line.startswith("what it writes after "))
    assert shown.split("'")[1] in "le café est bon " * 3
    prompt = "le cafe\N{COMBINING ACUTE ACCENT}"
    code, out, err = call(main, "--run", "runs/write-quick", "--prompt", prompt, "--length", "5")
    assert (code, err) == (0, []) and "\n".join(out).startswith("le café")


def test_an_evaluation_takes_no_more_windows_than_are_needed(monkeypatch):
    monkeypatch.setattr("toy_tasks.write.MOST_WINDOWS", 7)
    task = WritingTask(TEXT * 10, 8, 4, seed=1)
    draw, starts = task.windows, []
    task.windows = lambda ids, some: starts.extend(some) or draw(ids, some)
    config = LanguageModel.Config(vocabulary=len(task.text.vocabulary), d_model=4, heads=1, d_ff=4)
    with inference():
        task.evaluate(LanguageModel(config))
    assert 4 <= len(starts) <= 7 and starts[-1] > len(task.unseen) / 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "a text to learn from, or a run to use"),
        ("--data text.txt --run runs/write", "as it was trained; received --data"),
        ("--data text.txt --context 0", "at least 1; received 0"),
        ("--data none.txt", "none.txt must be a file"),
        ("--data short.txt", "20 times the 65 characters"),
        ("--data latin.txt", "line 2 must be UTF-8"),
        ("--data text.txt --positions learned --max-length 7 --context 8", "max_length = 7"),
        ("--run none --prompt a", "none, which is not there"),
        ("--prompt a --data text.txt", "no --run"),
        ("--run runs/write --prompt a --length 0", "at least 1; received 0"),
        ("--run runs/write --prompt ''", "at least one symbol"),
        ("--run other --prompt a", "how they become its ids"),
        ("--run runs/write --prompt a --temperature -1", "1e+300; received -1.0"),
        ("--run runs/write --prompt a --top-p 1.5", "at most 1; received 1.5"),
        ("--run runs/write --prompt a --seed 3", "as it was trained; received --seed"),
        ("--data text.txt --top-k 3", "no --run"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_without_a_trace(call, flags, said):
    Path("text.txt").write_text(TEXT)
    Path("short.txt").write_text("short")
    Path("latin.txt").write_bytes(b"a\n\xe9")
    for name in ("runs/write", "other"):
        Path(name).mkdir(parents=True)
        text = Continuation(Vocabulary("a" if name == "runs/write" else "ab"), 8)
        model = small(vocabulary=5)
        pack(model)
        save_model(Path(name, "best.safetensors"), model, text=text.description())
    code, _, err = call(main, *shlex.split(flags))
    assert code == 2 and len(err) == 1 and said in err[0]
    assert {path.name for path in Path("runs").iterdir()} == {"write"}
