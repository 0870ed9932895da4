"""Flags: the highest rate, flags from a file or a run, and those of optimizers."""

import contextlib
import functools
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from numformer.models import Transformer
from numformer.optimization import Recipe
from tests.equal_runs import logged, without_seconds
from tests.toy_tasks.small import RUN, copying, main_of
from toy_tasks import TASKS, pairs, shakespeare, write
from toy_tasks.command_line import build_parser, options


def test_rate_sets_the_highest_rate(call, refuse, complaint):
    flags = f"{RUN} --warmup 4 --log-every 1 --rate 0.002"
    call(copying, flags)
    rates = logged(run := Path("runs/copy_task"), "rate")
    assert max(rates) == rates[3] == pytest.approx(0.002)
    recipe = json.loads((run / "config.json").read_text())["recipe"]
    python_recipe = Recipe(rate=0.002, warmup=4)
    assert python_recipe.learning_rate(4, 6, 8) == pytest.approx(0.002)
    assert python_recipe.with_factor(8).factor == recipe["factor"] and recipe["rate"] is None
    assert "received rate 0.002 and factor 3" in complaint(Recipe, rate=0.002, factor=3)
    assert json.loads((run / "config.json").read_text())["options"]["rate"] == 0.002
    assert call(copying, "--resume --rate 0.002")[0] < 2
    refuse(copying, f"{flags} --factor 3", "by --rate or by --factor; received both")
    for rate in ("0", "-1", "inf", "nan"):
        refuse(copying, f"--rate {rate}", "rate is a number above 0, or None; received")


@pytest.mark.parametrize(
    ("flags", "steps"), [("--quick", 20), ("--quick --steps 5", 5), ("--steps 30", 30)]
)
def test_a_quick_run_has_at_most_20_steps(flags, steps):
    assert write.read_options([*flags.split(), "--data", "text.txt"]).steps == steps


def test_help_has_the_defaults_of_flags(succeed):
    text = " ".join(" ".join(succeed(pairs.main, "--help")).split())
    assert "without a value: both (default: neither)" in text and "(default: )" not in text
    assert "sums (5.4) (default: 0.1)" in text and "over all symbols" in text
    text = " ".join(" ".join(succeed(copying, "--help")).split())
    assert "sums (5.4) (default: 0.0)" in text and "(default: False)" not in text


def test_flags_come_from_a_file_or_a_run_and_those_of_the_command_line_win(call):
    Path("mine.toml").write_text(
        "d-model = 8\nd_ff = 8\nheads = 1\nlayers = 1\nsteps = 4\n"
        'no-plots = true\nfeed-forward-bias = false\nnorm = "pre"\nbatch-size = 4\n'
    )
    call(copying, "--config mine.toml --norm post --out a")
    saved = json.loads(Path("a/config.json").read_text())["options"]
    flags = "d_model", "steps", "no_plots", "feed_forward_bias", "norm", "seed"
    assert [saved[flag] for flag in flags] == [8, 4, True, False, "post", 1]
    call(copying, "--config mine.toml --norm post --save-settings all.toml")
    for out, file in {"b": "a", "c": "a/config.json", "d": "all.toml"}.items():
        call(copying, f"--config {file} --out {out}")
        assert without_seconds(Path(out)) == without_seconds(Path("a"))


def test_a_flag_of_the_command_line_replaces_those_of_a_file_that_it_excludes():
    for file, flags, replaced in [
        ("epochs = 3", "--steps 5", "epochs"),
        ("epochs = 3", "--quick", "epochs"),
        ("quick = true", "--epochs 3", "quick"),
        ("rate = 0.1", "--factor 3", "rate"),
        ("factor = 3", "--rate 0.1", "factor"),
        ('data = "b.tsv"', "--demo dates", "data"),
        ("subwords = 99", "--words", "subwords"),
    ]:
        data = "" if "demo" in flags else '\ndata = "a.tsv"'
        Path("a.toml").write_text(f"{file}{data}\nheads = 3")
        read = pairs.read_options(f"--config a.toml {flags}".split())
        default = pairs.read_options(["--demo", "dates"])
        assert read.heads == 3 and getattr(read, replaced) == getattr(default, replaced), file


@pytest.mark.parametrize("name", TASKS)
def test_saved_settings_are_those_of_the_command(name, succeed, refuse):
    """The command with --config has the same settings, on the same data, in any folder."""
    flags = "--minutes 0.5 --no-plots --clip-norm 1e-9 --log-to csv wandb --evaluate-every 7"
    flags += {"pairs": " --data é.tsv b.tsv c.tsv --epochs 3 --words"}.get(name, "")
    flags += {"shakespeare": " --preset hour --rate 0.01", "write": " --data a.txt"}.get(name, "")
    main = main_of(name)
    assert succeed(main, f"{flags} --save-settings new/a.toml") == ["settings: new/a.toml"]
    refuse(main, f"{flags} --save-settings new/a.toml", "to a new FILE.toml; received new/a.toml")
    refuse(main, f"{flags} --save-settings a.json", "to a new FILE.toml; received a.json")
    with contextlib.chdir("new"):
        succeed(main, "--config a.toml --save-settings b.toml")
        text = Path("a.toml").read_text()
        assert Path("b.toml").read_text() == text and "clip-norm = 1e-09\n" in text
    if "--data" in flags:  # such a file moves together with the data beside it
        succeed(main, f"{flags} --save-settings beside.toml")
        assert text.replace(f"{Path.cwd()}/", "") == Path("beside.toml").read_text()
        with contextlib.chdir("new"):
            succeed(main, "--config ../beside.toml --save-settings c.toml")
            assert Path("c.toml").read_text() == text
    assert ("epochs = 3" in text) == (name == "pairs") == ("steps = " not in text)


