"""What heads do: their gates, what they look at beside chance, and the program on every model."""

import functools
import itertools
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.data import END, START, PairBatch
from numformer.data.vocabulary import DEFAULT_IDS
from numformer.layer import mode, pack
from numformer.models import Config, LanguageModel, RecurrentEncoderDecoder, Transformer
from numformer.trained import load
from tests.toy_tasks.small import SHORT, TINY, copying, few_held_out
from toy_tasks import copy_task, heads, induction, masked, write
from toy_tasks.analysis.attention_patterns import (
    FEWEST_PLACES,
    OFFSETS,
    SHUFFLES,
    Lexicon,
    PatternScores,
    Score,
    head_role,
    patterns,
)
from toy_tasks.analysis.gates import (
    AttentionObserver,
    Head,
    importances,
    observable_heads,
    without_heads,
)
from toy_tasks.analysis.held_out import HeldOut, held_out, task_of
from toy_tasks.data.windows import Windows
from toy_tasks.measures.loss import mean_loss

TEXT = "the cat sat on the mat. a dog ran. \n" * 40
SIZES = "--d-model 8 --d-ff 8 --heads 2 --layers 2 --steps 2 --no-plots --context 8"
SIZES += " --batch-size 4 --parts 1"
RNG = np.random.default_rng(0)


def of_transformer():
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0, positions="rotary")
    batch = PairBatch.of([([4, 5, 6, 7], [7, 6, 5]), ([8, 9], [9, 8])])
    return Transformer(Config(source_vocabulary=10, target_vocabulary=10, **sizes)), batch


def of_language_model(**others):
    sizes = dict(d_model=8, d_ff=12, heads=4, layers=2, p_drop=0.0, vocabulary=10)
    ids = RNG.integers(4, 10, (2, 7))
    return LanguageModel(LanguageModel.Config(**sizes | others)), Windows(ids[:, :-1], ids[:, 1:])


def grouped():
    return of_language_model(key_value_heads=2)


@pytest.fixture(params=[of_transformer, grouped], ids=lambda make: make.__name__)
def studied(request):
    """A model in float64, its parameters shaken, a batch for it, and its heads."""
    model, batch = request.param()
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model, batch, observable_heads(model, batch)[0]


def test_the_gradient_of_a_gate_is_the_derivative_of_the_loss(studied):
    model, batch, every = studied
    objective = model.objective()
    with mode(training=False):
        objective.zero_grad()
        objective.forward(*batch.inputs)
        objective.backward()
    kinds = {head.kind for head in every}
    assert len(every) == (12 if "decoder cross_attention" in kinds else 8)
    for head in every:
        whole, losses = head.weight.copy(), []
        for gate in (1 + 1e-5, 1 - 1e-5):
            head.weight[...] = gate * whole
            losses.append(mean_loss(model, [batch]))
            head.weight[...] = whole
        numerical = (losses[0] - losses[1]) / 2e-5
        assert_allclose(head.gate_gradient(), numerical, rtol=1e-6, atol=1e-10, err_msg=str(head))
        assert abs(numerical) > 1e-7


def test_importance_is_the_mean_size_over_examples(studied):
    """One whose gradients cancel counts all the same."""
    model, batch, every = studied
    first, second = batch.split(2)
    one, other = (importances(model, every, [example]) for example in (first, second))
    assert_allclose(importances(model, every, [first, second]), (one + other) / 2)
    assert (one > 0).all()
    both = mean_loss(model, [first, second])  # the mean over symbols
    assert both == pytest.approx(mean_loss(model, [batch]))


def test_only_cross_attention_is_asked_for_sources():
    """Self-attention is asked for what comes again, also where both sides have the same words."""
    model, _ = of_transformer()
    example = PairBatch.of([([4, 5, 4, 5], [4, 5, 4, 5])])
    every = observable_heads(model, example)[0]
    same = SimpleNamespace(aligned=lambda looks_at, follows: follows[:, None] == looks_at)
    importances(model, every, [example], look := AttentionObserver(model, every, same))
    asked = {name: (scores.places[:2] > 0).tolist() for name, scores in look.pattern_scores.items()}
    assert asked == {name: ["cross" in name, "cross" not in name] for name in look.layers}


