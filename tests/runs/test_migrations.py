"""Files of every format open and go on: each format has a stored run and a stored model.

`format_N` holds a run of `reverse` that was interrupted at step 7 of 12, its finished model, and
what the version that wrote them computed: the logits of a pair, the metrics of the whole run.
A new format gets its folder by

    python -m tests.runs.test_migrations --store
"""

import contextlib
import functools
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.layer import inference
from numformer.runs.checkpoints import load_checkpoint, load_model
from numformer.runs.migrations import FORMAT, MIGRATIONS, settings_from_4
from numformer.runs.run_folder import read_metrics
from numformer.training.loop import Interrupted
from tests.toy_tasks.small import interrupted_at
from toy_tasks import reverse
from toy_tasks.text_to_text import sequences
from toy_tasks.text_to_text.sequences import SequenceTask, main

STORE = "python -m tests.runs.test_migrations --store"
STORED = sorted(Path(__file__).parent.glob("format_*"))
# Float32 on another processor: the same but for rounding, which twelve steps hardly magnify.
CLOSE = dict(rtol=1e-3, atol=1e-4)


@functools.cache
def drawn(*how) -> SequenceTask:
    """A task that draws its sequences once and writes answers to only a few."""
    task = SequenceTask(*how)
    task.test = task.test[:9]
    sources = [source for source, _ in task.test]
    task.evaluate = lambda model: task.measure(task.write(model, sources, beam=1), task.test)
    return task


of_every_format = pytest.mark.parametrize("stored", STORED, ids=lambda folder: folder.name)


def test_every_format_has_a_stored_run_and_every_earlier_one_a_migration():
    numbers = [int(folder.name.removeprefix("format_")) for folder in STORED]
    assert numbers == list(range(1, FORMAT + 1)), f"one format has no folder: run {STORE}"
    assert list(MIGRATIONS) == numbers[:-1]


@pytest.mark.parametrize(
    ("mixers", "groups", "now", "now_groups"),
    [
        ("attention,grouped,window", 2, "attention,attention,window", "4,2,2"),
        ("grouped,window", 2, "attention,window", 2),
        ("relative,grouped", 4, "relative,attention", 4),
        ("attention,global_window", 2, "attention,global_window", None),  # had no effect
    ],
)
def test_only_two_mixers_of_format_4_share_keys_and_values(mixers, groups, now, now_groups):
    old = dict(heads=4, mixers=mixers, key_value_heads=groups)
    new = dict(heads=4, mixers=now, key_value_heads=now_groups)
    expected = {name: value for name, value in new.items() if value is not None}
    assert settings_from_4(old) == expected


def logits_of(model) -> list[float]:
    with inference():
        logits = model.forward(np.array([[4, 5, 6, 2]]), np.array([[1, 6, 5]]))
    return logits[0, 0].tolist()


@of_every_format
def test_a_model_computes_what_it_computed_when_it_was_written(stored):
    model, metadata = load_model(stored / "best.safetensors")
    expected = json.loads((stored / "expected.json").read_text())
    assert_allclose(logits_of(model), expected["logits"], **CLOSE)
    assert metadata["task"]["name"] == "reverse" and metadata["format"] == FORMAT
    assert load_checkpoint(stored / "best.safetensors")[0].keys() == model.state_dict().keys()


@of_every_format
def test_an_interrupted_run_goes_on_to_its_end(stored, tmp_path, call, monkeypatch):
    monkeypatch.setattr(sequences, "SequenceTask", drawn)
    folder = tmp_path / "run"
    shutil.copytree(stored / "interrupted", folder)
    code, out, _ = call(lambda flags: main(reverse.RULE, flags), "--resume", "--out", str(folder))
    assert code == 1 and out[:2] == [  # it learned nothing yet
        f"going on with {folder}, after step 7 of 12",
        f"{folder}: 1,248 parameters, 12 steps",
    ]
    found = read_metrics(folder / "metrics.jsonl")
    expected = json.loads((stored / "expected.json").read_text())["metrics"]
    for line, other in zip(found, expected, strict=True):
        other.pop("seconds", None)
        assert_allclose([line[name] for name in other], [*other.values()], **CLOSE)
    assert found[-1].keys() - {"held_out_loss"} == {"step", "exact_match", "seconds"}
    assert 0 < found[-1]["seconds"] < 1000


def store() -> None:
    """Write what this version computes into the folder of its format."""
    folder = Path(__file__).parent / f"format_{FORMAT}"
    shutil.rmtree(folder, ignore_errors=True)
    flags = "--steps 12 --batch-size 16 --log-every 2 --evaluate-every 4 --parts 2 --no-plots"
    flags += " --d-model 8 --d-ff 8 --heads 2 --layers 1 --p-drop 0.1 --warmup 4 --out"
    main(reverse.RULE, [*flags.split(), str(folder / "finished")])
    with interrupted_at(7), contextlib.suppress(Interrupted):
        main(reverse.RULE, [*flags.split(), str(folder / "interrupted")])
    model, _ = load_model(folder / "finished" / "best.safetensors")
    metrics = read_metrics(folder / "finished" / "metrics.jsonl")
    expected = {"logits": logits_of(model), "metrics": metrics}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    (folder / "finished" / "best.safetensors").rename(folder / "best.safetensors")
    shutil.rmtree(folder / "finished")


if __name__ == "__main__":
    if sys.argv[1:] != ["--store"]:
        sys.exit(f"usage: {STORE}")
    store()
