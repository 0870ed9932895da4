"""Flags: the highest rate, and a file or a run that holds them."""

import functools
import json
from pathlib import Path

import pytest

from numformer.models import Transformer
from tests.equal_runs import logged, without_seconds
from tests.toy_tasks.small import RUN, copying
from toy_tasks import pairs, shakespeare, write
from toy_tasks.command_line import build_parser, options


def test_the_highest_rate_is_that_of_rate(call, refuse):
    how = f"{RUN} --warmup 4 --log-every 1 --rate 0.002"
    call(copying, how)
    rates = logged(run := Path("runs/copy_task"), "rate")
    assert max(rates) == rates[3] == pytest.approx(0.002)
    assert json.loads((run / "config.json").read_text())["options"]["rate"] == 0.002
    assert call(copying, "--resume --rate 0.002")[0] < 2
    refuse(copying, f"{how} --factor 3", "by --rate or by --factor; received both")
    for wrong in ("0", "-1", "inf", "nan"):
        refuse(copying, f"--rate {wrong}", "--rate is a number above 0; received")


def test_help_says_what_is_made_of_words_without_a_flag(succeed):
    said = " ".join(" ".join(succeed(pairs.main, "--help")).split())
    assert "alone: both (default: neither)" in said and "(default: )" not in said
    assert "sums (5.4) (default: 0.1)" in said and "over all symbols" in said
    said = " ".join(" ".join(succeed(copying, "--help")).split())
    assert "sums (5.4) (default: 0.0)" in said and "(default: False)" not in said


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


def test_a_file_that_holds_no_flags_is_refused(refuse):
    for content, said in {
        "stepz = 5": "(unrecognized arguments: --stepz; is --steps meant?)",
        'steps = "many"': "argument --steps: an integer below",
        "steps: 5": "Expected '='",
        "[model]\nsteps = 5": "unrecognized arguments: --model",
        "[steps]\nof = 5": "steps is no flag: a file of flags has no tables",
        "no-plots = 3": "no_plots is true or false, not 3",
        'config = "a"': "config stands on the command line alone",
        "options = 3": "as in steps = 500",
    }.items():
        Path("a.toml").write_text(content)
        refuse(copying, "--config a.toml", "received a.toml (", said, "copy_task --help")
    for flags in ("--resume", "--run a"):
        refuse(copying, f"--config a.toml {flags}", "--config", "Leave")
    refuse(copying, "--config b", "b must be a file that can be read")


def test_a_preset_may_stand_in_a_file_but_not_beside_all_the_flags_of_a_run():
    def parse(flags):
        made = build_parser("x", "", write.LanguageModel, presets=shakespeare.PRESETS)
        write.add_flags(made)
        return options.parse_options(made, lambda options: "x", flags.split())

    Path("a.toml").write_text('preset = "hour"\nd-ff = 8')
    parsed = parse("--config a.toml")
    assert (parsed.preset, parsed.d_ff, parsed.d_model) == ("hour", 8, 160)
    assert parse("--config a.toml --preset quarter").steps == 6000
    Path("run.json").write_text('{"options": {"preset": "hour", "d_ff": 8, "patience": null}}')
    assert parse("--config run.json --preset hour").d_ff == 8
    with pytest.raises(ValueError, match="leave out --preset quarter"):
        parse("--config run.json --preset quarter")


def test_settings_of_an_optimizer_that_is_not_chosen(complaint):
    """A task's own go with its optimizer; what is asked for is refused, also where a file asks."""
    made = build_parser("x", "", Transformer, optimizer="adamw", weight_decay=0.1)
    read = functools.partial(options.parse_options, made, lambda options: "x")
    assert read(["--optimizer", "lion"]).weight_decay == read([]).weight_decay == 0.1
    assert read(["--optimizer", "adam"]).weight_decay == 0.01
    Path("a.toml").write_text("weight-decay = 0.3")
    for asked in (["--weight-decay", "0.3"], ["--config", "a.toml"]):
        said = complaint(read, ["--optimizer", "adam", *asked])
        assert "--weight-decay is for --optimizer adamw, lion" in said
        assert read(asked).weight_decay == 0.3


def test_help_says_whose_a_setting_of_optimizers_is(succeed):
    said = " ".join(" ".join(succeed(copying, "--help")).split())
    own = said.partition("optimizer (numformer.optimization.optimizers): ")[2]
    assert own.startswith(
        "--beta1 BETA1 decay of the mean gradient (5.3); of adam, adamw, lion, muon"
    )
    assert "hidden matrix; of muon (default: 0.95)" in own and "--weight-decay" in own
