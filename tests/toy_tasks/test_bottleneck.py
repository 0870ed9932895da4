"""The bottleneck: what is compared, on which sequences, and the page that comes of it."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from numformer.layer import inference
from toy_tasks import bottleneck
from toy_tasks.kit import study
from toy_tasks.kit.sequences import held_out

pytestmark = pytest.mark.usefixtures("empty_folder")


def options_of(row: str) -> Namespace:
    others = dict(row=row, seed=1, cell="gru")
    return Namespace(**(bottleneck.DEFAULTS | bottleneck.ROWS[row] | others))


@pytest.mark.parametrize(("length", "least"), [(1, 1), (2, 60), (3, 250), (20, 250)])
def test_every_length_is_tested_on_sequences_that_training_never_sees(length, least):
    found = bottleneck.test_of(length, 250)
    assert least <= len(found) == len({*found}) <= 250
    assert all(len(source) == length and held_out(source) for source in found)


def test_the_models_have_about_as_many_parameters_and_the_context_64_numbers():
    sizes, lengths = [], set()
    for row in bottleneck.ROWS:
        task, kind, config = bottleneck.make(options_of(row))
        model = kind(config)
        sizes.append(model.parameter_counts()["total"])
        if row == bottleneck.FIXED:
            with inference():
                state = model.start(task.batch(1).source, 1)
            assert state.arrays[0].shape == (64, 64)
        lengths |= {len(source) for source, _ in task.test}
    assert max(sizes) < 1.05 * min(sizes)
    assert max(lengths) == 20 and len(lengths) > 15


def test_the_page(call, monkeypatch):
    monkeypatch.setattr(bottleneck, "TESTED", 3)
    code, out, err = call(bottleneck.main, "--quick", "--steps", "2", "--seeds", "1")
    assert (code, err) == (0, [])
    folder = Path("runs/bottleneck-quick")
    assert out[-1].startswith("at length 20: attention 0.") and ", fixed context 0." in out[-1]
    table = (folder / "table.md").read_text().splitlines()
    assert table[0].split("|")[1:6] == [f" {name} " for name in (
        "letters   ", "bits", "attention", "fixed context", "Transformer")]  # fmt: skip
    assert len(table) == 2 + 20 + 2 and table[21].startswith("| 20         | 94   |")
    assert (folder / "bottleneck.png").stat().st_size
    result = json.loads((folder / "attention-1" / study.RESULT).read_text())
    assert len(result["by length"]) == 20 and result["at_length_20"] == result["by length"][19]
    flags = ["--run", str(folder / "attention-1"), "--input", "abc", "--attention", "map.png"]
    assert call(bottleneck.main, *flags)[0] == 0 and Path("map.png").is_file()


def test_the_target_is_about_every_length_and_every_seed_with_attention():
    def runs(*shares):
        return [{"by length": [*each], "at_length_20": each[-1]} for each in shares]

    others = {"fixed context": runs([1, 0.25], [1, 0.75]), "Transformer": runs([0.5, 0.25])}
    for shares, reached in (([0.99, 1.0], True), ([0.98, 1.0], False)):
        results = {"attention": runs([1.0, 0.99], shares)} | others
        _, figures, (_, found) = bottleneck.verdict(results)
        assert found is reached
        assert figures == {
            "at length 20:": "attention 0.9950, fixed context 0.5000, Transformer 0.2500"
        }
