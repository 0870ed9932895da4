"""Lesson 12: its numbers and claims, computed again another way."""

import json
import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from lesson_solutions import words_of

import lessons
import numformer
from lessons.kit.index import PARTS
from lessons.kit.models import measured
from lessons.kit.views import amount
from lessons.lesson_12 import families, landscape, sizes
from lessons.lesson_12.measured import of_pair
from numformer import LanguageModel, Transformer
from numformer.gradient_check.cases import CASES

RUNS = measured(12)["families"]


def size(model) -> int:
    return sum(parameter.size for parameter in model.named_parameters().values())


@pytest.mark.parametrize("seed", range(4))
def test_the_ledger_has_the_parameters_of_models_that_are_built(seed):
    rng = np.random.default_rng(seed)
    heads, layers, length = (int(n) for n in rng.integers(1, 4, 3))
    d_model, d_ff, symbols = 4 * heads, int(rng.integers(3, 9)), int(rng.integers(5, 30))
    given = dict(heads=heads, layers=layers, d_model=d_model, d_ff=d_ff)
    asked = dict(given, vocabulary=symbols, length=length)
    del asked["layers"]
    for details, changes in (
        (sizes.PAPER, {}),
        (sizes.PRE_NORM, dict(norm="pre")),
        (
            sizes.GPT_2,
            dict(norm="pre", attention_bias=True, positions="learned", max_length=length),
        ),
    ):
        both = dict(asked, encoder=layers, decoder=layers, details=details)
        for shared, tying in (1, "all"), (0, "none"):
            model = Transformer(Transformer.Config.base(symbols, tying=tying, **given, **changes))
            assert sizes.compute(**both, shared=shared)["total"] == size(model)
        model = LanguageModel(LanguageModel.Config(vocabulary=symbols, **given, **changes))
        alone = dict(asked, encoder=0, decoder=layers, details=details)
        assert sizes.compute(**alone)["total"] == size(model)


def test_presets_are_published_models():
    total = {name: sizes.compute(**preset)["total"] for name, preset in sizes.PRESETS.items()}
    assert total["GPT-2 small"] == 124_439_808
    assert total["Marian"] - 58_101 + 2 * 512 * 512 == 74_410_496  # as transformers counts it
    assert round(total["GPT-3"] / 1e9) == 175
    assert total["our translator"] == measured(12)["translator"]["parameters"] == 1_831_424
    assert {name for preset in sizes.PRESETS.values() for name in preset} == sizes.SIZES.keys()


def test_operations_are_those_that_a_model_does(rng):
    for layers, d_model, d_ff, symbols, length in (1, 4, 7, 11, 5), (2, 8, 6, 9, 3):
        given = dict(layers=layers, d_model=d_model, d_ff=d_ff, heads=2, p_drop=0.0)
        ids = rng.integers(4, symbols, (1, length))
        config = Transformer.Config.base(symbols, **given)
        formula = sizes.count_operations(layers, layers, d_model, d_ff, symbols, length)
        forward, backward = sizes.counted(Transformer(config), ids, ids, ids)
        assert forward == sum(formula) == of_pair(config, length, length)
        assert backward == 2 * forward
        source = rng.integers(4, symbols, (1, length + 2))
        forward, _ = sizes.counted(Transformer(config), source, ids, ids)
        assert forward == of_pair(config, length + 2, length)
        config = LanguageModel.Config(vocabulary=symbols, **given)
        formula = sizes.count_operations(0, layers, d_model, d_ff, symbols, length)
        assert sizes.counted(LanguageModel(config), ids, ids) == (sum(formula), 2 * sum(formula))


def test_bytes_of_the_ledger_are_those_of_arrays(rng):
    """Of training: weights, gradients and what Adam keeps; of writing: keys and values."""
    given = dict(heads=2, d_model=8, d_ff=12)
    config = Transformer.Config.base(20, layers=2, p_drop=0.0, **given)
    settings = dict(given, encoder=2, decoder=2, vocabulary=20, length=5, details=sizes.PAPER)
    model = Transformer(config)
    vectors = numformer.pack(model)
    arrays = [vectors.data, vectors.grad, *numformer.Adam(vectors).state.values()]
    ledger = sizes.compute(**settings)
    assert sum(array.nbytes for array in arrays) == ledger["weights"]
    with numformer.inference():
        state = model.start(np.array([[5, 9, 7, 5, 2]]), 5)
        model.step(np.array([4]), state)
    states = state.past._states.values()
    arrays = chain(*(s.values() if isinstance(s, dict) else s._arrays for s in states))
    assert sum(array.nbytes for array in arrays if array.ndim == 4) == ledger["cache"]
    objective = model.objective()
    objective.forward(*(rng.integers(4, 20, (1, 5)) for _ in range(3)))
    weights = [layer.saved[-1].get("weights") for layer in model.layers_within() if layer.saved]
    assert sum(w.nbytes for w in weights if w is not None) == ledger["scores"]


def test_amounts_are_read_as_words():
    texts = {0: "0", 0.303: "0.303", 999999: "999,999", 1e6: "1 million", 2.345e9: "2.35 billion"}
    texts |= {5e12: "5 trillion", 7.2e17: "720 quadrillion", 1.67e19: "16.7 quintillion"}
    assert {value: amount(value) for value in texts} == texts


def test_each_part_of_the_map_has_a_file_and_a_case():
    assert landscape.WHERE.keys() <= {words for words, *_ in PARTS}
    folder = Path(numformer.__file__).parent
    for file, case in landscape.WHERE.values():
        assert (folder / file).is_file() and case in CASES
    text = Path(lessons.load(12).__file__).read_text()
    for path in re.findall(r"`((?:numformer|toy_tasks)/[\w/]+(?:\.\w+)?)`", text):
        assert (folder.parent / path).exists(), path
    for path in re.findall(r"`(\w+\.py)`", text):
        assert list(folder.rglob(path)), path


