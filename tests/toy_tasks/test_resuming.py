"""Runs that go on, to the same bits as straight ones, or begin with the weights of another."""

import os
from pathlib import Path

import pytest

from numformer.runs import load_model
from tests.equal_runs import assert_same_weights, without_seconds
from tests.toy_tasks.small import RUN, TINY, copying, interrupted_at, main_of
from toy_tasks import masked, pairs, pronounce, write
from toy_tasks.command_line import training

TEXT = "sea shells, she sells " * 40


def test_a_resumed_run_is_the_straight_run(call):
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


def test_a_run_goes_on_for_more_steps_where_its_rate_does_not_know_the_end(call, refuse):
    """As one that was asked for them at once; then config.json says so, too."""
    flags = f"{TINY} --evaluate-every 2 --log-every 2 --decay inverse_sqrt --steps"
    call(copying, f"{flags} 8 --out straight")
    call(copying, f"{flags} 4")
    with interrupted_at(6):
        assert call(copying, "--resume --steps 8")[0] == 130
    code, out, _ = call(copying, "--resume")  # config.json says 8 by now
    assert code == 1 and out[0] == "going on with runs/copy_task, after step 6 of 8"
    assert without_seconds(Path("runs/copy_task")) == without_seconds(Path("straight"))
    refuse(copying, "--resume --steps 7", "steps 7 for a run that has taken 8")


@pytest.mark.parametrize(("old", "new"), [("a", "x"), ("ba\tB A", "ba\tA B")])
def test_a_run_on_other_data_is_refused(old, new, data, succeed, refuse):
    """As many words of other symbols are other data, and so are others of the same symbols."""
    succeed(pronounce.main, f"{RUN} --language toy --data words")
    for path in data.iterdir():
        path.write_text(path.read_text().replace(old, new))
    differ = "received a task whose data differ from those of runs/pronounce-toy"
    refuse(pronounce.main, "--resume --language toy", differ, tells=True)


def test_a_resumed_run_keeps_its_settings_and_its_script(call, refuse):
    call(copying, RUN)
    for flags in ("--d-model 16", "--seed 3", "--attention-bias", "--quick --out runs/copy_task"):
        flag = flags.split()[0]
        here = f"here {flag.strip('-').replace('-', '_')} = "
        refuse(copying, f"--resume {flags}", here, f"Leave out {flag}")
    words = "a run of copy_task", "python -m toy_tasks.copy_task"
    for other in ("sort", "write"):
        refuse(main_of(other), "--resume --out runs/copy_task", *words)


def test_a_damaged_config_json_is_refused(refuse):
    refuse(copying, "--resume --out absent", "received absent (there is no such folder)")
    Path("mine").mkdir()
    for content in ("", "[]", "{}", '{"crc32": 0}', "[" * 10**5):
        Path("mine/config.json").write_text(content)
        refuse(copying, "--resume --out mine", "config.json", "received mine")


def test_the_latest_run_of_a_task_and_its_data_is_resumed_or_that_of_out(call, succeed, refuse):
    """Whatever its folder is called. One that is finished is tested again."""
    for name, letters in {"n": "abcd", "n-2": "abxy"}.items():
        write_pairs(f"{name}.tsv", letters)
        succeed(pairs.main, f"{RUN} --data {name}.tsv")
    call(copying, RUN)
    Path("runs/pairs-n").rename("runs/mine")
    Path("runs/old").mkdir()
    Path("runs/old/config.json").write_text("{}")
    metrics = {path: path.read_bytes() for path in Path().glob("runs/*/metrics.jsonl")}
    for flags, folder in {
        "": "runs/pairs-n-2",
        "--out runs/mine": "runs/mine",
        "--data n.tsv": "runs/mine",
        "--data ./n-2.tsv": "runs/pairs-n-2",
    }.items():
        out = succeed(pairs.main, f"--resume {flags}")
        assert f"{folder} is finished: all 6 steps were taken" in out
    os.utime("runs/mine/config.json")  # the latest by its time, though not by its name
    assert "runs/mine is finished: all 6 steps were taken" in succeed(pairs.main, "--resume")
    code, out, _ = call(copying, "--resume")  # which misses its target as before
    assert code == 1 and out[0].startswith("runs/copy_task is finished")
    assert {path: path.read_bytes() for path in metrics} == metrics
    for flags in ("--data absent.tsv", "--demo dates", "--quick"):
        message = f"received no run of pairs with {flags} under runs/. Start one without --resume"
        hint = "" if flags == "--quick" else " (for a quick run, add --quick)"
        refuse(pairs.main, f"--resume {flags}", f"{message}, or name its folder with --out{hint}")


@pytest.fixture
def first_weights(monkeypatch):
    """The weights that each run begins with, by its folder."""
    weights, train = {}, training.train

    def noting(model, task, folder, *others, **settings):
        weights[str(folder)] = model.state_dict()
        return train(model, task, folder, *others, **settings)

    monkeypatch.setattr(training, "train", noting)
    return weights


