"""What a run's Trainer says of it, beside the loop."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from numformer.data.batching import PairBatch
from numformer.execution.in_turn import InTurn
from numformer.execution.ranks import Threads
from numformer.training.loop import Interrupted, Schedule, train
from numformer.training.trainer import Trainer
from tests.training.tiny_runs import Copying, recipe, run, tiny

A, B, C, LONG = ([4], [4]), ([5], [6]), ([5, 6], [6, 4, 8]), ([4, 5, 6], [7, 7])


class Fixed(Copying):
    """Batch 1 is given, with arrays that are not contiguous; all other batches are equal."""

    def __init__(self, *pairs):
        super().__init__()
        batches = [
            SimpleNamespace(
                inputs=[np.asfortranarray(array) for array in PairBatch.of([pair, LONG]).inputs]
            )
            for pair in pairs
        ]
        self.first = batches if len(batches) > 1 else batches[0]

    def batch(self, step):
        return self.first if step == 1 else PairBatch.of([([4], [5])])


CHANGES = {  # by the fact that changes: the task's first batch, or settings of the run
    "the first batch's checksums": [dict(task=Fixed(B)), dict(task=Fixed(A, B))],
    "seed": [dict(seed=2)],
    "steps": [dict(steps=8)],
    "parts": [dict(parts=2)],
    "warmup": [dict(recipe=recipe(warmup=11))],
    "p_drop": [dict(p_drop=0.25)],
}


@pytest.mark.parametrize("fact", [None, *CHANGES, "the initial weights' checksum"])
def test_a_fingerprint_changes_with_each_fact_that_ranks_must_share(tmp_path, fact):
    def fingerprint(task=None, weight=0.0, **settings):
        sizes = {"p_drop": settings.pop("p_drop")} if "p_drop" in settings else {}
        model = tiny(**sizes)
        model.named_parameters()["source.embedding.weight"].data[0, 0] += weight
        settings = dict(steps=7, recipe=recipe(), seed=1, parts=1) | settings
        return Trainer(model, task or Fixed(A), tmp_path, **settings).fingerprint()

    expected = fingerprint()
    assert {"version", "d_model", "rate", "task", *CHANGES} <= expected.keys()
    for change in CHANGES.get(fact, [dict(weight=0.5 if fact else 0.0)]):
        found = fingerprint(**change)
        assert found.keys() == expected.keys()
        assert {name for name in found if found[name] != expected[name]} == {fact} - {None}
    one, other = (fingerprint(Fixed(A, pair)) for pair in (B, C))
    assert one != other  # in the second batch of a list


@pytest.mark.parametrize(("former", "expected"), [("kept", True), ("metadata", False)])
def test_a_task_s_metadata_by_its_former_name(tmp_path, recwarn, former, expected):
    task = Copying()
    task.kept, task.metadata = {"language": "de"}, {"language": "de"}
    if former == "kept":
        del task.metadata
    train(tiny(), task, tmp_path, Schedule(1), recipe(), parts=1)
    found = [(str(w.message), w.filename) for w in recwarn if w.category is DeprecationWarning]
    assert found == ([("Task.kept is now Task.metadata", __file__)] if expected else [])


def test_ctrl_c_in_another_rank_stops_the_run(tmp_path, monkeypatch):
    update = InTurn.update

    def interrupted_update(self, rate):
        update(self, rate)
        self.interrupted = self.optimizer.steps == 2

    monkeypatch.setattr(InTurn, "update", interrupted_update)
    with pytest.raises(Interrupted, match="stopped at step 2, which is saved"):
        run(tmp_path)


def test_ranks_with_cards_compare_and_scale_on_the_host(tmp_path, stand_in, monkeypatch):
    """Rank 0 decides for all ranks, so it has the numbers of every step."""
    distributed = SimpleNamespace(init_process_group=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "cupyx", ModuleType("cupyx"))
    monkeypatch.setitem(sys.modules, "cupyx.distributed", distributed)
    settings = recipe(precision="mixed"), 1, stand_in, 2, Threads(0, 2, {})
    trainer = Trainer(tiny(), Fixed(A), tmp_path, 7, *settings)
    assert isinstance(trainer.parameters.data, stand_in.ndarray)
    assert not isinstance(trainer.loss_scale.scale, stand_in.ndarray)
    assert isinstance(trainer.fingerprint()["the initial weights' checksum"], int)