@pytest.mark.parametrize(("name", "task"), [*zip(families.FAMILIES, [*RUNS] * 2, strict=True)])
def test_training_repeats_the_stored_runs(name, task, monkeypatch):
    """Training repeats the first loss of each kind; rounding changes the later losses."""
    monkeypatch.setattr(families, "TESTED", 4)
    result, stored = families.train(name, task, stop=families.EVERY), RUNS[task][name]
    assert result["parameters"] == stored["parameters"]
    np.testing.assert_allclose(result["losses"], stored["losses"][:1], atol=0.002)


def test_what_is_said_of_the_four_kinds_is_what_was_measured():
    last = {
        task: {name: run["right"][-1] for name, run in runs.items()} for task, runs in RUNS.items()
    }
    assert min(last["backwards"].values()) > 0.99
    alone = last["either way"].pop("encoder only")
    assert alone < 0.02 and min(last["either way"].values()) > 0.99
    text = words_of(12, "what_the_four_learned")
    steps = {
        name: int(step) for name, step in re.findall(r"\| ([a-z -]+) \| [\d,]+ \| (\d+) \|", text)
    }
    assert min(steps, key=steps.get) == "recurrent" and len(steps) == 4
    assert abs(RUNS["either way"]["encoder only"]["losses"][-1] - np.log(2)) < 0.1
    counts = [run["parameters"] for run in RUNS["backwards"].values()]
    assert max(counts) < 1.2 * min(counts)


def test_who_looks_at_whom():
    sees = {name: families.seen(name) > 0 for name in families.FAMILIES}
    t = families.LENGTH
    for name, allowed in sees.items():
        assert allowed.diagonal().all()
        later = np.triu(np.ones_like(allowed), 1)
        later[:t, :t] = 0
        assert (allowed & later > 0).any() == (name == "encoder only")
    both, one = sees["encoder-decoder"], sees["decoder only"]
    assert both[:t, :t].all() and (both[t:] == one[t:]).all()
    assert sees["recurrent"].sum() < one.sum() and sees["recurrent"][t:, :t].all()


def test_targets_say_which_way_they_go(rng):
    source, target = families.draw("either way", 200, rng)
    forwards = target[:, 0] == families.FORWARDS
    assert 60 < forwards.sum() < 140
    np.testing.assert_array_equal(target[forwards, 1:], source[forwards])
    np.testing.assert_array_equal(target[~forwards, 1:], source[~forwards, ::-1])
    assert families.right("either way", source, target) == 1
    assert families.right("backwards", source, target) == 1 - forwards.mean()
    target[0, 0] = families.FORWARDS + families.BACKWARDS - target[0, 0]
    assert families.right("either way", source, target) == 1 - 1 / 200


def test_tables_say_what_was_measured():
    found = landscape.costs()
    text = words_of(12, "table_1")
    for name, seconds in found.items():
        row = re.search(rf"\| {re.escape(name)} (\|[^*]*?)\| (?:[a-z]|\*)", text)[1]
        assert row.strip("| ").split(" | ")[3:] == [f"{1000 * s:.0f}" for s in seconds]
    text = words_of(12, "table_2")
    step = 3 * 2 * (63.05e6 - 18.944e6 + 18.944e6) * 25_000 * 100_000  # 6 N D, nearly
    assert (
        abs(float(re.search(r"so \$([\d.]+) \\cdot 10\^\{17\}\$", text)[1]) * 1e17 / step - 1)
        < 0.02
    )
    assert "29 % of what" in text and "42 %" in text
    rows = landscape.ablation()
    assert len(rows) == 19 and rows[0].name == "base"
    assert all(row.lowest <= row.errors <= row.highest for row in rows)


def test_our_own_scaling_laws_are_those_that_were_measured():
    laws, text = landscape.scaling(), words_of(12, "at_home")
    for unit, law in laws.items():
        assert abs(law.predicted - law.trained) < 0.03 < 0.05 < law.added and law.joined < 0.05
        assert re.search(
            rf"\| {unit} \| {law.by_size} .*{law.predicted:.3f} \| {law.trained:.3f}", text
        )
    assert [law.trained for law in laws.values()] == [1.636, 3.318]


def test_scaling_laws_are_those_of_their_papers():
    for budget in 1e20, 5.76e23:
        sizes_of = budget ** np.linspace(0.2, 0.8, 200_001)
        found = sizes_of[landscape.loss(sizes_of, budget / 6 / sizes_of).argmin()]
        assert abs(found / landscape.best(budget) - 1) < 1e-3
        assert landscape.kaplan(10 * budget) / landscape.kaplan(budget) == pytest.approx(10**0.73)
    assert landscape.kaplan(8.64e19) == pytest.approx(1.3e9)
    result = landscape.compute(1e22, 16)
    assert result["losses"].argmin() in (15, 16, 17) and result["behind"] >= 0
    for budget in landscape.BUDGETS:  # the dots lie on the curve
        result = landscape.compute(budget)
        for ((number, loss),) in result["best"], result["kaplan"]:
            on_curve = np.interp(np.log(number), np.log(landscape.NUMBERS), result["losses"])
            assert abs(on_curve - loss) < 0.1


def test_what_is_stored_says_how_it_was_made():
    path = lessons.FOLDER / "lesson_12" / "measured.json"
    assert json.loads(path.read_text())["command"].endswith("--measure 12")
