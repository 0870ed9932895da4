"""Runs that begin with the weights of another, and flags from a file."""

import json
from pathlib import Path

import pytest

from numformer.training import load_model
from tests.equal_runs import assert_same_weights, without_seconds
from tests.toy_tasks.small import RUN, TINY, copying
from toy_tasks import masked, pairs, shakespeare, write
from toy_tasks.kit import options, training

TEXT = "sea shells, she sells " * 40


@pytest.fixture
def begun(monkeypatch):
    """The weights that each run begins with, by its folder."""
    weights, train = {}, training.train

    def noted(model, task, folder, *others, **how):
        weights[str(folder)] = model.state_dict()
        return train(model, task, folder, *others, **how)

    monkeypatch.setattr(training, "train", noted)
    return weights


def write_pairs(name: str, letters: str) -> None:
    words = [f"{a}{b}{n}" for a in letters for b in letters for n in range(9)]
    Path(name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))


def test_pairs_begin_with_the_weights_sizes_and_symbols_of_a_run(
    succeed, call, begun, interrupted_at
):
    write_pairs("a.tsv", "abcd")
    write_pairs("b.tsv", "abxy")
    succeed(pairs.main, f"{RUN} --words target --data a.tsv")
    flags = "--data b.tsv --start runs/pairs-a --steps 6 --evaluate-every 2 --batch-size 4"
    out = succeed(pairs.main, f"{flags} --no-plots")
    assert "runs/pairs-a has no 'x' 'y' in its source: unknown to its model" in out
    assert "begins with the weights of runs/pairs-a" in out
    started, _ = load_model(Path("runs/pairs-a/best.safetensors"))
    assert_same_weights(begun["runs/pairs-b"], started.state_dict())
    for step in (1, 5):  # before and after the run has a best model of its own
        with interrupted_at(step):
            call(pairs.main, f"{flags} --no-plots --out mine-{step}")
    succeed(pairs.main, "--resume --out mine-1")
    Path("runs/pairs-a").rename("elsewhere")
    out = succeed(pairs.main, "--resume --out mine-5 --start runs/pairs-a")
    assert not any("has no" in line for line in out)
    straight = without_seconds(Path("runs/pairs-b"))
    assert without_seconds(Path("mine-1")) == without_seconds(Path("mine-5")) == straight


def test_every_kind_of_text_begins_with_the_weights_of_a_run(succeed, refuse, begun):
    Path("a.txt").write_text(TEXT)
    Path("b.txt").write_text(TEXT.replace("she sells", "he tells"))
    for main, name, parts in (
        (write.main, "write", ("",)),
        (masked.main, "masked", ("", "/one-side")),
    ):
        flags = "--context 8 --steps 1 --no-plots"
        succeed(main, f"{TINY} {flags} --data a.txt")
        out = succeed(main, f"{flags} --data b.txt --start runs/{name}")
        assert f"runs/{name} has no 't' in its vocabulary: unknown to its model" in out
        for part in parts:
            started, _ = load_model(Path(f"runs/{name}{part}/best.safetensors"))
            assert_same_weights(begun[f"runs/{name}-2{part}"], started.state_dict())
    refuse(write.main, f"{flags} --data a.txt --start runs/write --out runs/masked", "new or empty")


def test_what_does_not_fit_a_run_is_named(call, refuse):
    write_pairs("a.tsv", "abcd")
    Path("a.txt").write_text(TEXT)
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


def test_flags_come_from_a_file_or_a_run_and_those_of_the_command_line_win(call):
    Path("mine.toml").write_text(
        "d-model = 8\nd_ff = 8\nheads = 1\nlayers = 1\nsteps = 4\n"
        'no-plots = true\nfeed-forward-bias = false\nnorm = "pre"\nbatch-size = 4\n'
    )
    call(copying, "--config mine.toml --norm post --out a")
    saved = json.loads(Path("a/config.json").read_text())["options"]
    flags = "d_model", "steps", "no_plots", "feed_forward_bias", "norm", "seed"
    assert [saved[flag] for flag in flags] == [8, 4, True, False, "post", 1]
    for out, file in {"b": "a", "c": "a/config.json"}.items():
        call(copying, f"--config {file} --out {out}")
        assert without_seconds(Path(out)) == without_seconds(Path("a"))


NO_FLAGS = {
    "stepz = 5": "(unrecognized arguments: --stepz; is --steps meant?)",
    'steps = "many"': "argument --steps: an integer below",
    "steps: 5": "Expected '='",
    "[model]\nsteps = 5": "unrecognized arguments: --model",
    "[steps]\nof = 5": "steps is no flag: a file of flags has no tables",
    "no-plots = 3": "no_plots is true or false, not 3",
    'config = "a"': "config stands on the command line alone",
    "options = 3": "as in steps = 500",
}


def test_a_file_that_holds_no_flags_is_refused(refuse):
    for content, said in NO_FLAGS.items():
        Path("a.toml").write_text(content)
        refuse(copying, "--config a.toml", "received a.toml (", said, "copy_task --help")
    for flags in ("--resume", "--run a"):
        refuse(copying, f"--config a.toml {flags}", "--config", "Leave")
    refuse(copying, "--config b", "b must be a file that can be read")


def test_a_preset_may_stand_in_a_file_but_not_beside_all_the_flags_of_a_run():
    def parse(flags):
        made = write.kit.parser("x", "", write.LanguageModel, presets=shakespeare.PRESETS)
        write.add_flags(made)
        return options.parse(made, lambda options: "x", flags.split())

    Path("a.toml").write_text('preset = "hour"\nd-ff = 8')
    parsed = parse("--config a.toml")
    assert (parsed.preset, parsed.d_ff, parsed.d_model) == ("hour", 8, 160)
    assert parse("--config a.toml --preset quarter").steps == 6000
    Path("run.json").write_text('{"options": {"preset": "hour", "d_ff": 8, "patience": null}}')
    assert parse("--config run.json --preset hour").d_ff == 8
    with pytest.raises(ValueError, match="leave out --preset quarter"):
        parse("--config run.json --preset quarter")
