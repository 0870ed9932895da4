"""Runs that go on: to the same bits as straight ones, with their settings, or refused unharmed."""

from pathlib import Path

import pytest

from tests.equal_runs import without_seconds
from tests.toy_tasks.small import RUN, TINY, copying, main_of
from toy_tasks import pairs, pronounce


def test_a_resumed_run_is_the_straight_run(call, interrupted_at):
    call(copying, f"{RUN} --out straight")
    with interrupted_at(5):
        code, _, err = call(copying, RUN)
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
        assert call(copying, RUN)[1][0].startswith(f"runs/{name}: ")
    before = Path("runs/copy_task-2/metrics.jsonl").read_bytes()
    for flags, name in {"": "copy_task-2", "--out runs/copy_task": "copy_task"}.items():
        code, out, _ = call(copying, f"--resume {flags}")
        assert code == 1 and out[0] == f"runs/{name} is finished: all 6 steps were taken"
    assert Path("runs/copy_task-2/metrics.jsonl").read_bytes() == before


def test_a_run_goes_on_for_more_steps_where_its_rate_does_not_know_the_end(call, interrupted_at):
    """As one that was asked for them at once; then config.json says so, too."""
    flags = f"{TINY} --evaluate-every 2 --log-every 2 --decay inverse_sqrt --steps"
    call(copying, f"{flags} 8 --out straight")
    call(copying, f"{flags} 4")
    with interrupted_at(6):
        assert call(copying, "--resume --steps 8")[0] == 130
    code, out, _ = call(copying, "--resume")  # which knows of 8 by now
    assert code == 1 and out[0] == "going on with runs/copy_task, after step 6 of 8"
    assert without_seconds(Path("runs/copy_task")) == without_seconds(Path("straight"))


@pytest.mark.parametrize(("old", "new"), [("a", "x"), ("ba\tB A", "ba\tA B")])
def test_a_run_on_other_data_is_refused(old, new, data, succeed, refuse):
    """As many words of other symbols are other data, and so are others of the same symbols."""
    succeed(pronounce.main, f"{RUN} --language toy --data words")
    for path in data.iterdir():
        path.write_text(path.read_text().replace(old, new))
    refuse(pronounce.main, "--resume --language toy", "data that it was started with", tells=True)


def test_a_resumed_run_keeps_its_settings_and_its_script(call, refuse):
    call(copying, RUN)
    for flags, key in {
        "--d-model 16": "d_model",
        "--seed 3": "seed",
        "--attention-bias": "attention_bias",
        "--quick --out runs/copy_task": "quick",
    }.items():
        leave = f"Leave out --{key.replace('_', '-')}"
        refuse(copying, f"--resume {flags}", f"here {key} = ", leave)
    words = "a run of copy_task", "python -m toy_tasks.copy_task"
    refuse(main_of("sort"), "--resume --out runs/copy_task", *words)


def test_a_damaged_config_json_is_refused(refuse):
    Path("mine").mkdir()
    for content in ("", "[]", "{}", '{"crc32": 0}', "[" * 10**5):
        Path("mine/config.json").write_text(content)
        refuse(copying, "--resume --out mine", "config.json", "received mine")


def test_without_out_the_latest_run_of_the_task_and_its_data_goes_on(call, succeed, refuse):
    """Whatever its folder is called, or as one file and its second run would be."""
    for name, shift in {"n": 100, "n-2": 107}.items():
        numbers = range(shift, shift + 40)
        Path(f"{name}.tsv").write_text("".join(f"{n}\t{str(n)[::-1]}\n" for n in numbers))
        succeed(pairs.main, f"{RUN} --data {name}.tsv")
    call(copying, RUN)
    Path("runs/pairs-n").rename("runs/mine")
    Path("runs/old").mkdir()
    Path("runs/old/config.json").write_text("{}")
    for flags, folder in {
        "": "runs/pairs-n-2",
        "--data n.tsv": "runs/mine",
        "--data ./n-2.tsv": "runs/pairs-n-2",
    }.items():
        out = succeed(pairs.main, f"--resume {flags}")
        assert any(line.startswith(f"{folder} is finished") for line in out)
    for flags in ("--data absent.tsv", "--demo dates", "--quick"):
        said = f"received no run of pairs with {flags} under runs/. Start one without --resume"
        refuse(pairs.main, f"--resume {flags}", said)
