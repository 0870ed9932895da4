"""The script that fills holes: what is hidden, that both models are asked the same, and its run."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import numformer
from numformer.layer import inference
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from tests.toy_tasks.small import interrupted_at, shaken
from toy_tasks import masked
from toy_tasks.command_line import run_folders
from toy_tasks.masked import MaskedTask, main
from toy_tasks.write import WritingTask

TEXT = "the cat sat on the mat. a dog ran. \n" * 40
SIZES = "--context 8 --d-model 8 --d-ff 8 --heads 2 --layers 1 --batch-size 4 --parts 1"
TINY = f"--data text.txt {SIZES} --steps 6 --evaluate-every 3"
TASK = MaskedTask(TEXT * 5, "_", 8, 100, seed=1)
HOLE = len(TASK.text.vocabulary) - 1


def test_of_ten_hidden_characters_eight_are_holes_and_one_is_another():
    for step in (1, 2):
        batch, whole = TASK.batch(step), WritingTask.batch(TASK, step).following
        hidden = batch.targets != 0
        assert_array_equal(batch.ids[~hidden], whole[~hidden])
        assert_array_equal(batch.targets[hidden], whole[hidden])
    batches = [TASK.batch(step) for step in range(30)]
    ids, targets = (np.concatenate([getattr(b, n) for b in batches]) for n in ("ids", "targets"))
    hidden = targets != 0
    assert batches[0].weight == np.count_nonzero(batches[0].targets)
    assert hidden.mean() == pytest.approx(0.15, abs=0.01)
    shown, right = ids[hidden], targets[hidden]
    assert np.mean(shown == HOLE) == pytest.approx(0.8, abs=0.02)
    others = (shown != HOLE) & (shown != right)
    assert np.mean(others) == pytest.approx(0.1, abs=0.02)
    assert {*shown[others]} == {*range(4, HOLE)}


def test_what_is_unseen_has_holes_alone_the_same_ones_each_time():
    pairs = TASK.unseen_pairs()
    for (windows, batch), (_, again) in zip(pairs, TASK.unseen_pairs(), strict=True):
        assert_array_equal(batch.ids, again.ids)
        hidden = batch.targets != 0
        assert (batch.ids[hidden] == HOLE).all()
        assert_array_equal(np.where(hidden, batch.targets, batch.ids), windows.following)
    assert sum(len(batch.ids) for _, batch in pairs) * 8 > len(TASK.unseen) - 16


def test_both_models_are_measured_on_the_same_characters():
    both, beside = shaken(MaskedLanguageModel, HOLE + 1), shaken(LanguageModel, HOLE)
    losses = {"both": [], "one": []}
    with inference():
        for windows, batch in TASK.unseen_pairs():
            logits = {"both": both.forward(batch.ids), "one": beside.forward(windows.ids)}
            for name, scores in logits.items():
                log_p = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
                for place in np.argwhere(batch.targets):
                    losses[name].append(-log_p[*place, windows.following[*place]])
        assert TASK.evaluate(both) == {"held_out_loss": pytest.approx(np.mean(losses["both"]))}
        assert TASK.left_side_loss(beside) == pytest.approx(np.mean(losses["one"]))


@pytest.fixture(autouse=True)
def text_file():
    Path("text.txt").write_text(TEXT)


def test_a_text_is_learned_from_both_sides_and_from_one(call, succeed):
    out = succeed(main, TINY)
    figures = r"hidden characters: loss (\d\.\d{4}), from one side (\d\.\d{4})"
    loss = float(re.fullmatch(figures, out[-1])[1])
    run = Path("runs/masked-text")
    names = {"best.safetensors", "last.safetensors", "config.json", "metrics.jsonl", "loss.png"}
    assert {*os.listdir(run)} == names | {"attention.png", "one-side", "result.json"}
    assert {*os.listdir(run / "one-side")} == names
    trained = numformer.load(run)
    result = run_folders.read_config(run, "result.json")
    best = trained.metadata["best"]["held_out_loss"]
    assert result["loss"] == pytest.approx(best) == pytest.approx(loss, abs=1e-4)
    assert out[-1].endswith(f"one side {result['loss_from_one_side']:.4f}")
    assert type(numformer.load(run / "one-side").model) is LanguageModel

    texts = re.search("with holes:\n(.*)\nfilled:\n(.*)\nfiles in", "\n".join(out), re.S)
    shown, filled = texts.groups()
    assert len(filled) == len(shown) == 32 and "_" in shown and "_" not in filled
    assert all(symbol in ("_", other) for symbol, other in zip(shown, filled, strict=True))
    code, lines, err = call(main, f"--run {run} --input", "the c_t", "the")
    assert code == 0 and err == ["note: there is no '_' to fill (in 'the')"]
    assert re.fullmatch("the c[^_]t", lines[0]) and lines[1] == "the"


def test_a_run_stopped_in_both_trainings_goes_on_to_the_same_end(call, succeed):
    *_, figures = succeed(main, f"{TINY} --no-plots --out whole")
    for kind, flags in {MaskedTask: f"{TINY} --no-plots", WritingTask: "--resume"}.items():
        with interrupted_at(5, kind):
            code, _, err = call(main, f"{flags} --out part")
        assert code == 130 and len(err) == 1
        assert err[0].endswith("go on with: python -m toy_tasks.masked --resume --out part")
    assert succeed(main, "--resume --out part")[-1] == figures
    for name in ("", "one-side"):
        files = [Path(run, name, "best.safetensors").read_bytes() for run in ("whole", "part")]
        assert files[0] == files[1]


def test_a_hole_is_one_visible_character_that_the_text_has_not(succeed, refuse):
    for flags, message in {
        "--hole a": "does not occur in the text; received 'a'",
        "--hole __": "one visible character; received --context 64, --hole '__'",
        "--hole ' '": "--hole ' '",
        "--context 0": "--context 0",
    }.items():
        refuse(main, f"--data text.txt {flags}", message)
    Path("text.txt").write_text(TEXT.replace("a", "_"))
    refuse(main, f"{TINY} --no-plots", "for example --hole %")
    succeed(main, f"{TINY} --hole ? --no-plots")
    (written,) = succeed(main, "--run runs/masked-text --input 'the c?t'")
    assert re.fullmatch(r"the c[^?]t", written)


@pytest.mark.parametrize(("from_one_side", "code"), [(1.36, 0), (1.34, 1)])
def test_without_a_file_it_learns_shakespeare_and_is_judged(call, monkeypatch, from_one_side, code):
    monkeypatch.setattr(masked, "shakespeare", lambda: TEXT)
    monkeypatch.setattr(MaskedTask, "evaluate", lambda task, model: {"held_out_loss": 1.25})
    monkeypatch.setattr(MaskedTask, "left_side_loss", lambda task, model: from_one_side)
    ended, out, _ = call(main, f"{SIZES} --steps 6 --no-plots")
    assert ended == code
    assert out[-2].endswith("0.1 below that from one side: " + ("MISSED" if code else "reached"))
    assert out[-1] == f"hidden characters: loss 1.2500, from one side {from_one_side:.4f}"
