"""The language model looks back only and writes from its cache; its script learns any text."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.generation import beam_search, greedy
from numformer.layer import inference, pack
from numformer.models.language_model import LanguageModel
from numformer.training import load_model, save_model
from toy_tasks.write import WritingTask, go_on, main

V, IDS = 9, np.array([[4, 7, 5, 8, 6], [5, 4, 4, 6, 7], [8, 8, 5, 4, 4]])
TEXT = "the cat sat on the mat. a dog ran. \n" * 40
TINY = "--context 8 --d-model 8 --d-ff 8 --heads 2 --layers 1 --batch-size 4 --quick --length 20"
TINY = TINY.split()
pytestmark = pytest.mark.usefixtures("empty_folder")

in_every_form = pytest.mark.parametrize(
    "form", [{}, dict(norm="pre"), dict(positions="learned", max_length=9)], ids=str
)


def small(**changes) -> LanguageModel:
    sizes = dict(vocabulary=V, d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0)
    model = LanguageModel(LanguageModel.Config(**(sizes | changes)))
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


@in_every_form
def test_no_position_sees_the_future_and_every_one_sees_its_past(form):
    model, logits = small(**form), small(**form).forward(IDS)
    for t in range(5):
        changed = IDS.copy()
        changed[:, t] = 3
        found = model.forward(changed)
        assert_array_equal(found[:, :t], logits[:, :t])
        assert (found[:, t:] != logits[:, t:]).any(axis=-1).all()


@in_every_form
@pytest.mark.parametrize("beginning", [1, 3])
def test_writing_from_the_cache_equals_reading_the_whole(form, beginning):
    """Also for rows that are chosen on the way."""
    model, chosen = small(**form), np.array([2, 2, 0])
    with inference():
        whole = model.forward(IDS)
        state = model.start(IDS[:, :beginning], 5 - beginning)
        assert_array_equal(state.ids, IDS[:, beginning - 1])
        for t in range(beginning - 1, 3):
            assert_allclose(model.step(IDS[:, t], state), whole[:, t], rtol=1e-10, atol=1e-12)
        state.choose(chosen)
        found = model.step(IDS[chosen, 3], state)
    assert_allclose(found, whole[chosen, 3], rtol=1e-10, atol=1e-12)


def test_greedy_and_beam_search_serve_it_and_a_beam_is_no_worse():
    model = small()

    def probability(rows):
        ids = np.array([[*row, *found] for row, found in zip(IDS[:, :2], rows, strict=True)])
        with inference():
            logits = model.forward(ids[:, :-1])
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return np.take_along_axis(log_p, ids[:, 1:, None], axis=-1)[:, 1:].sum(axis=(1, 2))

    model.output.weight.data[2] -= 9  # the end id is never written, so that all are of one length
    found = [search(model, IDS[:, :2], 3) for search in (greedy, beam_search)]
    assert all(len(ids) == 3 for rows in found for ids in rows)
    assert (probability(found[1]) >= probability(found[0]) - 1e-12).all()


def test_a_saved_language_model_is_one_again():
    model = small()
    pack(model)
    save_model(Path("model.safetensors"), model)
    again, metadata = load_model(Path("model.safetensors"))
    assert metadata["model"] == "language_model" and type(again) is LanguageModel
    assert_array_equal(again.forward(IDS), model.forward(IDS))
    matrices = [p.size for p in model.named_parameters().values() if len(p.shape) > 1]
    assert model.config.least_parameters == sum(matrices)


def test_windows_are_followed_by_themselves_and_none_is_held_out():
    task = WritingTask(TEXT, 8, 5, seed=1)
    for step in (1, 2):
        ids, following = task.batch(step).inputs
        assert_array_equal(ids[:, 1:], following[:, :-1])
        assert ids.shape == following.shape == (5, 8)
    assert (task.batch(1).ids != task.batch(2).ids).any()
    assert_array_equal(np.r_[task.training, task.held_out], task.vocabulary.encode(TEXT))
    ranges = []
    task.windows = lambda ids, starts: ranges.append((ids is task.training, starts.max())) or 1
    task.batch(3)
    assert ranges[0][0] and ranges[0][1] + 8 < len(task.training)


def test_the_measure_is_the_mean_over_all_windows_of_the_held_out_part():
    task, model = WritingTask(TEXT * 10, 8, 4, seed=1), small(vocabulary=len({*TEXT}) + 4)
    with inference():
        found = task.evaluate(model)["held_out_loss"]
        starts = np.arange(0, len(task.held_out) - 8, 8)
        assert len(starts) > 64
        whole = model.objective().forward(*task.windows(task.held_out, starts).inputs)
    assert found == pytest.approx(whole)


@pytest.mark.parametrize("context", [1, 2, 5, 64])
def test_it_writes_on_beyond_its_context(context):
    symbols = sorted({*TEXT})
    model = small(vocabulary=len(symbols) + 4)
    model.output.weight.data[:4] = 0  # no special symbol is ever the most probable one
    model.output.weight.data[4:] += 1
    found = go_on(model, symbols, context, "the cat", 30)
    assert found.startswith("the cat") and len(found) == 37


def test_a_text_is_learned_and_the_run_goes_on_from_a_prompt(call):
    Path("text.txt").write_text(TEXT)
    code, out, err = call(main, "--data", "text.txt", *TINY)
    assert (code, err) == (0, [])
    assert re.fullmatch(r"held-out loss \d\.\d{4}", out[-1])
    run = Path("runs/write")
    assert {"best.safetensors", "config.json", "loss.png"} <= {path.name for path in run.iterdir()}
    measured = float(out[-1].split()[-1])
    assert load_model(run / "best.safetensors")[1]["best"]["held_out_loss"] == pytest.approx(
        measured, abs=1e-4
    )
    code, out, err = call(main, "--run", str(run), "--prompt", "the ç", "--length", "12")
    assert code == 0 and err == ["note: training never saw 'ç'"]
    assert "\n".join(out).startswith("the ç") and len("\n".join(out)) == 5 + 12
    assert call(main, "--resume")[0] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "a text to learn from, or a run to use"),
        ("--data text.txt --run runs/write", "a text to learn from, or a run to use"),
        ("--data text.txt --context 0", "--context 0"),
        ("--data none.txt", "none.txt must be a file"),
        ("--data short.txt", "20 times the 65 characters"),
        ("--data latin.txt", "line 2 must be UTF-8"),
        ("--data text.txt --positions learned --max-length 7 --context 8", "max_length = 7"),
        ("--run none --prompt a", "no file"),
        ("--run runs/write", "goes on from a --prompt"),
        ("--run runs/write --prompt a --length 0", "--length 0"),
        ("--run other --prompt a", "names a run of write"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_without_a_trace(call, flags, said):
    Path("text.txt").write_text(TEXT)
    Path("short.txt").write_text("short")
    Path("latin.txt").write_bytes(b"a\n\xe9")
    for name in ("runs/write", "other"):
        Path(name).mkdir(parents=True)
        task = {"name": Path(name).name, "symbols": ["a"], "context": 8}
        model = small(vocabulary=5)
        pack(model)
        save_model(Path(name, "best.safetensors"), model, task=task)
    code, _, err = call(main, *flags.split())
    assert code == 2 and len(err) == 1 and said in err[0]
    assert {path.name for path in Path("runs").iterdir()} == {"write"}