def write_pairs(name: str, letters: str) -> None:
    words = [f"{a}{b}{n}" for a in letters for b in letters for n in range(9)]
    Path(name).write_text("".join(f"{word}\t{word[-1]}0\n" for word in words))


def test_pairs_begin_with_the_weights_sizes_and_symbols_of_a_run(succeed, call, first_weights):
    write_pairs("a.tsv", "abcd")
    write_pairs("b.tsv", "abxy")
    succeed(pairs.main, f"{RUN} --words target --data a.tsv")
    flags = "--data b.tsv --start runs/pairs-a --steps 6 --evaluate-every 2 --batch-size 4"
    out = succeed(pairs.main, f"{flags} --activation gelu --no-plots")
    assert "activation is gelu; in runs/pairs-a it was relu" in out
    fate = "each becomes the unknown symbol, which the model never writes"
    assert f"runs/pairs-a lacks the symbols 'x' 'y'; {fate}" in out
    assert "begins with the weights of runs/pairs-a" in out
    started, _ = load_model(Path("runs/pairs-a/best.safetensors"))
    assert_same_weights(first_weights["runs/pairs-b"], started.state_dict())
    for step in (1, 5):  # before and after the run has a best model of its own
        with interrupted_at(step):
            call(pairs.main, f"{flags} --activation gelu --no-plots --out mine-{step}")
    succeed(pairs.main, "--resume --out mine-1")
    Path("runs/pairs-a").rename("elsewhere")
    out = succeed(pairs.main, "--resume --out mine-5 --start runs/pairs-a")
    assert not any("lacks" in line for line in out)
    straight = without_seconds(Path("runs/pairs-b"))
    assert without_seconds(Path("mine-1")) == without_seconds(Path("mine-5")) == straight


def test_every_kind_of_text_begins_with_the_weights_of_a_run(succeed, refuse, first_weights):
    Path("a.txt").write_text(TEXT)
    Path("b.txt").write_text(TEXT.replace("she sells", "he sells"))
    Path("t.txt").write_text(TEXT.replace("she sells", "he tells"))
    for main, name, parts in (
        (write.main, "write-a", ("",)),
        (masked.main, "masked-a", ("", "/one-side")),
    ):
        flags = "--context 8 --steps 1 --no-plots"
        succeed(main, f"{TINY} {flags} --data a.txt")
        succeed(main, f"{flags} --data b.txt --start runs/{name}")
        refuse(main, f"{flags} --data t.txt --start runs/{name}", "the vocabulary symbols 't'.")
        for part in parts:
            started, _ = load_model(Path(f"runs/{name}{part}/best.safetensors"))
            assert_same_weights(first_weights[f"runs/{name[:-1]}b{part}"], started.state_dict())
    refuse(
        write.main,
        f"{flags} --data a.txt --start runs/write-a --out runs/masked-a",
        "new or empty; received runs/masked-a. Choose another folder, or continue the run in it",
    )


def test_start_names_what_does_not_fit_the_run(call, refuse):
    write_pairs("a.tsv", "abcd")
    Path("a.txt").write_text(TEXT)
    Path("z.tsv").write_text("".join(f"x{'z' * n}\ty\n" for n in range(99)))
    call(copying, RUN)
    call(copying, f"{RUN} --layers 2 --out runs/two")
    call(pairs.main, f"{RUN} --words target --data a.tsv")
    a, copied = "--data a.tsv --start runs/pairs-a", "--start runs/copy_task"
    for main, flags, *words in (
        (copying, "--start absent", "received absent, which is not there"),
        (copying, "--start runs/pairs-a", "symbols of this task; received runs/pairs-a"),
        (copying, f"{copied} --d-ff 9", "encoder.layers.0.feed_forward", "here (8, 9)", "others"),
        (copying, f"{copied} --layers 2", "in runs/copy_task none, and "),
        (copying, "--start runs/two --layers 1", "here none, in runs/two ("),
        (pairs.main, f"{a} --words source", "--words 'target'; received --words 'source'"),
        (write.main, f"--data a.txt {copied}", "without a vocabulary 'vocabulary'"),
        (copying, f"--run runs/copy_task --input 1 {copied}", "received --start"),
    ):
        refuse(main, flags, *words)
    Path("t.tsv").write_text(Path("a.tsv").read_text().replace("\t80", "\t8!"))
    lacks = "every symbol of this data; received runs/pairs-a without the target symbols '8!'."
    refuse(pairs.main, "--data t.tsv --start runs/pairs-a", lacks, tells=True)
    strange = "--data z.tsv --start runs/pairs-a"
    refuse(pairs.main, strange, "runs/pairs-a, which has none of the source symbols", tells=True)