def test_a_head_that_is_removed_gives_zeros_and_comes_back(studied, monkeypatch):
    model, batch, every = studied
    before, whole = model.state_dict(), mean_loss(model, [batch])
    for head in every:
        attend = head.attention.attention.forward

        def gated(*inputs, attend=attend, head=head):
            output = attend(*inputs).copy()
            output[:, head.number - 1] = 0
            return output

        with monkeypatch.context() as patch:
            patch.setattr(head.attention.attention, "forward", gated)
            expected = mean_loss(model, [batch])
        with without_heads([head]):
            assert_allclose(mean_loss(model, [batch]), expected, rtol=1e-12)
        assert abs(expected - whole) > 1e-6
    with pytest.raises(KeyError), without_heads(every):
        raise KeyError
    for name, value in model.state_dict().items():
        assert_array_equal(value, before[name])


def scores_of(weights: np.ndarray, reads, looks_at, follows, lexicon=None, times=1):
    """The scores of made-up heads (H, T, S), by name, a dict for each head."""
    scores = PatternScores(len(weights))
    marks = patterns(reads, looks_at, follows, DEFAULT_IDS, lexicon)
    for _ in range(times):
        scores.add(weights, marks, np.ones(len(reads), bool))
    return [{score.pattern: score for score in scores.scores(n)} for n in range(len(weights))]


def test_a_head_is_called_by_what_it_looks_at_and_not_by_chance():
    """In a sequence that comes again: one place back, after the same symbol, and everywhere."""
    length = 40
    ids = np.concatenate(2 * [np.random.default_rng(1).permutation(np.arange(4, 24))])
    causal = np.tril(np.ones((length, length)))
    back, after = np.eye(length, k=-1), np.eye(length, k=-19)
    for rows in (back, after):
        rows[rows.sum(axis=1) == 0, 0] = 1
    uniform = causal / causal.sum(axis=1, keepdims=True)
    follows = np.append(ids[1:], -1)
    back, after, uniform = scores_of(np.stack([back, after, uniform]), ids, ids, follows, times=2)
    assert back["place"].offset == -1 and back["place"].weight == 1.0
    assert head_role([*back.values()]).description() == "looks 1 place back"
    assert after["induction"].weight == after["copying"].weight == 1.0
    assert head_role([*after.values()]).pattern == "induction"
    assert head_role([*uniform.values()]) is None
    for scores in (back, after, uniform):
        assert 0 < scores["induction"].chance < 0.2 and scores["rest"].chance < 0.2
    for score in uniform.values():
        assert score.weight == pytest.approx(score.chance)  # whatever is exchanged, it is the same
    assert "alignment" not in back
    induction = patterns(*2 * (np.array([4, 5, 4, 5]),), np.full(4, -1), DEFAULT_IDS)[1]
    assert np.argwhere(induction).tolist() == [[2, 1], [3, 2]]  # after it, not before, both ways


def test_shuffled_weights_stay_where_they_can_be_seen_and_lose_their_pattern():
    """The first row sees one place, so it keeps its weight there."""
    weights = np.stack([np.eye(50), np.tril(np.ones((50, 50)))])
    score = scores_of(weights, np.arange(4, 54), np.arange(4, 54), np.full(50, -1))[0]["place"]
    assert score.weight == 1.0 and score.offset == 0
    assert 1 / 50 < score.chance < 0.25 and score.spread > 0
    scores = PatternScores(1)
    scores.places[:] = FEWEST_PLACES
    for n in range(1 + SHUFFLES):
        scores.weight[n, 0, -1 - n] = FEWEST_PLACES
    assert scores.scores(0)[-1].chance == 1  # that of the place which is best when shuffled


def test_model_1_finds_the_sources_of_reversed_words_and_their_null():
    """Each word becomes another, some sentences have one more, which nothing in them gives."""
    rng, pairs = np.random.default_rng(0), []
    for _ in range(300):
        source = rng.permutation(np.arange(4, 14))[: rng.integers(3, 8)]
        pairs.append((source.tolist(), [*(source[::-1] + 10).tolist(), *[30] * rng.integers(2)]))
    lexicon = Lexicon([PairBatch.of(pairs[:200]), PairBatch.of(pairs[200:])])
    source, target = np.array([4, 9, 6, 9, END]), np.array([16, 19, 14, 30, END])
    expected = np.zeros((5, 5), bool)
    expected[0, 2] = expected[1, [1, 3]] = expected[2, 0] = True
    assert_array_equal(lexicon.aligned(source, target), expected)
    assert not lexicon.aligned(source, np.array([40])).any()
    perfect = expected[:3] / expected[:3].sum(axis=1, keepdims=True)
    weights = np.stack([perfect, np.full((3, 5), 0.2)])
    reads = np.array([START, 16, 19])
    aligned, uniform = scores_of(weights, reads, source, target[:3], lexicon, times=20)
    assert (
        aligned["alignment"].weight == 1.0 and head_role([*aligned.values()]).pattern == "alignment"
    )
    assert uniform["alignment"].weight == pytest.approx(4 / 15) and "copying" not in uniform


