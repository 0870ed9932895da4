"""Shakespeare: the script's presets, and where it finds the text."""

import json
import re
from pathlib import Path

import pytest

from toy_tasks.shakespeare import PRESETS, TARGETS, main

TEXT = "To be, or not to be, that is the question:\n" * 60
TINY = "--d-model 8 --d-ff 8 --layers 1 --heads 1 --context 8 --batch-size 4 --steps 6".split()
pytestmark = pytest.mark.usefixtures("empty_folder")


def saved(run: str) -> dict:
    return json.loads(Path("runs", run, "config.json").read_text())["options"]


def test_a_preset_is_other_defaults_which_flags_replace_and_a_resumed_run_keeps(call):
    Path("input.txt").write_text(TEXT)  # the folder of the file will do
    code, out, err = call(main, "--data", ".", "--preset", "hour", *TINY, "--quick")
    assert code == 0 and not err and re.fullmatch(r"validation loss \d\.\d{4}", out[-1])
    options = saved("shakespeare-quick")
    expected = PRESETS["hour"] | dict(d_model=8, d_ff=8, layers=1, heads=1, context=8, steps=6)
    expected["batch_size"] = 4
    assert {name: options[name] for name in expected} == expected
    code, out, _ = call(main, "--resume", "--quick")
    assert code == 0 and "is finished" in out[0] and saved("shakespeare-quick") == options
    code, _, err = call(main, "--resume", "--quick", "--preset", "quarter")
    assert code == 2 and "a resumed run keeps its settings" in err[0]
    run = ["--run", "runs/shakespeare-quick"]
    code, out, _ = call(main, *run, "--prompt", "To b", "--length", "9")
    assert code == 0 and len("\n".join(out)) == 4 + 9
    assert "received --preset" in call(main, *run, "--preset", "hour")[2][0]


def test_each_length_has_its_target(call):
    """Which --help names; a run that misses it says so."""
    Path("input.txt").write_text(TEXT)
    assert TARGETS.keys() == {None, *PRESETS}
    text = " ".join(call(main, "--help")[1])
    assert all(f"{target:.2f}" in text for target in TARGETS.values())
    code, out, _ = call(main, "--data", "input.txt", *TINY, "--no-plots")
    assert code == 1 and out[-2].endswith("target validation loss 1.75: MISSED")
