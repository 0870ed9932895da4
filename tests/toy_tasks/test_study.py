"""Studies: several trainings side by side, resumed, broken, stopped, and compared."""

import argparse
import dataclasses
import functools
import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import numformer
from numformer.errors import BrokenNumbers
from numformer.layer import saving
from numformer.models import Config, Transformer
from tests.equal_runs import without_seconds
from tests.toy_tasks.small import RUN, SHORT, copying, few_held_out
from toy_tasks import compare
from toy_tasks.command_line import run_folders, settings_from, study
from toy_tasks.reports import charts
from toy_tasks.reports.tables import mean_and_range
from toy_tasks.text_to_text.sequences import DEFAULTS, SequenceTask

PICTURES = "--steps 6 --evaluate-every 4 --log-every 2 --batch-size 4 --jobs 2"
TINY = f"{PICTURES} --no-plots"


def make_task_and_config(options, at=lambda options, step: None):
    """A tiny model of the copy task; `at(options, step)` happens as a batch is drawn."""
    task = SequenceTask(SHORT, options.batch_size, options.seed)
    draw = task.batch
    task.batch = lambda step: at(options, step) or draw(step)
    sizes = dict.fromkeys(["source_vocabulary", "target_vocabulary"], len(task.text.source))
    return task, Transformer, settings_from(options, Config, **sizes)


def measure(model, task, folder):
    assert not saving() and (folder / "best.safetensors").exists()
    total = float(np.abs(model.output.weight.data).sum(dtype=np.float64))
    return {"right": 1.25, "total": total}


def table(results):
    rows = [[row, mean_and_range([r["seed"] for r in runs])] for row, runs in results.items()]
    return [["way", "seeds"], *rows]


def draw(results, folder):
    curves = {n: [([1, 2], [r["total"], r["seed"]]) for r in runs] for n, runs in results.items()}
    charts.draw_chart(folder / "norms.png", "title $x", {"one": curves, "two": curves}, "x", "y")


def verdict(results):
    least = min(r["right"] for runs in results.values() for r in runs)
    return "5 sources", {"right": f"{least:.2f}"}, ("right", True)


NORMS = study.Study(
    name="norms",
    description="Norms.",
    model=Transformer,
    figure="right",
    example="123",
    defaults=DEFAULTS | dict(d_model=8, d_ff=8, heads=1, layers=1, p_drop=0.1),
    rows={"pre norm": {"norm": "pre"}, "post": {"norm": "post", "steps": 8}},
    make_task_and_config=make_task_and_config,
    measure=measure,
    table=table,
    draw=draw,
    verdict=verdict,
)


def norms(arguments, **others):
    with few_held_out():
        return study.main(dataclasses.replace(NORMS, **others), arguments)


def norms_where(at):
    make = functools.partial(make_task_and_config, at=at)
    return functools.partial(norms, make_task_and_config=make)


def runs_of(folder: str) -> dict:
    """The files of a study's runs and their results, without times and pictures."""
    runs = {}
    for run in filter(Path.is_dir, Path(folder).iterdir()):
        files = without_seconds(run)
        result = json.loads(files.pop("result.json"))
        options = json.loads(files.pop("config.json"))["options"]
        assert (options["seed"], options["parts"]) == (result["seed"], 1)
        files.pop("loss.png", None)
        runs[run.name] = files, result["total"], result["seed"]
    return runs


def test_a_study_trains_every_way_with_every_seed_and_compares(call, succeed, refuse):
    out = succeed(norms, f"{PICTURES} --seeds 4 2")
    assert out[0] == "runs/norms: 4 of 4 runs to train"
    names = ["post-2", "post-4", "pre-norm-2", "pre-norm-4"]
    assert sorted(line.partition(": right 1.2500, ")[0] for line in out[1:5]) == names
    assert out[5:9] == Path("runs/norms/table.md").read_text().splitlines()
    assert out[5:9] == [
        "| way      | seeds                  |",
        "| -------- | ---------------------- |",
        "| pre norm | 3.000 (2.000 to 4.000) |",
        "| post     | 3.000 (2.000 to 4.000) |",
    ]
    assert out[-2:] == ["5 sources; target right: reached", "right 1.25"]
    assert "use it: python -m toy_tasks.norms --run runs/norms/pre-norm-4 --input 123" in out
    for picture in ("norms.png", "post-2/loss.png"):
        assert Path("runs/norms", picture).read_bytes().startswith(b"\x89PNG")
    assert sorted(runs_of("runs/norms")) == names
    for name in names:
        assert numformer.load(f"runs/norms/{name}").model.config.norm == name.partition("-")[0]
    out = succeed(compare.main, "runs/norms")
    assert any("test total" in line for line in out)
    assert any("row pre" in line for line in out) and all(
        line.split()[:1] != ["norm"] for line in out
    )
    use = "--run runs/norms/post-4 --input 12345 --temperature 9"
    # A study has --seeds, also called --seed.
    answers = [call(norms, use + seed)[:2] for seed in ("", " --seed 1", " --seed 5")]
    assert answers[2][0] == 0 and answers[0] == answers[1] != answers[2]
    refuse(copying, "--resume --out runs/norms", "runs/norms, a run of norms. Use")


def test_a_chart_does_not_read_its_title_as_a_formula(pixels):
    draw({"a": [{"total": 1, "seed": 2}]}, Path())
    assert Path("norms.png").read_bytes().startswith(b"\x89PNG")


