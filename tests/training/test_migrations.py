"""Files of earlier formats open and go on: each format has a stored run and a stored model.

`format_N` holds a run of `reverse` that was interrupted at step 7 of 12, its finished model, and
what the version that wrote them computed: the logits of a pair, the metrics of the whole run.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.layer import inference
from numformer.training.checkpoints import load_checkpoint, load_model
from numformer.training.migrations import FORMAT, MIGRATIONS
from numformer.training.run_folder import read_metrics
from toy_tasks import reverse
from toy_tasks.sequences import main

STORED = sorted(Path(__file__).parent.glob("format_*"))
# Float32 on another processor: the same but for rounding, which twelve steps hardly magnify.
CLOSE = dict(rtol=1e-3, atol=1e-4)

of_every_format = pytest.mark.parametrize("stored", STORED, ids=lambda folder: folder.name)


def test_every_format_has_a_stored_run_and_every_earlier_one_a_migration():
    numbers = [int(folder.name.removeprefix("format_")) for folder in STORED]
    assert numbers == list(range(1, FORMAT + 1))
    assert list(MIGRATIONS) == numbers[:-1]


@of_every_format
def test_a_model_computes_what_it_computed_when_it_was_written(stored):
    model, metadata = load_model(stored / "best.safetensors")
    expected = json.loads((stored / "expected.json").read_text())
    with inference():
        logits = model.forward(np.array([[4, 5, 6, 2]]), np.array([[1, 6, 5]]))
    assert_allclose(logits[0, 0], expected["logits"], **CLOSE)
    assert metadata["task"]["name"] == "reverse" and metadata["format"] == FORMAT
    assert load_checkpoint(stored / "best.safetensors")[0].keys() == model.state_dict().keys()


@of_every_format
def test_an_interrupted_run_goes_on_to_the_end_that_it_would_have_had(stored, tmp_path, call):
    folder = tmp_path / "run"
    shutil.copytree(stored / "interrupted", folder)
    code, out, _ = call(lambda flags: main(reverse.RULE, flags), "--resume", "--out", str(folder))
    assert code == 1 and out[0].endswith("1,248 parameters, 12 steps")  # it learned nothing yet
    found = read_metrics(folder / "metrics.jsonl")
    expected = json.loads((stored / "expected.json").read_text())["metrics"]
    assert [line.keys() for line in found] == [line.keys() for line in expected]
    for line, other in zip(found, expected, strict=True):
        assert_allclose([*line.values()], [*other.values()], **CLOSE)