@pytest.mark.parametrize("name", [*TASKS, "compare", "heads", "listen"])
def test_a_shell_completes_the_flags_of_every_program(name, call, monkeypatch):
    """argcomplete looks for a line in the file, then calls the program, which hands it a parser."""
    parsers, module = [], importlib.import_module(f"toy_tasks.{name}")
    package = SimpleNamespace(autocomplete=parsers.append)
    monkeypatch.setitem(sys.modules, "argcomplete", package)
    assert Path(module.__file__).read_text().startswith("# PYTHON_ARGCOMPLETE_OK\n")
    main = main_of(name) if name in TASKS else module.main
    assert call(main, "--help")[0] == 0 and not parsers
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    call(main, "--help")
    assert ("--run" if name == "listen" else "--out") in parsers[0].format_help()


def test_relative_paths_of_data_in_a_file_of_flags_start_at_its_folder(refuse):
    Path("far/data").mkdir(parents=True)
    Path("far/data/b.tsv").write_text("")
    here = Path("here.tsv").absolute()
    for data, paths in {
        '"a.tsv"': "far/a.tsv",
        f'"{here}"': str(here),
        '["data/b.tsv", "c.tsv", "d.tsv"]': "far/data/b.tsv far/c.tsv far/d.tsv",
    }.items():
        Path("far/own.toml").write_text(f"data = {data}\n")
        assert pairs.read_options(["--config", "far/own.toml"]).data == paths.split()
    refuse(pairs.main, "--config far/own.toml", "far/data/b.tsv must hold at least one pair")
    Path("far/own.toml").write_text("data = 3\n")
    assert pairs.read_options(["--config", "far/own.toml"]).data == ["3"]


def test_a_file_with_other_things_than_flags_is_refused(refuse):
    for content, problem in {
        "stepz = 5": "(unrecognized arguments: --stepz; is --steps meant?)",
        'steps = "many"': "argument --steps: an integer, not 'many'",
        f"steps = {'9' * 19}": f"an integer of at most 18 digits, not '{'9' * 19}'",
        "steps = 2.5": "an integer, not '2.5'",
        "steps: 5": "Expected '='",
        "[model]\nsteps = 5": "model is not a flag: a file of flags has no tables",
        "[[steps]]\nof = 5": "steps is not a flag: a file of flags has no tables",
        "[steps]\nof = 5": "steps is not a flag: a file of flags has no tables",
        "no-plots = 3": "no_plots is true or false, not 3",
        'config = "a"': "config may only be on the command line",
        "options = 3": "as in steps = 500",
    }.items():
        Path("a.toml").write_text(content)
        refuse(copying, "--config a.toml", "received a.toml (", problem, "copy_task --help")
    for flags in ("--resume", "--run a"):
        refuse(copying, f"--config a.toml {flags}", "--config", "Leave")
    refuse(copying, "--config b", "b must be a file that can be read")


def test_a_flag_of_other_tasks_is_named_as_such(refuse):
    """Not taken for a slip of the pen."""
    for main, flags in {
        write.main: ["--beam 3", "--n-best 2", "--penalty paper", "--patch 2", "--cell lstm"],
        copying: ["--greedy", "--length 3", "--window 3 --patch 2", "--cell lstm"],
    }.items():
        for flag in flags:
            name = flag.split()[-2 if " " in flag else 0]
            message = (
                f"unrecognized arguments: {flag.removeprefix('--window 3 ')}; {name} is for oth"
            )
            refuse(main, flag, message)
    refuse(copying, "--warmpu 3", "; is --warmup meant?")


def test_a_preset_may_stand_in_a_file_but_not_beside_all_the_flags_of_a_run():
    def parse(flags):
        parser = build_parser("x", "", write.LanguageModel, presets=shakespeare.PRESETS)
        write.add_flags(parser)
        return options.parse_options(parser, lambda options: "x", flags.split())

    Path("a.toml").write_text('preset = "hour"\nd-ff = 8')
    parsed = parse("--config a.toml")
    assert (parsed.preset, parsed.d_ff, parsed.d_model) == ("hour", 8, 160)
    assert parse("--config a.toml --preset quarter").steps == 6000
    Path("run.json").write_text('{"options": {"preset": "hour", "d_ff": 8, "patience": null}}')
    assert parse("--config run.json --preset hour").d_ff == 8
    with pytest.raises(ValueError, match="leave out --preset quarter"):
        parse("--config run.json --preset quarter")


def test_settings_of_an_optimizer_that_is_not_chosen(complaint):
    """A task's own are for its optimizer; others are refused, also in a file."""
    parser = build_parser("x", "", Transformer, optimizer="adamw", weight_decay=0.1)
    read = functools.partial(options.parse_options, parser, lambda options: "x")
    assert read(["--optimizer", "lion"]).weight_decay == read([]).weight_decay == 0.1
    assert read(["--optimizer", "adam"]).weight_decay == 0.01
    Path("a.toml").write_text("weight-decay = 0.3")
    for flags in (["--weight-decay", "0.3"], ["--config", "a.toml"]):
        message = complaint(read, ["--optimizer", "adam", *flags])
        assert "--weight-decay is for --optimizer adamw, lion" in message
        assert read(flags).weight_decay == 0.3


def test_help_names_the_optimizers_that_use_a_setting(succeed):
    text = " ".join(" ".join(succeed(copying, "--help")).split())
    own = text.partition("optimizer (numformer.optimization.optimizers): ")[2]
    assert own.startswith(
        "--beta1 BETA1 decay of the mean gradient (5.3); for adam, adamw, lion, muon"
    )
    assert "hidden matrix; for sgd, muon (default: 0.95)" in own and "--weight-decay" in own
