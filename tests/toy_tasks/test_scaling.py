"""Scaling laws: fits that find what made the losses, best sizes, predictions, the page."""

import dataclasses
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.models.language_model import LanguageModel
from toy_tasks import scaling
from toy_tasks.analysis import scaling_laws as laws
from toy_tasks.analysis.scaling_laws import Fit, Form, Law, Run
from toy_tasks.reports.scaling_law_charts import draw_laws
from toy_tasks.scaling import CHARACTERS, OnePass, parameter_count

LAW = Law(E=1.2, A=8.0, alpha=0.32, B=60.0, beta=0.41)
JOINED = Law(E=0.0, A=300.0, alpha=0.37, B=2700.0, beta=0.44, gamma=0.25)
SIZES, AMOUNTS = np.geomspace(1e3, 3e6, 9), np.geomspace(2e4, 1e6, 5)


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    monkeypatch.setattr(laws, "SAMPLES", 4)
    laws.fit_all.cache_clear()


def runs_of(law: Law, noise: float = 0.0) -> list[Run]:
    rng = np.random.default_rng(1)
    return [Run(n, d, law.loss(n, d) + noise * rng.normal()) for n in SIZES for d in AMOUNTS]


@pytest.mark.parametrize(
    "law",
    [LAW, Law(0.0, 3.0, 0.1, 20.0, 0.9), Law(2.0, 900.0, 1.1, 4.0, 0.15), JOINED],
    ids=str,
)
def test_a_fit_finds_the_law_that_made_the_losses(law):
    found = laws.fit(runs_of(law), joined=law is JOINED)
    for name in ("alpha", "beta", "gamma", "E"):
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=0.02, abs=0.02)
    assert found.loss(1e7, 3e6) == pytest.approx(law.loss(1e7, 3e6), abs=1e-3)


def test_a_joined_law_s_parts_have_the_least_squared_error_of_the_losses():
    """Of L, not of L^(1 / gamma), where the one run that is off, of the greatest loss, leads."""
    runs = runs_of(dataclasses.replace(JOINED, A=1e5, alpha=1.0, B=2e6, beta=1.0))
    runs[0] = dataclasses.replace(runs[0], loss=runs[0].loss + 0.1)
    found = laws.fit(runs, joined=True)

    def error(law: Law) -> float:
        return sum((law.loss(run.parameters, run.symbols) - run.loss) ** 2 for run in runs)

    for a, b in itertools.product((0.99, 0.995, 1.0, 1.005, 1.01), repeat=2):
        other = dataclasses.replace(found, A=found.A * a, B=found.B * b)
        assert error(other) > 0.999 * error(found)


def test_a_law_tells_how_the_loss_falls_with_size_with_text_and_at_the_best_size():
    law = Law(E=1.5, A=30.0, alpha=0.3, B=200.0, beta=0.5, gamma=0.6)
    ends = np.array([1e3, 1e5])
    losses = np.array([law.loss(ends, 1e30), law.loss(1e50, ends)])
    falls = -np.diff(np.log(losses - law.E)).ravel() / np.log(100)
    assert falls == pytest.approx([law.by_size, law.by_text], abs=1e-4)
    sizes = np.geomspace(1e3, 1e12, 100_001)
    best = [sizes[law.loss(sizes, budget / (6 * sizes)).argmin()] for budget in (1e15, 1e19)]
    assert np.log(best[1] / best[0]) / np.log(1e4) == pytest.approx(law.growth, abs=1e-3)


def test_losses_that_grow_with_size_have_no_added_law():
    """The other form is taken then; where none fits, that is said."""
    runs = tuple(Run(n, d, n**0.1 + d**0.1) for n in SIZES for d in AMOUNTS)
    rule = r"as the text grows; received 45 runs .* negative term\. Give a longer"
    with pytest.raises(InputError, match=rule):
        laws.fit(runs, joined=False)
    assert [*laws.fit_all(runs).forms] == ["joined"]


def test_the_largest_model_is_unknown_to_the_law_that_is_to_foretell_it():
    runs = runs_of(LAW)
    for i, run in enumerate(runs):
        runs[i] = dataclasses.replace(run, loss=run.loss + 0.5 * (run.parameters == SIZES[-1]))
    assert laws.fit_all(tuple(runs)).forms["added"].error == pytest.approx(-0.5, abs=2e-3)


