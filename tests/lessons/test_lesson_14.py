"""Lesson 14: its numbers and claims, computed again another way."""

import re

import numpy as np
import pytest
from lesson_solutions import words_of

import lessons
from lessons.lesson_14 import ring, timelines, wires
from lessons.lesson_14.exercises import machines_backward, reduce_scatter
from lessons.lesson_14.pipeline import bubble


@pytest.mark.parametrize("way", ["ring", "one"])
@pytest.mark.parametrize("machines", [2, 3, 4, 5, 6])
def test_shares_are_in_a_sum_once_and_all_end_with_all(machines, way):
    given, last = ring.gradients(machines), 2 * (machines - 1)
    expected = [[x * ring.ERRORS[r] for x in ring.EXAMPLES[r, :machines]] for r in range(machines)]
    np.testing.assert_array_equal(given, expected)
    for step in range(2 * ring.MOST - 1):
        found = ring.compute(step, machines, way)
        # What a chunk holds is the sum of those whose stripes it has.
        np.testing.assert_array_equal(
            found["values"], np.einsum("rcn,nc->rc", found["whose"], given)
        )
        assert found["changed"].any() == (len(found["moves"]) > 0) == (0 < step <= last)
        for source, to, chunk, value, *stripes in found["moves"]:
            assert source != to and np.array(stripes).any()
            before = ring.compute(step - 1, machines, way)["values"]
            assert value == before[int(source), int(chunk) % machines]
    assert (found["whose"] == 1).all() and found["finished"] == machines**2
    assert ring.NOW[found["now"]] == "all have the sum"
    each_way = machines - 1
    times = 2 * each_way / machines if way == "ring" else 2 * each_way
    np.testing.assert_allclose(found["times"], times)
    np.testing.assert_allclose(found["megabytes"], 2 * each_way * 260)
    np.testing.assert_allclose(found["seconds"], times * 260e6 * 8 / 10e9)


def test_half_a_ring_is_the_library_s_first_half():
    machines = 5
    parts = ring.gradients(machines)
    found = ring.compute(machines - 1, machines)["values"]
    np.testing.assert_array_equal(reduce_scatter(parts[:, :, None])[..., 0], found)
    for r in range(machines):
        chunk = (r + 1) % machines
        assert found[r, chunk] == parts[:, chunk].sum()


def brute_force(layers, bucket, bandwidth, parts=260):
    """The end of a step: the gradient goes a little at a time, no bucket before it is full."""
    whole = 6 * 65e6 * 25_000 / 9.5e12
    now = 0.0
    for first in range(0, parts, per_bucket := round(bucket / 1e6)):
        size = min(per_bucket, parts - first) / parts
        needed = np.ceil((first + size * parts) / parts * layers - 1e-9) / layers
        now = max(now, whole / 3 + 2 / 3 * whole * needed)
        now += 30 * (50e-6 + size * 260e6 / 16 / bandwidth)
    return whole, now


@pytest.mark.parametrize("bandwidth", [1e9 / 8, 1e10 / 8, 1e11 / 8])
@pytest.mark.parametrize("layers", [2, 4, 12])
def test_what_hides_behind_backward(layers, bandwidth):
    for option in timelines.BUCKETS:
        bucket = option.value
        found = timelines.step_of(layers, bucket, bandwidth)
        whole, end = brute_force(layers, bucket, bandwidth)
        np.testing.assert_allclose(found["whole"], end, rtol=1e-3)
        np.testing.assert_allclose(found["after"], end - whole, atol=2e-3)
        count = np.ceil(260e6 / bucket)
        np.testing.assert_allclose(
            found["wire"], 30 * (count * 50e-6 + 260e6 / 16 / bandwidth), rtol=1e-9
        )
        lengths = {name: np.ptp(found[name][:, 1:], axis=1).sum() for name in ("hidden", "waiting")}
        np.testing.assert_allclose(sum(lengths.values()), found["wire"])
        assert lengths["waiting"] <= found["after"] + 1e-9
        assert found["backward"][:, 2].max() == pytest.approx(3 * found["forward"][:, 2].max())


