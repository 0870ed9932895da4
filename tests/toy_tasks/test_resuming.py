"""Runs that go on: to the same bits as straight ones, with their settings, or refused unharmed."""

import functools
from pathlib import Path

import pytest

from tests.equal_runs import without_seconds
from tests.toy_tasks.small import RUN, TINY, assert_refused, copying, files_of
from toy_tasks import pairs, pronounce, sort
from toy_tasks.kit import sequences


def test_a_resumed_run_is_the_straight_run(call, interrupted_at):
    assert call(copying, *RUN.split(), "--out", "straight")[0] == 1
    with interrupted_at(5):
        code, _, err = call(copying, *RUN.split())
    assert code == 130 and err[0].startswith("stopped at step 5, which is saved; go on")
    config = Path("runs/copy_task/config.json").read_text()
    code, out, err = call(copying, "--resume")
    assert (code, err) == (1, [])  # the target is missed as before
    assert out[0] == "going on with runs/copy_task, after step 5 of 6"
    assert Path("runs/copy_task/config.json").read_text() == config
    assert without_seconds(Path("runs/copy_task")) == without_seconds(Path("straight"))
    assert len(list(Path("runs").iterdir())) == 1


def test_a_finished_run_is_resumed_by_testing_it_again(call):
    """The latest, unless --out names another."""
    for name in ("copy_task", "copy_task-2"):
        assert call(copying, *RUN.split())[1][0].startswith(f"runs/{name}: ")
    before = Path("runs/copy_task-2/metrics.jsonl").read_bytes()
    for flags, name in ([], "copy_task-2"), (["--out", "runs/copy_task"], "copy_task"):
        code, out, _ = call(copying, "--resume", *flags)
        assert code == 1 and out[0] == f"runs/{name} is finished: all 6 steps were taken"
    assert Path("runs/copy_task-2/metrics.jsonl").read_bytes() == before


def test_a_run_goes_on_for_more_steps_where_its_rate_does_not_know_the_end(call, interrupted_at):
    """As one that was asked for them at once; then config.json says so, too."""
    flags = [*TINY.split(), *"--evaluate-every 2 --log-every 2 --decay inverse_sqrt".split()]
    assert call(copying, *flags, "--steps", "8", "--out", "straight")[0] == 1
    assert call(copying, *flags, "--steps", "4")[0] == 1
    with interrupted_at(6):
        assert call(copying, "--resume", "--steps", "8")[0] == 130
    code, out, _ = call(copying, "--resume")  # which knows of 8 by now
    assert code == 1 and out[0] == "going on with runs/copy_task, after step 6 of 8"
    assert without_seconds(Path("runs/copy_task")) == without_seconds(Path("straight"))


@pytest.mark.parametrize(("old", "new"), [("a", "x"), ("ba\tB A", "ba\tA B")])
def test_a_run_on_other_data_is_refused(old, new, data, call):
    """As many words of other symbols are other data, and so are others of the same symbols."""
    call(pronounce.main, "--language", "toy", *RUN.split(), "--data", str(data))
    before = files_of("runs")
    for path in data.iterdir():
        path.write_text(path.read_text().replace(old, new))
    code, _, err = call(pronounce.main, "--resume", "--language", "toy")
    assert_refused((code, [], err), "data that it was started with")
    assert files_of("runs") == before


def test_a_resumed_run_keeps_its_settings_and_its_script(call):
    call(copying, *RUN.split())
    before = files_of("runs")
    for flags, key in (
        ("--d-model 16", "d_model"),
        ("--seed 3", "seed"),
        ("--attention-bias", "attention_bias"),
        ("--quick --out runs/copy_task", "quick"),
    ):
        words = f"here {key} = ", f"Leave out --{key.replace('_', '-')}"
        assert_refused(call(copying, "--resume", *flags.split()), *words)
    sorting = functools.partial(sequences.main, sort.RULE)
    refused = call(sorting, "--resume", "--out", "runs/copy_task")
    assert_refused(refused, "a run of copy_task", "python -m toy_tasks.copy_task")
    assert files_of("runs") == before


def test_a_damaged_config_json_is_refused(call):
    Path("mine").mkdir()
    for content in ("", "[]", "{}", '{"crc32": 0}', "[" * 10**5):
        Path("mine/config.json").write_text(content)
        assert_refused(call(copying, "--resume", "--out", "mine"), "config.json", "received mine")


@pytest.fixture
def tables():
    """Two files of pairs, which are named as one file and its second run would be."""
    for name, shift in (("n", 0), ("n-2", 7)):
        numbers = range(100 + shift, 140 + shift)
        Path(f"{name}.tsv").write_text("".join(f"{n}\t{str(n)[::-1]}\n" for n in numbers))


def test_without_out_the_latest_run_of_the_task_and_its_data_goes_on(tables, call):
    """Whatever its folder is called."""
    for name in ("n", "n-2"):
        assert call(pairs.main, *RUN.split(), "--data", f"{name}.tsv")[0] == 0
    call(copying, *RUN.split())
    Path("runs/pairs-n").rename("runs/mine")
    Path("runs/old").mkdir()
    Path("runs/old/config.json").write_text("{}")
    for flags, folder in (
        ("", "runs/pairs-n-2"),
        ("--data n.tsv", "runs/mine"),
        ("--data ./n-2.tsv", "runs/pairs-n-2"),
    ):
        code, out, _ = call(pairs.main, "--resume", *flags.split())
        assert code == 0 and any(line.startswith(f"{folder} is finished") for line in out)
    for flags in ("--data absent.tsv", "--demo dates", "--quick"):
        said = f"received no run of pairs with {flags} under runs/. Start one without --resume"
        assert_refused(call(pairs.main, "--resume", *flags.split()), said)