@pytest.mark.parametrize(("law", "form"), [(LAW, "added"), (JOINED, "joined")])
def test_the_form_is_chosen_that_foretells_the_largest_model(law, form):
    fitted = laws.fit_all(tuple(runs_of(law)))
    assert fitted.chosen == form and fitted.law is fitted.forms[form].law
    errors = {name: abs(fit.error) for name, fit in fitted.forms.items()}
    assert errors.pop(form) < 1e-3 < 5e-3 < max(errors.values())


def test_a_bootstrap_s_interval_is_as_wide_as_the_noise(monkeypatch):
    """It holds the truth, and grows with the noise that made it necessary."""
    monkeypatch.setattr(laws, "SAMPLES", 20)
    monkeypatch.setattr(laws, "FORMS", {"added": False})
    widths = []
    for noise in (0.005, 0.02):
        form = laws.fit_all(tuple(runs_of(LAW, noise))).forms["added"]
        predicted, low, high = map(float, re.findall(r"\d\.\d+", form.loss(1e7, 1e6)))
        assert low < predicted < high
        assert low - 0.01 < LAW.loss(1e7, 1e6) < high + 0.01
        widths.append(high - low)
    assert 2 < widths[1] / widths[0] < 8


def test_brackets_hold_the_middle_of_the_samples_and_say_how_many_have_a_number():
    assert laws.with_interval(0.5, np.linspace(0, 1, 4)) == "0.500 (0.025 to 0.975)"
    assert laws.with_interval(0.5, np.linspace(0, 1, 3)) == "0.500 (0.025 to 0.975, 3 of 4 samples)"
    assert laws.with_interval(0.5, []) == "0.500 (nan to nan, 0 of 4 samples)"


def test_a_budget_s_losses_lie_on_lines_over_the_logarithm_tree_from_symbols():
    runs = [Run(n, d, 20 - np.log(d)) for n in np.geomspace(1e4, 1e6, 6) for d in (1e4, 1e7)]
    found = laws.budgets(runs)
    assert len(found) > 5
    for budget in found:
        symbols = budget.operations / (6 * budget.parameters)
        assert budget.losses == pytest.approx(20 - np.log(symbols), abs=2e-3)


def test_the_bottoms_of_parabolas_are_the_best_sizes():
    """Of L = E + A N^-alpha + B (C / 6N)^-beta the least is where both slopes are equal."""
    assert Run(2, 3, 1.0).operations == 36  # 6 N D, forward and backward
    law = Law(1.0, 3.0, 0.3, 3.0, 0.3)  # so N and D are best when they are equal
    sizes = np.geomspace(1e4, 1e7, 13)
    runs = [Run(n, d, law.loss(n, d)) for n in sizes for d in np.geomspace(1e4, 1e7, 13)]
    found = [budget for budget in laws.budgets(runs) if budget.best]
    assert len(found) > 5
    for budget in found:
        assert budget.best == pytest.approx(np.sqrt(budget.operations / 6), rel=0.3)
    figure = draw_laws(None, {"letters": (Fit(runs, {"added": Form(law, [], 0.0)}, found, []), [])})
    assert figure.axes[2].lines[-1].get_xdata().tolist() == [budget.best for budget in found]
    assert laws.growth(found) == pytest.approx(law.growth, abs=0.03) == pytest.approx(0.5, abs=0.03)
    only_smaller = [run for run in runs if run.parameters < run.symbols / 100]
    assert not [budget for budget in laws.budgets(only_smaller) if budget.best]
    assert laws.growth(laws.budgets(only_smaller)) is None


@pytest.mark.parametrize("shape", [scaling.SHAPES[0], scaling.SHAPES[5]], ids=str)
def test_parameters_are_those_without_embeddings(shape):
    row = scaling.rows()[scaling.row_name(CHARACTERS, shape, scaling.AMOUNTS[CHARACTERS][0])]
    names = "layers", "d_model", "heads", "d_ff"
    alike = "norm", "normalization", "positions", "activation", "feed_forward_bias"
    how = {n: row[n] for n in names} | {n: scaling.DEFAULTS[n] for n in alike}
    counts = LanguageModel(LanguageModel.Config(vocabulary=9, **how)).parameter_counts()
    assert counts["total"] - counts["embedding"] == parameter_count(shape)