def test_a_quiet_run_or_study_shows_only_its_result(call):
    for main, flags in ((copying, RUN), (norms, f"{TINY} --seeds 1")):
        for _ in range(2):  # a second program prints its result too
            _, (data, figure), err = call(main, f"{flags} --quiet")
            assert "; target " in data and re.fullmatch(r"(exact match|right) \d\.\d+", figure)
            assert not err


def test_a_row_may_have_more_seeds_than_the_others():
    rows = {"a": {}, "b": {"more_seeds": 2}, "c": {"more_seeds": 1}}
    options = argparse.Namespace(quick=False, out=None, seeds=[4, 2], jobs=1)
    runs = study._runs(dataclasses.replace(NORMS, rows=rows), options, options.seeds)
    expected = [(row, seed) for seed in (4, 2) for row in "abc"]
    expected += [("b", 5), ("c", 5), ("b", 6)]
    assert [(run.options.row, run.options.seed) for run in runs] == expected


def test_a_stopped_study_has_saved_and_goes_on_to_the_same_bits(call, succeed):
    succeed(norms, f"{TINY} --seeds 1 2 --out straight")

    def stop(options, step):  # the first process alone, as one run draws its third batch
        if (options.row, options.seed, step) == ("post", 2, 3):
            assert os.getpgrp() == os.getpid()  # Ctrl-C on a terminal does not reach it
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(1)  # until it is told to stop, before it has come to its end

    code, out, err = call(norms_where(stop), f"{TINY} --seeds 1 2 --out 'a b'")
    command = "python -m toy_tasks.norms --resume --out 'a b'"
    assert (code, err) == (130, [f"stopped, and every run is saved; go on with: {command}"])
    assert 3 <= run_folders.last_state(Path("a b/post-2"))["step"] <= 8
    before = (Path("a b/post-1") / run_folders.RESULT).read_bytes()
    out = succeed(norms, "--resume --out 'a b' --jobs 1")
    assert " of 4 runs to train" in out[0] and int(out[0].split()[2]) <= 2
    assert (Path("a b/post-1") / run_folders.RESULT).read_bytes() == before
    assert runs_of("a b") == runs_of("straight")
    out = succeed(norms, "--resume --out 'a b'")
    assert out[0] == "a b: finished, 4 runs trained" and out[-1] == "right 1.25"


def breaking(how):
    def at(options, step):
        if (options.row, options.seed, step) == ("pre norm", 1, 2):
            if isinstance(how, Exception):
                raise how
            os.kill(os.getpid(), how)

    return norms_where(at)


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (MemoryError("no 9 TiB"), 2, "no 9 TiB"),
        (signal.SIGKILL, 2, "its process was ended"),
        (BrokenNumbers("nan"), 3, "nan"),
    ],
)
def test_where_a_run_breaks_the_others_end_and_one_line_reports_it(
    call, succeed, how, code, message
):
    ended, out, err = call(breaking(how), f"{TINY} --seeds 1 --jobs 1")
    assert ended == code and len(err) == 1
    assert err[0].startswith("error: ") and f"pre-norm-1: {message}" in err[0]
    names = [line.partition(":")[0] for line in out[1:]]
    assert names == ["pre-norm-1", "post-1"]
    assert "FAILED" in out[1] and "right 1.25" in out[2]
    succeed(norms, "--resume")


def test_a_mistake_in_a_page_is_shown_as_what_it_is(call):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        call(breaking(ZeroDivisionError()), TINY)


def test_impossible_flags_are_refused_without_a_trace(succeed, refuse):
    """A study, and three whose config.json none has written."""
    succeed(norms, f"{TINY} --seeds 1 2 --out mine")
    saved = run_folders.read_config(Path("mine"))
    for name, changes in {
        "other": {"study": {"name": "norms", "rows": {}}},
        "junk": {"options": saved["options"] | {"seeds": [1, "two"]}},
        "damaged": {},
    }.items():
        Path(name).mkdir()
        run_folders.write_config(Path(name), saved | changes)
    text = Path("damaged/config.json").read_text()
    Path("damaged/config.json").write_text(text.replace('"norms"', '"norma"'))
    for flags, words in {
        "--seeds 1 1": "all seeds differ; received [1, 1]",
        "--seeds -1": "a seed is at least 0; received -1",
        "--d-model 1000000": "sizes that need at least",
        "--run mine --seeds 1": "sampled at random; received answers that are not sampled",
        "--resume --out mine --seeds 1": "keeps its settings, here seeds = [1, 2]",
        "--out mine": "new or empty; received mine",
        "--resume --out other": "a resumed study is named norms",
        "--resume --out damaged": "damaged (its checksum says that config.json was changed)",
        "--resume --out junk": "argument --seeds/--seed: an integer",
    }.items():
        refuse(norms, flags, words)


def test_a_study_begins_with_a_run_whose_weights_fit_every_row(call, succeed, refuse):
    call(copying, f"{RUN} --norm post --out a")
    flags = f"{TINY} --seeds 1 --start a --out"
    refuse(norms, f"{flags} b", "here (8,), in a none", "each row, also 'pre norm'")
    succeed(functools.partial(norms, rows={"post": {"norm": "post"}}), f"{flags} c")