def test_model_1_shares_a_symbol_out_among_its_sentence():
    """As the equations say it, a sum for each word."""
    pairs = [([4, 5], [6, 7]), ([4], [6]), ([5, 4, 5], [7, 6])]
    lexicon = Lexicon([PairBatch.of(pairs)], rounds=2)
    closed = [([*source, END], [*target, END]) for source, target in pairs]
    t = defaultdict(lambda: 1.0)
    for _ in range(2):
        count, total = defaultdict(float), defaultdict(float)
        for source, target in closed:
            for f, e in itertools.product(target, source):
                share = t[e, f] / sum(t[other, f] for other in source)
                count[e, f] += share
                total[e] += share
        t = {(e, f): number / total[e] for (e, f), number in count.items()}
    assert_allclose(lexicon.t, [t[key] for key in sorted(t)])


def test_a_recurrent_model_that_attends_has_no_heads():
    config = RecurrentEncoderDecoder.Config(source_vocabulary=10, target_vocabulary=10, d_model=8)
    example, _ = of_transformer()[1].split(2)
    assert observable_heads(RecurrentEncoderDecoder(config), example)[0] == []


def test_a_score_is_clear_where_chance_leaves_it_room():
    assert Score("rest", 0.5, 0.3, 0.01).above == pytest.approx(2 / 7)
    assert Score("rest", 0.5, 0.3, 0.01).clear and not Score("rest", 0.5, 0.3, 0.07).clear
    assert not Score("rest", 1.0, 1.0, 0.0).clear
    words = [Score("place", 1.0, 0.1, 0.0, offset).description() for offset in (-2, 0, 1)]
    assert words == ["looks 2 places back", "looks at the same place", "looks 1 place ahead"]
    assert len(OFFSETS) == 17
    assert (
        head_role([Score("rest", 0.4, 0.0, 0.0), Score("place", 0.9, 0.0, 0.0)]).pattern == "place"
    )


def test_how_many_heads_can_go_is_told_by_the_figure():
    points = [(4, {"BLEU": 30.0}), (3, {"BLEU": 29.4}), (2, {"BLEU": 29.5}), (0, {"BLEU": 1.0})]
    assert heads.removable_heads(points, "BLEU") == (2, 0.5)
    errors = [
        (4, {"word_error_rate": 9.0}),
        (2, {"word_error_rate": 8.0}),
        (1, {"word_error_rate": 9.6}),
    ]
    assert heads.removable_heads(errors, "word_error_rate") == (2, 0.5)
    assert heads.removable_heads([(2, {"f1": 95.0}), (1, {"f1": 94.6})], "f1") == (1, 0.5)