def test_the_larger_model_is_three_times_the_largest():
    sizes = [parameter_count(shape) for shape in scaling.SHAPES]
    assert sizes == sorted(sizes) and sizes[0] < 10**4 < 10**6.5 * 0.98 < sizes[-1]
    assert parameter_count(scaling.PREDICTED) == pytest.approx(3 * sizes[-1], rel=0.01)
    rows = scaling.rows()
    assert len([row for row in rows.values() if row["last"]]) == 2
    assert sum(1 + row["more_seeds"] for row in rows.values()) == 2 * (11 * 5 + 4 * 2 + 1)


def test_every_window_is_read_once_at_most():
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))  # all characters differ
    task = OnePass(text, 8, 2, 1, vocabulary=Vocabulary.of([text])).with_seed(2, 3, 112)
    firsts = [int(i) for step in range(1, 113) for i in task.batch(step).ids[:, 0]]
    assert len({*firsts}) == 224
    batch, others = task.batch(7), task.with_seed(2, 4, 112).batch(7)
    assert (batch.following == batch.ids + 1).all() and (batch.ids != others.ids).any()
    with pytest.raises(InputError, match=r"113 steps need 1,808 .* 1,800 to train on"):
        task.with_seed(2, 3, 113)


def test_the_verdict_is_about_both_predictions(monkeypatch):
    results = {row: [] for row in scaling.STUDY.rows}
    for row, differs in scaling.STUDY.rows.items():
        layers, d_model = map(int, row.split()[1].split("x"))
        n, d = float(parameter_count((layers, d_model, 1))), 64.0 * differs["steps"] * scaling.BATCH
        results[row] = [{"parameters": n, "symbols": d, "loss": LAW.loss(n, d)}]
    _, figures, (target, reached) = scaling.verdict(results)
    assert reached and target == "within 0.03"
    assert re.fullmatch(r"0\.00\d\d, 0\.00\d\d", figures["the predictions are off by"])
    larger = next(row for row, differs in scaling.STUDY.rows.items() if differs["last"])
    results[larger][0]["loss"] += 0.04
    _, poisoned, (_, reached) = scaling.verdict(results)
    assert not reached
    predicted = [f["characters: predicted"].partition(",")[0] for f in (figures, poisoned)]
    assert predicted[0] == predicted[1]
    head, *lines = scaling.table(results)
    assert {len(line) for line in lines} == {len(head)} == {7}
    assert len(lines) == 2 * (1 + 11 + 1)


def test_laws_are_fitted_predicted_and_drawn(call, refuse, monkeypatch):
    """Two sizes and two amounts of a small text, and a larger model after these."""
    small = dict(SHAPES=((1, 4, 1), (1, 6, 1)), PREDICTED=(1, 12, 1), AMOUNTS={CHARACTERS: (8, 40)})
    text = "".join(np.random.default_rng(1).choice([*"abcd "], 9000))
    for name, value in (small | {"shakespeare": lambda data: text}).items():
        monkeypatch.setattr(scaling, name, value)
    rows = {name: row | {"more_seeds": 0} for name, row in scaling.rows().items()}
    monkeypatch.setattr(scaling, "STUDY", dataclasses.replace(scaling.STUDY, rows=rows))
    scaling.read_task.cache_clear()
    monkeypatch.setattr("toy_tasks.command_line.training.loss_curve", lambda *how: None)
    code, out, err = call(scaling.main, "--context 16 --seeds 2")
    assert code in (0, 1) and err == []
    first = "characters: laws fitted"
    start = next(place for place, line in enumerate(out) if line.startswith(first))
    ended = [line.partition(":")[0] for line in out[:start]]
    assert "characters-1x4-8-2" in ended and "characters-1x12-40-2" not in ended
    announcement = f", {parameter_count((1, 12, 1)):,} parameters, 640 symbols: "
    assert any(announcement in line for line in out[start : start + 11])
    assert any(line.startswith("characters-1x12-40-2: loss") for line in out[start:])
    assert out[-1].startswith("the predictions are off by")
    result = json.loads(Path("runs/scaling/characters-1x4-8-2/result.json").read_text())
    assert result["parameters"] == parameter_count((1, 4, 1)) and result["symbols"] == 128
    refuse(scaling.main, "--steps 5", "--steps: every row of this study has its own value")
    refuse(scaling.main, "--context 4000", "a text has at least 20 times")
    assert call(scaling.main, "--resume")[1][-1] == out[-1]
    assert Path("runs/scaling/scaling.png").read_bytes().startswith(b"\x89PNG")
    scaling.read_task.cache_clear()