@pytest.mark.parametrize("schedule", ["all", "one"])
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8, 16])
def test_a_pipeline_waits_as_long_as_theory_says_and_holds_no_more(stages, micro_batches, schedule):
    found = timelines.compute(stages, micro_batches, schedule)
    share = bubble(stages, micro_batches)
    np.testing.assert_allclose(found["bubble"], 100 * share)
    np.testing.assert_allclose(found["as_many"], stages * (1 - share))
    most = micro_batches * np.ones(stages)
    if schedule == "one":
        most = np.minimum(most, stages - np.arange(stages))
    np.testing.assert_array_equal(found["held"], most)
    pieces = np.concatenate([found[name] for name in ("forward", "backward", "first")])
    for stage in range(stages):  # nobody does two things at once
        begins, ends = pieces[pieces[:, 0] == stage][:, 1:].T
        order = np.argsort(begins, kind="stable")
        assert (begins[order][1:] >= ends[order][:-1] - 1e-9).all()


def test_the_arithmetic_of_wires():
    for gigabits in (1, 10, 100):
        limit = wires.fed(gigabits * wires.GIGABIT)
        for parameters in wires.PARAMETERS.values():
            for machines in (1, 2, 64, 256):
                seconds = 6 * parameters * 25_000 / 9.5e12
                sent = 2 * (machines - 1) / machines * 32 * parameters / (gigabits * 1e9)
                gained = seconds / (seconds / machines + sent)
                speeds = wires.speed(parameters, machines, gigabits * wires.GIGABIT)
                np.testing.assert_allclose(speeds, gained)
                np.testing.assert_allclose(speeds, machines / (1 + (machines - 1) / limit))
                hidden = wires.speed(parameters, machines, gigabits * wires.GIGABIT, hidden=True)
                best = min(machines, seconds / (sent + seconds / machines / 3))
                np.testing.assert_allclose(hidden, best)
        # With K + 1 machines sending takes as long as computing.
        machines = limit + 1
        np.testing.assert_allclose(
            wires.sending(1, machines, gigabits * wires.GIGABIT),
            wires.computing(1, wires.TOKENS / machines),
        )


def test_the_timeline_s_batch_is_larger_and_so_is_its_speed():
    """16 machines with 25,000 tokens each: the formula with K of a batch 16 times as large."""
    limit = 16 * wires.fed(10 * wires.GIGABIT)
    found = timelines.step_of(12, timelines.GRADIENT, 10 * wires.GIGABIT)["as_many"]
    assert found == pytest.approx(16 / (1 + 15 / limit), rel=0.01)
    words = words_of(14, "what_is_gained")
    assert f"{limit:.0f} at 10 Gbit/s" in words and f"{found:.1f} times as fast" in words


def test_parts_of_a_layer_have_the_gradients_of_the_whole(rng):
    x, inner, outer = (rng.standard_normal(size) for size in ((5, 4), (3, 4, 2), (3, 2, 4)))
    dy = rng.standard_normal((5, 4))
    whole = np.concatenate(inner, axis=1), np.concatenate(outer)
    dx, dinner, douter = machines_backward(dy, x, inner, outer)
    hidden = np.maximum(x @ whole[0], 0)
    dbefore = (dy @ whole[1].T) * (hidden > 0)
    np.testing.assert_allclose(dx, dbefore @ whole[0].T)
    np.testing.assert_allclose(np.concatenate(dinner, axis=1), x.T @ dbefore)
    np.testing.assert_allclose(np.concatenate(douter), hidden.T @ dy)


def test_what_the_text_says_of_the_example_and_of_batches():
    path = lessons.load(14).__file__
    with open(path, encoding="utf-8") as file:
        text = " ".join(file.read().replace("\n#", " ").split())
    x, dy = ring.EXAMPLES[0, :4], ring.ERRORS[0]
    numbers = ", ".join(f"{value:.0f}" for value in x)
    assert f"$x = ({numbers})$" in text and f"$\\mathrm{{d}}y = {dy:.0f}$" in text
    numbers = ", ".join(f"{value:.0f}" for value in x * dy)
    assert f"\\mathrm{{d}}y = ({numbers})$" in text
    steps = wires.steps_to_learn()
    assert steps == sorted(steps, reverse=True) and len(steps) == len(wires.BATCHES)
    words = words_of(14, "larger_batches")
    found = [int(n) for n in re.findall(r"from (\d+) to (\d+)", words)[0]]
    assert found == steps[:2]


def test_the_stored_steps_are_those_of_today():
    """Nearly, for the batch that is the quickest to try."""
    assert wires.train(32) == pytest.approx(wires.steps_to_learn()[2], rel=0.1)