def test_heads_go_by_importance_on_one_half_and_are_measured_on_the_other(monkeypatch):
    """Six heads that add to the loss what they count; when some are gone, others count most."""
    output = SimpleNamespace(weight=SimpleNamespace(data=np.ones((6, 1))))
    layer = SimpleNamespace(heads=6, output=output)
    every = [Head("self_attention", 1, number, "layer", layer) for number in range(1, 7)]
    counts, measured = np.array([4, 1, 6, 3, 2, 5]), []

    def estimated(model, left, examples, look=None):
        assert examples == "choosing"
        known = counts[[head.number - 1 for head in left]]
        return known if len(left) == 6 else -known

    def loss(model, batches):
        assert batches == "measuring"
        return counts[output.weight.data[:, 0] == 0].sum()

    def figure(model):
        measured.append(tuple(np.flatnonzero(output.weight.data[:, 0] == 0) + 1))
        return 1.0 * (len(measured[-1]) <= 3)

    stubs = {
        "importances": estimated,
        "mean_loss": loss,
        "single_examples": str,
        "AttentionObserver": Mock(),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(heads, name, stub)
    own, halves = HeldOut("", [], Mock(), "copying", figure), ("choosing", "measuring")
    findings = heads.study_heads(None, every, own, halves)
    assert [finding.loss_increase for finding in findings] == counts.tolist()
    assert [finding.rank for finding in findings] == (7 - counts).tolist()
    options = SimpleNamespace(seed=1, orders=2, quick=True)
    orders = heads.curves(None, findings, own, halves, options)
    everyone = (1, 2, 3, 4, 5, 6)
    assert measured[:5] == [(), (2, 5), (2, 3, 5, 6), everyone, (2, 3, 5)]
    assert measured[5:9] == [(), (2, 5), (1, 2, 4, 5), everyone]
    assert measured[10:12] != measured[14:16]
    assert heads.removable_heads(orders[heads.BY_REESTIMATED_IMPORTANCE][0], "copying") == (3, 0.01)
    rows = heads.removal_table(orders)[1:]
    assert [row[0] for row in rows] == ["6", "4", "3", "2", "0"]
    assert rows[2][1:4] == ["9.000", "-", "-"]


def test_what_is_held_out_was_not_trained_on_and_the_figure_is_of_the_test_set(monkeypatch):
    copying(f"{TINY} --steps 2 --out run".split())
    monkeypatch.setattr(copy_task, "RULE", SHORT)
    run, trained = Path("run"), load(Path("run"))
    with few_held_out():
        own, task = held_out(trained, run, None, 3), task_of(run)
    asked = Mock(return_value=[""] * 3)
    monkeypatch.setattr(type(task), "write", asked)
    assert own.figure(trained.model) == 0.0
    assert asked.call_args.args[1] == [source for source, _ in task.test[:3]]
    choosing, measuring = ([b.source[0].tolist() for b in half] for half in own.halves(2))
    (developed,) = (batch.source.tolist() for batch in task.held_out)
    assert_array_equal(own.batches[0].source, developed)
    assert len(choosing) == len(measuring) == 2 and not [s for s in choosing if s in measuring]
    drawn = SimpleNamespace(text=trained.text, metric="held_out_loss", batch=int)
    monkeypatch.setattr("toy_tasks.analysis.held_out.task_of", lambda run, data: drawn)
    assert held_out(trained, run, None).batches[0] == 3  # after the run's two steps


def test_examples_too_long_for_their_maps_are_left_out(monkeypatch, complaint):
    monkeypatch.setattr("toy_tasks.analysis.held_out.LONGEST", 5)
    short, long = (PairBatch.of([([4] * length, [5])] * 4) for length in (4, 5))  # and an end
    halves = HeldOut("", [long, short], Mock()).halves(4)
    assert {batch.source.shape[1] for half in halves for batch in half} == {5}
    message = "at most 5 symbols; received only longer ones"
    assert message in complaint(HeldOut("", [long], Mock()).halves, 4)


def test_the_heads_of_a_run_from_its_own_data(succeed, monkeypatch):
    """The data of the run, a table, and curves that begin and end alike."""
    copying(f"{TINY} --steps 2 --layers 2 --heads 2 --out run".split())
    monkeypatch.setattr(copy_task, "RULE", SHORT)
    monkeypatch.setattr(heads, "Lexicon", functools.partial(Lexicon, enough=400))
    with few_held_out():
        out = succeed(heads.main, "--run run --quick --no-plots")
    assert out[0] == "run: 12 heads, 2 and 2 examples held out by run"
    text = Path("runs/heads-run/table.md").read_text()
    assert text.strip() in "\n".join(out)
    rows = [line for line in text.splitlines() if re.match(r"\| (en|de)coder", line)]
    assert len(rows) == 12 and rows[8].startswith("| decoder cross 1.1 ")
    ranks = {int(row.split("|")[3]): float(row.split("|")[4]) for row in rows}
    assert sorted(ranks) == [*range(1, 13)] and max(ranks.values()) == ranks[1] > ranks[12]
    lines = [line.split("|")[2:-1] for line in text.splitlines() if re.match(r"\| \d", line)]
    curves = [[*map(str.strip, line)] for line in lines]
    assert [len({*row[:3]}) for row in (curves[0], curves[-1])] == [1, 1] and len(curves) == 4
    assert [path.name for path in Path("runs/heads-run").iterdir()] == ["table.md"]
    assert out[-1].endswith("of 12 heads can be removed at a cost of at most 0.01 in exact match")


@pytest.mark.parametrize("page, flags, count", [
    (write, "--data text.txt --mixers window,attention --key-value-heads 1 --window 4", 4),
    (write, "--data text.txt --mixers state_space,linear --checkpointing", 2),
    (masked, "--data text.txt --layers 1", 2),
])  # fmt: skip
def test_the_heads_of_models_of_texts(page, flags, count, succeed, call):
    Path("text.txt").write_text(TEXT)
    succeed(page.main, f"{SIZES} {flags} --out run")
    before = task_of(Path("run")).held_out
    out = succeed(heads.main, "--run run --quick --no-plots")
    blind = "left out, because it keeps no maps: self_attention, layer 1"
    assert (blind in out) == ("state_space" in flags)
    assert f"run: {count} heads" in "\n".join(out)
    assert out[-1].endswith(f"of {count} heads can be removed at a cost of at most 0.01 in loss")
    assert sum(len(batch.inputs[0]) for batch in before) > 10
    Path("other.txt").write_text(f"{TEXT}é{TEXT}", encoding="utf-8")
    code, out, err = call(heads.main, "--run run --quick --no-plots --data other.txt")
    assert code == 0 and "examples of other.txt" in "\n".join(out)
    assert len(err) == 1 and "symbols that training never saw, such as 'é'" in err[0]


def test_the_heads_of_a_run_of_a_study(succeed):
    sizes = "--steps 2 --evaluate-every 2 --batch-size 4 --d-model 8 --d-ff 8 --jobs 1 --seeds 1"
    assert induction.main([*sizes.split(), "--no-plots", "--quick", "--out", "study"]) == 0
    flags = "--run study/two-layers-1 --quick --no-plots --out made"
    assert succeed(heads.main, flags)[-1].endswith("at a cost of at most 0.01 in copying")


@pytest.mark.parametrize(("name", "kinds"), [("gpt2", 1), ("bert", 1), ("marian", 3)])
def test_the_heads_of_published_models(name, kinds, call, refuse):
    reason = "the extra published is not installed"
    published = pytest.importorskip("tests.published.published_texts", reason=reason)
    folder = getattr(published, name)(Path(name))
    refuse(
        heads.main,
        f"--run {folder}",
        "only a run of a task in toy_tasks has its own data",
        "--data FILE",
    )
    lines = [f"{a}\t{b}" for a, b in zip(published.LINES, published.LINES[::-1], strict=True)]
    lines = [*lines, "☃\ta"] if kinds == 3 else published.LINES * 9
    Path("file").write_text("\n".join(lines), encoding="utf-8")
    drawn = name in ("gpt2", "marian")
    flags = f"--run {folder} --data file --quick" + " --no-plots" * (not drawn)
    code, out, err = call(heads.main, flags)
    assert code == 0 and "examples of file" in out[0]
    assert ["never saw, such as '☃'" in line for line in err] == [True] * (kinds == 3)
    written = {path.name for path in Path(f"runs/heads-{name}").iterdir()}
    towers = [""] if kinds == 1 else ["encoder-", "decoder-"]
    pictures = {f"{tower}self-attention.png" for tower in towers} | {"removal.png"}
    pictures |= {"decoder-cross-attention.png"} if kinds == 3 else set()
    assert written == {"table.md"} | (pictures if drawn else set())


def test_what_has_no_heads_or_no_data_is_refused(succeed, refuse):
    Path("text.txt").write_text(TEXT)
    succeed(write.main, f"{SIZES} --data text.txt --mixers state_space --out blind")
    refuse(
        heads.main,
        "--run blind",
        "a model to study saves attention maps",
        "a LanguageModel without",
    )
    succeed(write.main, f"{SIZES} --data text.txt --out run")
    refuse(heads.main, "--run none", "best.safetensors")
    refuse(heads.main, "--run run --quick --out blind", "new or empty; received blind")
    refuse(heads.main, "--run run --examples 0", "--examples is from 1 to 10,000")
    refuse(heads.main, "--run run --orders -1", "--orders is from 0 to 100")
    refuse(heads.main, "--run run --data none.txt", "none.txt must be a file")
    Path("short.txt").write_text("the cat")
    refuse(heads.main, "--run run --data short.txt", "two windows and one")
    Path("text.txt").write_text(TEXT.replace("cat", "fox"))
    refuse(heads.main, "--run run", "the symbols that the run was trained on", "received 'f'")
    Path("text.txt").unlink()
    refuse(heads.main, "--run run", "text.txt must be a file")
    Path("run/config.json").unlink()
    refuse(heads.main, "--run run", "which names no such task", "--data FILE")
